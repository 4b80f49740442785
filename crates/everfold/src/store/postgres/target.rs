//! Where a store is: the driver's part of the URL, and ours.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::connect_error;
use super::tls::Encryption;
use crate::error::OpenError;
use crate::options::Pooler;
use crate::store::url::without_password;

/// The stream of an encrypted connection.
type TlsStream = <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream;

/// A parsed URL. Parameters of our own are `pooler`, and those of `sslmode` that the driver does
/// not know.
#[derive(Clone)]
pub(super) struct Target {
    config: Config,
    tls: MakeRustlsConnect,
    place: String,
    pooler: Option<Pooler>,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Target, OpenError> {
        Self::parse_parts(url)
            .map_err(|reason| OpenError::Url { url: without_password(url), reason })
    }

    fn parse_parts(url: &str) -> Result<Target, String> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut pooler = None;
        let mut encryption = Encryption::default();
        let mut root_file = None;
        let mut rest = Vec::new();
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("pooler", value)) => pooler = Some(parse_pooler(value)?),
                Some(("sslmode", value)) => encryption = Encryption::parse(value)?,
                Some(("sslrootcert", file)) => root_file = Some(PathBuf::from(file)),
                _ => rest.push(parameter),
            }
        }
        let driver_url = match rest.as_slice() {
            [] => base.to_owned(),
            rest => format!("{base}?{}", rest.join("&")),
        };
        let mut config: Config = driver_url.parse().map_err(|error: tokio_postgres::Error| {
            std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string)
        })?;
        config.ssl_mode(encryption.mode());
        if config.get_application_name().is_none() {
            config.application_name("everfold");
        }
        notice_dead_connections(&mut config, &rest);
        refuse_several_servers(&config)?;
        let tls = encryption.connector(root_file.as_deref())?;
        Ok(Target { config, tls, place: place(base), pooler })
    }

    /// Makes a connection outside any pool; somebody must drive it.
    pub(super) async fn connect(
        &self,
    ) -> Result<(Client, Connection<Socket, TlsStream>), tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }

    /// The same with further command-line options for the server's session.
    pub(super) async fn connect_with(
        &self,
        options: &str,
    ) -> Result<(Client, Connection<Socket, TlsStream>), tokio_postgres::Error> {
        self.clone().with_options(options).config.connect(self.tls.clone()).await
    }

    /// With further command-line options for the server's sessions; those of the URL come after them.
    pub(super) fn with_options(mut self, options: &str) -> Self {
        let given = self.config.get_options().unwrap_or_default();
        let options = format!("{options} {given}");
        self.config.options(options.trim());
        self
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn tls(&self) -> MakeRustlsConnect {
        self.tls.clone()
    }

    /// Host and database, for messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// What the URL says about a pooler, if anything.
    pub(super) fn pooler(&self) -> Option<Pooler> {
        self.pooler
    }
}

/// A connection of the caller's own to the database of a store, made as the store makes its own:
/// encrypted as the URL says, and with its parameters that the driver does not know. For read
/// models, and for [`append_in`](super::append_in). It is closed when the client is dropped.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let client = everfold::postgres::connect("postgres://db/shop?sslmode=verify-full").await?;
/// let carts = client.query("SELECT cart_id, items FROM read_model.cart_totals", &[]).await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// If the URL is not understood or the database cannot be reached.
pub async fn connect(url: &str) -> Result<Client, OpenError> {
    let target = Target::parse(url)?;
    let (client, connection) =
        target.connect().await.map_err(|error| connect_error(error, target.place()))?;
    // It ends with the client; how it ended, the client's requests say.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// A firewall can drop a connection without a word. Unless the URL says otherwise, the kernel finds
/// out within half a minute.
fn notice_dead_connections(config: &mut Config, given: &[&str]) {
    let is_given = |name: &str| given.iter().any(|parameter| parameter.starts_with(name));
    if !is_given("keepalives") {
        config.keepalives_idle(Duration::from_secs(15));
        config.keepalives_interval(Duration::from_secs(5));
        config.keepalives_retries(3);
    }
    if !is_given("tcp_user_timeout") {
        config.tcp_user_timeout(Duration::from_secs(30));
    }
}

/// A mark that is read on one server says nothing about another one that is behind it.
fn refuse_several_servers(config: &Config) -> Result<(), String> {
    let one = config.get_hosts().len().max(config.get_hostaddrs().len()) <= 1;
    let primary = config.get_target_session_attrs() == TargetSessionAttrs::ReadWrite;
    match one || primary {
        true => Ok(()),
        false => Err("it names several servers, of which some may be behind; add \
                      target_session_attrs=read-write to use the primary"
            .to_owned()),
    }
}

fn parse_pooler(value: &str) -> Result<Pooler, String> {
    match value {
        "transaction" => Ok(Pooler::Transaction),
        "direct" => Ok(Pooler::Direct),
        other => Err(format!("pooler is \"{other}\", allowed are \"transaction\" and \"direct\"")),
    }
}

fn place(base: &str) -> String {
    let rest = base.split_once("://").map_or(base, |(_, rest)| rest);
    rest.rsplit_once('@').map_or(rest, |(_, host)| host).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_our_own_do_not_reach_the_driver() {
        let url = "postgres://u@h:5/db?pooler=transaction&sslmode=require&connect_timeout=3";
        let target = Target::parse(url).unwrap();
        assert_eq!(target.pooler(), Some(Pooler::Transaction));
        assert_eq!(target.place(), "h:5/db");
        assert_eq!(target.config().get_connect_timeout().unwrap().as_secs(), 3);
        assert_eq!(target.config().get_application_name(), Some("everfold"));
    }

    #[test]
    fn bad_parameters_are_refused_with_what_is_allowed() {
        for (parameters, wanted) in [
            ("pooler=maybe", "\"transaction\" and \"direct\""),
            ("sslmode=sometimes", "verify-full"),
            ("sslmode=verify-full&sslrootcert=/nowhere.pem", "/nowhere.pem cannot be read"),
            ("colour=blue", "colour"),
            ("host=other", "target_session_attrs=read-write"),
        ] {
            let url = format!("postgres://h/db?{parameters}");
            let Err(error) = Target::parse(&url) else { panic!("{url} is taken") };
            assert!(error.to_string().contains(wanted), "{error}");
        }
    }
}
