DROP TABLE penstock_presence_owners;
DROP TABLE penstock_presence;
ALTER TABLE penstock_topics DROP COLUMN delivery;
