//! A private PgBouncer in transaction mode, the pooler most likely to stand before users' servers.
//!
//! Each transaction may run on another server connection, so session state does not survive it.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio_postgres::NoTls;
use tokio_postgres::config::Host;

use crate::binaries;
use crate::folder::Folder;
use crate::port::{free_port, loopback};
use crate::server::Server;

/// How many server connections serve one database, unless a test says otherwise.
pub const DEFAULT_POOL_SIZE: u16 = 4;

const PORT_TRIES: usize = 10;
const START_LIMIT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How long a pooler that is well may take to answer on a busy machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// A running pooler. Dropping it ends it and removes its folder.
#[derive(Debug)]
pub struct PgBouncer {
    process: Child,
    folder: Folder,
    port: u16,
}

impl PgBouncer {
    /// Starts a pooler before `server` with [`DEFAULT_POOL_SIZE`]; returns when it listens.
    pub fn start(server: &Server) -> anyhow::Result<PgBouncer> {
        PgBouncer::start_with_pool_size(server, DEFAULT_POOL_SIZE)
    }

    /// Starts a pooler with `pool_size` server connections per database.
    ///
    /// Clients need no password: all of them become the user of `server`'s URL.
    pub fn start_with_pool_size(server: &Server, pool_size: u16) -> anyhow::Result<PgBouncer> {
        for _ in 0..PORT_TRIES {
            let mut pooler = PgBouncer::spawn(server, pool_size)?;
            if pooler.listens()? {
                return Ok(pooler);
            }
        }
        bail!("{PORT_TRIES} free ports in a row were taken before pgbouncer could listen")
    }

    /// The URL of a database through the pooler.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// The port on which it listens, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether its console answers. A pooler can hang or be gone, and whoever shares one should find
    /// out at once, not after the connect timeout of each of their clients.
    pub async fn answers(&self) -> bool {
        let ask = async {
            let (console, connection) =
                tokio_postgres::connect(&self.url("pgbouncer"), NoTls).await?;
            let served = tokio::spawn(connection);
            let answer = console.simple_query("SHOW VERSION").await;
            served.abort();
            answer
        };
        matches!(tokio::time::timeout(ANSWER_LIMIT, ask).await, Ok(Ok(_)))
    }

    /// What the pooler has logged so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn spawn(server: &Server, pool_size: u16) -> anyhow::Result<PgBouncer> {
        let program = binaries::pgbouncer()?;
        let folder = Folder::create("everfold-pgbouncer-")?;
        let port = free_port()?;
        let settings = folder.path().join("pgbouncer.ini");
        folder.write(&settings, &settings_text(server, port, pool_size)?)?;
        let process =
            folder.command(&program)?.arg(settings).spawn().context("could not run pgbouncer")?;
        Ok(PgBouncer { process, folder, port })
    }

    /// Waits until it listens; false when its port was taken by another.
    fn listens(&mut self) -> anyhow::Result<bool> {
        let deadline = Instant::now() + START_LIMIT;
        let sign = format!("listening on {}", self.address());
        loop {
            let ended = self.process.try_wait()?;
            let log = self.log();
            if log.contains(&sign) {
                return Ok(true);
            }
            if log.contains("Address already in use") {
                return Ok(false);
            }
            if let Some(status) = ended {
                bail!("pgbouncer ended with {status}; its log:\n{log}");
            }
            if Instant::now() > deadline {
                bail!("pgbouncer did not listen within {START_LIMIT:?}; its log:\n{log}");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}

impl Drop for PgBouncer {
    /// The guard of the folder would do for the process; waiting for it here leaves no zombie.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn settings_text(server: &Server, port: u16, pool_size: u16) -> anyhow::Result<String> {
    let target = target_text(server)?;
    Ok(format!(
        "[databases]
* = {target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = postgres
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 500
ignore_startup_parameters = extra_float_digits,options
logfile = log
"
    ))
}

/// Host, port and credentials of `server` as the pooler's connection string.
fn target_text(server: &Server) -> anyhow::Result<String> {
    let config = server.config()?;
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(folder)) => folder.display().to_string(),
        None => bail!("the server has no host"),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let mut text = format!("host={host} port={port}");
    text.push_str(&format!(" user={}", quoted(config.get_user().unwrap_or("postgres"))));
    if let Some(password) = config.get_password() {
        text.push_str(&format!(" password={}", quoted(&String::from_utf8_lossy(password))));
    }
    Ok(text)
}

fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}
