-- Reading in bulk. The columns that are asked for stand before each FROM.

-- from_messages --
FROM penstock_messages AS m
WHERE m.id > :after AND m.id <= :through AND (m.expires_at IS NULL OR m.expires_at > :now)

-- from_messages_trimmed --
-- While something in the range is hidden and not yet removed.
FROM penstock_messages AS m JOIN penstock_topics AS t ON t.id = m.topic_id
WHERE m.id > :after AND m.id <= :through AND (m.expires_at IS NULL OR m.expires_at > :now)
  AND m.id > t.deleted_through

-- from_chosen_messages --
FROM carray(:ids) AS c JOIN penstock_messages AS m ON m.id = c.value
JOIN penstock_topics AS t ON t.id = m.topic_id
WHERE (m.expires_at IS NULL OR m.expires_at > :now) AND m.id > t.deleted_through

-- from_job_events --
FROM penstock_job_events AS e
WHERE e.id > :after AND e.id <= :through

-- from_job_events_and_jobs --
FROM penstock_job_events AS e LEFT JOIN penstock_jobs AS j ON j.id = e.job_id
WHERE e.id > :after AND e.id <= :through

-- from_ledger_events --
FROM penstock_ledger_events AS e
WHERE e.id > :after AND e.id <= :through

-- from_jobs --
FROM penstock_jobs j
LEFT JOIN penstock_job_ready r
    ON r.queue = j.queue AND r.priority = j.priority AND r.job_id = j.id
LEFT JOIN penstock_job_scheduled s ON s.run_at = j.run_at AND s.job_id = j.id
LEFT JOIN penstock_job_waiting w ON w.job_id = j.id
LEFT JOIN penstock_job_claims c ON c.job_id = j.id
LEFT JOIN penstock_job_finished f ON f.job_id = j.id
LEFT JOIN penstock_workers k ON k.instance = c.instance
WHERE j.id > :after AND j.id <= :through

-- from_dead_letters --
-- By the index of those that ended badly.
FROM penstock_job_finished f
JOIN penstock_jobs j ON j.id = f.job_id
LEFT JOIN penstock_job_claims c ON c.job_id = j.id
LEFT JOIN penstock_workers k ON k.instance = c.instance
WHERE f.state > 5 AND f.state = 6 AND f.job_id > :after AND f.job_id <= :through

-- from_topics --
FROM penstock_topics AS t
WHERE t.id > :after AND t.id <= :through AND t.deleted_at IS NULL

-- ids_of_topic --
-- The index has all that is asked for.
SELECT id FROM penstock_messages
WHERE topic_id = ?1 AND id > ?2 AND id <= ?3 ORDER BY id LIMIT ?4;

-- count_of_topic --
SELECT count(*) FROM (
    SELECT 1 FROM penstock_messages WHERE topic_id = ?1 AND id > ?2 AND id <= ?3 LIMIT ?4
);

-- sizes --
-- A body's length stands before it: its overflow pages are not read.
SELECT id, topic_id, length(body) FROM penstock_messages
WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT ?3;

-- sizes_of --
SELECT m.id, m.topic_id, length(m.body)
FROM carray(?1) AS c JOIN penstock_messages AS m ON m.id = c.value ORDER BY m.id;

-- densities --
-- How many messages of each topic there are; all of them are the log.
SELECT id, appended - removed FROM penstock_topics WHERE appended > removed;

-- newest --
SELECT coalesce(max(last_id), 0) FROM penstock_topics WHERE id IN carray(?1);

-- active --
SELECT id FROM penstock_topics WHERE last_id > ?1;

-- first_message --
SELECT min(id) FROM penstock_messages;

-- first_job_event --
SELECT min(id) FROM penstock_job_events;

-- first_ledger_event --
SELECT min(id) FROM penstock_ledger_events;

-- first_job --
SELECT min(id) FROM penstock_jobs;

-- last_job_event --
-- Also of those that were removed.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'penstock_job_events'), 0);

-- last_ledger_event --
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'penstock_ledger_events'), 0);

-- last_job --
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'penstock_jobs'), 0);

-- last_topic --
SELECT coalesce(max(id), 0) FROM penstock_topics;

-- time_of_message --
SELECT id, created_at FROM penstock_messages WHERE id >= ? ORDER BY id LIMIT 1;

-- time_of_job_event --
SELECT id, at FROM penstock_job_events WHERE id >= ? ORDER BY id LIMIT 1;

-- time_of_ledger_event --
SELECT id, at FROM penstock_ledger_events WHERE id >= ? ORDER BY id LIMIT 1;

-- pruned --
SELECT through FROM penstock_pruned WHERE log = ?1 AND through > ?2;
