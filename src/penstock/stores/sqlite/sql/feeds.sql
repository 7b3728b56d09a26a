-- Mailboxes that are fed from topics.

-- insert --
INSERT INTO penstock_mailbox_subscriptions
    (mailbox, topic, position, floor, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT DO NOTHING;

-- get --
SELECT mailbox, topic, position, created_at, updated_at, id, floor, told
FROM penstock_mailbox_subscriptions WHERE mailbox = ?1 AND topic = ?2;

-- find --
SELECT mailbox, topic, position, created_at, updated_at, id, floor, told
FROM penstock_mailbox_subscriptions WHERE id > ?1 ORDER BY id LIMIT ?2;

-- find_of_mailbox --
SELECT mailbox, topic, position, created_at, updated_at, id, floor, told
FROM penstock_mailbox_subscriptions WHERE mailbox = ?3 AND id > ?1 ORDER BY id LIMIT ?2;

-- ids --
SELECT id FROM penstock_mailbox_subscriptions;

-- count --
SELECT count(*) FROM penstock_mailbox_subscriptions;

-- delete --
DELETE FROM penstock_mailbox_subscriptions
WHERE mailbox = ?1 AND (?2 IS NULL OR topic = ?2)
RETURNING id;

-- count_ended --
UPDATE penstock_mailbox_feeds SET ended = ended + ?1;

-- ended --
SELECT ended FROM penstock_mailbox_feeds;

-- advance --
UPDATE penstock_mailbox_subscriptions
SET position = ?2, floor = ?3, told = ?4, updated_at = ?5
WHERE id IN (SELECT value FROM json_each(?1)) AND position <= ?2;
