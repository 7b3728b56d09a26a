DROP TABLE penstock_idempotency;
DROP TABLE penstock_messages;
DROP TABLE penstock_topics;
DROP TABLE penstock_log;
