-- get_lease --
SELECT owner, instance, token, boot_id, expires_at FROM penstock_leases WHERE name = ?;

-- put_lease --
INSERT OR REPLACE INTO penstock_leases (name, owner, instance, token, boot_id, expires_at)
VALUES (?, ?, ?, ?, ?, ?);

-- renew_lease --
-- The token alone decides: while it stands, nobody else has taken the lease, however late it is.
UPDATE penstock_leases SET expires_at = ?3, boot_id = ?4 WHERE name = ?1 AND token = ?2
RETURNING name;

-- release_lease --
DELETE FROM penstock_leases WHERE name = ? AND token = ?
RETURNING name;

-- revoke_lease --
DELETE FROM penstock_leases WHERE name = ?;

-- has_token --
SELECT 1 FROM penstock_leases WHERE name = ? AND token = ?;

-- insert_instance --
INSERT INTO penstock_instances (id, name, boot_id, started_at, seen_at, position, poll_latency_us)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- report_instance --
UPDATE penstock_instances SET seen_at = ?2, position = ?3, poll_latency_us = ?4
WHERE id = ?1
RETURNING id;

-- list_instances --
SELECT id, name, started_at, seen_at, position, poll_latency_us, boot_id
FROM penstock_instances ORDER BY id;

-- delete_instance --
DELETE FROM penstock_instances WHERE id = ?;
