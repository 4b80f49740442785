//! Store URLs: which kind of database, and where.

use std::fmt;
#[cfg(feature = "sqlite")]
use std::path::PathBuf;

use crate::error::OpenError;

/// The kinds of database a store can be on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKind {
    /// A PostgreSQL server.
    Postgres,
    /// An embedded SQLite file.
    Sqlite,
}

/// A parsed URL. Variants exist only for the backends that are built in.
#[derive(Clone)]
pub(crate) enum StoreUrl {
    #[cfg(feature = "postgres")]
    Postgres(String),
    #[cfg(feature = "sqlite")]
    Sqlite(PathBuf),
}

impl StoreUrl {
    pub(crate) fn parse(url: &str) -> Result<StoreUrl, OpenError> {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        match scheme {
            "postgres" | "postgresql" => Self::postgres(url),
            "sqlite" => Self::sqlite(url),
            "" => Err(refuse(url, "it has no scheme")),
            other => Err(refuse(url, &format!("unknown scheme \"{other}\""))),
        }
    }

    #[cfg(feature = "postgres")]
    fn postgres(url: &str) -> Result<StoreUrl, OpenError> {
        Ok(StoreUrl::Postgres(url.to_owned()))
    }

    #[cfg(not(feature = "postgres"))]
    fn postgres(url: &str) -> Result<StoreUrl, OpenError> {
        Err(refuse(url, "this build has no PostgreSQL (feature `postgres`)"))
    }

    #[cfg(feature = "sqlite")]
    fn sqlite(url: &str) -> Result<StoreUrl, OpenError> {
        let path = url.strip_prefix("sqlite:").unwrap_or(url);
        let path = path.strip_prefix("//").unwrap_or(path);
        match path {
            "" => Err(refuse(url, "it names no file")),
            // Every connection would have a database of its own.
            ":memory:" => Err(refuse(url, "a store needs a file, not memory")),
            path if path.contains('?') => Err(refuse(url, "parameters are not supported")),
            path => Ok(StoreUrl::Sqlite(PathBuf::from(path))),
        }
    }

    #[cfg(not(feature = "sqlite"))]
    fn sqlite(url: &str) -> Result<StoreUrl, OpenError> {
        Err(refuse(url, "this build has no SQLite (feature `sqlite`)"))
    }

    pub(crate) fn kind(&self) -> StoreKind {
        match self {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(_) => StoreKind::Postgres,
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite(_) => StoreKind::Sqlite,
        }
    }
}

fn refuse(url: &str, reason: &str) -> OpenError {
    OpenError::Url { url: without_password(url), reason: reason.to_owned() }
}

/// The URL as it may be shown: `user:secret@` becomes `user:***@`, `password=…` likewise. Rather too
/// much is hidden than too little: a password may hold any character, also where it should not.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return match url.split_once("password") {
            Some((before, _)) => format!("{before}password***"),
            None => url.to_owned(),
        };
    };
    let shown = match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:***@{host}"),
            None => format!("{user}@{host}"),
        },
        None => rest.to_owned(),
    };
    let shown = match shown.split_once("password=") {
        Some((before, after)) => {
            let rest = after.find('&').map_or("", |at| &after[at..]);
            format!("{before}password=***{rest}")
        }
        None => shown,
    };
    format!("{scheme}://{shown}")
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[cfg(feature = "postgres")]
            StoreUrl::Postgres(url) => f.write_str(&without_password(url)),
            #[cfg(feature = "sqlite")]
            StoreUrl::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let cases = [
            ("postgres://u:secret@h:1/db", "postgres://u:***@h:1/db"),
            ("postgres://u:se@cret@h/db", "postgres://u:***@h/db"),
            ("postgres://u@h/db", "postgres://u@h/db"),
            ("postgres://h/db?password=s&user=u", "postgres://h/db?password=***&user=u"),
            ("mysql://u:p@h", "mysql://u:***@h"),
            ("host=h password=secret", "host=h password***"),
            ("postgres://u:se/cr?et@h/db", "postgres://u:***@h/db"),
        ];
        for (url, shown) in cases {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn unknown_urls_are_refused_with_what_to_use() {
        for url in ["mysql://h/db", "shop.db", "", "sqlite:", "sqlite::memory:"] {
            let message = StoreUrl::parse(url).unwrap_err().to_string();
            assert!(message.contains("use postgres://"), "{message}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn sqlite_urls_name_a_file_with_or_without_slashes() {
        for (url, path) in [
            ("sqlite:shop.db", "shop.db"),
            ("sqlite:///tmp/a.db", "/tmp/a.db"),
            ("sqlite:/a", "/a"),
        ] {
            let found = StoreUrl::parse(url).unwrap();
            assert!(
                matches!(found, StoreUrl::Sqlite(found) if found == std::path::Path::new(path))
            );
        }
    }
}
