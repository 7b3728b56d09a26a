-- Topics and messages. The log row is the one place where ids come from: it is read and written
-- under the write lock, so ids rise without gaps and in commit order, and are never used twice.

-- log_state --
SELECT epoch || '-' || generation, last_id, last_at FROM penstock_log;

-- move_log --
UPDATE penstock_log SET last_id = ?1, last_at = ?2;

-- new_generation --
-- Two copies of one file must not end up with the same epoch, so that part changes, too. The id
-- that is left out tells a reader that comes to it to look at the epoch.
UPDATE penstock_log
SET epoch = lower(hex(randomblob(6))), generation = generation + 1, last_id = last_id + 1
RETURNING epoch || '-' || generation;

-- next_token --
UPDATE penstock_log SET last_token = last_token + 1 RETURNING last_token;

-- insert_plain --
-- The row is repeated as often as there are messages; the first two values are the same for all.
INSERT INTO penstock_messages (created_at, producer, id, topic_id, type, encoding, body) VALUES

-- plain_row --
(?1, ?2, ?, ?, ?, ?, ?)

-- insert_run --
-- Messages of one topic that differ in their bodies alone: the array is read without the
-- interpreter, and its own rowid, from 1 up, numbers the messages.
INSERT INTO penstock_messages (created_at, producer, id, topic_id, type, encoding, body)
SELECT ?1, ?2, ?3 + rowid, ?4, ?5, ?6, value FROM carray(?7);

-- insert_full --
INSERT INTO penstock_messages
    (created_at, producer, id, topic_id, type, encoding, body, expires_at, key, headers, message_id)
VALUES

