//! An inline projection that shows every lost, doubled or reordered event: a hash over the ids of a
//! key's events, each hashed onto those before it. Made by hand, so that a story can be told step by
//! step with plain sessions.

use crate::session::Session;

/// The gate of a generation, as two arguments of the lock functions.
pub(crate) fn gate(generation: i64) -> String {
    format!("'everfold.generations'::regclass::oid::int, {generation}")
}

/// A hand-made inline projection; its id is that of its one generation.
pub(crate) struct Chain {
    pub(crate) id: i64,
    /// The schema of its table and its function.
    pub(crate) home: String,
    key: &'static str,
}

/// What a story says about its projection; the rest is ordinary.
pub(crate) struct Made {
    pub(crate) name: &'static str,
    /// A field such as `data.k`; otherwise the stream.
    pub(crate) key: Option<&'static str>,
    pub(crate) kind: &'static str,
    pub(crate) on_error: &'static str,
    pub(crate) status: &'static str,
}

impl Default for Made {
    fn default() -> Self {
        Made { name: "chain", key: None, kind: "sql", on_error: "stop", status: "active" }
    }
}

impl Chain {
    /// Registers it in the session's transaction, whatever that is.
    pub(crate) async fn make(session: &Session, made: Made) -> Chain {
        let Made { name, key, kind, on_error, status } = made;
        let fields = key.map_or("NULL".to_owned(), |field| format!("ARRAY['{field}']"));
        let id = session
            .number(&format!(
                "WITH p AS (INSERT INTO everfold.projections (namespace, name) VALUES ('', '{name}')
                     RETURNING id)
                 INSERT INTO everfold.generations (projection, version, kind, lifecycle, key_fields,
                     shards, on_error, definition_hash, definition, home, tables, status)
                 SELECT p.id, 1, '{kind}', 'inline', {fields}, 1, '{on_error}', '', '{{}}', '',
                     ARRAY['{name}'], '{status}' FROM p RETURNING id"
            ))
            .await;
        let home = format!("everfold_{id}_{name}");
        let key = if key.is_some() { "e.data ->> 'k'" } else { "e.stream_id" };
        session
            .run(&format!("UPDATE everfold.generations SET home = '{home}' WHERE id = {id}"))
            .await;
        session.run(&tables(&home, name, key)).await;
        Chain { id, home, key }
    }

    /// Streams or keys whose chain is not that of a fold of the whole log in its order; those with
    /// poison are left out of both.
    pub(crate) async fn differences(&self, session: &Session) -> Vec<String> {
        session
            .run(&format!(
                "DROP SCHEMA IF EXISTS folded CASCADE; {}",
                tables("folded", "chain", self.key)
            ))
            .await;
        session
            .run(
                "SELECT folded.apply(array_agg(position)) FROM everfold.events
                  WHERE NOT data ? 'poison'",
            )
            .await;
        let name = self.home.splitn(3, '_').last().expect("a home ends with a name");
        let sql = format!(
            "SELECT coalesce(a.key, b.key) FROM {}.{name} a FULL JOIN folded.chain b USING (key)
              WHERE a.hash IS DISTINCT FROM b.hash ORDER BY 1",
            self.home
        );
        let rows = session.rows(&sql).await.expect("the chains can be compared");
        rows.into_iter().filter_map(|mut row| row.pop().flatten()).collect()
    }

    pub(crate) async fn skips(&self, session: &Session) -> Vec<i64> {
        let sql = "SELECT position FROM everfold.skips WHERE generation";
        session.numbers(&format!("{sql} = {} ORDER BY position", self.id)).await
    }

    /// Failed events and those that wait, the latter with what they wait for: `3`, `4<3`.
    pub(crate) async fn dead_letters(&self, session: &Session) -> Vec<String> {
        let sql = format!(
            "SELECT position || coalesce('<' || behind, '') FROM everfold.dead_letters
              WHERE generation = {} ORDER BY position",
            self.id
        );
        let rows = session.rows(&sql).await.expect("dead letters can be read");
        rows.into_iter().filter_map(|mut row| row.pop().flatten()).collect()
    }

    pub(crate) async fn set(&self, session: &Session, what: &str) {
        session
            .run(&format!("UPDATE everfold.generations SET {what} WHERE id = {}", self.id))
            .await;
    }

    /// Settles all open skips in their order, as a runner does.
    pub(crate) async fn drain(&self, session: &Session) {
        session
            .run(&format!(
                "WITH taken AS (DELETE FROM everfold.skips WHERE generation = {} RETURNING position)
                 SELECT {}.apply(array_agg(position)) FROM taken",
                self.id, self.home
            ))
            .await;
    }
}

/// The function that applies one event, by way of the one that applies many.
pub(crate) fn one_event(home: &str) -> String {
    format!(
        "CREATE FUNCTION {home}.apply_event(everfold.events) RETURNS void LANGUAGE plpgsql
         SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
         BEGIN PERFORM {home}.apply(ARRAY[($1).position]); END $$;"
    )
}

/// The table of chains, and the function that applies events to it.
fn tables(home: &str, table: &str, key: &str) -> String {
    format!(
        "CREATE SCHEMA {home};
         CREATE TABLE {home}.{table} (key text PRIMARY KEY, hash text NOT NULL);
         CREATE FUNCTION {home}.apply(positions bigint[]) RETURNS void LANGUAGE plpgsql
         SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
         DECLARE
             event record;
         BEGIN
             FOR event IN SELECT e.position, {key} AS key, e.id, e.data FROM everfold.events e
                 WHERE e.position = ANY ($1) ORDER BY e.position
             LOOP
                 IF event.data ? 'poison' THEN
                     RAISE EXCEPTION 'no thanks, not %', event.position;
                 END IF;
                 INSERT INTO {home}.{table} AS c VALUES (event.key, md5(event.id::text))
                 ON CONFLICT (key) DO UPDATE SET hash = md5(c.hash || event.id);
             END LOOP;
         END $$;
         {}",
        one_event(home)
    )
}
