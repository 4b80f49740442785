-- Events of one stream from a version on, forward or backward.
CREATE OR REPLACE FUNCTION everfold.read_stream(
    stream_id text, from_version bigint DEFAULT NULL, max_count integer DEFAULT 1000,
    backward boolean DEFAULT false)
RETURNS SETOF everfold.events
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
BEGIN
    IF $4 THEN
        RETURN QUERY SELECT * FROM everfold.events e
            WHERE e.stream_id = $1 AND e.version <= coalesce($2, 9223372036854775807)
            ORDER BY e.version DESC LIMIT $3;
    ELSE
        RETURN QUERY SELECT * FROM everfold.events e
            WHERE e.stream_id = $1 AND e.version >= coalesce($2, 1)
            ORDER BY e.version LIMIT $3;
    END IF;
END $$;

-- Events after a position in their order, never past the high-water mark: a reader that stores
-- the last position it got and asks again from there misses nothing.
CREATE OR REPLACE FUNCTION everfold.read_all(
    after_position bigint DEFAULT 0, max_count integer DEFAULT 1000, types text[] DEFAULT NULL)
RETURNS SETOF everfold.events
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
DECLARE
    mark bigint := everfold.high_water_mark();
BEGIN
    IF $3 IS NULL THEN
        RETURN QUERY SELECT * FROM everfold.events e
            WHERE e.position > $1 AND e.position <= mark ORDER BY e.position LIMIT $2;
    ELSE
        RETURN QUERY SELECT e.* FROM everfold.events e
            JOIN (SELECT p.position
                    FROM (SELECT DISTINCT unnest($3)) AS t(type)
                    CROSS JOIN LATERAL (
                        SELECT i.position FROM everfold.events i
                         WHERE i.type = t.type AND i.position > $1 AND i.position <= mark
                         ORDER BY i.position LIMIT $2) p
                   ORDER BY p.position LIMIT $2) wanted USING (position)
            ORDER BY e.position;
    END IF;
END $$;
