//! A private PostgreSQL cluster: its own folder, its own port, gone when the test is.
//!
//! Everything here blocks and uses no runtime, so it may be called from any test. The cluster keeps
//! its port over crashes and restarts, so URLs stay valid.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::binaries::postgres_folder;
use crate::folder::{Folder, run};
use crate::port::{free_port, loopback};
use crate::server::Server;

/// The password of user `postgres` in a cluster started with [`ClusterOptions::require_password`].
pub const PASSWORD: &str = "everfold";

/// How often another port is tried when someone else was quicker.
const PORT_TRIES: usize = 10;

/// How long `pg_ctl` waits for the server to follow, in seconds. Generous: test machines are busy.
const WAIT_SECONDS: &str = "120";

/// A file of the server's commit log has two bits for each of so many transactions.
const TRANSACTIONS_IN_SEGMENT: u32 = 32 * 8192 * 4;

/// Our settings, in a file of their own that the main one includes.
const SETTINGS_FILE: &str = "everfold.conf";

const DEFAULT_SETTINGS: [(&str, &str); 5] = [
    ("max_connections", "200"),
    ("max_prepared_transactions", "50"),
    ("shared_buffers", "128MB"),
    ("wal_level", "replica"),
    ("max_wal_senders", "5"),
];

/// How clients prove who they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auth {
    /// Everyone is believed.
    #[default]
    Trust,
    /// SCRAM with a password; that of `postgres` is [`PASSWORD`].
    Password,
}

/// What a cluster is like.
#[derive(Clone, Debug, Default)]
pub struct ClusterOptions {
    /// Whether commits reach the disk. Off by default: quicker, and enough unless the machine fails.
    pub fsync: bool,
    /// Further server settings; they win over the harness's own.
    pub settings: Vec<(String, String)>,
    /// How clients prove who they are.
    pub auth: Auth,
}

impl ClusterOptions {
    /// Makes commits reach the disk, as in production.
    pub fn with_fsync(mut self) -> ClusterOptions {
        self.fsync = true;
        self
    }

    /// Adds a server setting.
    pub fn setting(mut self, name: &str, value: &str) -> ClusterOptions {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Makes every client give a password; that of `postgres` is [`PASSWORD`].
    pub fn require_password(mut self) -> ClusterOptions {
        self.auth = Auth::Password;
        self
    }
}

/// A running private cluster. Dropping it ends the server and removes its folder.
#[derive(Debug)]
pub struct Cluster {
    bin: PathBuf,
    folder: Folder,
    port: u16,
    options: ClusterOptions,
}

impl Cluster {
    /// Makes a cluster and starts it; returns when it accepts connections. Takes a second or two.
    pub fn start(options: ClusterOptions) -> anyhow::Result<Cluster> {
        let mut cluster = Cluster::prepare(options)?;
        cluster.init()?;
        cluster.start_on_free_port()?;
        Ok(cluster)
    }

    /// Starts a hot standby that follows this cluster by streaming.
    pub fn standby(&self) -> anyhow::Result<Cluster> {
        let mut standby = Cluster::prepare(self.options.clone())?;
        run(standby
            .command("pg_basebackup")?
            .args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast"])
            .args(["--no-sync", "--no-password", "--username=postgres", "--host=127.0.0.1"])
            .arg(format!("--port={}", self.port))
            .arg("--pgdata")
            .arg(standby.data_dir())
            .env("PGPASSWORD", PASSWORD))
        .context("could not copy the primary")?;
        standby.start_on_free_port()?;
        Ok(standby)
    }

    /// Ends the server at once, as a crash does: no checkpoint, recovery at the next start.
    /// Returns when it is down.
    pub fn crash(&self) -> anyhow::Result<()> {
        run(self.pg_ctl("stop")?.arg("--mode=immediate"))
    }

    /// Starts the server after [`crash`](Cluster::crash), on the same port, and returns when it
    /// accepts connections.
    pub fn start_again(&self) -> anyhow::Result<()> {
        run(self.pg_ctl("start")?.arg("--log").arg(self.log_file()))
            .with_context(|| format!("the server did not start; its log:\n{}", self.log()))
    }

    /// Restarts the server in an orderly way; open transactions are rolled back.
    pub fn restart_fast(&self) -> anyhow::Result<()> {
        run(self.pg_ctl("restart")?.arg("--mode=fast").arg("--log").arg(self.log_file()))
            .with_context(|| format!("the server did not restart; its log:\n{}", self.log()))
    }

