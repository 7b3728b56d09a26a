DROP TABLE penstock_schedules;
