//! Projections in Rust, as people write them down: a name, a version, and what differs from the
//! defaults.

use std::sync::Arc;
use std::time::Duration;

use super::Projection;
use super::definition::{Body, Definition, Lifecycle, OnError, ProjectionSettings};
use super::document::{DocumentProjection, KeyFunction, TypedFold};
use super::key::{Key, KeyField};
use super::projector::Projector;
use crate::RecordedEvent;
use crate::codec::event_types;
use crate::error::ProjectionError;

/// Most events of a batch that may be asked for.
const BATCH_EVENTS_MAX: u32 = 1_000_000;
/// Most retries of an event before its policy decides.
const RETRIES_MAX: u32 = 1_000_000;
/// Longest pause between retries that may be asked for.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest event type that a store takes.
const EVENT_TYPE_BYTES_MAX: usize = 256;
/// Most shards of a projection.
pub(crate) const SHARDS_MAX: u32 = 1024;

/// A projection in the making, from [`Projection::document`], [`Projection::sql`],
/// [`Projection::postgres_handler`] or [`Projection::sqlite_handler`].
///
/// Raise the version whenever the projection would make something else of the same events, and when
/// lifecycle, event types, key, shards or indexes change: the registry refuses the same version with
/// another definition, and builds a new version beside the old one. It cannot see into Rust code:
/// a changed `evolve` under the same version goes unnoticed until events are replayed.
#[derive(Debug, Clone)]
#[must_use = "a projection is made by build()"]
pub struct ProjectionBuilder<B> {
    pub(super) definition: Definition,
    pub(super) body: B,
    /// The first thing that is wrong and cannot be said before `build`.
    wrong: Option<String>,
}

/// What a builder of documents that `D` folds has more than others: [key](ProjectionBuilder::key) and
/// [index](ProjectionBuilder::index).
pub struct DocumentBody<D: DocumentProjection> {
    projection: D,
    key: Option<KeyFunction<D::Event>>,
}

/// What the builder of a handler, code with the open transaction, is told apart by.
#[derive(Debug, Clone)]
pub struct HandlerBody(Projector);

impl Projection {
    /// Documents, one for each stream unless another [key](ProjectionBuilder::key) is given, in a
    /// table under the projection's name. Events of the types that `D::Event` has are applied. There is an
    /// example at [`DocumentProjection`].
    pub fn document<D: DocumentProjection>(
        name: impl Into<String>,
        version: u32,
        projection: D,
    ) -> ProjectionBuilder<DocumentBody<D>> {
        let body = Body::Document { indexes: Vec::new() };
        let types = event_types::<D::Event>();
        let mut builder =
            ProjectionBuilder::new(name, version, body, DocumentBody { projection, key: None });
        if types.is_empty() {
            builder.refuse("its Event type is not an enum in serde's default form; make it one");
        }
        builder.events(types.iter().copied())
    }

    /// A handler that gets events and the open transaction of a PostgreSQL store. All event types,
    /// unless some are [named](ProjectionBuilder::events). There is an example at
    /// [`PostgresHandler`](crate::postgres::PostgresHandler).
    #[cfg(feature = "postgres")]
    pub fn postgres_handler(
        name: impl Into<String>,
        version: u32,
        handler: impl super::PostgresHandler,
    ) -> ProjectionBuilder<HandlerBody> {
        let projector = Projector::PostgresHandler(Arc::new(handler));
        ProjectionBuilder::new(name, version, Body::Handler, HandlerBody(projector))
    }

    /// A handler that gets events and the open transaction of a SQLite store. All event types,
    /// unless some are [named](ProjectionBuilder::events). There is an example at
    /// [`SqliteHandler`](crate::sqlite::SqliteHandler).
    #[cfg(feature = "sqlite")]
    pub fn sqlite_handler(
        name: impl Into<String>,
        version: u32,
        handler: impl super::SqliteHandler,
    ) -> ProjectionBuilder<HandlerBody> {
        let projector = Projector::SqliteHandler(Arc::new(handler));
        ProjectionBuilder::new(name, version, Body::Handler, HandlerBody(projector))
    }
}

