//! Somebody's transaction, in words, and how to end it.

use crate::store::postgres::projection::names::literal;

/// Most of a query that is shown.
const QUERY_CHARS: usize = 80;

/// A session, or a transaction that was prepared and has none. What this role may not see is `None`.
#[derive(Debug, Default)]
pub(super) struct Session {
    pub(super) pid: Option<i32>,
    pub(super) prepared: Option<String>,
    pub(super) application: Option<String>,
    pub(super) user: Option<String>,
    pub(super) state: Option<String>,
    pub(super) query: Option<String>,
}

impl Session {
    /// `pid 4711 (checkout, idle in transaction)`, with the user where he is known.
    pub(super) fn who(&self) -> String {
        let Some(pid) = self.pid else {
            return match &self.prepared {
                Some(gid) => format!("prepared transaction {}", literal(gid).trim_start()),
                None => "a prepared transaction".to_owned(),
            };
        };
        let application = self.application.as_deref().filter(|name| !name.is_empty());
        let state = self.state.as_deref().unwrap_or("unknown state");
        let user = self.user.as_ref().map(|user| format!(", user {user}")).unwrap_or_default();
        format!("pid {pid} ({}, {state}{user})", application.unwrap_or("no application name"))
    }

    /// The statement that ends it.
    pub(super) fn end(&self) -> String {
        match (self.pid, &self.prepared) {
            (Some(pid), _) => {
                format!("end its transaction, or SELECT pg_terminate_backend({pid})")
            }
            (None, Some(gid)) => {
                let gid = literal(gid);
                let gid = gid.trim_start();
                format!("COMMIT PREPARED {gid} or ROLLBACK PREPARED {gid}")
            }
            (None, None) => {
                "SELECT gid, prepared, owner FROM pg_prepared_xacts, then COMMIT PREPARED or \
                 ROLLBACK PREPARED"
                    .to_owned()
            }
        }
    }

    /// `: SELECT …`, the last query on one line; empty if it is not known.
    pub(super) fn last_query(&self) -> String {
        shown(self.query.as_deref())
    }
}

/// `: SELECT …` on one line and not too long; empty if there is nothing.
pub(super) fn shown(query: Option<&str>) -> String {
    let query = query.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    if query.is_empty() {
        return query;
    }
    let short: String = query.chars().take(QUERY_CHARS).collect();
    let more = if short.len() < query.len() { "…" } else { "" };
    format!(": {short}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_named_with_the_statement_that_ends_it() {
        let session = Session {
            pid: Some(4711),
            application: Some("checkout".to_owned()),
            state: Some("idle in transaction".to_owned()),
            ..Session::default()
        };
        assert_eq!(session.who(), "pid 4711 (checkout, idle in transaction)");
        assert!(session.end().ends_with("SELECT pg_terminate_backend(4711)"));
        let nameless = Session { pid: Some(1), ..Session::default() };
        assert_eq!(nameless.who(), "pid 1 (no application name, unknown state)");
    }

    #[test]
    fn name_of_a_prepared_transaction_is_quoted() {
        let session = Session { prepared: Some("it's".to_owned()), ..Session::default() };
        assert_eq!(session.who(), "prepared transaction 'it''s'");
        assert_eq!(session.end(), "COMMIT PREPARED 'it''s' or ROLLBACK PREPARED 'it''s'");
    }

    #[test]
    fn long_query_is_cut_to_one_line() {
        assert_eq!(shown(Some("SELECT 1,\n  2")), ": SELECT 1, 2");
        assert_eq!(shown(Some(&"x".repeat(100))), format!(": {}…", "x".repeat(80)));
        assert_eq!((shown(None), shown(Some(" "))), (String::new(), String::new()));
    }
}
