//! A database per test.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::cluster::Cluster;
use crate::server::Server;

/// Bound on connecting in order to drop a database; the server may be gone by then.
const DROP_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An empty database of its own for one test, dropped with this value.
#[derive(Debug)]
pub struct TestDatabase {
    server: Server,
    name: String,
}

impl TestDatabase {
    /// Creates a database on the [shared server](Server::shared).
    ///
    /// # Panics
    ///
    /// When that fails; a test has nothing to go on with.
    pub async fn create() -> TestDatabase {
        TestDatabase::create_at(Server::shared()).await
    }

    /// Creates a database on a private cluster.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub async fn create_on(cluster: &Cluster) -> TestDatabase {
        TestDatabase::create_at(&cluster.server()).await
    }

    /// Creates a database on any server.
    ///
    /// # Panics
    ///
    /// When that fails.
    pub async fn create_at(server: &Server) -> TestDatabase {
        let name = format!("everfold_test_{}", Uuid::now_v7().simple());
        let client = connect(&server.maintenance_url()).await.expect("the server can be reached");
        // Nobody is ever connected to template0, so creations do not get in each other's way.
        let statement = format!("CREATE DATABASE {name} TEMPLATE template0");
        client.batch_execute(&statement).await.expect("the database can be created");
        TestDatabase { server: server.clone(), name }
    }

    /// The URL of the database.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// The URL of the database reached at another address, such as that of a
    /// [`Proxy`](crate::Proxy).
    pub fn url_at(&self, address: SocketAddr) -> String {
        self.server.at(address).url(&self.name)
    }

    /// The name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server it is on.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Connects; a task of the current runtime serves the connection until the client is dropped.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached.
    pub async fn connect(&self) -> Client {
        connect(&self.url()).await.expect("the database can be reached")
    }
}

impl Drop for TestDatabase {
    /// Drops the database, ending its sessions. Best effort: the server may be gone already.
    fn drop(&mut self) {
        let server = self.server.clone();
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // A runtime may not be blocked from inside another, hence the thread.
        let thread = std::thread::spawn(move || execute_blocking(&server, &statement));
        let _ = thread.join();
    }
}

fn execute_blocking(server: &Server, statement: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut config = server.config()?;
        let (client, connection) =
            config.connect_timeout(DROP_CONNECT_TIMEOUT).connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client.batch_execute(statement).await?)
    })
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.with_context(|| format!("no answer at {url}"))?;
    // The client reports a lost connection to whoever uses it.
    tokio::spawn(connection);
    Ok(client)
}
