-- The raw limit of an append: a version check and an insert, nothing else, into a table with the
-- same columns, constraints and indexes as everfold.events and a sequence of its own.
CREATE SCHEMA raw;
CREATE TABLE raw.events (LIKE everfold.events INCLUDING ALL);

CREATE FUNCTION raw.append_event(
    the_stream text, expected bigint, event_type text, event_data jsonb, event_metadata jsonb,
    event_id uuid, event_schema_version integer)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    actual bigint;
    new_position bigint;
BEGIN
    SELECT e.version INTO actual FROM raw.events e
     WHERE e.stream_id = the_stream ORDER BY e.version DESC LIMIT 1;
    actual := coalesce(actual, 0);
    IF actual <> expected THEN
        RAISE EXCEPTION 'stream % is at version %', the_stream, actual;
    END IF;
    INSERT INTO raw.events (stream_id, version, type, schema_version, data, metadata, id)
    VALUES (the_stream, actual + 1, event_type, event_schema_version, event_data, event_metadata,
            event_id)
    RETURNING position INTO new_position;
    RETURN new_position;
END $$;

CREATE FUNCTION raw.append_events(
    the_stream text, expected bigint, event_types text[], event_data jsonb[],
    event_metadata jsonb[], event_ids uuid[], event_schema_versions integer[])
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    actual bigint;
    last_position bigint;
BEGIN
    SELECT e.version INTO actual FROM raw.events e
     WHERE e.stream_id = the_stream ORDER BY e.version DESC LIMIT 1;
    actual := coalesce(actual, 0);
    IF actual <> expected THEN
        RAISE EXCEPTION 'stream % is at version %', the_stream, actual;
    END IF;
    WITH stored AS (
        INSERT INTO raw.events (stream_id, version, type, schema_version, data, metadata, id)
        SELECT the_stream, actual + u.n, u.type, u.schema_version, u.data, u.metadata, u.id
          FROM unnest(event_types, event_data, event_metadata, event_ids, event_schema_versions)
               WITH ORDINALITY AS u(type, data, metadata, id, schema_version, n)
        RETURNING position
    )
    SELECT max(position) INTO last_position FROM stored;
    RETURN last_position;
END $$;


-- The raw limit of an inline projection: the same, and the row of the read model with it.
CREATE TABLE raw.carts (
    cart_id text PRIMARY KEY, items bigint NOT NULL, cents bigint NOT NULL, changes bigint NOT NULL);

CREATE FUNCTION raw.append_and_project(
    the_stream text, expected bigint, event_type text, event_data jsonb, event_metadata jsonb,
    event_id uuid, event_schema_version integer)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    actual bigint;
    new_position bigint;
BEGIN
    SELECT e.version INTO actual FROM raw.events e
     WHERE e.stream_id = the_stream ORDER BY e.version DESC LIMIT 1;
    actual := coalesce(actual, 0);
    IF actual <> expected THEN
        RAISE EXCEPTION 'stream % is at version %', the_stream, actual;
    END IF;
    INSERT INTO raw.events (stream_id, version, type, schema_version, data, metadata, id)
    VALUES (the_stream, actual + 1, event_type, event_schema_version, event_data, event_metadata,
            event_id)
    RETURNING position INTO new_position;
    INSERT INTO raw.carts AS c (cart_id, items, cents, changes)
    VALUES (the_stream, (event_data->>'quantity')::bigint, (event_data->>'price_cents')::bigint, 1)
    ON CONFLICT (cart_id) DO UPDATE SET items = c.items + EXCLUDED.items,
        cents = c.cents + EXCLUDED.cents, changes = c.changes + EXCLUDED.changes;
    RETURN new_position;
END $$;
