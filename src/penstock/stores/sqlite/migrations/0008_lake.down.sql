DROP TABLE penstock_replays;
DROP TABLE penstock_lake_files;
DROP TABLE penstock_lake_batches;
DROP TABLE penstock_lake_coverage;
DROP TABLE penstock_lake;