impl<B> ProjectionBuilder<B> {
    pub(super) fn new(name: impl Into<String>, version: u32, body: Body, code: B) -> Self {
        let definition = Definition {
            // The store handle's, from its options.
            namespace: String::new(),
            name: name.into(),
            version,
            lifecycle: Lifecycle::CatchUp,
            event_types: None,
            key: Key::Stream,
            shards: 1,
            settings: ProjectionSettings::default(),
            body,
        };
        ProjectionBuilder { definition, body: code, wrong: None }
    }

    pub(super) fn refuse(&mut self, message: impl Into<String>) {
        self.wrong.get_or_insert(message.into());
    }

    /// In the append's own transaction: whoever sees an event sees what became of it. The key is the
    /// stream then, and there is one shard. Appends through a handle that does not carry the
    /// projection (older code, another language) record what they leave out, and a runner makes up
    /// for it.
    pub fn inline(mut self) -> Self {
        self.definition.lifecycle = Lifecycle::Inline;
        self
    }

    /// Behind the appends, by a runner. The default.
    pub fn catch_up(mut self) -> Self {
        self.definition.lifecycle = Lifecycle::CatchUp;
        self
    }

    /// Only events of these types, by the names they have today.
    pub fn events<T: Into<String>>(mut self, types: impl IntoIterator<Item = T>) -> Self {
        let mut types: Vec<String> = types.into_iter().map(Into::into).collect();
        types.sort_unstable();
        types.dedup();
        self.definition.event_types = Some(types);
        self
    }

    /// Order matters within events that have the same values in these fields (`data.tenant`,
    /// `metadata.region`, `stream_id`, `type`), not within streams; for documents they are the key.
    /// Several fields give a JSON array of texts. Catch-up only, unless the projection is SQL.
    ///
    /// ```
    /// use everfold::Projection;
    ///
    /// let by_tenant = Projection::sql("orders_by_tenant", 1)
    ///     .create("CREATE TABLE read_model.orders_by_tenant (tenant TEXT PRIMARY KEY, n BIGINT NOT NULL)")
    ///     .apply(
    ///         "INSERT INTO read_model.orders_by_tenant AS t (tenant, n)
    ///          SELECT data->>'tenant', COUNT(*) FROM batch WHERE true GROUP BY 1
    ///          ON CONFLICT (tenant) DO UPDATE SET n = t.n + EXCLUDED.n",
    ///     )
    ///     .key_fields(["data.tenant"])
    ///     .shards(4) // four runners can work on it at once
    ///     .build()?;
    /// # let _ = by_tenant;
    /// # Ok::<(), everfold::ProjectionError>(())
    /// ```
    pub fn key_fields<T: AsRef<str>>(mut self, fields: impl IntoIterator<Item = T>) -> Self {
        let parsed = fields.into_iter().map(|field| KeyField::parse(field.as_ref()));
        match parsed.collect::<Result<Vec<_>, _>>() {
            Ok(fields) if fields.is_empty() => self.refuse("a key needs at least one field"),
            Ok(fields) => match repeated(&fields) {
                Some(field) => self.refuse(format!("the key names {field} twice")),
                None => self.definition.key = Key::Fields(fields),
            },
            Err(message) => self.refuse(message),
        }
        self
    }

    /// In so many parts, by a hash of the key, that runners work on at the same time: 1 to 1,024, by
    /// default 1. Catch-up only; a change needs a new version.
    pub fn shards(mut self, shards: u32) -> Self {
        self.definition.shards = shards;
        self
    }

    /// What happens to an event that cannot be applied, once retrying has not helped: by default the
    /// projection stops before it.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.definition.settings.on_error = on_error;
        self
    }

    /// Batch size, retries and thresholds, all at once; they may change without a new version.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use everfold::{OnError, Projection, ProjectionSettings};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/docs/shop.rs"));
    /// # use shop::*;
    /// # fn main() -> Result<(), everfold::ProjectionError> {
    /// let mut settings = ProjectionSettings::default();
    /// settings.on_error = OnError::DeadLetter;
    /// settings.lag_warn = Some(Duration::from_secs(60));
    /// settings.snapshot_every = Some(Duration::from_secs(24 * 60 * 60));
    /// let carts = Projection::document("carts", 1, Carts).settings(settings).build()?;
    /// # let _ = carts;
    /// # Ok(()) }
    /// ```
    pub fn settings(mut self, settings: ProjectionSettings) -> Self {
        self.definition.settings = settings;
        self
    }

    pub(super) fn finish(
        self,
        projector: impl FnOnce(B, &Definition) -> Result<Projector, String>,
    ) -> Result<Projection, ProjectionError> {
        let ProjectionBuilder { definition, body, wrong } = self;
        let checked = wrong.map_or(Ok(()), Err).and_then(|()| check(&definition));
        match checked.and_then(|()| projector(body, &definition)) {
            Ok(projector) => Ok(Projection { definition, projector }),
            Err(message) => Err(ProjectionError::Invalid { projection: definition.name, message }),
        }
    }
}

