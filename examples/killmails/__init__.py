"""Killmails: a chain of jobs that fetches, prices and announces, and survives its workers."""
