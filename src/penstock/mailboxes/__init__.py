"""Mailboxes: a durable queue for each recipient, in files."""
