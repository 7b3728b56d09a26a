"""Topics: append-only logs that many processes share."""