impl ProjectionBuilder<HandlerBody> {
    /// The projection, ready to be registered.
    ///
    /// # Errors
    /// [`ProjectionError::Invalid`] if a rule is broken; the message says which.
    pub fn build(self) -> Result<Projection, ProjectionError> {
        self.finish(|HandlerBody(projector), _| Ok(projector))
    }
}

impl<D: DocumentProjection> ProjectionBuilder<DocumentBody<D>> {
    /// The document of an event is found by this function instead of by the stream; `None`: the
    /// event belongs to no document. It must be pure, as `evolve` is. Catch-up only.
    ///
    /// ```
    /// # use everfold::{DocumentProjection, Projection, RecordedEvent};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(Serialize, Deserialize)]
    /// enum OrderEvent {
    ///     Placed { city: String },
    /// }
    /// # struct OrdersByCity;
    /// # impl DocumentProjection for OrdersByCity {
    /// #     type Event = OrderEvent;
    /// #     type Document = u64;
    /// #     fn evolve(&self, n: Option<u64>, _: &OrderEvent, _: &RecordedEvent) -> Option<u64> {
    /// #         Some(n.unwrap_or(0) + 1)
    /// #     }
    /// # }
    /// let by_city = Projection::document("orders_by_city", 1, OrdersByCity)
    ///     .key(|event, _| match event {
    ///         OrderEvent::Placed { city } => Some(city.clone()),
    ///     })
    ///     .build()?;
    /// # let _ = by_city;
    /// # Ok::<(), everfold::ProjectionError>(())
    /// ```
    pub fn key(
        mut self,
        key: impl Fn(&D::Event, &RecordedEvent) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.definition.key = Key::Code;
        self.body.key = Some(Box::new(key));
        self
    }

    /// An index on a field of the documents, such as `customer.city`, for
    /// [`find`](crate::ReadDocuments::find), which [`Store::documents`](crate::Store::documents) shows.
    pub fn index(mut self, path: impl Into<String>) -> Self {
        let path = path.into();
        if let Err(message) = check_path(&path) {
            self.refuse(message);
        }
        if let Body::Document { indexes } = &mut self.definition.body {
            indexes.push(path);
            indexes.sort_unstable();
            indexes.dedup();
        }
        self
    }

    /// The projection, ready to be registered.
    ///
    /// # Errors
    /// [`ProjectionError::Invalid`] if a rule is broken; the message says which.
    pub fn build(self) -> Result<Projection, ProjectionError> {
        self.finish(|DocumentBody { projection, key: key_function }, definition| {
            let (name, key) = (definition.name.clone(), definition.key.clone());
            Ok(Projector::Document(Arc::new(TypedFold { name, projection, key, key_function })))
        })
    }
}

impl<D: DocumentProjection> std::fmt::Debug for DocumentBody<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DocumentBody").finish_non_exhaustive()
    }
}

