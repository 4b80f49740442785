//! A fresh store of each kind for every test, and short ways to say what a test does with it.

use everfold::sqlite::rusqlite;
use everfold::sqlite::rusqlite::types::ValueRef;
use everfold::{
    AppendError, Appended, ExpectedVersion, NewEvent, Projection, ProjectionError, RecordedEvent,
    Runner, Store, StoreOptions,
};
use everfold_testkit::{PgBouncer, Server, TestDatabase};
use serde_json::Value;
use tokio::sync::Mutex;

/// Runs each test on every kind of store, as `<test>::sqlite`, `<test>::postgres` and
/// `<test>::pgbouncer`.
macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {$(
        mod $test {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$test($crate::fixture::Fixture::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                super::$test($crate::fixture::Fixture::postgres().await).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn pgbouncer() {
                super::$test($crate::fixture::Fixture::pgbouncer().await).await;
            }
        }
    )*};
}
pub(crate) use on_every_store;

/// One pooler for all tests of this process, and how many came before it.
static POOLER: Mutex<(Option<PgBouncer>, u32)> = Mutex::const_new((None, 0));

/// More that stop answering are no accident.
const POOLERS_MAX: u32 = 3;

/// The URL of a database through the pooler of all tests. One that does not answer is told of and replaced:
/// hundreds of tests behind it would each wait for a connection in vain.
async fn through_pooler(database: &str) -> String {
    let mut shared = POOLER.lock().await;
    let (pooler, started) = &mut *shared;
    if let Some(silent) = pooler
        && !silent.answers().await
    {
        eprintln!("pgbouncer does not answer and is started anew; its log:\n{}", silent.log());
        assert!(*started < POOLERS_MAX, "{started} poolers have stopped answering");
        *pooler = None;
    }
    if pooler.is_none() {
        *started += 1;
    }
    let start = || PgBouncer::start(Server::shared());
    let pooler =
        pooler.get_or_insert_with(|| start().expect("pgbouncer starts (Debian package pgbouncer)"));
    pooler.url(database)
}

/// A place where a store can be opened; whatever keeps it alive goes with it.
pub(crate) struct Fixture {
    pub(crate) url: String,
    keep: Keep,
}

enum Keep {
    Folder { _removed_on_drop: tempfile::TempDir },
    Database(TestDatabase),
}

impl Fixture {
    pub(crate) fn sqlite() -> Fixture {
        let folder = tempfile::tempdir().expect("a temp folder can be made");
        let url = format!("sqlite:{}", folder.path().join("store.db").display());
        Fixture { url, keep: Keep::Folder { _removed_on_drop: folder } }
    }

    pub(crate) async fn postgres() -> Fixture {
        let database = TestDatabase::create().await;
        Fixture { url: database.url(), keep: Keep::Database(database) }
    }

    pub(crate) async fn pgbouncer() -> Fixture {
        let database = TestDatabase::create().await;
        let url = through_pooler(database.name()).await;
        Fixture { url, keep: Keep::Database(database) }
    }

    /// The database behind the store, on PostgreSQL.
    pub(crate) fn database(&self) -> &TestDatabase {
        match &self.keep {
            Keep::Database(database) => database,
            Keep::Folder { .. } => panic!("a SQLite store has no database server"),
        }
    }

    pub(crate) fn into_database(self) -> TestDatabase {
        match self.keep {
            Keep::Database(database) => database,
            Keep::Folder { .. } => panic!("a SQLite store has no database server"),
        }
    }

    pub(crate) fn is_sqlite(&self) -> bool {
        matches!(self.keep, Keep::Folder { .. })
    }

    /// Runs statements beside the store: the first on PostgreSQL, the second on SQLite.
    pub(crate) async fn execute(&self, postgres: &str, sqlite: &str) {
        match &self.keep {
            Keep::Database(database) => {
                database
                    .connect()
                    .await
                    .batch_execute(postgres)
                    .await
                    .expect("the statement works");
            }
            Keep::Folder { .. } => {
                self.sqlite_connection().execute_batch(sqlite).expect("the statement works");
            }
        }
    }

    /// Rows of two columns of a read model, by the first.
    pub(crate) async fn pairs(&self, table: &str, key: &str, value: &str) -> Vec<(String, i64)> {
        match &self.keep {
            Keep::Database(database) => {
                let sql = format!("SELECT {key}, {value} FROM read_model.{table} ORDER BY 1");
                let rows = database.connect().await.query(&sql, &[]).await.unwrap();
                rows.iter().map(|row| (row.get(0), row.get(1))).collect()
            }
            Keep::Folder { .. } => {
                let sql = format!("SELECT {key}, {value} FROM read_model_{table} ORDER BY 1");
                let connection = self.sqlite_connection();
                let mut statement = connection.prepare(&sql).unwrap();
                let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
                rows.map(Result::unwrap).collect()
            }
        }
    }

    /// Runs a statement on the tables of a projection's only generation; `{}` comes before a name.
    pub(crate) async fn execute_in(&self, projection: &str, sql: &str) {
        let home = format!(
            "SELECT home FROM everfold{} g JOIN everfold{} p ON p.id = g.projection WHERE name = '{projection}' \
             AND g.status <> 'spare'",
            if self.is_sqlite() { "_generations" } else { ".generations" },
            if self.is_sqlite() { "_projections" } else { ".projections" },
        );
        match &self.keep {
            Keep::Database(database) => {
                let client = database.connect().await;
                let home: String = client.query_one(&home, &[]).await.unwrap().get(0);
                client.batch_execute(&sql.replace("{}", &format!("{home}."))).await.unwrap();
            }
            Keep::Folder { .. } => {
                let connection = self.sqlite_connection();
                let home: String = connection.query_row(&home, [], |row| row.get(0)).unwrap();
                connection.execute_batch(&sql.replace("{}", &home)).unwrap();
            }
        }
    }

