-- The shard of a key: the first four bytes of the SHA-256 of its text in UTF-8, as an unsigned number,
-- modulo the number of shards. The same as key::shard_of of the library; it must never change, because
-- checkpoints rest on it.
--
-- Called for every event of a sharded projection: it pins no search_path, every name and operator says
-- its schema.
CREATE OR REPLACE FUNCTION everfold.shard_of(key text, shards integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    hash bytea := pg_catalog.sha256(pg_catalog.convert_to($1, 'UTF8'));
BEGIN
    -- Operators that say their schema bind alike, so the parentheses are needed.
    RETURN (((pg_catalog.get_byte(hash, 0)::bigint
        OPERATOR(pg_catalog.*) 256 OPERATOR(pg_catalog.+) pg_catalog.get_byte(hash, 1))
        OPERATOR(pg_catalog.*) 256 OPERATOR(pg_catalog.+) pg_catalog.get_byte(hash, 2))
        OPERATOR(pg_catalog.*) 256 OPERATOR(pg_catalog.+) pg_catalog.get_byte(hash, 3))
        OPERATOR(pg_catalog.%) $2;
END $$;

-- Stands where a key is NULL, and refuses the event: `coalesce(key, everfold.refuse_key(…))`.
CREATE OR REPLACE FUNCTION everfold.refuse_key(fields text, event_position bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'key field % is missing or null in the event at position %', $1, $2
        USING ERRCODE = 'EF021', DETAIL = jsonb_build_object('position', $2)::text;
END $$;
