"""The ledger: what each consumer has already processed, and who is at what."""
