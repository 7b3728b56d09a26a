DROP TABLE penstock_ledger_scopes;
DROP TABLE penstock_ledger_counts;
DROP TABLE penstock_ledger_events;
DROP TABLE penstock_ledger;
