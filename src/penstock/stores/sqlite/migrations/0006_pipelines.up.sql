-- Tables of their own: the release before can go on beside.
-- readable from 2

-- Who writes batches under a name, and which numbers are known. Batches up to `pruned_through`
-- were removed: whether one of them was written cannot be told any more.
CREATE TABLE penstock_sinks (
    name TEXT PRIMARY KEY,
    query TEXT NOT NULL,
    last_number INTEGER NOT NULL,
    pruned_through INTEGER NOT NULL DEFAULT -1,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;

-- A batch is written in chunks, each counted in the transaction that writes it. The plan says
-- where the rows lie; it is NULL once all are written.
CREATE TABLE penstock_sink_batches (
    sink TEXT NOT NULL,
    number INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    digest BLOB NOT NULL,
    chunks INTEGER NOT NULL,
    chunks_done INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    finished_at INTEGER,
    plan BLOB,
    PRIMARY KEY (sink, number)
) WITHOUT ROWID;
CREATE INDEX penstock_sink_batches_open ON penstock_sink_batches (sink, number)
    WHERE finished_at IS NULL;

-- Up to which id events were removed with their jobs, or for their age: whoever had not read
-- them has lost them.
CREATE TABLE penstock_pruned (
    log TEXT PRIMARY KEY,
    through INTEGER NOT NULL
) WITHOUT ROWID;
