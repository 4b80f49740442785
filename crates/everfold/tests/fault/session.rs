//! Stores and raw sessions for the stories: the one is what users have, the other is what a second
//! application, an operator or a wrong variant does beside it.

use std::time::{Duration, Instant};

use everfold::{NewEvent, Pooler, Store, StoreOptions};
use everfold_testkit::{TestDatabase, eventually};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// Longest wait for something that normally takes moments; machines that run tests are busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Opens a store, with its schema, on a database.
pub(crate) async fn open(url: &str) -> Store {
    open_with(url, |_| {}).await
}

pub(crate) async fn open_with(url: &str, change: impl FnOnce(&mut StoreOptions)) -> Store {
    let mut options = StoreOptions::default();
    options.migrate = Some(true);
    options.pooler = Pooler::Direct;
    change(&mut options);
    Store::open_with(url, options).await.expect("the store opens")
}

/// A database with the schema and nothing in it.
pub(crate) async fn empty_store() -> TestDatabase {
    let database = TestDatabase::create().await;
    open(&database.url()).await.close().await;
    database
}

/// An event with data that can be recognised.
pub(crate) fn event(token: &str) -> NewEvent {
    NewEvent::new("Happened", &serde_json::json!({ "token": token })).expect("the data is JSON")
}

/// A connection of its own that sends plain statements, so that it works through a pooler too.
pub(crate) struct Session(Client);

impl Session {
    pub(crate) async fn open(url: &str) -> Session {
        Session::try_open(url).await.expect("the server can be reached")
    }

    pub(crate) async fn try_open(url: &str) -> Result<Session, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        // The client reports a lost connection to whoever uses it.
        tokio::spawn(connection);
        Ok(Session(client))
    }

    /// Opens a session to a server that is perhaps just starting.
    pub(crate) async fn reopen(url: &str) -> Session {
        let deadline = Instant::now() + LIMIT;
        loop {
            match Session::try_open(url).await {
                Ok(session) => return session,
                Err(error) => assert!(Instant::now() < deadline, "no server: {}", describe(&error)),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Runs statements; what they return is dropped.
    #[track_caller]
    pub(crate) fn run(&self, sql: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            if let Err(error) = self.try_run(sql).await {
                panic!("{caller}: {sql}: {}", describe(&error));
            }
        }
    }

    pub(crate) async fn try_run(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.0.batch_execute(sql).await
    }

    /// The SQLSTATE with which statements fail.
    pub(crate) async fn code_of(&self, sql: &str) -> String {
        let error = self.try_run(sql).await.expect_err("the statement is refused");
        error.code().expect("the server answered").code().to_owned()
    }

    /// The rows of a query as text.
    pub(crate) async fn rows(
        &self,
        sql: &str,
    ) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
        let messages = self.0.simple_query(sql).await?;
        let rows = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
            }
            _ => None,
        });
        Ok(rows.collect())
    }

    /// The numbers in the first column of a query; NULL is left out.
    pub(crate) async fn try_numbers(&self, sql: &str) -> Result<Vec<i64>, tokio_postgres::Error> {
        let rows = self.rows(sql).await?;
        let number = |row: &Vec<Option<String>>| {
            row.first()?.as_ref().map(|text| text.parse().expect("the column is a number"))
        };
        Ok(rows.iter().filter_map(number).collect())
    }

    pub(crate) async fn numbers(&self, sql: &str) -> Vec<i64> {
        match self.try_numbers(sql).await {
            Ok(numbers) => numbers,
            Err(error) => panic!("{sql}: {}", describe(&error)),
        }
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let numbers = self.numbers(sql).await;
        *numbers.first().unwrap_or_else(|| panic!("no number: {sql}"))
    }

    /// Appends one event to a stream, whatever its version, and returns the position.
    pub(crate) async fn append(&self, stream: &str) -> i64 {
        self.number(&append_sql("everfold", stream)).await
    }

    pub(crate) async fn mark(&self) -> i64 {
        self.number("SELECT everfold.high_water_mark()").await
    }

    /// The positions that are visible to this session.
    pub(crate) async fn positions(&self) -> Vec<i64> {
        self.numbers("SELECT position FROM everfold.events ORDER BY position").await
    }

    pub(crate) async fn pid(&self) -> i64 {
        self.number("SELECT pg_backend_pid()").await
    }

    /// Whether another session waits for a lock.
    pub(crate) async fn waits_for_lock(&self, pid: i64) -> bool {
        let sql = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
        self.number(&sql).await > 0
    }

    pub(crate) async fn until_waiting(&self, pid: i64) {
        eventually("the session waits for a lock", LIMIT, async || self.waits_for_lock(pid).await)
            .await;
    }

    /// Copies a function of the store into a schema of its own, changed. Every text to replace must
    /// be there, so that a control follows the code it is a control of.
    pub(crate) async fn alter(&self, schema: &str, function: &str, changes: &[(&str, &str)]) {
        let sql = format!(
            "SELECT pg_get_functiondef(oid) FROM pg_proc \
             WHERE pronamespace = 'everfold'::regnamespace AND proname = '{function}'"
        );
        let rows = self.rows(&sql).await.expect("the catalog can be read");
        let [row] = rows.as_slice() else { panic!("there is one function {function}") };
        let mut text = row[0].clone().expect("a function has a definition");
        let name = format!("FUNCTION everfold.{function}(");
        for (from, to) in [(name.as_str(), format!("FUNCTION {schema}.{function}(").as_str())]
            .into_iter()
            .chain(changes.iter().copied())
        {
            assert_eq!(text.matches(from).count(), 1, "once in {function}: {from}\n{text}");
            text = text.replace(from, to);
        }
        self.run(&format!("CREATE SCHEMA IF NOT EXISTS {schema}; {text}")).await;
    }
}

/// The call that appends one event to a stream through a schema's `append_event`.
pub(crate) fn append_sql(schema: &str, stream: &str) -> String {
    format!(
        "SELECT first_position FROM {schema}.append_event('{stream}', NULL, 'Happened', '{{}}')"
    )
}

/// What the server said, not only that it said something.
pub(crate) fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("{} {}", error.code().code(), error.message()),
        None => error.to_string(),
    }
}

/// Whether the connection is gone, by a kill, with the server, or otherwise.
///
/// A pooler says so with codes and words of its own ("server conn crashed?", "invalid server
/// parameter"), but always as FATAL.
pub(crate) fn is_lost(error: &tokio_postgres::Error) -> bool {
    let ended = ["57P01", "57P02", "57P03"];
    error
        .as_db_error()
        .is_none_or(|error| error.severity() == "FATAL" || ended.contains(&error.code().code()))
}
