DROP TABLE penstock_pipelines;
