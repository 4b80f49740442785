//! Encrypted connections: each `sslmode` against a real server with a certificate of its own.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use everfold::{Store, StoreErrorKind, StoreOptions};
use everfold_testkit::{Cluster, ClusterOptions};

use crate::fixture::{append, counted, read_all};

/// Certificates in a folder that the server's user may read.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn new() -> Certificates {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Certificates(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A certificate that signs itself, for the given host.
    fn make(&self, name: &str, host: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) =
            (self.path(&format!("{name}.crt")), self.path(&format!("{name}.key")));
        let output = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"])
            .args(["-subj", &format!("/CN={name}"), "-addext", &format!("subjectAltName={host}")])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .arg("-out")
            .arg(&certificate)
            .arg("-keyout")
            .arg(&key)
            .output()
            .expect("openssl runs (Debian package openssl)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        // As root, the server runs as nobody.
        if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            chown(&key, Some(65534), Some(65534)).unwrap();
        }
        (certificate, key)
    }
}

fn server(certificate: &Path, key: &Path) -> Cluster {
    let options = ClusterOptions::default()
        .setting("ssl", "on")
        .setting("ssl_cert_file", certificate.to_str().unwrap())
        .setting("ssl_key_file", key.to_str().unwrap());
    Cluster::start(options).unwrap()
}

async fn open(cluster: &Cluster, parameters: &str) -> Result<Store, everfold::OpenError> {
    let url = format!("{}?{parameters}", cluster.url("postgres"));
    let mut options = StoreOptions::default();
    options.migrate = Some(true);
    Store::open_with(&url, options).await
}

async fn encrypted_sessions(cluster: &Cluster) -> i64 {
    let url = cluster.url("postgres");
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let sql = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
               WHERE ssl AND application_name = 'everfold'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

#[tokio::test]
async fn connections_are_encrypted_and_certificates_checked_as_asked() {
    let certificates = Certificates::new();
    let (certificate, key) = certificates.make("server", "IP:127.0.0.1");
    let (stranger, _) = certificates.make("stranger", "IP:127.0.0.1");
    let cluster = server(&certificate, &key);
    let root = |file: &Path| format!("sslrootcert={}", file.display());

    let plain = open(&cluster, "sslmode=disable").await.unwrap();
    assert_eq!(encrypted_sessions(&cluster).await, 0);
    plain.close().await;
    for parameters in
        ["", "sslmode=require", &format!("sslmode=verify-full&{}", root(&certificate))]
    {
        let store = open(&cluster, parameters).await.unwrap();
        append(&store, "a", counted([1])).await;
        assert!(!read_all(&store).await.is_empty());
        assert!(encrypted_sessions(&cluster).await > 0, "{parameters}");
        store.close().await;
    }
    for mode in ["verify-ca", "verify-full"] {
        let error =
            open(&cluster, &format!("sslmode={mode}&{}", root(&stranger))).await.unwrap_err();
        let message = error.to_string();
        assert!(message.contains("certificate"), "{mode}: {message}");
    }
}

#[tokio::test]
async fn certificate_for_another_host_passes_verify_ca_only() {
    let certificates = Certificates::new();
    let (certificate, key) = certificates.make("elsewhere", "DNS:elsewhere.example");
    let cluster = server(&certificate, &key);
    let root = format!("sslrootcert={}", certificate.display());
    open(&cluster, &format!("sslmode=verify-ca&{root}")).await.unwrap();
    let error = open(&cluster, &format!("sslmode=verify-full&{root}")).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn encryption_that_the_server_does_not_have_is_an_error() {
    let cluster = Cluster::start(ClusterOptions::default()).unwrap();
    let error = open(&cluster, "sslmode=require").await.unwrap_err();
    let everfold::OpenError::Schema(everfold::MigrateError::Store(error)) = error else {
        panic!("{error:?}")
    };
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    assert!(error.to_string().contains("TLS"), "{error}");
}
