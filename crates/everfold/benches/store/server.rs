//! The private PostgreSQL server, and a fresh database for each measurement.

use anyhow::Context;
use everfold::{Schema, Store, StoreOptions};
use everfold_testkit::{Cluster, ClusterOptions, TestDatabase};
use tokio_postgres::{Client, NoTls};

const RAW_SCHEMA: &str = include_str!("raw.sql");

/// A private cluster whose commits reach the disk.
pub(crate) struct Server {
    cluster: Cluster,
}

impl Server {
    pub(crate) fn start() -> anyhow::Result<Server> {
        let options = ClusterOptions::default()
            .with_fsync()
            .setting("shared_buffers", "256MB")
            // Room enough that no measurement is met by a checkpoint for want of it.
            .setting("max_wal_size", "4GB");
        Ok(Server { cluster: Cluster::start(options)? })
    }

    pub(crate) async fn describe(&self) -> anyhow::Result<String> {
        let client = connect(&self.cluster.url("postgres")).await?;
        let mut values = Vec::new();
        for setting in ["server_version", "fsync", "shared_buffers"] {
            let row = client.query_one(&format!("SHOW {setting}"), &[]).await?;
            values.push(row.get::<_, String>(0));
        }
        let [version, fsync, shared_buffers] = values.as_slice() else { unreachable!() };
        Ok(format!("PostgreSQL {version} (fsync {fsync}, shared_buffers {shared_buffers})"))
    }

    /// How many statements the server has logged: [`Database::log_statements`].
    pub(crate) fn logged_statements(&self) -> usize {
        let is_statement =
            |line: &&str| line.contains("LOG:  statement: ") || line.contains("LOG:  execute ");
        self.cluster.log().lines().filter(is_statement).count()
    }

    /// A new database with everfold's schema and the raw one, just after a checkpoint.
    pub(crate) async fn database(&self) -> anyhow::Result<Database> {
        let test = TestDatabase::create_on(&self.cluster).await;
        Schema::of(&test.url())?.apply().await?;
        let client = connect(&test.url()).await?;
        client.batch_execute(RAW_SCHEMA).await?;
        client.batch_execute("CHECKPOINT").await?;
        Ok(Database { client, test })
    }
}

/// A database of its own for one measurement, dropped with this value.
pub(crate) struct Database {
    /// For preparing and checking.
    pub(crate) client: Client,
    test: TestDatabase,
}

impl Database {
    pub(crate) fn url(&self) -> String {
        self.test.url()
    }

    /// A connection of its own, as a bare client has it.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        connect(&self.url()).await
    }

    /// Opens the store with options changed from the defaults.
    pub(crate) async fn store(
        &self,
        change: impl FnOnce(&mut StoreOptions),
    ) -> anyhow::Result<Store> {
        let mut options = StoreOptions::default();
        change(&mut options);
        Ok(Store::open_with(&self.url(), options).await?)
    }

    /// Lets the server log every statement that it is given here on connections made from now on.
    pub(crate) async fn log_statements(&self) -> anyhow::Result<()> {
        let sql = format!("ALTER DATABASE \"{}\" SET log_statement = 'all'", self.test.name());
        Ok(self.client.batch_execute(&sql).await?)
    }

    /// Fails unless a table holds just so many events.
    pub(crate) async fn check_count(&self, table: &str, expected: u64) -> anyhow::Result<()> {
        self.check("count(*)", table, expected).await
    }

    /// Fails unless the numbers in a table add up to this.
    pub(crate) async fn check_sum(
        &self,
        expression: &str,
        table: &str,
        expected: u64,
    ) -> anyhow::Result<()> {
        self.check(&format!("coalesce(sum({expression}), 0)::bigint"), table, expected).await
    }

    async fn check(&self, expression: &str, table: &str, expected: u64) -> anyhow::Result<()> {
        let sql = format!("SELECT {expression} FROM {table}");
        let found: i64 = self.client.query_one(&sql, &[]).await?.get(0);
        anyhow::ensure!(
            u64::try_from(found) == Ok(expected),
            "{table} holds {found} events instead of {expected}"
        );
        Ok(())
    }
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.with_context(|| format!("no answer at {url}"))?;
    // The client reports a lost connection to whoever uses it.
    tokio::spawn(connection);
    Ok(client)
}
