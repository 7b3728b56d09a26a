-- mark --
INSERT INTO penstock_ledger (scope, key, state, at, expires_at, attempts, hash)
VALUES (?1, ?2, 2, ?3, ?4, 1, ?5)
ON CONFLICT (scope, key) DO NOTHING
RETURNING 1;

-- entry --
SELECT scope, key, state, at, expires_at, attempts, token, instance, boot_id, lease_until, hash,
    result_encoding, result
FROM penstock_ledger WHERE scope = ?1 AND key = ?2;

-- remove --
DELETE FROM penstock_ledger WHERE scope = ?1 AND key = ?2 RETURNING state;

-- put_claim --
INSERT INTO penstock_ledger (scope, key, state, at, attempts, token, instance, boot_id,
    lease_until, hash)
VALUES (?, ?, 1, ?, ?, ?, ?, ?, ?, ?);

-- renew --
UPDATE penstock_ledger SET lease_until = ?4, boot_id = ?5
WHERE scope = ?1 AND key = ?2 AND token = ?3 RETURNING 1;

-- complete --
UPDATE penstock_ledger SET state = 2, at = ?4, expires_at = ?5, token = NULL, instance = NULL,
    boot_id = NULL, lease_until = NULL, result_encoding = ?6, result = ?7
WHERE scope = ?1 AND key = ?2 AND token = ?3
RETURNING attempts;

-- release --
DELETE FROM penstock_ledger WHERE scope = ?1 AND key = ?2 AND token = ?3 RETURNING attempts;

-- expired --
SELECT scope, key, state FROM penstock_ledger
WHERE expires_at IS NOT NULL AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2;

-- add_event --
INSERT INTO penstock_ledger_events (scope, key, kind, at, attempt) VALUES (?, ?, ?, ?, ?);

-- count --
INSERT INTO penstock_ledger_counts (scope, state, entries) VALUES (?1, ?2, ?3)
ON CONFLICT (scope, state) DO UPDATE SET entries = entries + excluded.entries;

-- counts --
SELECT scope, state, entries FROM penstock_ledger_counts WHERE entries > 0 ORDER BY scope;

-- entries --
SELECT scope, key, state, at, expires_at, attempts, token, instance, boot_id, lease_until, hash,
    result_encoding, result
FROM penstock_ledger
WHERE scope = ?1 AND key > ?2 AND (expires_at IS NULL OR expires_at > ?4)
ORDER BY key LIMIT ?3;

-- events --
SELECT id, scope, key, kind, at, attempt FROM penstock_ledger_events
WHERE id > ?1 ORDER BY id LIMIT ?2;
