//! The failure: an append that holds the gates is prepared for a two-phase commit, and its session goes
//! away. Nobody is connected who could be asked to end.
//!
//! At risk: its event, which is committed after everybody has stopped waiting.
//!
//! Guaranteed (G3, G4): the fence does not get past it and says its name; the way without the fence
//! waits until it is settled, under whichever name it is held.

use super::run;
use super::scene::{NO_DIFFERENCES, Scene, append, impatient};
use crate::error::StoreErrorKind;
use crate::projection::job::{SwitchStep, Switched};
use crate::projection::projector::ApplyError;
use crate::store::GateHolder;

const DONE: Switched = Switched::Done { events: 0 };

impl Scene {
    /// An append that is prepared, without a session; its name.
    async fn prepared(&self, stream: &str) -> String {
        let session = self.append_in_flight(stream).await;
        // Names are the server's, not the database's.
        let name = format!("{}-{stream}", self.bench.database.name());
        run(&session, &format!("PREPARE TRANSACTION '{name}'")).await;
        name
    }

    async fn holders(&self) -> Vec<GateHolder> {
        self.bench.store.gate_holders(vec![self.source.id, self.target.id]).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fence_names_a_prepared_append_and_gets_through_when_it_is_settled() {
    for (settle, events) in [("COMMIT", 2), ("ROLLBACK", 1)] {
        let scene = Scene::inline().await;
        scene.feed(&scene.target).await;
        let before = scene.everything().await;
        let name = scene.prepared("a").await;
        let refused = scene.try_step(SwitchStep::Flip, impatient()).await;
        assert!(
            matches!(&refused, Err(ApplyError::Store(e)) if e.kind() == StoreErrorKind::Busy),
            "{refused:?}"
        );
        assert_eq!(scene.everything().await, before);
        let holders = scene.holders().await;
        assert_eq!(holders.len(), 1, "{holders:?}");
        let said = &holders[0].description;
        assert!(said.starts_with(&format!("prepared transaction '{name}'")), "{said}");
        append(&scene.bench.session, "b").await;

        run(&scene.bench.session, &format!("{settle} PREPARED '{name}'")).await;
        assert_eq!(scene.step(SwitchStep::Flip).await, Switched::Done { events });
        assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES, "{settle}");
        assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES, "{settle}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_append_is_a_holder_until_it_is_settled_without_the_fence() {
    for settle in ["COMMIT", "ROLLBACK"] {
        let scene = Scene::inline().await;
        scene.feed(&scene.target).await;
        // One decided before skips are recorded, one after.
        let before = scene.prepared("a").await;
        assert_eq!(scene.step(SwitchStep::Record).await, DONE);
        let after = scene.prepared("b").await;
        assert_eq!(scene.holders().await.len(), 2);
        run(&scene.bench.session, &format!("{settle} PREPARED '{before}'")).await;
        let left = scene.holders().await;
        assert!(left.len() == 1 && left[0].description.contains(&after), "{left:?}");

        let past = scene.bench.store.heads().await.unwrap().highest;
        scene.feed(&scene.target).await;
        assert_eq!(scene.step(SwitchStep::FlipUnfenced { past }).await, DONE);
        run(&scene.bench.session, &format!("{settle} PREPARED '{after}'")).await;
        assert_eq!(scene.holders().await, []);
        let owed = u64::from(settle == "COMMIT");
        assert_eq!(scene.drain(&scene.target).await, owed);
        assert_eq!(scene.differences(&scene.target).await, NO_DIFFERENCES, "{settle}");
        assert_eq!(scene.differences(&scene.source).await, NO_DIFFERENCES, "{settle}");
    }
}