    fn sqlite_connection(&self) -> everfold::sqlite::rusqlite::Connection {
        let path = self.url.strip_prefix("sqlite:").expect("it is a SQLite URL");
        let connection = everfold::sqlite::rusqlite::Connection::open(path).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
        connection
    }

    /// Gives all leases to another worker, for some time from now.
    pub(crate) async fn take_lease(&self, worker: &str, ttl: std::time::Duration) {
        let ttl = ttl.as_secs();
        self.execute(
            &format!(
                "UPDATE everfold.checkpoints SET owner = '{worker}', epoch = epoch + 1, \
                 expires_at = clock_timestamp() + interval '{ttl} s'"
            ),
            &format!(
                "UPDATE everfold_checkpoints SET owner = '{worker}', epoch = epoch + 1, \
                 expires_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + {ttl} * 1000"
            ),
        )
        .await;
    }

    pub(crate) async fn store(&self) -> Store {
        self.store_with(|_| {}).await
    }

    pub(crate) async fn store_with(&self, change: impl FnOnce(&mut StoreOptions)) -> Store {
        let mut options = StoreOptions::default();
        options.migrate = Some(true);
        options.pool_size = 4;
        change(&mut options);
        Store::open_with(&self.url, options).await.expect("the store opens")
    }

    /// The rows of a query, with `read_model.<table>` for tables on either kind of store.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<Vec<Value>> {
        match self.url.strip_prefix("sqlite:") {
            Some(file) => sqlite_rows(file, &sql.replace("read_model.", "read_model_")),
            None => postgres_rows(self.database(), sql).await,
        }
    }
}

fn sqlite_rows(file: &str, sql: &str) -> Vec<Vec<Value>> {
    let connection = rusqlite::Connection::open(file).expect("the file can be opened");
    let mut statement = connection.prepare(sql).expect("the query is SQL");
    let columns = statement.column_count();
    let row = |row: &rusqlite::Row<'_>| -> rusqlite::Result<Vec<Value>> {
        let column = |column| {
            Ok(match row.get_ref(column)? {
                ValueRef::Null => Value::Null,
                ValueRef::Integer(number) => number.into(),
                ValueRef::Real(number) => number.into(),
                ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
                ValueRef::Blob(_) => panic!("blobs are not for tests"),
            })
        };
        (0..columns).map(column).collect()
    };
    let rows = statement.query_map([], row).expect("the query runs");
    rows.collect::<Result<_, _>>().expect("rows can be read")
}

async fn postgres_rows(database: &TestDatabase, sql: &str) -> Vec<Vec<Value>> {
    let client = database.connect().await;
    let statement = client.prepare(sql).await.expect("the query is SQL");
    let names = statement.columns().iter().map(|column| format!("q.\"{}\"", column.name()));
    let names = names.collect::<Vec<_>>().join(", ");
    let sql = format!("SELECT jsonb_build_array({names}) FROM ({sql}) AS q");
    let rows = client.query(&sql, &[]).await.expect("the query runs");
    rows.iter().map(|row| serde_json::from_value(row.get(0)).expect("an array")).collect()
}

/// Runs a catch-up projection up to the mark.
pub(crate) async fn caught_up(store: &Store, projection: &Projection) {
    let run = Runner::new(store).projection(projection.clone()).run_once();
    run.await.expect("the projection catches up");
}

/// Runs a projection that fails, and returns the reason.
pub(crate) async fn failed(store: &Store, projection: &Projection) -> String {
    let run = Runner::new(store).projection(projection.clone()).run_once();
    match run.await {
        Err(ProjectionError::Failed { reason, .. }) => reason,
        other => panic!("wanted a projection that fails, got {other:?}"),
    }
}

pub(crate) fn event(event_type: &str, data: Value) -> NewEvent {
    NewEvent::new(event_type, &data).expect("JSON values are JSON")
}

/// Events of type `Counted` with rising numbers.
pub(crate) fn counted(numbers: impl IntoIterator<Item = u64>) -> Vec<NewEvent> {
    numbers.into_iter().map(|n| event("Counted", serde_json::json!({ "n": n }))).collect()
}

pub(crate) async fn append(
    store: &Store,
    stream: &str,
    events: impl IntoIterator<Item = NewEvent>,
) -> Appended {
    store.append(stream, ExpectedVersion::Any, events).await.expect("the append is stored")
}

pub(crate) async fn read_stream(store: &Store, stream: &str) -> Vec<RecordedEvent> {
    store.read_stream(stream).collect().await.expect("the stream can be read")
}

pub(crate) async fn read_all(store: &Store) -> Vec<RecordedEvent> {
    store.read_all().collect().await.expect("the log can be read")
}

/// The numbers of `Counted` events, in the order read.
pub(crate) fn numbers(events: &[RecordedEvent]) -> Vec<u64> {
    let number = |event: &RecordedEvent| {
        let data: Value = event.data_as().expect("data is JSON");
        data["n"].as_u64().expect("data has a number")
    };
    events.iter().map(number).collect()
}

/// (stream, expected, actual) of a version conflict, as text and number.
#[track_caller]
pub(crate) fn conflict(outcome: Result<Appended, AppendError>) -> (String, String, u64) {
    match outcome {
        Err(AppendError::VersionConflict { stream, expected, actual, .. }) => {
            (stream.to_string(), expected.to_string(), actual.0)
        }
        other => panic!("wanted a version conflict, got {other:?}"),
    }
}
