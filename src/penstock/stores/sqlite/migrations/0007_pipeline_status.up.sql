-- A table of its own: the release before can go on beside.
-- readable from 2

-- How far each pipeline has come. The token is its runner's: a run that lost its lease to another
-- one changes nothing any more.
CREATE TABLE penstock_pipelines (
    name TEXT PRIMARY KEY,
    token INTEGER NOT NULL,
    home TEXT NOT NULL,
    state TEXT NOT NULL,
    runner TEXT NOT NULL,
    is_continuous INTEGER NOT NULL,
    trigger_every TEXT NOT NULL,
    checkpoint TEXT NOT NULL,
    options TEXT NOT NULL,
    runs INTEGER NOT NULL DEFAULT 1,
    rows INTEGER NOT NULL DEFAULT 0,
    rows_total INTEGER NOT NULL DEFAULT 0,
    batches INTEGER NOT NULL DEFAULT 0,
    batch INTEGER,
    batch_rows INTEGER NOT NULL DEFAULT 0,
    batch_seconds REAL NOT NULL DEFAULT 0,
    lag INTEGER,
    started_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    ended_at INTEGER,
    error TEXT NOT NULL DEFAULT '',
    error_at INTEGER
) WITHOUT ROWID;
