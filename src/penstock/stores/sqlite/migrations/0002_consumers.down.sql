DROP TABLE penstock_instances;
DROP TABLE penstock_leases;
DROP TABLE penstock_consumers;
