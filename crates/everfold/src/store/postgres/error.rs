//! From PostgreSQL's errors to ours: one place that knows SQLSTATEs and constraint names.

use tokio_postgres::error::DbError;

use super::projection::said;
use crate::append::StreamAppend;
use crate::error::{AppendError, InvalidAppend, StoreError, StoreErrorKind};
use crate::{ExpectedVersion, Version};

/// SQLSTATEs of the functions in the schema `everfold`.
pub(super) mod code {
    pub(crate) const VERSION_CONFLICT: &str = "EF001";
    pub(crate) const ISOLATION: &str = "EF002";
    pub(crate) const INVALID: &str = "EF003";
    pub(crate) const ID_CONFLICT: &str = "EF004";
    pub(crate) const IMPORT_UNDER_WAY: &str = "EF007";
    pub(crate) const STREAM_BUSY: &str = "EF009";
    pub(crate) const REFUSED_BY_PROJECTION: &str = "EF010";
    pub(crate) const MORE_IS_DUE: &str = "EF011";
}

/// An error while a connection is made.
pub(super) fn connect_error(error: tokio_postgres::Error, place: &str) -> StoreError {
    match error.as_db_error() {
        Some(database) => {
            let StoreErrorParts { kind, message } = parts(database);
            let message = format!("cannot connect to {place}: {message}");
            StoreError::new(kind, message).with_code(database.code().code()).with_source(error)
        }
        None => {
            let cause = deepest(&error);
            let message = format!(
                "cannot connect to {place}: {cause}; is the server running, and are host, port \
                 and network right?"
            );
            StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
        }
    }
}

/// An error of a statement that was sent.
pub(super) fn store_error(error: tokio_postgres::Error) -> StoreError {
    match error.as_db_error() {
        Some(database) => {
            let StoreErrorParts { kind, message } = parts(database);
            StoreError::new(kind, message).with_code(database.code().code()).with_source(error)
        }
        None if error.is_closed() || is_io(&error) => {
            let message = format!("the connection to the server was lost: {}", deepest(&error));
            StoreError::new(StoreErrorKind::Closed, message).with_source(error)
        }
        None => StoreError::new(StoreErrorKind::Other, deepest(&error)).with_source(error),
    }
}

/// An error of an append, with what the append was.
pub(super) fn append_error(error: tokio_postgres::Error, append: &StreamAppend) -> AppendError {
    let Some(database) = error.as_db_error() else { return store_error(error).into() };
    if let Some(Refusal { projection, message }) = refused_by_projection(database) {
        return AppendError::Projection { projection, message };
    }
    match database.code().code() {
        code::VERSION_CONFLICT => AppendError::VersionConflict {
            stream: append.stream.clone(),
            expected: append.expected,
            actual: actual_version(database).unwrap_or_default(),
        },
        code::ISOLATION => AppendError::IsolationTooHigh,
        code::ID_CONFLICT => id_conflict(database.message().to_owned()),
        code::INVALID => invalid(database),
        _ => match refused_by_constraint(database).or_else(|| refused_json(database)) {
            Some(refused) => refused.into(),
            None => store_error(error).into(),
        },
    }
}

/// The database's trouble, which passes, behind an error of somebody else's code.
pub(super) fn transient_trouble(error: &(dyn std::error::Error + 'static)) -> Option<StoreError> {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(driver) = error.downcast_ref::<tokio_postgres::Error>() {
            let trouble = match driver.as_db_error() {
                Some(database) => {
                    let StoreErrorParts { kind, message } = parts(database);
                    StoreError::new(kind, message).with_code(database.code().code())
                }
                None if driver.is_closed() || is_io(driver) => {
                    let message = format!("the connection to the server was lost: {driver}");
                    StoreError::new(StoreErrorKind::Closed, message)
                }
                None => return None,
            };
            return trouble.is_transient().then_some(trouble);
        }
        source = error.source();
    }
    None
}

/// An inline projection that does not take an event.
pub(super) struct Refusal {
    pub(super) projection: String,
    pub(super) message: String,
}

