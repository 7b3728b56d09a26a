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
INSERT INTO penstock_job_counts (queue, state, jobs) VALUES (?1, ?2, ?3)
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
WHERE e.parent_id IN carray(?);

-- cut_edge --
DELETE FROM penstock_job_edges WHERE parent_id = ? AND child_id = ? RETURNING child_id;

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
SELECT queue, priority, id FROM penstock_jobs WHERE id IN carray(?);

-- next_ready --
SELECT r.priority, j.id, j.type, j.body, j.encoding, j.attempts, j.max_attempts, j.crashes,
    j.created_at, j.deadline, j.timeout, j.schedule
FROM penstock_job_ready r JOIN penstock_jobs j ON j.id = r.job_id
WHERE r.queue = ?1 ORDER BY r.priority, r.job_id LIMIT ?2;

-- leave_ready_through --
DELETE FROM penstock_job_ready WHERE queue = ?1 AND (priority, job_id) <= (?2, ?3);

-- claim_many --
INSERT INTO penstock_job_claims (job_id, queue, token, instance, attempt, claimed_at)
SELECT id, queue, ?2, ?3, attempts + 1, ?4
FROM penstock_jobs WHERE id IN carray(?1);

-- start_many --
UPDATE penstock_job_claims SET started_at = ?3
WHERE job_id IN carray(?1) AND token = ?2 AND is_cancelling = 0
RETURNING job_id;

-- started_many --
INSERT INTO penstock_job_events (job_id, kind, at, attempt, data)
SELECT job_id, 2, ?2, attempt, ?3
FROM penstock_job_claims WHERE job_id IN carray(?1);

-- finish_many --
INSERT INTO penstock_job_finished (job_id, state, at, attempt, started_at)
SELECT job_id, 5, ?3, attempt, started_at FROM penstock_job_claims
WHERE job_id IN carray(?1) AND token = ?2;

-- completed_many --
INSERT INTO penstock_job_events (job_id, kind, at, attempt)
SELECT job_id, 3, ?3, attempt FROM penstock_job_claims
WHERE job_id IN carray(?1) AND token = ?2;

-- drop_claims --
DELETE FROM penstock_job_claims
WHERE job_id IN carray(?1) AND token = ?2
RETURNING job_id, queue;

-- keep_result --
UPDATE penstock_job_finished SET result = ?2, result_encoding = ?3, result_until = ?4
WHERE job_id = ?1;

-- free_keys --
DELETE FROM penstock_job_unique
WHERE job_id IN carray(?1) AND (until IS NULL OR until <= ?2);

-- drop_claim --
DELETE FROM penstock_job_claims WHERE job_id = ?1 AND token = ?2
RETURNING queue, attempt, started_at, is_cancelling;

-- take_claim --
DELETE FROM penstock_job_claims WHERE job_id = ?1
RETURNING queue, attempt, started_at, is_cancelling, instance;

-- set_attempts --
UPDATE penstock_jobs SET attempts = ?2, crashes = crashes + ?3, failure = coalesce(?4, failure)
WHERE id = ?1;

-- finish --
INSERT INTO penstock_job_finished (job_id, state, at, attempt, started_at)
VALUES (?, ?, ?, ?, ?);

-- unfinish --
DELETE FROM penstock_job_finished WHERE job_id = ? RETURNING state;

-- reset_attempts --
UPDATE penstock_jobs SET attempts = 0, crashes = 0, run_at = NULL WHERE id = ?;

-- set_progress --
UPDATE penstock_job_claims SET progress = ?3 WHERE job_id = ?1 AND token = ?2 RETURNING attempt;

-- ask_to_stop --
UPDATE penstock_job_claims SET is_cancelling = 1 WHERE job_id = ? RETURNING started_at;

