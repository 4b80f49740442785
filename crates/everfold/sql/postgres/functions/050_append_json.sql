-- Checks the events of one JSON append and raises what is wrong with the first bad one.
CREATE OR REPLACE FUNCTION everfold.check_json_events(stream_id text, events jsonb)
RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, everfold, pg_temp AS $$
DECLARE
    event jsonb;
    n bigint;
    problem text;
BEGIN
    IF jsonb_typeof($2) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'append to stream "%": events must be a JSON array, not %',
            $1, coalesce(jsonb_typeof($2), 'NULL')
            USING ERRCODE = 'EF003',
                HINT = 'for example [{"type": "ItemAdded", "data": {"sku": "A1"}}]';
    END IF;
    FOR event, n IN SELECT e, o FROM jsonb_array_elements($2) WITH ORDINALITY AS t(e, o) LOOP
        problem := CASE
            WHEN jsonb_typeof(event) <> 'object' THEN
                'is not an object'
            WHEN jsonb_typeof(event -> 'type') IS DISTINCT FROM 'string' THEN
                'needs a "type" that is a string'
            WHEN octet_length(event ->> 'type') NOT BETWEEN 1 AND 256 THEN
                'has a "type" of ' || octet_length(event ->> 'type') || ' bytes, allowed are 1 to 256'
            WHEN NOT event ? 'data' THEN
                'needs "data"'
            WHEN coalesce(jsonb_typeof(event -> 'metadata'), 'object') NOT IN ('object', 'null') THEN
                'has "metadata" that is not an object'
            WHEN coalesce(jsonb_typeof(event -> 'id'), 'string') NOT IN ('string', 'null')
                OR (event ->> 'id') !~* '^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$' THEN
                'has an "id" that is not a UUID'
            WHEN coalesce(jsonb_typeof(event -> 'schema_version'), 'number') NOT IN ('number', 'null')
                OR (event ->> 'schema_version') !~ '^[1-9][0-9]{0,8}$' THEN
                'has a "schema_version" that is not a whole number from 1'
            ELSE (
                SELECT 'has an unknown field "' || k || '"' FROM jsonb_object_keys(event) k
                 WHERE k NOT IN ('type', 'data', 'metadata', 'id', 'schema_version') LIMIT 1)
        END;
        IF problem IS NOT NULL THEN
            RAISE EXCEPTION 'append to stream "%": event % %', $1, n, problem
                USING ERRCODE = 'EF003',
                    HINT = 'an event is {"type", "data", "metadata"?, "id"?, "schema_version"?}';
        END IF;
    END LOOP;
END $$;

-- Appends events given as a JSON array: the form for every language and driver.
CREATE OR REPLACE FUNCTION everfold.append(
    stream_id text, expected_version bigint, events jsonb,
    OUT first_position bigint, OUT last_position bigint, OUT version bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, everfold, pg_temp AS $$
#variable_conflict use_column
DECLARE
    types text[];
    data jsonb[];
    metadata jsonb[];
    ids uuid[];
    schema_versions integer[];
BEGIN
    PERFORM everfold.check_json_events($1, $3);
    SELECT array_agg(e ->> 'type' ORDER BY n), array_agg(e -> 'data' ORDER BY n),
           array_agg(CASE jsonb_typeof(e -> 'metadata') WHEN 'object' THEN e -> 'metadata' END ORDER BY n),
           array_agg((e ->> 'id')::uuid ORDER BY n),
           array_agg((e ->> 'schema_version')::integer ORDER BY n)
      INTO types, data, metadata, ids, schema_versions
      FROM jsonb_array_elements($3) WITH ORDINALITY AS t(e, n);
    SELECT r.first_position, r.last_position, r.version
      INTO append.first_position, append.last_position, append.version
      FROM everfold.append($1, $2, types, data, metadata, ids, schema_versions) r;
END $$;
