//! Import of JSON lines: bounded chunks, resumable, never naming positions.
//!
//! Lines are read and checked on a blocking thread while the chunk before is being stored. Each
//! chunk is one transaction that stores its events and moves the import's progress, so an import
//! that was stopped anywhere goes on just behind what is stored.

mod line;
mod source;

use std::io::BufRead;

use serde::Serialize;
use tokio::sync::mpsc;

use crate::error::ImportError;
use crate::store::{StagedImport, Store};

pub(crate) use line::ImportLine;

/// How an import is done ([`Store::import`]). `ImportOptions::default()` is meant to be right for most.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ImportOptions {
    /// Give every event the next version of its stream, also where its line names another one.
    /// Default: false, a line's `version` must be the one it gets.
    pub renumber: bool,
    /// Read and check every line, and store nothing. Default: false. Whether an id or a version is taken
    /// shows only when lines are stored.
    pub dry_run: bool,
    /// Most events in one transaction: 5,000.
    pub chunk_events_max: usize,
    /// Most bytes of lines in one transaction: 4 MiB.
    pub chunk_bytes_max: usize,
    /// Most different streams in one transaction, each of which is locked: 2,000.
    pub chunk_streams_max: usize,
}

impl Default for ImportOptions {
    fn default() -> Self {
        ImportOptions {
            renumber: false,
            dry_run: false,
            chunk_events_max: 5_000,
            chunk_bytes_max: 4 * 1024 * 1024,
            chunk_streams_max: 2_000,
        }
    }
}

/// How far an import has come: everything up to here is committed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct ImportProgress {
    /// Lines.
    pub lines: u64,
    /// Bytes of the source.
    pub bytes: u64,
    /// Tells whether the last line is still the same.
    #[serde(skip)]
    pub(crate) last_line_hash: String,
}

/// What an import did, this time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Imported {
    /// Events stored; on a dry run those that would be, as far as that can be told.
    pub stored: u64,
    /// Events that were there already, by id and content.
    pub repeated: u64,
    /// Lines that an earlier run had done.
    pub resumed_after: u64,
    /// Where it ended.
    pub progress: ImportProgress,
}

/// Lines to be stored in one transaction, and what the progress is before and after.
pub(crate) struct ImportChunk {
    pub(crate) name: String,
    pub(crate) from_lines: u64,
    pub(crate) to: ImportProgress,
    pub(crate) lines: Vec<ImportLine>,
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImportedChunk {
    pub(crate) stored: u64,
    pub(crate) repeated: u64,
}

/// A chunk that is ready, and the progress it stands for.
type Staged = (Box<dyn StagedImport>, ImportProgress);

async fn store_staged(
    staged: Option<Staged>,
) -> Result<Option<(ImportedChunk, ImportProgress)>, ImportError> {
    match staged {
        Some((staged, to)) => Ok(Some((staged.store().await?, to))),
        None => Ok(None),
    }
}

impl Store {
    /// Gets the next chunk ready; an error in it is kept until the chunk before is stored.
    async fn stage(
        &self,
        chunk: Result<Option<ImportChunk>, ImportError>,
    ) -> Result<Option<Staged>, ImportError> {
        match chunk? {
            Some(chunk) => {
                let to = chunk.to.clone();
                Ok(Some((self.backend().stage_import(chunk).await, to)))
            }
            None => Ok(None),
        }
    }

    /// Imports JSON lines, each `{"stream_id", "type", "data", "metadata"?, "id"?,
    /// "schema_version"?, "version"?, "recorded_at"?}` as `everfold export` writes them. A
    /// `position` is read over: every store draws its own.
    ///
    /// The progress is kept under `name`. An import that stopped goes on behind the last committed
    /// line when it is run again with the same name and source; a line without an id gets one made
    /// of name, line number and content, so that repeating it stores nothing twice.
    /// `progress` is called after every transaction. Dropping the future stops the import behind what
    /// is committed.
    ///
    /// ```
    /// use std::io::Cursor;
    ///
    /// use everfold::ImportOptions;
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # #[tokio::main] async fn main() -> Result<(), everfold::Error> {
    /// # let (_folder, store) = open().await;
    /// let lines = concat!(
    ///     r#"{"stream_id": "order-1", "type": "OrderPlaced", "data": {"total": 1999}}"#, "\n",
    ///     r#"{"stream_id": "order-1", "type": "OrderPaid", "data": {}}"#, "\n",
    /// );
    /// let report = |progress: &everfold::ImportProgress| println!("{} lines", progress.lines);
    /// let imported =
    ///     store.import("orders.jsonl", Cursor::new(lines), ImportOptions::default(), report).await?;
    /// assert_eq!(imported.stored, 2);
    ///
    /// // Run again, it goes on where it ended.
    /// let imported =
    ///     store.import("orders.jsonl", Cursor::new(lines), ImportOptions::default(), report).await?;
    /// assert_eq!((imported.stored, imported.resumed_after), (0, 2));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`ImportError::Line`] names the first line that cannot be stored. Lines before it stay
    /// committed: all of them if it cannot be read as an event, those of earlier transactions if the
    /// database refuses it (an id or a version that is taken). Mend it and run the import again.
    /// [`ImportError::OtherSource`] if the source is not the one that was begun under this name,
    /// [`ImportError::UnderWay`] if another process imports under it, [`ImportError::Source`] if it cannot
    /// be read, [`ImportError::Store`] if the database refuses or cannot be reached.
    pub async fn import(
        &self,
        name: &str,
        source: impl BufRead + Send + 'static,
        options: ImportOptions,
        mut progress: impl FnMut(&ImportProgress) + Send,
    ) -> Result<Imported, ImportError> {
        let before = self.backend().import_progress(name.to_owned()).await?;
        let mut imported = Imported {
            stored: 0,
            repeated: 0,
            resumed_after: before.lines,
            progress: before.clone(),
        };
        progress(&before);
        let dry_run = options.dry_run;
        let (sender, mut chunks) = mpsc::channel(1);
        let reader = source::Reader {
            name: name.to_owned(),
            options,
            limits: self.options().limits.clone(),
            before,
        };
        let reading = tokio::task::spawn_blocking(move || {
            if let Err(error) = reader.read(source, &sender) {
                // The receiver is gone only when the import itself has failed.
                let _ = sender.blocking_send(Err(error));
            }
        });
        while dry_run && let Some(chunk) = chunks.recv().await.transpose()? {
            imported.stored += chunk.lines.len() as u64;
            imported.progress = chunk.to;
            progress(&imported.progress);
        }
        // One chunk is stored while the next one is read and staged, however long that takes.
        let mut staged: Option<Staged> = None;
        loop {
            let storing = async {
                if let Some((done, to)) = store_staged(staged.take()).await? {
                    imported.stored += done.stored;
                    imported.repeated += done.repeated;
                    imported.progress = to;
                    progress(&imported.progress);
                }
                Ok::<_, ImportError>(())
            };
            let staging = async { self.stage(chunks.recv().await.transpose()).await };
            let (stored, next) = tokio::join!(storing, staging);
            stored?;
            match next? {
                Some(next) => staged = Some(next),
                None => break,
            }
        }
        if let Err(panic) = reading.await {
            std::panic::resume_unwind(panic.into_panic());
        }
        Ok(imported)
    }
}
