-- mark_events --
-- First: it also finds out which keys are new. Keys of one scope, without doubles, are read from
-- the array without the interpreter.
INSERT INTO penstock_ledger_events (scope, key, kind, at, attempt)
SELECT ?1, value, 1, ?2, 1 FROM carray(?3) AS new
WHERE NOT EXISTS (SELECT 1 FROM penstock_ledger WHERE scope = ?1 AND key = new.value);

-- mark_run --
INSERT INTO penstock_ledger (scope, key, state, at, expires_at, attempts)
SELECT ?1, value, 2, ?2, ?4, 1 FROM carray(?3) WHERE true
ON CONFLICT (scope, key) DO NOTHING;

-- marked_since --
-- One row, however many keys: each row would have to wait for the interpreter.
SELECT json_group_array(key) FROM penstock_ledger_events WHERE id > ?1;

-- last_event --
SELECT seq FROM sqlite_sequence WHERE name = 'penstock_ledger_events';

-- mark --
INSERT INTO penstock_ledger (scope, key, state, at, expires_at, attempts, hash)
VALUES (?1, ?2, 2, ?3, ?4, 1, ?5);

-- entry --
SELECT scope, key, state, at, expires_at, attempts, token, instance, boot_id, lease_until, hash,
    result_encoding, result
FROM penstock_ledger WHERE scope = ?1 AND key = ?2;

-- remove_entry --
DELETE FROM penstock_ledger WHERE scope = ?1 AND key = ?2 RETURNING state, attempts;

-- put_claim --
INSERT INTO penstock_ledger (scope, key, state, at, expires_at, attempts, token, instance,
    boot_id, lease_until, hash)
VALUES (?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?);

-- renew_claim --
UPDATE penstock_ledger SET lease_until = ?4, boot_id = ?5
WHERE scope = ?1 AND key = ?2 AND token = ?3 RETURNING 1;

-- complete --
UPDATE penstock_ledger SET state = ?4, at = ?5, expires_at = ?6, token = NULL, instance = NULL,
    boot_id = NULL, lease_until = NULL, result_encoding = ?7, result = ?8
WHERE scope = ?1 AND key = ?2 AND token = ?3
RETURNING attempts;

-- release --
DELETE FROM penstock_ledger WHERE scope = ?1 AND key = ?2 AND token = ?3 RETURNING attempts;

-- expired --
SELECT scope, key, state, instance, boot_id, lease_until FROM penstock_ledger
WHERE expires_at IS NOT NULL AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2;

-- has_expired --
SELECT 1 FROM penstock_ledger WHERE expires_at IS NOT NULL AND expires_at <= ?1 LIMIT 1;

-- postpone --
UPDATE penstock_ledger SET expires_at = ?3 WHERE scope = ?1 AND key = ?2;

-- remove_run --
DELETE FROM penstock_ledger WHERE scope = ?1 AND key IN (SELECT value FROM carray(?2));

-- add_event --
INSERT INTO penstock_ledger_events (scope, key, kind, at, attempt) VALUES (?, ?, ?, ?, ?);

-- note_events --
-- What prune_events is about to remove.
INSERT INTO penstock_pruned (log, through)
SELECT 'ledger_events', max(id) FROM penstock_ledger_events WHERE id < coalesce(
    (SELECT min(id) FROM
        (SELECT id, at FROM penstock_ledger_events ORDER BY id LIMIT ?2) WHERE at >= ?1),
    (SELECT max(id) + 1 FROM (SELECT id FROM penstock_ledger_events ORDER BY id LIMIT ?2)))
HAVING max(id) IS NOT NULL
ON CONFLICT (log) DO UPDATE SET through = max(through, excluded.through);

-- prune_events --
-- A prefix, so that ids leave no gaps; within it, a clock that was set back does not count.
DELETE FROM penstock_ledger_events WHERE id < coalesce(
    (SELECT min(id) FROM
        (SELECT id, at FROM penstock_ledger_events ORDER BY id LIMIT ?2) WHERE at >= ?1),
    (SELECT max(id) + 1 FROM (SELECT id FROM penstock_ledger_events ORDER BY id LIMIT ?2)));

-- count --
INSERT INTO penstock_ledger_counts (scope, state, entries) VALUES (?1, ?2, ?3)
ON CONFLICT (scope, state) DO UPDATE SET entries = entries + excluded.entries;

-- counts --
SELECT scope, state, entries FROM penstock_ledger_counts WHERE entries > 0 ORDER BY scope;

-- keep --
SELECT keep FROM penstock_ledger_scopes WHERE scope = ?1;

-- keeps --
SELECT scope, keep FROM penstock_ledger_scopes ORDER BY scope;

-- set_keep --
INSERT INTO penstock_ledger_scopes (scope, keep) VALUES (?1, ?2)
ON CONFLICT (scope) DO UPDATE SET keep = excluded.keep;

-- drop_keep --
DELETE FROM penstock_ledger_scopes WHERE scope = ?1;

-- processed --
SELECT json_group_array(key) FROM penstock_ledger
WHERE scope = ?1 AND key IN (SELECT value FROM carray(?2)) AND state <> 1
    AND (expires_at IS NULL OR expires_at > ?3);

-- entries --
SELECT scope, key, state, at, expires_at, attempts, token, instance, boot_id, lease_until, hash,
    result_encoding, result
FROM penstock_ledger
WHERE scope = ?1 AND key > ?2 AND (expires_at IS NULL OR expires_at > ?4 OR state = 1)
ORDER BY key LIMIT ?3;

-- events --
SELECT id, scope, key, kind, at, attempt FROM penstock_ledger_events
WHERE id > ?1 ORDER BY id LIMIT ?2;
