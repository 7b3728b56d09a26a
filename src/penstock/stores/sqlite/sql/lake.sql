-- The lake's books.

-- lake_id --
SELECT id FROM penstock_lake;

-- adopt --
INSERT INTO penstock_lake (only, id, created_at) VALUES (1, ?1, ?2) ON CONFLICT DO NOTHING;

-- coverage --
SELECT subscription, through, floor, is_held, updated_at FROM penstock_lake_coverage
ORDER BY subscription;

-- held_coverage --
-- For retention; the caller matches the subscription to the topic.
SELECT subscription, through FROM penstock_lake_coverage WHERE is_held;

-- release --
UPDATE penstock_lake_coverage SET is_held = 0, updated_at = ?1 WHERE is_held RETURNING subscription;

-- first_message --
SELECT min(id) FROM penstock_messages;

-- hold --
INSERT INTO penstock_lake_coverage (subscription, through, floor, is_held, updated_at)
VALUES (?1, ?2, ?3, 1, ?4)
ON CONFLICT (subscription) DO UPDATE SET is_held = 1, updated_at = excluded.updated_at;

-- advance --
UPDATE penstock_lake_coverage SET through = max(through, ?1), updated_at = ?2 WHERE is_held;

-- add_batch --
INSERT INTO penstock_lake_batches (query, number, after, through, files, rows, bytes, digest, at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9);

-- prune_batches --
DELETE FROM penstock_lake_batches
WHERE id <= (SELECT max(id) FROM penstock_lake_batches) - ?1;

-- add_file --
INSERT INTO penstock_lake_files
    (path, folder, date, rows, bytes, first_id, last_id, first_at, last_at, digest, formats,
     unparsable, added_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13);

-- replace_file --
UPDATE penstock_lake_files SET replaced_at = ?2 WHERE path = ?1 AND replaced_at IS NULL
RETURNING path;

-- forget_file --
DELETE FROM penstock_lake_files WHERE path = ?1 AND replaced_at IS NOT NULL;

-- files --
SELECT path, folder, date, rows, bytes, first_id, last_id, first_at, last_at, digest, formats,
       unparsable
FROM penstock_lake_files
WHERE replaced_at IS NULL
  AND (:folders IS NULL OR folder IN (SELECT value FROM json_each(:folders)))
  AND (:since IS NULL OR last_at >= :since)
  AND (:until IS NULL OR first_at < :until)
ORDER BY first_id, path;

-- totals --
SELECT count(*) FILTER (WHERE replaced_at IS NULL),
       coalesce(sum(rows) FILTER (WHERE replaced_at IS NULL), 0),
       coalesce(sum(bytes) FILTER (WHERE replaced_at IS NULL), 0),
       coalesce(sum(unparsable) FILTER (WHERE replaced_at IS NULL), 0),
       count(*) FILTER (WHERE replaced_at IS NOT NULL),
       coalesce(sum(bytes) FILTER (WHERE replaced_at IS NOT NULL), 0)
FROM penstock_lake_files;

-- formats --
SELECT j.key, sum(j.value) FROM penstock_lake_files AS f, json_each(f.formats) AS j
WHERE f.replaced_at IS NULL GROUP BY j.key ORDER BY j.key;

-- small_files --
SELECT path, folder, date, rows, bytes, first_id, last_id, first_at, last_at, digest, formats,
       unparsable
FROM (
    SELECT *, count(*) OVER (PARTITION BY folder, date) AS together
    FROM penstock_lake_files WHERE replaced_at IS NULL AND bytes < ?1
)
WHERE together > 1 ORDER BY folder, date, first_id, path;

-- newest_date --
SELECT max(date) FROM penstock_lake_files WHERE replaced_at IS NULL;

-- additions --
SELECT query, number, after, through, files, rows, bytes, digest, at FROM penstock_lake_batches
ORDER BY id DESC LIMIT ?1;

-- replaced --
SELECT path FROM penstock_lake_files WHERE replaced_at IS NOT NULL AND replaced_at < ?1
ORDER BY replaced_at LIMIT ?2;

-- known --
SELECT path FROM penstock_lake_files WHERE path IN (SELECT value FROM json_each(?1));

-- replay --
SELECT id, plan, rows, files, made_at, finished_at FROM penstock_replays WHERE id = ?1;

-- plan_replay --
INSERT INTO penstock_replays (id, plan, rows, files, made_at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO NOTHING;

-- finish_replay --
UPDATE penstock_replays SET finished_at = ?2 WHERE id = ?1 AND finished_at IS NULL;
