//! Settings of inline projections in Rust, as they are now: another process may have changed them, and
//! it is the handle that appends which acts on them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::generation::Generation;
use crate::error::StoreErrorKind;
use crate::store::{Backend, Carried, jitter};

/// How often they are read.
const EVERY: Duration = Duration::from_secs(2);

/// What a handle was given to apply, by generation.
pub(crate) type Given = Arc<Mutex<HashMap<i32, Carried>>>;

/// Lets appends of a handle follow changes of settings, as long as the store is open.
pub(crate) async fn keep_fresh(backend: Weak<dyn Backend>, given: Given) {
    loop {
        tokio::time::sleep(jitter(EVERY)).await;
        let Some(backend) = backend.upgrade() else { return };
        match backend.generations().await {
            Ok(generations) => {
                for carried in changed(&given, generations) {
                    backend.carry(carried);
                }
            }
            Err(error) if error.kind() == StoreErrorKind::HandleClosed => return,
            Err(error) => tracing::debug!(%error, "settings of projections could not be read"),
        }
    }
}

/// Those of the given ones that another process has changed.
fn changed(given: &Given, generations: Vec<Generation>) -> Vec<Carried> {
    let mut given = given.lock().expect("nothing panics with this locked");
    let mut changed = Vec::new();
    for generation in generations {
        let Some(known) = given.get_mut(&generation.id) else { continue };
        if known.generation.settings != generation.settings {
            known.generation = Arc::new(generation);
            changed.push(known.clone());
        }
    }
    changed
}
