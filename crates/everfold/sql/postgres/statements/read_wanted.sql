-- All events of some types up to a position, by position, for one pass over the log.
-- $1 up_to bigint, $2 types text[] (NULL: all). Takes no locks.
SELECT position, stream_id, version, id, type, schema_version, data, metadata, recorded_at
  FROM everfold.events
 WHERE position <= $1 AND ($2::text[] IS NULL OR type = ANY ($2))
 ORDER BY position
