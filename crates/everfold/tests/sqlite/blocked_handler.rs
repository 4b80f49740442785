//! A handler that blocks its thread holds the one writer of its process. At risk: appends that wait
//! for ever, or that are stored after their callers were told that they were not. Guaranteed: they
//! end with an error that says what became of them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everfold::sqlite::{SqliteHandler, rusqlite};
use everfold::{
    AppendError, ExpectedVersion, HandlerBatch, HandlerBody, HandlerError, NewEvent, Projection,
    ProjectionBuilder, Store, StoreErrorKind, StreamAppend,
};
use everfold_testkit::eventually;

use crate::fixture::{Place, event};
use crate::projections::{LONG, run};

/// Says that it is inside, and stays there until it is told to go on.
struct Blocking {
    inside: Sender<()>,
    go_on: Arc<Mutex<Receiver<()>>>,
}

impl SqliteHandler for Blocking {
    fn set_up(&self, _: &str, _: &rusqlite::Connection) -> Result<(), HandlerError> {
        Ok(())
    }

    fn apply(&self, _: HandlerBatch<'_>, _: &rusqlite::Connection) -> Result<(), HandlerError> {
        // Both ends are gone when the test has failed.
        let _ = self.inside.send(());
        let _ = self.go_on.lock().unwrap().recv();
        Ok(())
    }
}

/// The test's ends: it is inside, and go on.
struct Ends(Receiver<()>, Sender<()>);

fn blocking() -> (ProjectionBuilder<HandlerBody>, Ends) {
    let ((inside, is_inside), (tell, go_on)) = (channel(), channel());
    let handler = Blocking { inside, go_on: Arc::new(Mutex::new(go_on)) };
    let builder = Projection::sqlite_handler("blocking", 1, handler).events(["Blocks"]);
    (builder, Ends(is_inside, tell))
}

fn blocks() -> NewEvent {
    NewEvent::from_json("Blocks", "{}").unwrap()
}

async fn impatient(place: &Place) -> Store {
    place.open_with(|options| options.request_timeout = Duration::from_millis(300)).await
}

fn kind(error: &AppendError) -> StoreErrorKind {
    let AppendError::Store(error) = error else { panic!("{error:?}") };
    error.kind()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_behind_a_handler_that_blocks_end_and_are_not_stored() {
    let place = Place::new();
    let store = impatient(&place).await;
    let (builder, Ends(is_inside, go_on)) = blocking();
    let runner = run(&store, builder.build().unwrap()).await;
    store.append("a", ExpectedVersion::Any, [blocks()]).await.unwrap();
    tokio::task::block_in_place(|| is_inside.recv_timeout(LONG)).unwrap();

    let error = store.append("b", ExpectedVersion::Any, [event()]).await.unwrap_err();
    assert_eq!(kind(&error), StoreErrorKind::Busy);
    assert!(error.to_string().contains("handler that does not come back"), "{error}");
    let many = [StreamAppend::new("c", ExpectedVersion::Any, [event()])];
    let error = store.append_many(many).await.unwrap_err();
    assert_eq!(kind(&error), StoreErrorKind::Busy);

    // It is called again, because it took too long.
    drop(go_on);
    let stored = async || store.append("d", ExpectedVersion::Any, [event()]).await.is_ok();
    eventually("appends go on", LONG, stored).await;
    for stream in ["b", "c"] {
        assert_eq!(store.stream_version(stream).await.unwrap().0, 0, "{stream}");
    }
    runner.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_whose_inline_handler_blocks_ends_as_unknown() {
    let place = Place::new();
    let store = impatient(&place).await;
    let (builder, Ends(is_inside, go_on)) = blocking();
    store.register(builder.inline().build().unwrap()).await.unwrap();
    let blocks = blocks();
    let error = store.append("a", ExpectedVersion::Any, [blocks.clone()]).await.unwrap_err();
    assert_eq!(kind(&error), StoreErrorKind::Closed);
    assert!(error.to_string().contains("same event ids again"), "{error}");
    is_inside.recv_timeout(LONG).unwrap();
    drop(go_on);
    let again = async || store.append("a", ExpectedVersion::Any, [blocks.clone()]).await.is_ok();
    eventually("it is found to be stored, or stored", LONG, again).await;
    assert_eq!(store.stream_version("a").await.unwrap().0, 1);
}