    /// Restarts the server so that its next transaction has this number, as if all before had been used.
    pub fn skip_transactions_to(&self, number: u32) -> anyhow::Result<()> {
        run(self.pg_ctl("stop")?.arg("--mode=fast"))?;
        let number_text = number.to_string();
        run(self
            .command("pg_resetwal")?
            .args(["--force", "-x", &number_text])
            .arg(self.data_dir()))?;
        // What became of those transactions: nothing. The server wants the file, and does not make it.
        let segment = format!("{:04X}", number / TRANSACTIONS_IN_SEGMENT);
        let file = self.data_dir().join("pg_xact").join(segment);
        self.folder.write(&file, &"\0".repeat(TRANSACTIONS_IN_SEGMENT as usize / 4))?;
        self.start_again()
    }

    /// Makes a standby a primary; returns when it accepts writes.
    pub fn promote(&self) -> anyhow::Result<()> {
        run(&mut self.pg_ctl("promote")?)
    }

    /// The URL of a database for the superuser `postgres`.
    pub fn url(&self, database: &str) -> String {
        let password = (self.options.auth == Auth::Password).then_some(PASSWORD);
        self.url_as("postgres", password, database)
    }

    /// The URL of a database for another user, or with another password.
    pub fn url_as(&self, user: &str, password: Option<&str>, database: &str) -> String {
        let password = password.map(|password| format!(":{password}")).unwrap_or_default();
        format!("postgres://{user}{password}@{}/{database}", self.address())
    }

    /// The cluster as a [`Server`].
    pub fn server(&self) -> Server {
        Server::from_url(&self.url("postgres")).expect("our own URL is well formed")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// The port on which it listens, at 127.0.0.1 and as a socket in [`folder`](Cluster::folder).
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The folder of the server programs.
    pub fn bin_dir(&self) -> &Path {
        &self.bin
    }

    /// The cluster's data folder.
    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The folder that holds all of the cluster: data, log and Unix socket.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A cluster without data yet.
    fn prepare(options: ClusterOptions) -> anyhow::Result<Cluster> {
        let bin = postgres_folder()?;
        Ok(Cluster { bin, folder: Folder::create("everfold-pg-")?, port: 0, options })
    }

    fn init(&self) -> anyhow::Result<()> {
        let mut command = self.command("initdb")?;
        command.args(["--no-sync", "--locale=C", "--encoding=UTF8", "--username=postgres"]);
        command.arg("--pgdata").arg(self.data_dir());
        match self.options.auth {
            Auth::Trust => command.arg("--auth=trust"),
            Auth::Password => {
                let file = self.folder.path().join("password");
                self.folder.write(&file, PASSWORD)?;
                command.arg("--auth=scram-sha-256").arg("--pwfile").arg(file)
            }
        };
        run(&mut command)?;
        let main = self.data_dir().join("postgresql.conf");
        let text = fs::read_to_string(&main)?;
        self.folder.write(&main, &format!("{text}\ninclude '{SETTINGS_FILE}'\n"))
    }

    fn start_on_free_port(&mut self) -> anyhow::Result<()> {
        for _ in 0..PORT_TRIES {
            self.port = free_port()?;
            self.folder.write(&self.data_dir().join(SETTINGS_FILE), &self.settings())?;
            match self.start_again() {
                Err(_) if self.port_was_taken() => fs::remove_file(self.log_file())?,
                outcome => return outcome,
            }
        }
        bail!("{PORT_TRIES} free ports in a row were taken before the server could listen")
    }

    fn port_was_taken(&self) -> bool {
        self.log().contains("could not create any TCP/IP sockets")
    }

    fn settings(&self) -> String {
        let mut text = String::new();
        let mut set = |name: &str, value: &str| {
            text.push_str(&format!("{name} = '{}'\n", value.replace('\'', "''")));
        };
        set("listen_addresses", "127.0.0.1");
        set("port", &self.port.to_string());
        set("unix_socket_directories", &format!("\"{}\"", self.folder.path().display()));
        set("fsync", if self.options.fsync { "on" } else { "off" });
        for (name, value) in DEFAULT_SETTINGS {
            set(name, value);
        }
        for (name, value) in &self.options.settings {
            set(name, value);
        }
        text
    }

    fn pg_ctl(&self, action: &str) -> anyhow::Result<Command> {
        let mut command = self.command("pg_ctl")?;
        command.arg(action).args(["--wait", "--timeout", WAIT_SECONDS]);
        command.arg("--pgdata").arg(self.data_dir());
        Ok(command)
    }

    fn command(&self, program: &str) -> anyhow::Result<Command> {
        self.folder.command(&self.bin.join(program))
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }
}