/// The rules that every definition obeys, whatever it was read from. The databases check most of
/// them again.
///
/// # Errors
/// Which one is broken, and what is allowed.
pub(crate) fn check(definition: &Definition) -> Result<(), String> {
    let Definition { name, version, lifecycle, key, shards, .. } = definition;
    if !is_name(name, 40) {
        return Err(format!("the name {} is not allowed: {NAME_RULE}, at most 40", quoted(name)));
    }
    if *version == 0 || i32::try_from(*version).is_err() {
        return Err(format!("version {version} is not allowed: versions count from 1"));
    }
    if !(1..=SHARDS_MAX).contains(shards) {
        return Err(format!("{shards} shards are not allowed: from 1 to {SHARDS_MAX}"));
    }
    match &definition.event_types {
        Some(types) if types.is_empty() => {
            return Err("it wants no event types; name at least one, or leave them out".to_owned());
        }
        Some(types) if types.iter().any(|name| name.is_empty() || name.contains('\0')) => {
            return Err("an event type is empty or holds a NUL character".to_owned());
        }
        Some(types) if types.iter().any(|name| name.len() > EVENT_TYPE_BYTES_MAX) => {
            return Err(format!("an event type is longer than {EVENT_TYPE_BYTES_MAX} bytes"));
        }
        _ => {}
    }
    if *lifecycle == Lifecycle::Inline && *shards != 1 {
        return Err(format!("it is inline and has {shards} shards: inline ones have one"));
    }
    let in_rust = !matches!(definition.body, Body::Sql(_));
    if *lifecycle == Lifecycle::Inline && in_rust && *key != Key::Stream {
        return Err(
            "it is inline, and its key is not the stream: a projection in Rust with another key \
             is catch-up, an inline one with another key is SQL"
                .to_owned(),
        );
    }
    check_settings(&definition.settings).map_err(|(key, message)| format!("{key} {message}"))
}

const NAME_RULE: &str = "lower case letters, digits and _, with a letter first";

/// The rules of settings.
///
/// # Errors
/// The setting that breaks one, and what is wrong with it.
pub(super) fn check_settings(settings: &ProjectionSettings) -> Result<(), (&'static str, String)> {
    let ProjectionSettings { batch_events, retries, retry_delay, retry_delay_max, .. } = settings;
    if !(1..=BATCH_EVENTS_MAX).contains(batch_events) {
        let message = format!("is {batch_events}: a batch has 1 to {BATCH_EVENTS_MAX} events");
        return Err(("batch_events", message));
    }
    if *retries > RETRIES_MAX {
        let message = format!("is {retries}: at most {RETRIES_MAX}; on_error comes after them");
        return Err(("retries", message));
    }
    if retry_delay.is_zero() {
        return Err(("retry_delay", "is 0: a pause is at least 1 ms".to_owned()));
    }
    if retry_delay > retry_delay_max {
        let message =
            format!("({retry_delay:?}) is longer than retry_delay_max ({retry_delay_max:?})");
        return Err(("retry_delay", message));
    }
    if *retry_delay_max > RETRY_DELAY_MAX {
        return Err(("retry_delay_max", format!("is {retry_delay_max:?}: at most 24 hours")));
    }
    match (settings.lag_warn, settings.lag_fail) {
        (Some(warn), Some(fail)) if warn > fail => {
            let message = format!(
                "({warn:?}) is more than lag_fail ({fail:?}), so it would never warn; make it less"
            );
            Err(("lag_warn", message))
        }
        _ => Ok(()),
    }
}

