-- get_consumer --
SELECT name, subscription, position, floor, created_at, updated_at
FROM penstock_consumers WHERE name = ? AND subscription = ?;

-- list_consumers --
SELECT name, subscription, position, floor, created_at, updated_at
FROM penstock_consumers WHERE ?1 IS NULL OR name = ?1 ORDER BY name, subscription;

-- insert_consumer --
INSERT INTO penstock_consumers (name, subscription, position, floor, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT DO NOTHING;

-- advance_consumer --
UPDATE penstock_consumers
SET position = max(position, ?3), updated_at = ?4
WHERE name = ?1 AND subscription = ?2;

-- accept_loss --
UPDATE penstock_consumers SET floor = max(floor, ?3) WHERE name = ?1 AND subscription = ?2;

-- seek_consumer --
UPDATE penstock_consumers SET position = ?3, floor = ?4, updated_at = ?5
WHERE name = ?1 AND subscription = ?2
RETURNING name;

-- delete_consumer --
DELETE FROM penstock_consumers WHERE name = ?1 AND subscription = ?2;
