DROP TABLE penstock_pruned;
DROP TABLE penstock_sink_batches;
DROP TABLE penstock_sinks;
