-- The inline generations that an append applies or owes events to. Answered by its index alone.
-- Rows: id, status, on_error, definition_hash; by id.
SELECT id, status, on_error, definition_hash
  FROM everfold_generations
 WHERE lifecycle = 'inline' AND status IN ('active', 'rebuilding', 'paused', 'failed')
 ORDER BY id
