-- A column that may be NULL, and tables of their own: the release before can go on beside.
-- readable from 2

-- JSON; NULL where the hub's settings decide.
ALTER TABLE penstock_topics ADD COLUMN delivery BLOB;

-- Which client is on which topic by way of which process. An entry counts while the process is
-- alive, so nothing is written while clients stay.
CREATE TABLE penstock_presence (
    topic TEXT NOT NULL,
    client TEXT NOT NULL,
    instance INTEGER NOT NULL,
    joined_at INTEGER NOT NULL,
    info BLOB,
    PRIMARY KEY (topic, client, instance)
) WITHOUT ROWID;
-- As the table has no rowid, this is (instance, topic, client).
CREATE INDEX penstock_presence_by_instance ON penstock_presence (instance);

-- The processes that have entries. They are few, so whether one has died is asked of them.
CREATE TABLE penstock_presence_owners (
    instance INTEGER PRIMARY KEY,
    boot_id TEXT NOT NULL
);
