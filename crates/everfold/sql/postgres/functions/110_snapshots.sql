-- Stores the folded state of a stream, unless a later one is there already.
CREATE OR REPLACE FUNCTION everfold.save_stream_snapshot(
    stream_id text, name text, version bigint, state_version integer, state jsonb)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
    INSERT INTO everfold.stream_snapshots AS s (stream_id, name, version, state_version, state)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT ON CONSTRAINT stream_snapshots_pkey DO UPDATE
        SET version = EXCLUDED.version, state_version = EXCLUDED.state_version,
            state = EXCLUDED.state, taken_at = clock_timestamp()
      WHERE s.version < EXCLUDED.version OR s.state_version <> EXCLUDED.state_version
$$;
