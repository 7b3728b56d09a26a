-- insert_jobs --
INSERT INTO penstock_jobs (queue, type, priority, created_at, max_attempts, deadline, timeout,
    schedule, encoding, body)
VALUES

-- job_row --
(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- insert_special_job --
INSERT INTO penstock_jobs (queue, type, priority, created_at, max_attempts, deadline, timeout,
    schedule, encoding, body, run_at, unique_key)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id;

-- ready_range --
INSERT INTO penstock_job_ready (queue, priority, job_id)
SELECT queue, priority, id FROM penstock_jobs WHERE id BETWEEN ?1 AND ?2;

-- enqueued_range --
INSERT INTO penstock_job_events (job_id, kind, at, attempt)
SELECT id, 1, ?3, 0 FROM penstock_jobs WHERE id BETWEEN ?1 AND ?2;

-- count_jobs --
INSERT INTO penstock_job_counts (queue, state, jobs) VALUES (?, ?, ?)
ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + excluded.jobs;

-- add_event --
INSERT INTO penstock_job_events (job_id, kind, at, attempt, data) VALUES (?, ?, ?, ?, ?);

-- make_ready --
INSERT INTO penstock_job_ready (queue, priority, job_id)
SELECT queue, priority, id FROM penstock_jobs WHERE id = ?;

-- leave_ready --
DELETE FROM penstock_job_ready
WHERE (queue, priority, job_id) = (SELECT queue, priority, id FROM penstock_jobs WHERE id = ?)
RETURNING job_id;

-- make_scheduled --
INSERT INTO penstock_job_scheduled (run_at, job_id) VALUES (?2, ?1);

-- set_run_at --
UPDATE penstock_jobs SET run_at = ?2 WHERE id = ?1;

-- leave_scheduled --
DELETE FROM penstock_job_scheduled
WHERE (run_at, job_id) = (SELECT run_at, id FROM penstock_jobs WHERE id = ?)
RETURNING job_id;

-- make_waiting --
INSERT INTO penstock_job_waiting (job_id, parents_left, on_parent_failure) VALUES (?, ?, ?);

-- leave_waiting --
DELETE FROM penstock_job_waiting WHERE job_id = ? RETURNING job_id;

-- add_edge --
INSERT OR IGNORE INTO penstock_job_edges (parent_id, child_id) VALUES (?, ?);

-- forget_edges --
DELETE FROM penstock_job_edges WHERE child_id = ?;

-- children --
SELECT e.parent_id, e.child_id, w.on_parent_failure
FROM penstock_job_edges e JOIN penstock_job_waiting w ON w.job_id = e.child_id
WHERE e.parent_id IN carray(?1);

-- cut_edge --
DELETE FROM penstock_job_edges WHERE parent_id = ? AND child_id = ?;

-- count_parent --
UPDATE penstock_job_waiting SET parents_left = parents_left - 1 WHERE job_id = ?
RETURNING parents_left;

-- due --
SELECT s.run_at, s.job_id, j.queue
FROM penstock_job_scheduled s JOIN penstock_jobs j ON j.id = s.job_id
WHERE s.run_at <= ?1 ORDER BY s.run_at, s.job_id LIMIT ?2;

-- leave_scheduled_through --
DELETE FROM penstock_job_scheduled WHERE (run_at, job_id) <= (?1, ?2);

-- make_many_ready --
INSERT INTO penstock_job_ready (queue, priority, job_id)
SELECT queue, priority, id FROM penstock_jobs WHERE id IN carray(?1);

-- next_ready --
SELECT r.priority, j.id, j.type, j.body, j.encoding, j.attempts, j.max_attempts, j.crashes,
    j.created_at, j.deadline, j.timeout, j.schedule
FROM penstock_job_ready r JOIN penstock_jobs j ON j.id = r.job_id
WHERE r.queue = ?1 ORDER BY r.priority, r.job_id LIMIT ?2;

-- leave_ready_through --
DELETE FROM penstock_job_ready WHERE queue = ?1 AND (priority, job_id) <= (?2, ?3);

-- claim_many --
INSERT INTO penstock_job_claims (job_id, queue, token, instance, attempt, claimed_at, started_at)
SELECT id, queue, ?1, ?2, attempts + 1, ?3, ?4 FROM penstock_jobs WHERE id IN carray(?5);

-- begun_many --
INSERT INTO penstock_job_events (job_id, kind, at, attempt)
SELECT job_id, 2, ?1, attempt FROM penstock_job_claims WHERE job_id IN carray(?2);

-- start_many --
UPDATE penstock_job_claims SET started_at = coalesce(started_at, ?2)
WHERE token = ?1 AND is_cancelling = 0 AND job_id IN carray(?3)
RETURNING job_id;

-- started_many --
-- Before they are started, so that one that was started already is not told of twice.
INSERT INTO penstock_job_events (job_id, kind, at, attempt)
SELECT job_id, 2, ?2, attempt FROM penstock_job_claims
WHERE token = ?1 AND is_cancelling = 0 AND started_at IS NULL AND job_id IN carray(?3);

-- finish_many --
INSERT INTO penstock_job_finished (job_id, state, at, attempt, started_at)
SELECT job_id, 5, ?2, attempt, started_at FROM penstock_job_claims
WHERE token = ?1 AND started_at IS NOT NULL AND job_id IN carray(?3);

-- completed_many --
INSERT INTO penstock_job_events (job_id, kind, at, attempt)
SELECT job_id, 3, ?2, attempt FROM penstock_job_claims
WHERE token = ?1 AND started_at IS NOT NULL AND job_id IN carray(?3);

-- started_of --
SELECT job_id FROM penstock_job_claims
WHERE token = ?1 AND started_at IS NOT NULL AND job_id IN carray(?2);

-- queues_of --
-- Nearly always they are of one queue, which is told without sorting and in one row.
SELECT min(queue), max(queue) FROM penstock_job_claims
WHERE token = ?1 AND started_at IS NOT NULL AND job_id IN carray(?2);

-- count_by_queue --
SELECT queue, count(*) FROM penstock_job_claims
WHERE token = ?1 AND started_at IS NOT NULL AND job_id IN carray(?2) GROUP BY queue;

-- drop_claims --
DELETE FROM penstock_job_claims
WHERE token = ?1 AND started_at IS NOT NULL AND job_id IN carray(?2);

-- keep_result --
UPDATE penstock_job_finished SET result = ?2, result_encoding = ?3, result_until = ?4
WHERE job_id = ?1;

-- free_keys --
DELETE FROM penstock_job_unique
WHERE (until IS NULL OR until <= ?1) AND job_id IN carray(?2);

-- drop_claim --
DELETE FROM penstock_job_claims WHERE job_id = ?1 AND token = ?2
RETURNING queue, attempt, started_at, is_cancelling, cancel_reason,
    (SELECT max_attempts FROM penstock_jobs WHERE id = job_id);

-- drop_started --
DELETE FROM penstock_job_claims WHERE job_id = ?1 AND token = ?2 AND started_at IS NOT NULL
RETURNING queue, attempt, started_at, is_cancelling, cancel_reason,
    (SELECT max_attempts FROM penstock_jobs WHERE id = job_id);

-- take_claim --
DELETE FROM penstock_job_claims WHERE job_id = ?1
RETURNING queue, attempt, started_at, is_cancelling, cancel_reason,
    (SELECT max_attempts FROM penstock_jobs WHERE id = job_id);

-- set_attempts --
UPDATE penstock_jobs SET attempts = ?2, crashes = crashes + ?3, failure = coalesce(?4, failure)
WHERE id = ?1;

-- finish --
INSERT INTO penstock_job_finished (job_id, state, at, attempt, started_at)
VALUES (?, ?, ?, ?, ?);

-- unfinish --
DELETE FROM penstock_job_finished WHERE job_id = ?;

-- reset_attempts --
UPDATE penstock_jobs
SET attempts = 0, crashes = 0, run_at = NULL, deadline = iif(deadline <= ?2, NULL, deadline)
WHERE id = ?1;

-- set_progress --
UPDATE penstock_job_claims SET progress = ?3 WHERE job_id = ?1 AND token = ?2 RETURNING attempt;

-- ask_to_stop --
UPDATE penstock_job_claims SET is_cancelling = 1, cancel_reason = coalesce(cancel_reason, ?2)
WHERE job_id = ?1 RETURNING started_at;

-- enter_worker --
INSERT INTO penstock_workers (instance, name, boot_id, lease_until, queues, started_at, seen_at,
    types)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (instance) DO UPDATE SET
    lease_until = excluded.lease_until, boot_id = excluded.boot_id, queues = excluded.queues,
    seen_at = excluded.seen_at, types = excluded.types;

-- lease_and_due --
SELECT (SELECT lease_until FROM penstock_workers WHERE instance = ?1),
    EXISTS (SELECT 1 FROM penstock_job_scheduled WHERE run_at <= ?2);

-- lease --
SELECT lease_until FROM penstock_workers WHERE instance = ?;

-- leave_worker --
DELETE FROM penstock_workers WHERE instance = ?;

-- workers --
SELECT w.instance, w.name, w.boot_id, w.lease_until, w.queues, w.started_at, w.seen_at,
    (SELECT count(*) FROM penstock_job_claims c WHERE c.instance = w.instance), w.types
FROM penstock_workers w ORDER BY w.instance;

-- claim_instances --
SELECT DISTINCT c.instance, w.boot_id, w.lease_until
FROM penstock_job_claims c LEFT JOIN penstock_workers w ON w.instance = c.instance;

-- claims_of --
SELECT job_id FROM penstock_job_claims WHERE instance = ?1 ORDER BY job_id LIMIT ?2;

-- claimed_count --
SELECT count(*) FROM penstock_job_claims WHERE queue = ?;

-- queue --
SELECT paused_at, concurrency_max, rate_max, rate_seconds
FROM penstock_job_queues WHERE name = ?;

-- all_queues --
SELECT name, paused_at, concurrency_max, rate_max, rate_seconds FROM penstock_job_queues;

-- put_queue --
INSERT INTO penstock_job_queues (name, paused_at, concurrency_max, rate_max, rate_seconds)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    paused_at = excluded.paused_at, concurrency_max = excluded.concurrency_max,
    rate_max = excluded.rate_max, rate_seconds = excluded.rate_seconds;

-- forget_spent --
DELETE FROM penstock_job_rates WHERE queue = ?1 AND (until <= ?2 OR until > ?3);

-- spent --
SELECT total(jobs) FROM penstock_job_rates WHERE queue = ?;

-- spend --
INSERT INTO penstock_job_rates (queue, until, jobs) VALUES (?, ?, ?)
ON CONFLICT (queue, until) DO UPDATE SET jobs = jobs + excluded.jobs;

-- key_holder --
SELECT job_id, until FROM penstock_job_unique WHERE key = ?;

-- take_key --
INSERT OR REPLACE INTO penstock_job_unique (key, job_id, until) VALUES (?, ?, ?);

-- replace_job --
UPDATE penstock_jobs SET type = ?2, priority = ?3, max_attempts = ?4, deadline = ?5, timeout = ?6,
    schedule = ?7, encoding = ?8, body = ?9, run_at = ?10, attempts = 0, crashes = 0
WHERE id = ?1;

-- debounce_job --
UPDATE penstock_jobs SET encoding = ?2, body = ?3, run_at = ?4, attempts = 0, crashes = 0
WHERE id = ?1;

-- set_priority --
UPDATE penstock_jobs SET priority = ?2 WHERE id = ?1;

-- place --
-- Where a job is: the columns of the one table that has it are not NULL.
SELECT j.queue, j.attempts, j.run_at, j.unique_key,
    r.job_id IS NOT NULL, s.job_id IS NOT NULL, w.job_id IS NOT NULL, c.job_id IS NOT NULL, f.state
FROM penstock_jobs j
LEFT JOIN penstock_job_ready r
    ON r.queue = j.queue AND r.priority = j.priority AND r.job_id = j.id
LEFT JOIN penstock_job_scheduled s ON s.run_at = j.run_at AND s.job_id = j.id
LEFT JOIN penstock_job_waiting w ON w.job_id = j.id
LEFT JOIN penstock_job_claims c ON c.job_id = j.id
LEFT JOIN penstock_job_finished f ON f.job_id = j.id
WHERE j.id = ?;

-- stretch --
SELECT max(job_id), count(*) FROM (
    SELECT job_id FROM penstock_job_finished WHERE job_id > ?1 ORDER BY job_id LIMIT ?2
);

-- forget_results --
UPDATE penstock_job_finished SET result = NULL, result_encoding = NULL, result_until = NULL
WHERE job_id > ?1 AND job_id <= ?2 AND result_until <= ?3;

-- prunable --
SELECT f.job_id, f.state, j.queue
FROM penstock_job_finished f JOIN penstock_jobs j ON j.id = f.job_id
WHERE f.job_id > ?1 AND f.job_id <= ?2
    AND f.at < CASE f.state WHEN 5 THEN ?5 WHEN 6 THEN ?6 ELSE ?7 END
    AND (j.unique_key IS NULL OR NOT EXISTS (
        SELECT 1 FROM penstock_job_unique u
        WHERE u.key = j.unique_key AND u.job_id = j.id AND u.until > ?3))
ORDER BY f.job_id LIMIT ?4;

-- remove_jobs --
DELETE FROM penstock_jobs WHERE id IN carray(?1);

-- remove_finished --
DELETE FROM penstock_job_finished WHERE job_id IN carray(?1);

-- note_events --
-- Whoever reads events by their ids learns up to which some are gone.
INSERT INTO penstock_pruned (log, through)
SELECT 'job_events', max(id) FROM penstock_job_events WHERE job_id IN carray(?1)
HAVING max(id) IS NOT NULL
ON CONFLICT (log) DO UPDATE SET through = max(through, excluded.through);

-- remove_events --
DELETE FROM penstock_job_events WHERE job_id IN carray(?1);

-- remove_keys --
DELETE FROM penstock_job_unique WHERE job_id IN carray(?1);

-- look --
-- Ready jobs of a queue that is paused, or at its limit, are nothing to claim.
SELECT EXISTS (
    SELECT 1 FROM json_each(?1) q LEFT JOIN penstock_job_queues l ON l.name = q.value
    WHERE EXISTS (SELECT 1 FROM penstock_job_ready r WHERE r.queue = q.value)
    AND l.paused_at IS NULL
    AND (l.concurrency_max IS NULL OR l.concurrency_max > (
        SELECT total(n.jobs) FROM penstock_job_counts n WHERE n.queue = q.value AND n.state = 4))
    AND (l.rate_max IS NULL OR l.rate_max > (
        SELECT total(s.jobs) FROM penstock_job_rates s WHERE s.queue = q.value
        AND s.until > ?3 AND s.until <= ?3 + 1000000 * l.rate_seconds * 65 / 64 + 1))
) OR EXISTS (SELECT 1 FROM penstock_job_scheduled WHERE run_at <= ?2);

-- rate_free_at --
SELECT min(s.until) FROM json_each(?1) q JOIN penstock_job_rates s ON s.queue = q.value
WHERE s.until > ?2
AND EXISTS (SELECT 1 FROM penstock_job_ready r WHERE r.queue = q.value);

-- next_at --
SELECT min(run_at) FROM penstock_job_scheduled;

-- held --
SELECT job_id, token FROM penstock_job_claims WHERE instance = ?;

-- cancelling --
SELECT job_id FROM penstock_job_claims WHERE instance = ? AND is_cancelling = 1;

-- counts --
SELECT queue, state, jobs FROM penstock_job_counts WHERE jobs > 0;

-- count_in_states --
SELECT total(jobs) FROM penstock_job_counts
WHERE state IN (SELECT value FROM json_each(?1)) AND (?2 IS NULL OR queue = ?2);

-- oldest_ready --
-- The first of each priority: one of them is the oldest. Priorities are few, and followed to 100.
WITH RECURSIVE first (priority, job_id, number) AS (
    SELECT * FROM (
        SELECT priority, job_id, 1 FROM penstock_job_ready WHERE queue = ?1
        ORDER BY priority, job_id LIMIT 1)
    UNION ALL
    SELECT r.priority, r.job_id, first.number + 1
    FROM first JOIN penstock_job_ready r ON r.queue = ?1 AND (r.priority, r.job_id) = (
        SELECT n.priority, n.job_id FROM penstock_job_ready n
        WHERE n.queue = ?1 AND n.priority > first.priority ORDER BY n.priority, n.job_id LIMIT 1)
    WHERE first.number < 100
)
SELECT min(max(j.created_at, coalesce(j.run_at, 0)))
FROM first JOIN penstock_jobs j ON j.id = first.job_id;

-- events --
SELECT id, job_id, kind, at, attempt, data FROM penstock_job_events
WHERE id > ?1 ORDER BY id LIMIT ?2;

-- events_of_job --
SELECT id, job_id, kind, at, attempt, data FROM penstock_job_events
WHERE job_id = ?3 AND id > ?1 ORDER BY id LIMIT ?2;

-- unfinished --
SELECT j.id FROM penstock_jobs j
WHERE j.id IN carray(?1)
    AND NOT EXISTS (SELECT 1 FROM penstock_job_finished f WHERE f.job_id = j.id);

-- queue_and_priority --
SELECT queue, priority FROM penstock_jobs WHERE id = ?;

-- ahead --
SELECT count(*) FROM (
    SELECT 1 FROM penstock_job_ready
    WHERE queue = ?1 AND (priority, job_id) < (?2, ?3) LIMIT ?4
);

-- rate_spent --
SELECT until, jobs FROM penstock_job_rates WHERE queue = ?1 AND until > ?2 ORDER BY until;

-- recent_runs --
-- Completions among the last events. Those of a job that was retried since tell of its new life.
SELECT j.queue, e.at, f.started_at, max(j.created_at, coalesce(j.run_at, 0))
FROM penstock_job_events e
JOIN penstock_job_finished f ON f.job_id = e.job_id
JOIN penstock_jobs j ON j.id = e.job_id
WHERE e.id > ?1 AND e.at > ?2 AND e.kind = 3;

-- last_event --
SELECT coalesce(max(id), 0) FROM penstock_job_events;

-- event_time --
SELECT at FROM penstock_job_events WHERE id > ?1 ORDER BY id LIMIT 1;

-- parents --
SELECT parent_id FROM penstock_job_edges WHERE child_id = ? ORDER BY parent_id;

-- job --
SELECT j.id, j.queue, j.type, j.priority, j.created_at, j.attempts, j.max_attempts, j.crashes,
    j.body, j.encoding, j.run_at, j.deadline, j.timeout, j.unique_key, j.schedule, j.failure,
    r.job_id IS NOT NULL, s.job_id IS NOT NULL, w.job_id IS NOT NULL,
    c.attempt, c.claimed_at, c.started_at, c.instance, c.progress, c.is_cancelling,
    f.state, f.at, f.attempt, f.started_at, f.result, f.result_encoding, f.result_until,
    k.name

-- job_tables --
FROM penstock_jobs j
LEFT JOIN penstock_job_ready r
    ON r.queue = j.queue AND r.priority = j.priority AND r.job_id = j.id
LEFT JOIN penstock_job_scheduled s ON s.run_at = j.run_at AND s.job_id = j.id
LEFT JOIN penstock_job_waiting w ON w.job_id = j.id
LEFT JOIN penstock_job_claims c ON c.job_id = j.id
LEFT JOIN penstock_job_finished f ON f.job_id = j.id

-- job_worker --
LEFT JOIN penstock_workers k ON k.instance = c.instance
