-- put --
INSERT INTO penstock_schedules (name, cron, timezone, missed, queue, type, priority, max_attempts,
    timeout, encoding, body, created_at, next_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    -- The next time stays as it is unless the expression has changed: a deployment is no tick.
    next_at = CASE WHEN cron = excluded.cron AND timezone = excluded.timezone
        THEN next_at ELSE excluded.next_at END,
    cron = excluded.cron, timezone = excluded.timezone, missed = excluded.missed,
    queue = excluded.queue, type = excluded.type, priority = excluded.priority,
    max_attempts = excluded.max_attempts, timeout = excluded.timeout,
    encoding = excluded.encoding, body = excluded.body;

-- due --
SELECT name, cron, timezone, missed, queue, type, priority, max_attempts, timeout, encoding, body,
    created_at, paused_at, next_at, last_at, last_job_id
FROM penstock_schedules WHERE next_at <= ?1 AND paused_at IS NULL ORDER BY next_at LIMIT ?2;

-- all --
SELECT name, cron, timezone, missed, queue, type, priority, max_attempts, timeout, encoding, body,
    created_at, paused_at, next_at, last_at, last_job_id
FROM penstock_schedules ORDER BY name;

-- ticked --
UPDATE penstock_schedules SET next_at = ?2, last_at = ?3, last_job_id = coalesce(?4, last_job_id)
WHERE name = ?1;

-- pause --
UPDATE penstock_schedules SET paused_at = ?2, next_at = ?3 WHERE name = ?1 RETURNING name;

-- remove --
DELETE FROM penstock_schedules WHERE name = ? RETURNING name;

-- next_at --
SELECT min(next_at) FROM penstock_schedules WHERE paused_at IS NULL;
