//! What `docs/guide/rebuilds.md` shows in Rust.

use everfold::Store;

use crate::fixture::{Fixture, append, caught_up, counted, on_every_store};
use crate::pages::guide_rust::count;

on_every_store!(rebuild_with_progress);

async fn rebuild_with_progress(fixture: Fixture) {
    let store = fixture.store().await;
    append(&store, "a", counted(1..=3)).await;
    caught_up(&store, &count("counts", 1)).await;
    rebuild(&store).await.unwrap();
    assert_eq!(store.projection("counts").await.unwrap().version, 2);
}

async fn rebuild(store: &Store) -> Result<(), everfold::Error> {
    let version_2 = count("counts", 2);

    // page: rebuild_with_progress
    use everfold::RebuildOptions;
    use futures::StreamExt;

    store.register(version_2).await?;
    let mut options = RebuildOptions::default();
    options.events_per_second = Some(20_000);
    let mut rebuild = store.rebuild("counts", options).await?;
    while let Some(progress) = rebuild.next().await {
        println!("{} {} of {}", progress.phase, progress.events_done, progress.events_total);
    }
    let done = rebuild.finish().await?;
    println!("readers see version {}", done.version);
    // end
    Ok(())
}
