-- Entries of presence. Whether their processes are alive is known to the caller, who names the
-- live ones as a JSON array.

-- owners --
SELECT instance, boot_id FROM penstock_presence_owners;

-- own --
INSERT INTO penstock_presence_owners (instance, boot_id) VALUES (?, ?)
ON CONFLICT DO NOTHING;

-- disown --
DELETE FROM penstock_presence_owners WHERE instance = ?;

-- entries_of --
SELECT instance, joined_at, info FROM penstock_presence WHERE topic = ? AND client = ?;

-- enter --
INSERT OR REPLACE INTO penstock_presence (topic, client, instance, joined_at, info)
VALUES (?, ?, ?, ?, ?);

-- remove --
DELETE FROM penstock_presence WHERE topic = ? AND client = ? AND instance = ?
RETURNING topic, client, info, joined_at, instance;

-- remove_of_instance --
DELETE FROM penstock_presence
WHERE instance = ?1 AND (topic, client) IN (
    SELECT topic, client FROM penstock_presence WHERE instance = ?1 LIMIT ?2
)
RETURNING topic, client, info, joined_at, instance;

-- members --
-- With max(), SQLite takes the other columns from the row that has it: the one joined last. The
-- plus keeps to the order of the primary key, so that the limit ends the search.
SELECT topic, client, info, max(joined_at), instance
FROM penstock_presence
WHERE topic = ?1 AND +instance IN (SELECT value FROM json_each(?2))
GROUP BY client ORDER BY client LIMIT ?3;

-- count_members --
-- By the index, which has the names but not what clients say of themselves.
SELECT count(DISTINCT client)
FROM penstock_presence INDEXED BY penstock_presence_by_instance
WHERE topic = ?1 AND instance IN (SELECT value FROM json_each(?2));
