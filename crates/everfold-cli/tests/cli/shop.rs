//! A project folder with projections, on either store.

use std::process::{Child, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use everfold::sqlite::rusqlite::Connection;
use everfold_testkit::{Cluster, PgBouncer, Server, TestDatabase};
use serde_json::Value;

use crate::support::{Folder, LIMIT, Ran, lines, send, wait};

/// Runs each test on both stores, as `<test>::sqlite` and `<test>::postgres`.
macro_rules! on_both_stores {
    ($($test:ident),* $(,)?) => {$(
        mod $test {
            #[tokio::test(flavor = "multi_thread")]
            async fn sqlite() {
                super::$test($crate::shop::Shop::sqlite()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn postgres() {
                super::$test($crate::shop::Shop::postgres().await).await;
            }
        }
    )*};
}
pub(crate) use on_both_stores;

/// A project folder and the store of its events.
pub(crate) struct Shop {
    pub(crate) folder: Folder,
    database: Option<TestDatabase>,
    /// What stands before the database.
    pooler: Option<PgBouncer>,
}

impl Shop {
    pub(crate) fn sqlite() -> Shop {
        Shop { folder: Folder::new(), database: None, pooler: None }
    }

    pub(crate) async fn postgres() -> Shop {
        Shop::of(TestDatabase::create().await)
    }

    /// On a server of its own.
    pub(crate) async fn on(cluster: &Cluster) -> Shop {
        Shop::of(TestDatabase::create_on(cluster).await)
    }

    fn of(database: TestDatabase) -> Shop {
        let shop = Shop { folder: Folder::new(), database: Some(database), pooler: None };
        shop.run(&["schema", "apply"]).exits(0);
        shop
    }

    /// On PostgreSQL behind a pooler in transaction mode.
    pub(crate) async fn pgbouncer() -> Shop {
        let pooler = PgBouncer::start(Server::shared()).unwrap();
        Shop { pooler: Some(pooler), ..Shop::postgres().await }
    }

    /// Writes the files of a projection.
    pub(crate) fn projection(&self, name: &str, toml: &str, create: &str, apply: &str) {
        for (file, text) in
            [("projection.toml", toml), ("create.sql", create), ("apply.sql", apply)]
        {
            self.folder.write(&format!("projections/{name}/{file}"), text);
        }
    }

    /// A sum for each stream of the field `n`, which must be there.
    pub(crate) fn sums(&self, name: &str, toml: &str) {
        let create = format!(
            "CREATE TABLE read_model.{name} (stream TEXT PRIMARY KEY, n BIGINT NOT NULL, v BIGINT)"
        );
        let apply = format!(
            "INSERT INTO read_model.{name} AS t (stream, n, v)\n\
             SELECT stream_id,\n\
             CASE WHEN COUNT(data->>'n') = COUNT(*) THEN SUM(CAST(data->>'n' AS BIGINT)) END,\n\
             MAX(version) FROM batch GROUP BY stream_id\n\
             ON CONFLICT (stream) DO UPDATE SET n = t.n + EXCLUDED.n, v = EXCLUDED.v"
        );
        self.projection(name, toml, &create, &apply);
    }

    pub(crate) fn arguments<'a>(&self, url: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
        match &self.database {
            Some(_) => [arguments, &["--url", url]].concat(),
            None => arguments.to_vec(),
        }
    }

    pub(crate) fn url(&self) -> String {
        match (&self.database, &self.pooler) {
            (Some(database), Some(pooler)) => pooler.url(database.name()),
            (Some(database), None) => database.url(),
            (None, _) => String::new(),
        }
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        let url = self.url();
        self.folder.run(&self.arguments(&url, arguments))
    }

    /// Starts `everfold run`, and returns when it runs.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        self.start_command(&[&["run"], arguments].concat(), "running as ")
    }

    /// Starts a command, and returns when it has said this.
    pub(crate) fn start_command(&self, arguments: &[&str], text: &str) -> Running {
        let url = self.url();
        let arguments = self.arguments(&url, arguments);
        let mut command = self.folder.command(&arguments);
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        let stderr = lines(child.stderr.take().unwrap());
        let running = Running { child, stderr, said: Vec::new() };
        running.until(text)
    }

    /// Takes events in: a stream and a number each; `None` leaves the number out.
    pub(crate) fn numbers(&self, name: &str, numbers: &[(&str, Option<i64>)]) {
        let line = |(stream, number): &(&str, Option<i64>)| {
            let data = match number {
                Some(number) => serde_json::json!({ "n": number }),
                None => serde_json::json!({}),
            };
            serde_json::json!({ "stream_id": stream, "type": "Counted", "data": data }).to_string()
        };
        let text: Vec<String> = numbers.iter().map(line).collect();
        self.folder.write(name, &text.join("\n"));
        self.run(&["import", name]).exits(0);
    }

    /// Rows of a read model as a reader sees them, with `|` between the columns, sorted.
    pub(crate) async fn rows(&self, table: &str, columns: &[&str]) -> Vec<String> {
        self.rows_in("", table, columns).await
    }

    /// The same in a namespace.
    pub(crate) async fn rows_in(
        &self,
        namespace: &str,
        table: &str,
        columns: &[&str],
    ) -> Vec<String> {
        let columns: Vec<_> = columns.iter().map(|c| format!("CAST({c} AS TEXT)")).collect();
        let columns = columns.join(" || '|' || ");
        let schema = match namespace {
            "" => "read_model".to_owned(),
            namespace => format!("read_model_{namespace}"),
        };
        let mut rows: Vec<String> = match &self.database {
            Some(database) => {
                let sql = format!("SELECT {columns} FROM {schema}.{table}");
                let rows = database.connect().await.query(&sql, &[]).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            None => {
                let connection = self.folder.connect();
                let sql = format!("SELECT {columns} FROM {schema}_{table}");
                let mut statement = connection.prepare(&sql).unwrap();
                let rows = statement.query_map([], |row| row.get(0)).unwrap();
                rows.map(Result::unwrap).collect()
            }
        };
        rows.sort();
        rows
    }

    /// Every row of every table, to see that nothing was changed.
    pub(crate) async fn all_rows(&self) -> String {
        match &self.database {
            Some(database) => {
                let client = database.connect().await;
                let sql = "SELECT coalesce(string_agg(quote_ident(n.nspname) || '.' || \
                        quote_ident(c.relname) || ' ' || query_to_xml(format( \
                        'SELECT * FROM %I.%I t ORDER BY t::text', n.nspname, c.relname), \
                        true, true, '')::text, '' ORDER BY n.nspname, c.relname), '') \
                    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                    WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')";
                client.query_one(sql, &[]).await.unwrap().get(0)
            }
            None => sqlite_rows(&self.folder.connect()),
        }
    }

    /// Takes in one event that was recorded a while ago.
    pub(crate) fn number_of_long_ago(&self, stream: &str, number: Option<i64>, ago: Duration) {
        let ago = jiff::SignedDuration::try_from(ago).unwrap();
        let recorded_at = (jiff::Timestamp::now() - ago).to_string();
        let data = match number {
            Some(number) => serde_json::json!({ "n": number }),
            None => serde_json::json!({}),
        };
        let line = serde_json::json!({
            "stream_id": stream, "type": "Counted", "data": data, "recorded_at": recorded_at,
        });
        let name = format!("{stream}-of-long-ago");
        self.folder.write(&name, &line.to_string());
        self.run(&["import", &name]).exits(0);
    }

    /// Runs a statement beside the store, with `everfold.` before the names of tables.
    pub(crate) async fn execute(&self, sql: &str) {
        match &self.database {
            Some(database) => database.connect().await.batch_execute(sql).await.unwrap(),
            None => {
                let sql = sql.replace("everfold.", "everfold_");
                self.folder.connect().execute_batch(&sql).unwrap();
            }
        }
    }

    /// Runs a statement on the table behind a view of the read model, which it calls `{table}`.
    pub(crate) async fn execute_in_read_model(&self, table: &str, sql: &str) {
        match &self.database {
            Some(database) => {
                let connection = database.connect().await;
                let home = "SELECT quote_ident(home) FROM everfold.generations g \
                    JOIN everfold.projections p ON p.active_generation = g.id \
                    WHERE $1 = ANY (g.tables)";
                let home: String = connection.query_one(home, &[&table]).await.unwrap().get(0);
                let sql = sql.replace("{table}", &format!("{home}.{table}"));
                connection.batch_execute(&sql).await.unwrap();
            }
            None => {
                let connection = self.folder.connect();
                let home = "SELECT g.home FROM everfold_generations g \
                    JOIN everfold_projections p ON p.active_generation = g.id, json_each(g.tables) t \
                    WHERE t.value = ?1";
                let home: String = connection.query_row(home, [table], |row| row.get(0)).unwrap();
                let sql = sql.replace("{table}", &format!("{home}{table}"));
                connection.execute_batch(&sql).unwrap();
            }
        }
    }

    /// A projection in `status --json`.
    pub(crate) fn status(&self, name: &str) -> Value {
        let json = self.run(&["status", name, "--json"]).exits(0).json();
        json["projections"][0].clone()
    }

    /// Who runs the shards of a projection, one entry a shard.
    pub(crate) fn owners(&self, name: &str) -> Vec<Option<String>> {
        let status = self.status(name);
        let shards = status["shards"].as_array().unwrap().iter();
        shards.map(|shard| shard["owner"].as_str().map(str::to_owned)).collect()
    }

    /// The database behind the store, on PostgreSQL.
    pub(crate) fn database(&self) -> &TestDatabase {
        self.database.as_ref().expect("a SQLite store has no database server")
    }

    pub(crate) fn is_sqlite(&self) -> bool {
        self.database.is_none()
    }
}

fn sqlite_rows(connection: &Connection) -> String {
    let names = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    let mut names = connection.prepare(names).unwrap();
    let names = names.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap);
    let mut text = String::new();
    for name in names {
        let mut rows = connection.prepare(&format!("SELECT * FROM \"{name}\"")).unwrap();
        let columns = rows.column_count();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let cells = (0..columns).map(|column| row.get_ref(column).unwrap());
            text.push_str(&format!("{name} {:?}\n", cells.collect::<Vec<_>>()));
        }
    }
    text
}

/// `everfold run` at work. Dropped, it is killed.
pub(crate) struct Running {
    child: Child,
    stderr: Receiver<String>,
    said: Vec<String>,
}

impl Running {
    /// Waits for a line with this text.
    #[track_caller]
    pub(crate) fn until(mut self, text: &str) -> Running {
        loop {
            match self.stderr.recv_timeout(LIMIT) {
                Ok(line) => {
                    let found = line.contains(text);
                    self.said.push(line);
                    if found {
                        return self;
                    }
                }
                Err(error) => panic!("no \"{text}\" ({error}) in {:#?}", self.said),
            }
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        send(&self.child, signal);
    }

    /// The exit code and everything said on stderr.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let code = wait(&mut self.child);
        while let Ok(line) = self.stderr.recv_timeout(Duration::from_secs(5)) {
            self.said.push(line);
        }
        (code, self.said.join("\n"))
    }

    /// Asks it to end, and expects that it does so well.
    #[track_caller]
    pub(crate) fn stop(self) -> String {
        self.signal("TERM");
        let (code, said) = self.ended();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("\nstopping: ") && said.ends_with("\nstopped"), "{said}");
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, as a rule.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
