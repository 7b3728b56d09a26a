-- Sinks and their batches.

-- get_sink --
SELECT query, last_number, pruned_through FROM penstock_sinks WHERE name = ?;

-- put_sink --
INSERT INTO penstock_sinks (name, query, last_number, updated_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE
SET last_number = max(last_number, excluded.last_number), updated_at = excluded.updated_at;

-- get_batch --
SELECT b.sink, b.number, s.query, b.rows, b.digest, b.chunks, b.chunks_done, coalesce(b.plan, x''),
       b.started_at, b.finished_at
FROM penstock_sink_batches AS b JOIN penstock_sinks AS s ON s.name = b.sink
WHERE b.sink = ?1 AND b.number = ?2;

-- last_batch --
SELECT b.sink, b.number, s.query, b.rows, b.digest, b.chunks, b.chunks_done, coalesce(b.plan, x''),
       b.started_at, b.finished_at
FROM penstock_sink_batches AS b JOIN penstock_sinks AS s ON s.name = b.sink
WHERE b.sink = ?1 ORDER BY b.number DESC LIMIT 1;

-- open_batches --
SELECT b.sink, b.number, s.query, b.rows, b.digest, b.chunks, b.chunks_done, coalesce(b.plan, x''),
       b.started_at, b.finished_at
FROM penstock_sink_batches AS b JOIN penstock_sinks AS s ON s.name = b.sink
WHERE b.finished_at IS NULL ORDER BY b.sink, b.number;

-- insert_batch --
INSERT INTO penstock_sink_batches
    (sink, number, rows, digest, chunks, chunks_done, started_at, finished_at, plan)
VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, CASE WHEN ?5 = 0 THEN ?6 END, ?7);

-- advance_batch --
UPDATE penstock_sink_batches
SET chunks_done = chunks_done + 1,
    finished_at = CASE WHEN chunks_done + 1 = chunks THEN ?4 END,
    plan = CASE WHEN chunks_done + 1 = chunks THEN NULL ELSE plan END
WHERE sink = ?1 AND number = ?2 AND chunks_done = ?3 AND chunks_done < chunks
RETURNING chunks_done;

-- prune_batches --
-- Those that are written, from the lowest number up: what is known stays one stretch.
DELETE FROM penstock_sink_batches
WHERE sink = ?1 AND number <= ?2 AND number < coalesce((
    SELECT min(number) FROM penstock_sink_batches WHERE sink = ?1 AND finished_at IS NULL
), ?2 + 1)
RETURNING number;

-- set_pruned --
UPDATE penstock_sinks SET pruned_through = max(pruned_through, ?2) WHERE name = ?1;

-- forget_batches --
DELETE FROM penstock_sink_batches WHERE sink = ? RETURNING number;

-- forget_sink --
DELETE FROM penstock_sinks WHERE name = ?;