/// A name that needs no quoting in any database, as the registry's constraints have it.
pub(crate) fn is_name(name: &str, bytes_max: usize) -> bool {
    let mut bytes = name.bytes();
    name.len() <= bytes_max
        && bytes.next().is_some_and(|first| first.is_ascii_lowercase())
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// The first that is there twice.
pub(super) fn repeated<T: PartialEq>(values: &[T]) -> Option<&T> {
    values
        .iter()
        .enumerate()
        .find(|(index, value)| values[..*index].contains(value))
        .map(|(_, v)| v)
}

/// A name for a message: control characters visible, however long.
fn quoted(name: &str) -> String {
    let shown: String = name.chars().take(60).collect();
    format!("{shown:?}")
}

/// A path into a document: names with dots between. They stand in the SQL of indexes, so what would
/// need quoting there is refused.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    let plain = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    if path.len() <= 200 && path.split('.').all(plain) {
        return Ok(());
    }
    Err(format!(
        "the path {} is not one: names of letters, digits, _ and - with dots between, at most 200 \
         characters",
        quoted(path)
    ))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    enum Event {
        Opened,
        Closed,
    }

    struct Count;

    impl DocumentProjection for Count {
        type Event = Event;
        type Document = u64;

        fn evolve(&self, n: Option<u64>, event: &Event, _: &RecordedEvent) -> Option<u64> {
            match event {
                Event::Opened => Some(n.unwrap_or(0) + 1),
                Event::Closed => n,
            }
        }
    }

    struct Untyped;

    impl DocumentProjection for Untyped {
        type Event = String;
        type Document = u64;

        fn evolve(&self, n: Option<u64>, _: &String, _: &RecordedEvent) -> Option<u64> {
            n
        }
    }

    fn count() -> ProjectionBuilder<DocumentBody<Count>> {
        Projection::document("count", 1, Count)
    }

    #[track_caller]
    fn refused(built: Result<Projection, ProjectionError>, part: &str) {
        match built {
            Err(ProjectionError::Invalid { message, .. }) => {
                assert!(message.contains(part), "{message}");
            }
            other => panic!("wanted a refusal with {part:?}, got {other:?}"),
        }
    }

    #[test]
    fn defaults_are_catch_up_by_stream_with_the_types_of_the_enum() {
        let definition = count().build().unwrap().definition;
        assert_eq!(definition.lifecycle, Lifecycle::CatchUp);
        assert_eq!(definition.key, Key::Stream);
        assert_eq!(definition.shards, 1);
        assert_eq!(definition.event_types, Some(vec!["Closed".into(), "Opened".into()]));
        let named = count().events(["Opened", "Opened"]).build().unwrap().definition;
        assert_eq!(named.event_types, Some(vec!["Opened".into()]));
    }

    #[test]
    fn names_that_the_registry_would_refuse_are_refused() {
        for name in ["", "Count", "1count", "_c", "a-b", "a\"; DROP TABLE x", "ä", &"a".repeat(41)]
        {
            refused(Projection::document(name, 1, Count).build(), "the name");
        }
        Projection::document("a".repeat(40), 1, Count).build().unwrap();
    }

    #[test]
    fn versions_shards_and_settings_out_of_range_are_refused() {
        refused(Projection::document("count", 0, Count).build(), "versions count from 1");
        refused(Projection::document("count", u32::MAX, Count).build(), "version 4294967295");
        refused(count().shards(0).build(), "from 1 to 1024");
        refused(count().shards(1025).build(), "from 1 to 1024");
        refused(count().inline().shards(2).build(), "inline ones have one");
        refused(count().events(Vec::<String>::new()).build(), "no event types");
        let settings = ProjectionSettings { batch_events: 0, ..ProjectionSettings::default() };
        refused(count().settings(settings).build(), "batch_events is 0");
        let settings = ProjectionSettings {
            lag_warn: Some(Duration::from_secs(2)),
            lag_fail: Some(Duration::from_secs(1)),
            ..ProjectionSettings::default()
        };
        refused(count().settings(settings).build(), "lag_warn (2s) is more than lag_fail (1s)");
        refused(count().events(["a".repeat(257)]).build(), "longer than 256 bytes");
    }

    #[test]
    fn inline_documents_have_the_stream_as_key() {
        refused(count().inline().key(|_, _| None).build(), "its key is not the stream");
        refused(count().key_fields(["data.a"]).inline().build(), "its key is not the stream");
        count().key(|_, _| None).build().unwrap();
        count().inline().build().unwrap();
    }

    #[test]
    fn fields_and_paths_that_are_none_are_refused() {
        refused(count().key_fields(["data"]).build(), "key field \"data\"");
        refused(count().key_fields(Vec::<String>::new()).build(), "at least one field");
        refused(count().key_fields(["data.a", "data.a"]).build(), "the key names data.a twice");
        for path in ["", "a..b", "a.", "a'b", "a b", "ä"] {
            refused(count().index(path).build(), "the path");
        }
        let built = count().index("b.c").index("a-1").index("b.c").build().unwrap();
        let Body::Document { indexes } = built.definition.body else { panic!("no documents") };
        assert_eq!(indexes, ["a-1", "b.c"]);
    }

    #[test]
    fn events_that_are_no_enum_are_refused() {
        refused(Projection::document("count", 1, Untyped).build(), "not an enum");
    }

    #[test]
    fn every_part_that_decides_the_content_changes_the_hash() {
        let hash = |builder: ProjectionBuilder<DocumentBody<Count>>| {
            builder.build().unwrap().definition.hash(crate::StoreKind::Sqlite)
        };
        let plain = hash(count());
        assert_eq!(plain, hash(count().on_error(OnError::Skip)));
        for other in [
            hash(count().inline()),
            hash(count().shards(2)),
            hash(count().events(["Opened"])),
            hash(count().key(|_, _| None)),
            hash(count().key_fields(["data.a"])),
            hash(count().index("a")),
        ] {
            assert_ne!(plain, other);
        }
    }
}