-- enter_worker --
INSERT INTO penstock_workers (instance, name, boot_id, lease_until, queues, started_at, seen_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (instance) DO UPDATE SET
    lease_until = excluded.lease_until, boot_id = excluded.boot_id, queues = excluded.queues,
    seen_at = excluded.seen_at;

-- leave_worker --
DELETE FROM penstock_workers WHERE instance = ?;

-- workers --
SELECT w.instance, w.name, w.boot_id, w.lease_until, w.queues, w.started_at, w.seen_at,
    (SELECT count(*) FROM penstock_job_claims c WHERE c.instance = w.instance)
FROM penstock_workers w ORDER BY w.instance;

-- claim_instances --
SELECT DISTINCT c.instance, w.boot_id, w.lease_until
FROM penstock_job_claims c LEFT JOIN penstock_workers w ON w.instance = c.instance;

-- claims_of --
SELECT job_id FROM penstock_job_claims WHERE instance = ?1 ORDER BY job_id LIMIT ?2;

-- claimed_count --
SELECT count(*) FROM penstock_job_claims WHERE queue = ?;

-- queue --
SELECT paused_at, concurrency_max, rate_max, rate_seconds, rate_left, rate_at
FROM penstock_job_queues WHERE name = ?;

-- all_queues --
SELECT name, paused_at, concurrency_max, rate_max, rate_seconds FROM penstock_job_queues;

-- put_queue --
INSERT INTO penstock_job_queues (name, paused_at, concurrency_max, rate_max, rate_seconds,
    rate_left, rate_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    paused_at = excluded.paused_at, concurrency_max = excluded.concurrency_max,
    rate_max = excluded.rate_max, rate_seconds = excluded.rate_seconds,
    rate_left = excluded.rate_left, rate_at = excluded.rate_at;

-- spend_rate --
UPDATE penstock_job_queues SET rate_left = ?2, rate_at = ?3 WHERE name = ?1;

-- key_holder --
SELECT job_id, until FROM penstock_job_unique WHERE key = ?;

-- take_key --
INSERT OR REPLACE INTO penstock_job_unique (key, job_id, until) VALUES (?, ?, ?);

-- replace_job --
UPDATE penstock_jobs SET type = ?2, priority = ?3, max_attempts = ?4, deadline = ?5, timeout = ?6,
    encoding = ?7, body = ?8, run_at = ?9
WHERE id = ?1;

-- set_priority --
UPDATE penstock_jobs SET priority = ?2 WHERE id = ?1;

-- place --
-- Where a job is: the columns of the one table that has it are not NULL.
SELECT j.queue, j.attempts, j.max_attempts,
    r.job_id IS NOT NULL, s.job_id IS NOT NULL, w.job_id IS NOT NULL, c.job_id IS NOT NULL, f.state
FROM penstock_jobs j
LEFT JOIN penstock_job_ready r
    ON r.queue = j.queue AND r.priority = j.priority AND r.job_id = j.id
LEFT JOIN penstock_job_scheduled s ON s.run_at = j.run_at AND s.job_id = j.id
LEFT JOIN penstock_job_waiting w ON w.job_id = j.id
LEFT JOIN penstock_job_claims c ON c.job_id = j.id
LEFT JOIN penstock_job_finished f ON f.job_id = j.id
WHERE j.id = ?;

-- prunable --
SELECT job_id, state, at FROM penstock_job_finished WHERE job_id > ?1 ORDER BY job_id LIMIT ?2;

-- remove_jobs --
DELETE FROM penstock_jobs WHERE id IN carray(?) RETURNING queue;

-- remove_finished --
DELETE FROM penstock_job_finished WHERE job_id IN carray(?);

-- remove_events --
DELETE FROM penstock_job_events WHERE job_id IN carray(?);

-- remove_keys --
DELETE FROM penstock_job_unique WHERE job_id IN carray(?);

-- remove_edges --
DELETE FROM penstock_job_edges WHERE parent_id IN carray(?);

-- look --
SELECT EXISTS (
    SELECT 1 FROM json_each(?1) q
    WHERE EXISTS (SELECT 1 FROM penstock_job_ready r WHERE r.queue = q.value)
) OR EXISTS (SELECT 1 FROM penstock_job_scheduled WHERE run_at <= ?2);

-- next_at --
SELECT min(run_at) FROM penstock_job_scheduled;

-- cancelling --
SELECT job_id FROM penstock_job_claims WHERE instance = ? AND is_cancelling = 1;

-- counts --
SELECT queue, state, jobs FROM penstock_job_counts WHERE jobs > 0;

-- oldest_ready --
SELECT j.created_at FROM penstock_job_ready r JOIN penstock_jobs j ON j.id = r.job_id
WHERE r.queue = ? ORDER BY r.priority, r.job_id LIMIT 1;

-- events --
SELECT id, job_id, kind, at, attempt, data FROM penstock_job_events
WHERE id > ?1 ORDER BY id LIMIT ?2;

-- events_of_job --
SELECT id, job_id, kind, at, attempt, data FROM penstock_job_events
WHERE job_id = ?3 AND id > ?1 ORDER BY id LIMIT ?2;

-- parents --
SELECT parent_id FROM penstock_job_edges WHERE child_id = ? ORDER BY parent_id;

-- job --
SELECT j.id, j.queue, j.type, j.priority, j.created_at, j.attempts, j.max_attempts, j.crashes,
    j.body, j.encoding, j.run_at, j.deadline, j.timeout, j.unique_key, j.schedule, j.failure,
    r.job_id IS NOT NULL, s.job_id IS NOT NULL, w.job_id IS NOT NULL,
    c.attempt, c.claimed_at, c.started_at, c.instance, c.progress, c.is_cancelling,
    f.state, f.at, f.attempt, f.started_at, f.result, f.result_encoding, f.result_until,
    k.name
FROM penstock_jobs j
LEFT JOIN penstock_job_ready r
    ON r.queue = j.queue AND r.priority = j.priority AND r.job_id = j.id
LEFT JOIN penstock_job_scheduled s ON s.run_at = j.run_at AND s.job_id = j.id
LEFT JOIN penstock_job_waiting w ON w.job_id = j.id
LEFT JOIN penstock_job_claims c ON c.job_id = j.id
LEFT JOIN penstock_job_finished f ON f.job_id = j.id
LEFT JOIN penstock_workers k ON k.instance = c.instance
