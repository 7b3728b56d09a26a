-- Tables of their own: the release before can go on beside.
-- readable from 2

-- A job's facts. Where it is now is told by which of the tables below has it, so that a claim
-- never meets what is delayed, running or done, and a change of state rewrites no payload.
-- The body stands last, so that reading the other columns never touches its overflow pages.
CREATE TABLE penstock_jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    run_at INTEGER,
    deadline INTEGER,
    timeout INTEGER,
    unique_key TEXT,
    schedule TEXT,
    failure BLOB,
    encoding INTEGER NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE penstock_job_ready (
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    PRIMARY KEY (queue, priority, job_id)
) WITHOUT ROWID;

CREATE TABLE penstock_job_scheduled (
    run_at INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    PRIMARY KEY (run_at, job_id)
) WITHOUT ROWID;

CREATE TABLE penstock_job_waiting (
    job_id INTEGER PRIMARY KEY,
    parents_left INTEGER NOT NULL,
    on_parent_failure TEXT NOT NULL
);
CREATE TABLE penstock_job_edges (
    parent_id INTEGER NOT NULL,
    child_id INTEGER NOT NULL,
    PRIMARY KEY (parent_id, child_id)
) WITHOUT ROWID;
CREATE INDEX penstock_job_edges_by_child ON penstock_job_edges (child_id);

-- In a worker's hands. There are as many as all workers have slots, so a scan finds any.
CREATE TABLE penstock_job_claims (
    job_id INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    token INTEGER NOT NULL,
    instance INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL,
    started_at INTEGER,
    is_cancelling INTEGER NOT NULL DEFAULT 0,
    cancel_reason TEXT,
    progress BLOB
);

CREATE TABLE penstock_job_finished (
    job_id INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    at INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    started_at INTEGER,
    result_until INTEGER,
    result_encoding INTEGER,
    result BLOB
);
-- Dead letters are few among many that went well.
CREATE INDEX penstock_job_finished_badly ON penstock_job_finished (state, job_id) WHERE state > 5;

-- Which job has a unique key. `until` NULL: as long as the job has not finished.
CREATE TABLE penstock_job_unique (
    key TEXT PRIMARY KEY,
    job_id INTEGER NOT NULL,
    until INTEGER
) WITHOUT ROWID;
CREATE INDEX penstock_job_unique_by_job ON penstock_job_unique (job_id);

-- Appended only, by id: the history of each job, and what pipelines read.
CREATE TABLE penstock_job_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    at INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    data BLOB
);
CREATE INDEX penstock_job_events_by_job ON penstock_job_events (job_id);

-- Exact, kept with every change: counting a million rows would take as long as it sounds.
CREATE TABLE penstock_job_counts (
    queue TEXT NOT NULL,
    state INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    PRIMARY KEY (queue, state)
) WITHOUT ROWID;

CREATE TABLE penstock_job_queues (
    name TEXT PRIMARY KEY,
    paused_at INTEGER,
    concurrency_max INTEGER,
    rate_max INTEGER,
    rate_seconds REAL NOT NULL DEFAULT 1
) WITHOUT ROWID;

-- What a queue with a rate has handed out, and until when it counts (monotonic time).
CREATE TABLE penstock_job_rates (
    queue TEXT NOT NULL,
    until INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    PRIMARY KEY (queue, until)
) WITHOUT ROWID;

-- Processes that take jobs. One lease for all that a process has in hand.
CREATE TABLE penstock_workers (
    instance INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    queues BLOB NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    types BLOB NOT NULL
);

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
