-- A table of its own: the release before can go on beside.
-- readable from 2

-- `next_at` is moved in the transaction that enqueues, so each tick is enqueued once, whoever
-- does it. NULL: the expression has no further time.
CREATE TABLE penstock_schedules (
    name TEXT PRIMARY KEY,
    cron TEXT NOT NULL,
    timezone TEXT NOT NULL,
    missed TEXT NOT NULL,
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    priority INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    timeout INTEGER,
    encoding INTEGER NOT NULL,
    body BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    paused_at INTEGER,
    next_at INTEGER,
    last_at INTEGER,
    last_job_id INTEGER
) WITHOUT ROWID;