-- full_row --
(?1, ?2, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- topic_id --
SELECT id FROM penstock_topics WHERE name = ?;

-- insert_topic --
INSERT INTO penstock_topics (name, created_at) VALUES (?, ?)
RETURNING id;

-- count_appended --
-- Publishing under a deleted name starts the topic again, as a new one above deleted_through.
UPDATE penstock_topics
SET appended = appended + (new.value ->> 1),
    appended_bytes = appended_bytes + (new.value ->> 2),
    last_id = new.value ->> 3,
    created_at = CASE WHEN deleted_at IS NULL THEN created_at ELSE ?2 END,
    retention = CASE WHEN deleted_at IS NULL THEN retention END,
    deleted_at = NULL
FROM json_each(?1) AS new
WHERE penstock_topics.id = new.value ->> 0;

-- count_appended_to_one --
-- As count_appended, for the usual case: the writer touched a single topic.
UPDATE penstock_topics
SET appended = appended + ?3,
    appended_bytes = appended_bytes + ?4,
    last_id = ?5,
    created_at = CASE WHEN deleted_at IS NULL THEN created_at ELSE ?1 END,
    retention = CASE WHEN deleted_at IS NULL THEN retention END,
    deleted_at = NULL
WHERE id = ?2;

-- find_key --
SELECT message_id, created_at, digest
FROM penstock_idempotency
WHERE topic_id = ? AND key = ? AND expires_at > ?;

-- remember_key --
INSERT OR REPLACE INTO penstock_idempotency
    (topic_id, key, message_id, created_at, digest, expires_at)
VALUES (?, ?, ?, ?, ?, ?);

-- forget_keys --
DELETE FROM penstock_idempotency
WHERE (topic_id, key) IN (
    SELECT topic_id, key FROM penstock_idempotency WHERE expires_at <= ? LIMIT ?
);

-- get_topic --
SELECT name, created_at, retention, appended - removed, appended_bytes - removed_bytes, appended,
       last_id, deleted_through, deleted_at, delivery
FROM penstock_topics WHERE name = ?;

-- list_topics --
SELECT name, created_at, retention, appended - removed, appended_bytes - removed_bytes, appended,
       last_id, deleted_through, deleted_at, delivery
FROM penstock_topics WHERE deleted_at IS NULL ORDER BY name;

-- topic_names --
SELECT id, name FROM penstock_topics WHERE id > ?;

-- create_topic --
INSERT INTO penstock_topics (name, created_at, retention, delivery) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE
SET created_at = excluded.created_at, retention = excluded.retention,
    delivery = excluded.delivery, deleted_at = NULL
WHERE deleted_at IS NOT NULL
RETURNING id;

-- configure_topic --
UPDATE penstock_topics
SET retention = coalesce(?2, retention), delivery = coalesce(?3, delivery)
WHERE name = ?1 AND deleted_at IS NULL
RETURNING id;

-- delete_topic --
-- A topic whose last message was removed already loses nothing more.
UPDATE penstock_topics
SET deleted_at = ?2,
    delivery = NULL,
    deleted_through = CASE WHEN appended > removed THEN max(deleted_through, last_id)
                           ELSE deleted_through END
WHERE name = ?1 AND deleted_at IS NULL
RETURNING id;

-- trim_topic --
-- To the topic's own message, not to another topic's id between two of its messages: whoever has
-- that message has lost nothing.
UPDATE penstock_topics
SET deleted_through = max(deleted_through, coalesce((
    SELECT max(m.id) FROM penstock_messages AS m
    WHERE m.topic_id = penstock_topics.id AND m.id <= ?2
), 0))
WHERE name = ?1 AND deleted_at IS NULL
RETURNING id;

-- sweep_state --
SELECT id, appended - removed, appended_bytes - removed_bytes, deleted_through, deleted_at
FROM penstock_topics WHERE name = ?;

-- oldest_messages --
SELECT id, created_at, expires_at, length(body)
FROM penstock_messages WHERE topic_id = ? ORDER BY id LIMIT ?;

-- remove_messages --
DELETE FROM penstock_messages WHERE topic_id = ? AND id <= ?;

-- count_removed --
UPDATE penstock_topics
SET removed = removed + ?2,
    removed_bytes = removed_bytes + ?3,
    deleted_through = max(deleted_through, ?4)
WHERE id = ?1;

-- held_positions --
-- A consumer's watermark on a subscription; the caller matches the subscription to the topic.
SELECT name, subscription, position FROM penstock_consumers;

-- needs_sweep --
-- One probe per topic by its index. The rules are those of sweep, over the oldest message.
SELECT name, retention, messages, bytes, deleted_at, deleted_through, m.id, m.created_at, m.expires_at
FROM (
    SELECT id, name, retention, appended - removed AS messages, deleted_at, deleted_through,
           appended_bytes - removed_bytes AS bytes,
           (SELECT min(id) FROM penstock_messages WHERE topic_id = t.id) AS oldest
    FROM penstock_topics AS t
    WHERE appended > removed
) AS t
JOIN penstock_messages AS m ON m.id = t.oldest;

-- read_topic --
SELECT m.id, t.name, m.created_at, m.body, m.encoding, m.type, m.key, m.expires_at, m.headers,
       m.message_id, m.producer
FROM penstock_topics AS t
JOIN penstock_messages AS m ON m.topic_id = t.id
WHERE t.name = ?1 AND m.id > max(?2, t.deleted_through)
  AND (m.expires_at IS NULL OR m.expires_at > ?3)
ORDER BY m.id LIMIT ?4;

-- read_glob --
-- By id over the log, not by topic: cost follows the ids passed, and the caller bounds those.
SELECT m.id, t.name, m.created_at, m.body, m.encoding, m.type, m.key, m.expires_at, m.headers,
       m.message_id, m.producer
FROM penstock_messages AS m
JOIN penstock_topics AS t ON t.id = m.topic_id
WHERE m.id > ?1 AND m.id <= ?2
  AND +m.topic_id IN (SELECT value FROM json_each(?3))
  AND m.id > t.deleted_through
  AND (m.expires_at IS NULL OR m.expires_at > ?4)
ORDER BY m.id LIMIT ?5;

-- read_range --
SELECT m.id, t.name, m.created_at, m.body, m.encoding, m.type, m.key, m.expires_at, m.headers,
       m.message_id, m.producer
FROM penstock_messages AS m
JOIN penstock_topics AS t ON t.id = m.topic_id
WHERE m.id > ?1 AND m.id <= ?2 AND m.id > t.deleted_through
  AND (m.expires_at IS NULL OR m.expires_at > ?3)
ORDER BY m.id;

-- read_next --
-- As few pages as can be: each is read anew after another process's commit.
SELECT id, topic_id, created_at, body, encoding, type, key, expires_at, headers, message_id, producer
FROM penstock_messages WHERE id > ?1 ORDER BY id LIMIT ?2;

-- read_tail --
-- One statement, and so one view: the log's state comes with each row, or alone in one.
SELECT l.epoch, l.generation, l.last_id, m.id, t.name, m.created_at, m.body, m.encoding,
       m.type, m.key, m.expires_at, m.headers, m.message_id, m.producer
FROM penstock_log AS l
LEFT JOIN penstock_messages AS m ON m.id > ?1
LEFT JOIN penstock_topics AS t ON t.id = m.topic_id
WHERE l.only = 1
ORDER BY m.id LIMIT ?2;

-- read_tail_some --
SELECT l.epoch, l.generation, l.last_id, m.id, t.name, m.created_at, m.body, m.encoding,
       m.type, m.key, m.expires_at, m.headers, m.message_id, m.producer
FROM penstock_log AS l
LEFT JOIN penstock_messages AS m
    ON m.id > ?1 AND +m.topic_id IN (SELECT value FROM json_each(?3))
LEFT JOIN penstock_topics AS t ON t.id = m.topic_id
WHERE l.only = 1
ORDER BY m.id LIMIT ?2;

-- read_last_topic --
SELECT * FROM (
    SELECT m.id, t.name, m.created_at, m.body, m.encoding, m.type, m.key, m.expires_at, m.headers,
           m.message_id, m.producer
    FROM penstock_topics AS t
    JOIN penstock_messages AS m ON m.topic_id = t.id
    WHERE t.id = ?1 AND m.id > t.deleted_through
      AND (m.expires_at IS NULL OR m.expires_at > ?2)
    ORDER BY m.id DESC LIMIT ?3
) ORDER BY 1;

-- first_after --
SELECT m.id
FROM penstock_topics AS t
JOIN penstock_messages AS m ON m.topic_id = t.id
WHERE t.id = ?1 AND m.id > max(?2, t.deleted_through)
  AND (m.expires_at IS NULL OR m.expires_at > ?3)
ORDER BY m.id LIMIT 1;

-- count_after --
-- Whether a message has expired stands in its row, which takes longer to read than the index.
SELECT count(*)
FROM penstock_topics AS t
JOIN penstock_messages AS m ON m.topic_id = t.id
WHERE t.id = ?1 AND m.id > max(?2, t.deleted_through)
  AND (m.expires_at IS NULL OR m.expires_at > ?3);

-- count_all_after --
SELECT count(*)
FROM penstock_topics AS t
JOIN penstock_messages AS m ON m.topic_id = t.id
WHERE t.id = ?1 AND m.id > max(?2, t.deleted_through);

-- probe_at --
-- The first message at or after an id; ids are dense but for what retention removed.
SELECT id, created_at FROM penstock_messages WHERE id >= ? ORDER BY id LIMIT 1;

-- message_by_id --
SELECT m.id, t.name, m.created_at, m.body, m.encoding, m.type, m.key, m.expires_at, m.headers,
       m.message_id, m.producer
FROM penstock_messages AS m JOIN penstock_topics AS t ON t.id = m.topic_id
WHERE m.id = ?;

-- trimmed_topics --
SELECT name FROM penstock_topics WHERE deleted_through > ?1 AND deleted_through > 0;

-- trims --
SELECT id, deleted_through FROM penstock_topics WHERE deleted_through > ?1 AND deleted_through > 0;