/// Whether an inline projection refused: an error that came out of a generation's own function, or
/// of ours on its behalf. The database's own trouble in there is no refusal.
pub(super) fn refused_by_projection(database: &DbError) -> Option<Refusal> {
    if database.code().code() == code::REFUSED_BY_PROJECTION {
        let detail: serde_json::Value = serde_json::from_str(database.detail()?).ok()?;
        let projection = detail["projection"].as_str()?.to_owned();
        let said = database.message();
        let message = said.split_once("the event: ").map_or(said, |(_, message)| message);
        return Some(Refusal { projection, message: message.to_owned() });
    }
    use StoreErrorKind::{Missing, Other, Privilege};
    if !matches!(parts(database).kind, Other | Missing | Privilege) {
        return None;
    }
    let projection = database
        .where_()
        .and_then(projection_in_context)
        .or_else(|| projection_in_message(database.message()))?
        .to_owned();
    Some(Refusal { projection, message: said(database) })
}

/// The projection whose function could not even be called, or whose table of documents is gone:
/// `function everfold_3_totals.apply(…) does not exist`, `schema "everfold_3_totals" does not exist`,
/// `relation "everfold_3_totals.totals" does not exist`.
fn projection_in_message(message: &str) -> Option<&str> {
    let quoted = |after: &str| message.strip_prefix(after)?.split_once('"').map(|(name, _)| name);
    let home = match message.strip_prefix("function ") {
        Some(function) => home_of(function)?,
        None => match quoted("schema \"") {
            Some(schema) => schema,
            None => quoted("relation \"")?.split_once('.')?.0,
        },
    };
    projection_of_home(home.strip_prefix("everfold_")?)
}

/// Where a generation's own function lives.
fn home_of(function: &str) -> Option<&str> {
    let call = function.split_once(".apply(").or_else(|| function.split_once(".apply_event("));
    Some(call?.0)
}

/// The name behind the number: `3_totals`.
fn projection_of_home(home: &str) -> Option<&str> {
    let (generation, projection) = home.split_once('_')?;
    generation.bytes().all(|byte| byte.is_ascii_digit()).then_some(projection)
}

/// The projection whose function an error passed through: `… function everfold_3_totals.apply(…`.
fn projection_in_context(context: &str) -> Option<&str> {
    context.lines().find_map(|line| {
        let (_, name) = line.split_once(" function everfold_")?;
        projection_of_home(home_of(name)?)
    })
}

/// The conflict of one member of many.
pub(super) fn version_conflict(
    append: &StreamAppend,
    expected: ExpectedVersion,
    actual: Version,
) -> AppendError {
    AppendError::VersionConflict { stream: append.stream.clone(), expected, actual }
}

/// An id that is stored already, with other content or in another stream.
pub(super) fn id_conflict(message: String) -> AppendError {
    AppendError::IdConflict { message }
}

fn invalid(database: &DbError) -> AppendError {
    InvalidAppend::Other { message: with_hint(database) }.into()
}

fn actual_version(database: &DbError) -> Option<Version> {
    let detail: serde_json::Value = serde_json::from_str(database.detail()?).ok()?;
    detail["actual"].as_u64().map(Version)
}

/// Constraints of the table `events`, as domain errors.
fn refused_by_constraint(database: &DbError) -> Option<InvalidAppend> {
    let rule = match database.constraint()? {
        "events_stream_id_length" => "a stream id has 1 to 512 bytes",
        "events_type_length" => "an event type has 1 to 256 bytes",
        "events_data_size" => "the data of an event has at most 16 MiB as jsonb",
        "events_metadata_object" => "metadata is a JSON object of at most 1 MiB",
        "events_schema_version_positive" => "a schema version is at least 1",
        _ => return None,
    };
    Some(InvalidAppend::Other { message: rule.to_owned() })
}

/// Data that the server does not take as jsonb.
fn refused_json(database: &DbError) -> Option<InvalidAppend> {
    const UNTRANSLATABLE: [&str; 4] = ["22P05", "22P02", "22003", "54000"];
    UNTRANSLATABLE.contains(&database.code().code()).then(|| InvalidAppend::Json {
        message: match database.detail() {
            Some(detail) => format!("{} ({detail})", database.message()),
            None => database.message().to_owned(),
        },
    })
}

struct StoreErrorParts {
    kind: StoreErrorKind,
    message: String,
}

