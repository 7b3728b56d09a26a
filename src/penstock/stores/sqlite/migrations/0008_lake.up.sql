-- Tables of their own: the release before can go on beside. Its retention knows nothing of the
-- lake, though: archive when all processes are of this release.
-- readable from 2

-- Which lake belongs to this database.
CREATE TABLE penstock_lake (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    id TEXT NOT NULL,
    created_at INTEGER NOT NULL
);

-- All messages of a subscription up to `through` are in the lake. Where it is held, retention
-- leaves the others alone. Removals up to `floor` were made before it was held first: no loss.
CREATE TABLE penstock_lake_coverage (
    subscription TEXT PRIMARY KEY,
    through INTEGER NOT NULL,
    floor INTEGER NOT NULL,
    is_held INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;

-- What was added to the lake when; the oldest are forgotten, their files are not.
CREATE TABLE penstock_lake_batches (
    id INTEGER PRIMARY KEY,
    query TEXT NOT NULL,
    number INTEGER NOT NULL,
    after INTEGER NOT NULL,
    through INTEGER NOT NULL,
    files INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    digest TEXT NOT NULL,
    at INTEGER NOT NULL
);

-- The lake is the files that stand here and were not replaced. Paths are relative to its folder.
-- Those that were replaced stay for a while, for readers that have begun with them.
CREATE TABLE penstock_lake_files (
    path TEXT PRIMARY KEY,
    folder TEXT NOT NULL,
    date TEXT NOT NULL,
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    first_id INTEGER NOT NULL,
    last_id INTEGER NOT NULL,
    first_at INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    formats TEXT NOT NULL,
    unparsable INTEGER NOT NULL,
    digest TEXT NOT NULL,
    added_at INTEGER NOT NULL,
    replaced_at INTEGER
) WITHOUT ROWID;
CREATE INDEX penstock_lake_files_present ON penstock_lake_files (folder, date, first_id)
    WHERE replaced_at IS NULL;
CREATE INDEX penstock_lake_files_replaced ON penstock_lake_files (replaced_at)
    WHERE replaced_at IS NOT NULL;

-- What a replay was told to do, and what it found; its chunks are batches of a sink.
CREATE TABLE penstock_replays (
    id TEXT PRIMARY KEY,
    plan TEXT NOT NULL,
    rows INTEGER NOT NULL,
    files TEXT NOT NULL,
    made_at INTEGER NOT NULL,
    finished_at INTEGER
) WITHOUT ROWID;
