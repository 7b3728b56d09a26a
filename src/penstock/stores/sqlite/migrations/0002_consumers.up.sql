-- `floor`: trims up to this id are known to the consumer, and no loss to it.
CREATE TABLE penstock_consumers (
    name TEXT NOT NULL,
    subscription TEXT NOT NULL,
    position INTEGER NOT NULL,
    floor INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (name, subscription)
) WITHOUT ROWID;

-- `expires_at` is monotonic time of the boot named by `boot_id`: a wall clock that jumps neither
-- ends a lease nor prolongs it.
CREATE TABLE penstock_leases (
    name TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    instance INTEGER NOT NULL,
    token INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE penstock_instances (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    boot_id TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    position INTEGER NOT NULL,
    poll_latency_us INTEGER NOT NULL DEFAULT 0
);
