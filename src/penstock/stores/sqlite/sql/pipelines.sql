-- Pipelines and how far they have come.

-- begin --
-- What all runs have done together, and the last error, outlive a run.
INSERT INTO penstock_pipelines (
    name, token, home, state, runner, is_continuous, trigger_every, checkpoint, options,
    started_at, updated_at
)
VALUES (?1, ?2, ?3, 'starting', ?4, ?5, ?6, ?7, ?8, ?9, ?9)
ON CONFLICT (name) DO UPDATE
SET token = excluded.token, home = excluded.home, state = excluded.state,
    runner = excluded.runner, is_continuous = excluded.is_continuous,
    trigger_every = excluded.trigger_every, checkpoint = excluded.checkpoint,
    options = excluded.options, runs = runs + 1, rows = 0, batches = 0, batch = NULL,
    batch_rows = 0, batch_seconds = 0, lag = NULL, started_at = excluded.started_at,
    updated_at = excluded.updated_at, ended_at = NULL;

-- report --
UPDATE penstock_pipelines
SET state = 'running', rows = rows + ?3, rows_total = rows_total + ?3, batches = batches + 1,
    batch = ?4, lag = ?5, batch_rows = ?3, batch_seconds = ?6, updated_at = ?7
WHERE name = ?1 AND token = ?2
RETURNING 1;

-- beat --
UPDATE penstock_pipelines
SET state = 'running', lag = coalesce(?3, lag), updated_at = ?4
WHERE name = ?1 AND token = ?2
RETURNING 1;

-- end --
UPDATE penstock_pipelines
SET state = ?3, ended_at = ?5, updated_at = ?5,
    error = CASE ?4 WHEN '' THEN error ELSE ?4 END,
    error_at = CASE ?4 WHEN '' THEN error_at ELSE ?5 END
WHERE name = ?1 AND token = ?2
RETURNING 1;

-- forget --
DELETE FROM penstock_pipelines WHERE name = ? RETURNING 1;

-- find --
SELECT name, home, state, runner, is_continuous, trigger_every, checkpoint, options, runs, rows,
       rows_total, batches, batch, batch_rows, batch_seconds, lag, started_at, updated_at,
       ended_at, error, error_at
FROM penstock_pipelines WHERE ?1 IS NULL OR name = ?1 ORDER BY name;
