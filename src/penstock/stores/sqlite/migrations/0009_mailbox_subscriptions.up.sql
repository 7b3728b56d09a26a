-- Tables of their own: the release before can go on beside.
-- readable from 2

-- Mailboxes that are fed from topics. What lies behind `position` is still to be put into the
-- box. Removals up to `floor`, and of each topic in `told` (JSON) up to the id there, are no loss.
-- An id is not used again: whoever feeds one that was ended and made anew must not move it.
CREATE TABLE penstock_mailbox_subscriptions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    mailbox TEXT NOT NULL,
    topic TEXT NOT NULL,
    position INTEGER NOT NULL,
    floor INTEGER NOT NULL,
    told BLOB,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (mailbox, topic)
);

-- One row: how many have ended, so that whoever feeds them need not look at all of them.
CREATE TABLE penstock_mailbox_feeds (
    ended INTEGER NOT NULL
);
INSERT INTO penstock_mailbox_feeds VALUES (0);
