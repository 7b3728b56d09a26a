-- Tables of their own: the release before can go on beside.
-- readable from 2

-- What each scope has processed, or is at. `lease_until` is monotonic time of the boot named by
-- `boot_id`; both, and the token, are NULL once it is completed.
CREATE TABLE penstock_ledger (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    state INTEGER NOT NULL,
    at INTEGER NOT NULL,
    expires_at INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0,
    token INTEGER,
    instance INTEGER,
    boot_id TEXT,
    lease_until INTEGER,
    hash BLOB,
    result_encoding INTEGER,
    result BLOB,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX penstock_ledger_by_expiry ON penstock_ledger (expires_at) WHERE expires_at IS NOT NULL;

-- Appended only, by id: what pipelines read.
CREATE TABLE penstock_ledger_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    kind INTEGER NOT NULL,
    at INTEGER NOT NULL,
    attempt INTEGER NOT NULL
);

-- Exact, kept with every change.
CREATE TABLE penstock_ledger_counts (
    scope TEXT NOT NULL,
    state INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    PRIMARY KEY (scope, state)
) WITHOUT ROWID;

-- How long a scope's new entries are kept, in microseconds; -1 for ever.
CREATE TABLE penstock_ledger_scopes (
    scope TEXT PRIMARY KEY NOT NULL,
    keep INTEGER NOT NULL
) WITHOUT ROWID;
