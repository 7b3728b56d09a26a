"""Jobs in SQLite, the writing side: every change of a job's state is a method of one of these.

BEGIN IMMEDIATE admits one writer, so a look followed by a change is one step.
"""

from __future__ import annotations

from penstock.stores.sqlite.job_hands import JobHands
from penstock.stores.sqlite.job_intake import JobIntake
from penstock.stores.sqlite.job_operations import JobOperations


class SqliteJobWriter(JobIntake, JobHands, JobOperations):
    """In through the intake, out to workers and back by their hands, and by hand."""
