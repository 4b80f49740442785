-- The events of some streams, by position, for a verification of these.
-- $1 streams text[], $2 types text[] (NULL: all), $3 up_to bigint. Takes no locks.
SELECT position, stream_id, version, id, type, schema_version, data, metadata, recorded_at
  FROM everfold.events
 WHERE stream_id = ANY ($1) AND ($2::text[] IS NULL OR type = ANY ($2)) AND position <= $3
 ORDER BY position
