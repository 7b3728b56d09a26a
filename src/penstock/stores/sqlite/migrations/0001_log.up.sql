-- One row: the database's identity, its generation, and where the log ends.
CREATE TABLE penstock_log (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    epoch TEXT NOT NULL,
    generation INTEGER NOT NULL DEFAULT 1,
    last_id INTEGER NOT NULL DEFAULT 0,
    last_at INTEGER NOT NULL DEFAULT 0,
    last_token INTEGER NOT NULL DEFAULT 0
);
INSERT INTO penstock_log (only, epoch) VALUES (1, lower(hex(randomblob(6))));

-- A deleted topic keeps its row, so that what was lost with it is known exactly.
CREATE TABLE penstock_topics (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    deleted_at INTEGER,
    retention BLOB,
    last_id INTEGER NOT NULL DEFAULT 0,
    appended INTEGER NOT NULL DEFAULT 0,
    appended_bytes INTEGER NOT NULL DEFAULT 0,
    removed INTEGER NOT NULL DEFAULT 0,
    removed_bytes INTEGER NOT NULL DEFAULT 0,
    deleted_through INTEGER NOT NULL DEFAULT 0
);

-- Whether a reader has lost anything is asked with every read behind the tail.
CREATE INDEX penstock_topics_by_trim ON penstock_topics (deleted_through) WHERE deleted_through > 0;

-- Times are integer microseconds since 1970. The body stands last, so that reading the other
-- columns never touches its overflow pages.
CREATE TABLE penstock_messages (
    id INTEGER PRIMARY KEY,
    topic_id INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    type TEXT,
    key TEXT,
    encoding INTEGER NOT NULL,
    headers BLOB,
    message_id TEXT,
    producer TEXT,
    body BLOB NOT NULL
);
-- The id is the rowid, so this is (topic_id, id).
CREATE INDEX penstock_messages_by_topic ON penstock_messages (topic_id);

CREATE TABLE penstock_idempotency (
    topic_id INTEGER NOT NULL,
    key TEXT NOT NULL,
    message_id INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    digest BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (topic_id, key)
) WITHOUT ROWID;
CREATE INDEX penstock_idempotency_by_expiry ON penstock_idempotency (expires_at);
