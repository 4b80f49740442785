//! A PostgreSQL server one can connect to, whoever started it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::OnceLock;

use anyhow::{Context, bail};
use tokio_postgres::config::Host;

use crate::cluster::{Cluster, ClusterOptions};

/// Address and credentials of a server; it gives the URL of each of its databases.
#[derive(Clone, Debug)]
pub struct Server {
    /// `user:password@`, or empty.
    credentials: String,
    /// `host:port`.
    host: String,
    /// Where to connect to create other databases.
    maintenance_database: String,
    /// `?name=value&…`, or empty.
    parameters: String,
}

impl Server {
    /// The server all tests of this process share: the one `EVERFOLD_TEST_URL` names, or else a
    /// private cluster with fsync off, started at the first call.
    ///
    /// # Panics
    ///
    /// When there is none to be had; the message says what to install.
    pub fn shared() -> &'static Server {
        static SERVER: OnceLock<Server> = OnceLock::new();
        static CLUSTER: OnceLock<Cluster> = OnceLock::new();
        SERVER.get_or_init(|| match std::env::var("EVERFOLD_TEST_URL") {
            Ok(url) => Server::from_url(&url).expect("EVERFOLD_TEST_URL is usable"),
            Err(_) => CLUSTER
                .get_or_init(|| {
                    Cluster::start(ClusterOptions::default()).expect("the shared cluster starts")
                })
                .server(),
        })
    }

    /// The server of a URL `postgres://user:password@host:port/database?parameters`.
    pub fn from_url(url: &str) -> anyhow::Result<Server> {
        url.parse::<tokio_postgres::Config>().context("not a PostgreSQL URL")?;
        let Some(rest) =
            url.strip_prefix("postgres://").or_else(|| url.strip_prefix("postgresql://"))
        else {
            bail!("a server is given as postgres://user:password@host:port/database");
        };
        let (rest, parameters) = split_before(rest, '?');
        let (authority, database) = split_before(rest, '/');
        let (credentials, host) = match authority.rfind('@') {
            Some(at) => authority.split_at(at + 1),
            None => ("", authority),
        };
        let database = database.trim_start_matches('/');
        Ok(Server {
            credentials: credentials.to_owned(),
            host: host.to_owned(),
            maintenance_database: if database.is_empty() { "postgres" } else { database }
                .to_owned(),
            parameters: parameters.to_owned(),
        })
    }

    /// The URL of one of its databases.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{}{}/{database}{}", self.credentials, self.host, self.parameters)
    }

    /// The same server with another user.
    #[must_use]
    pub fn as_user(&self, user: &str, password: &str) -> Server {
        Server { credentials: format!("{user}:{password}@"), ..self.clone() }
    }

    /// The URL of the database to connect to in order to create others.
    pub fn maintenance_url(&self) -> String {
        self.url(&self.maintenance_database)
    }

    /// The same server reached at another address, such as that of a [`Proxy`](crate::Proxy).
    pub fn at(&self, address: SocketAddr) -> Server {
        Server { host: address.to_string(), ..self.clone() }
    }

    /// Where it listens, for a [`Proxy`](crate::Proxy) in front of it.
    pub fn address(&self) -> anyhow::Result<SocketAddr> {
        let config = self.config()?;
        let Some(Host::Tcp(host)) = config.get_hosts().first() else {
            bail!("{} has no TCP address", self.host);
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let mut addresses = (host.as_str(), port).to_socket_addrs()?;
        addresses.next().with_context(|| format!("{host} has no address"))
    }

    pub(crate) fn config(&self) -> anyhow::Result<tokio_postgres::Config> {
        Ok(self.maintenance_url().parse()?)
    }
}

/// Splits before the first `mark`, or at the end.
fn split_before(text: &str, mark: char) -> (&str, &str) {
    text.split_at(text.find(mark).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::Server;

    #[test]
    fn url_keeps_credentials_and_parameters() {
        let server = Server::from_url("postgresql://me:p%40ss@db:5433/main?sslmode=disable");
        let server = server.unwrap();
        assert_eq!(server.url("other"), "postgres://me:p%40ss@db:5433/other?sslmode=disable");
        assert_eq!(server.maintenance_url(), "postgres://me:p%40ss@db:5433/main?sslmode=disable");
        let moved = server.at(([127, 0, 0, 1], 7).into());
        assert_eq!(moved.url("other"), "postgres://me:p%40ss@127.0.0.1:7/other?sslmode=disable");
    }

    #[test]
    fn url_may_leave_out_almost_everything() {
        let server = Server::from_url("postgres://localhost").unwrap();
        assert_eq!(server.maintenance_url(), "postgres://localhost/postgres");
        assert!(Server::from_url("host=localhost user=me").is_err());
    }
}