/// What kind of trouble a server error is, and what to do about it.
fn parts(database: &DbError) -> StoreErrorParts {
    use StoreErrorKind::{
        Authentication, Busy, Closed, Exhausted, Missing, Other, Privilege, ReadOnly,
    };
    let code = database.code();
    let (kind, advice) = match code.code() {
        "28P01" | "28000" => (Authentication, "check user and password"),
        "42501" => (
            Privilege,
            "grant the user the role it needs: everfold_writer to append, everfold_events_reader to \
             read events, everfold_read_models to read read models, everfold_admin to run, watch and \
             mend projections",
        ),
        "3D000" => (Missing, "create the database, or check its name"),
        "3F000" | "42P01" | "42883" => {
            (Missing, "the everfold schema is missing or old: run `everfold schema apply`")
        }
        "25006" => (ReadOnly, "this is a standby or a read-only session: connect to the primary"),
        "40P01" | "40001" | "55P03" | "57014" | "EF009" => (Busy, "try again"),
        "53100" => (Exhausted, "the server's disk is full: free space on it, then try again"),
        "53300" => (Exhausted, too_many_connections(database.message())),
        "53200" | "53400" => (Exhausted, "the server is out of resources"),
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "08006" | "08003" | "08000" => {
            (Closed, "the server ended the session: try again")
        }
        // PgBouncer says so whenever it loses the server or cannot reach it. As a mere ERROR it is
        // PostgreSQL's word for a broken request.
        "08P01" if database.severity() == "FATAL" => {
            (Closed, "the pooler lost its connection to the server: try again")
        }
        "26000" | "42P05" => {
            (Other, "a pooler in transaction mode is in the way: add pooler=transaction to the URL")
        }
        _ => (Other, ""),
    };
    let message = match advice {
        "" => with_hint(database),
        advice => format!("{}; {advice}", database.message()),
    };
    StoreErrorParts { kind, message }
}

/// Whose connections are all taken, and how to see by whom: nobody can look without one.
fn too_many_connections(message: &str) -> &'static str {
    if message.contains("for role") {
        return "its CONNECTION LIMIT is reached: as a superuser, SELECT pid, application_name, state, \
            state_change FROM pg_stat_activity WHERE usename = '…' ORDER BY state_change, then \
            SELECT pg_terminate_backend(pid); or ALTER ROLE … CONNECTION LIMIT …";
    }
    if message.contains("for database") {
        return "its CONNECTION LIMIT is reached: as a superuser, SELECT pid, application_name, state, \
            state_change FROM pg_stat_activity WHERE datname = '…' ORDER BY state_change, then \
            SELECT pg_terminate_backend(pid); or ALTER DATABASE … CONNECTION LIMIT …";
    }
    "all connections are taken. A superuser gets one of those that superuser_reserved_connections keeps: \
     psql -U postgres -c \"SELECT application_name, usename, state, count(*) FROM pg_stat_activity GROUP BY \
     1, 2, 3 ORDER BY 4 DESC\", then SELECT pg_terminate_backend(pid) for those that nobody needs; lower \
     pool_size, put PgBouncer between, or raise max_connections"
}

fn with_hint(database: &DbError) -> String {
    match database.hint() {
        Some(hint) => format!("{}; {hint}", database.message()),
        None => database.message().to_owned(),
    }
}

fn is_io(error: &tokio_postgres::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if error.is::<std::io::Error>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The innermost message, which is the one that tells.
fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::projection_in_context;

    #[test]
    fn projection_is_named_by_the_function_of_its_home() {
        let context = "SQL statement \"INSERT INTO …\"\n\
            PL/pgSQL function everfold_12_daily_totals.apply(bigint[]) line 4 at SQL statement\n\
            SQL statement \"SELECT everfold_12_daily_totals.apply($1)\"\n\
            PL/pgSQL function everfold.apply_inline(integer[],bigint[],integer[]) line 20 at EXECUTE";
        assert_eq!(projection_in_context(context), Some("daily_totals"));
        let ours = "PL/pgSQL function everfold.append_event(text,bigint) line 20 at EXECUTE";
        assert_eq!(projection_in_context(ours), None);
    }
}
