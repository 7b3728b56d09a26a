"""Every error penstock raises, in one tree.

Each class has a stable `code` (for programs and the wire), says whether trying again can help
(`retryable`) and carries a `hint` for the person who reads it. The class docstring is the default
message. Driver exceptions never leave a store: they arrive here translated.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.model import Position


class PenstockError(Exception):
    """Something went wrong in penstock."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    hint: str = ""

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        self.message = message or inspect.cleandoc(type(self).__doc__ or "").split("\n\n")[0]
        if hint:
            self.hint = hint
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), dict(self.__dict__), self.message)


def _rebuild(cls: type[PenstockError], state: dict[str, object], message: str) -> PenstockError:
    """Errors cross process borders (workers, executors); their constructors differ."""
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


# What the caller said


class InvalidInput(PenstockError):
    """The input is not valid."""

    code = "invalid_input"


class InvalidURL(InvalidInput):
    """This store URL is not understood."""

    code = "invalid_url"
    hint = "Use sqlite:///path/to/file.db or memory:."


class InvalidSettings(InvalidInput):
    """A setting is not valid."""

    code = "invalid_settings"


class InvalidTopic(InvalidInput):
    """This topic name is not valid."""

    code = "invalid_topic"
    hint = "Use 1 to 255 bytes of text without control characters, '*' or '?'."


class InvalidPayload(InvalidInput):
    """The payload cannot be encoded."""

    code = "invalid_payload"
    hint = "Publish JSON-like values, msgspec structs, dataclasses or bytes."


class PayloadTooLarge(InvalidPayload):
    """The payload is larger than the limit."""

    code = "payload_too_large"
    hint = "Store the large part elsewhere and publish a link, or raise payload_bytes_max."


class UndecodablePayload(PenstockError):
    """A stored payload cannot be decoded as asked."""

    code = "undecodable_payload"
    hint = "message.data has the bytes as they were published."


# The store


class StoreError(PenstockError):
    """The store failed."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The database cannot be opened."""

    code = "store_unavailable"


class NotADatabase(StoreUnavailable):
    """The file is not a penstock database."""

    code = "not_a_database"
    hint = "Check the path; penstock does not touch files it did not make."


class StoreReadOnly(StoreUnavailable):
    """The database cannot be written."""

    code = "store_read_only"
    hint = "The file and its folder must be writable by this user, also for readers."


class SchemaTooNew(StoreUnavailable):
    """The database was written by a newer version of penstock."""

    code = "schema_too_new"
    hint = "Upgrade penstock here, or run 'penstock migrate down' with the newer version."


class SchemaTooOld(StoreUnavailable):
    """The database has an older schema, and this hub was told not to migrate."""

    code = "schema_too_old"
    hint = "Run 'penstock migrate up'."


class UnsafeSQLite(StoreUnavailable):
    """The SQLite library can corrupt a database that several processes share."""

    code = "unsafe_sqlite"
    hint = "Install apsw from its wheel: it carries SQLite 3.51.3 or newer."


class ForeignConnection(StoreError):
    """Another SQLite library has this database open in this process, which loses data."""

    code = "foreign_connection"
    hint = (
        "Reach your own tables with hub.transaction() or hub.connection(), "
        "or use sqlite3 in another process."
    )


class StoreBusy(StoreError):
    """The database stayed locked for longer than lock_timeout_seconds."""

    code = "store_busy"
    retryable = True
    hint = "Find the long write transaction ('penstock doctor' helps), or raise the timeout."


class StoreFull(StoreError):
    """The disk is full; nothing was written."""

    code = "store_full"
    retryable = True
    hint = "Free space; messages already acknowledged are safe."


class StoreReplaced(StoreError):
    """The database file was moved, deleted or replaced while it was open."""

    code = "store_replaced"
    hint = "Put the file back, or restart this process. Use 'penstock restore' to replace it."


class StoreCorrupt(StoreError):
    """The database is damaged."""

    code = "store_corrupt"
    hint = "Run 'penstock doctor', and restore a backup with 'penstock restore'."


class BackupFailed(StoreError):
    """The backup could not be made or restored."""

    code = "backup_failed"


# Writing


class OutcomeUnknown(StoreError):
    """The write may or may not be on disk."""

    code = "outcome_unknown"
    retryable = True
    hint = "Publish again with the same idempotency_key: it is stored at most once."


class WriteTimeout(OutcomeUnknown):
    """The write was not acknowledged in time; it may still happen."""

    code = "write_timeout"


class QueueFull(PenstockError):
    """Too many writes are waiting for the disk."""

    code = "queue_full"
    retryable = True
    hint = "Wait for acknowledgements before publishing more, or raise write_queue_max."


class HubClosed(PenstockError):
    """The hub is closed."""

    code = "hub_closed"
    hint = "Open another one with penstock.connect()."


# Topics and consumers


class TopicError(PenstockError):
    """The topic operation failed."""

    code = "topic_error"


class TopicNotFound(TopicError):
    """There is no topic of this name."""

    code = "topic_not_found"
    hint = "'penstock topics list' shows those that exist; publishing creates one."


class TopicExists(TopicError):
    """A topic of this name exists."""

    code = "topic_exists"
    hint = "Change it with configure()."


class LogTrimmed(TopicError):
    """Messages after this position were trimmed before they were read."""

    code = "log_trimmed"
    hint = "Read on after .resume, follow with on_trimmed='skip', or keep messages longer."

    def __init__(
        self,
        message: str = "",
        *,
        first: Position | None,
        resume: Position,
        trims: Mapping[str, int] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.first = first
        """The first message that exists; None if there is none."""
        self.resume = resume
        """Reading after this position starts with that message."""
        self.trims: dict[str, int] = dict(trims or {})
        """What this error tells: topics, and the id up to which each was trimmed. Of a glob's
        topics, one may be trimmed further than another has messages."""


class EpochChanged(TopicError):
    """The position belongs to another generation of the database."""

    code = "epoch_changed"
    hint = "The database was restored or replaced: resume from 'earliest' or 'latest'."


class IdempotencyConflict(TopicError):
    """The idempotency key was used with a different message."""

    code = "idempotency_conflict"
    hint = "Use one key per message."


class ConsumerBusy(TopicError):
    """Another process holds this consumer."""

    code = "consumer_busy"
    retryable = True
    hint = "Give each follower its own name, or wait in line with standby=True."


class ConsumerNotFound(TopicError):
    """There is no consumer of this name."""

    code = "consumer_not_found"
    hint = "'penstock consumers list' shows those that exist."


class LeaseLost(PenstockError):
    """The lease ran out and somebody else holds it now."""

    code = "lease_lost"
    hint = "This process was suspended or stalled; its answer was refused. Start over."


class LockTimeout(PenstockError):
    """The lock was not free in time."""

    code = "lock_timeout"
    retryable = True
    hint = "Somebody else holds it; wait longer, or do without."


# Jobs


class JobError(PenstockError):
    """The job operation failed."""

    code = "job_error"


class JobNotFound(JobError):
    """There is no job of this id."""

    code = "job_not_found"
    hint = "'penstock jobs list' shows those that exist; finished ones are pruned after a while."


class JobExists(JobError):
    """Another job has this unique key."""

    code = "job_exists"
    hint = "Choose on_conflict='return', 'replace' or 'debounce', or wait until it has finished."

    def __init__(self, message: str = "", *, job_id: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.job_id = job_id
        """The job that has it."""


class ScheduleNotFound(JobError):
    """There is no schedule of this name."""

    code = "schedule_not_found"
    hint = "'penstock schedules list' shows those that exist."


class UnknownJobType(JobError):
    """No handler is registered for this type of job."""

    code = "unknown_job_type"
    hint = "Import the module that has its @hub.job before the worker starts."


class JobTimeout(JobError):
    """The job ran for longer than it may."""

    code = "job_timeout"
    hint = "Raise its timeout, or split the work."


class ProcessDied(JobError):
    """The process that did the job has died."""

    code = "process_died"
    hint = "A crash in native code, os._exit, or the system ran out of memory."


class JobFailed(JobError):
    """The job did not complete."""

    code = "job_failed"
    hint = "'penstock jobs show' has its history."


class WaitTimeout(JobError):
    """The job has not finished in time."""

    code = "wait_timeout"
    retryable = True
    hint = "It goes on; wait again."


# The ledger


class LedgerError(PenstockError):
    """The ledger operation failed."""

    code = "ledger_error"


class AlreadyProcessed(LedgerError):
    """This was processed before."""

    code = "already_processed"
    hint = "Nothing is to be done: skip it."


class InProgress(LedgerError):
    """Somebody else is at it."""

    code = "in_progress"
    retryable = True
    hint = "Try again later, or claim with on_busy='wait'."


class LedgerConflict(LedgerError):
    """The same key stands for something else."""

    code = "ledger_conflict"
    hint = "Use one key per message."


class WorkFailed(LedgerError):
    """The work for this key failed before, and its failure was kept as the answer."""

    code = "work_failed"
    hint = "hub.ledger.forget() lets it be tried again."

    def __init__(self, message: str = "", *, error: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.error = error
        """The class of the error that was raised then."""


# Pipelines


class InvalidOption(InvalidInput):
    """An option of the Spark source or sink is not valid."""

    code = "invalid_option"
    hint = "docs/reference/spark.md lists the options."


class JavaNotFound(PenstockError):
    """Spark needs Java 17 or 21, and found neither."""

    code = "java_not_found"
    hint = (
        "On Debian and Ubuntu: apt-get install openjdk-17-jre-headless; on macOS: "
        "brew install openjdk@17. Or set JAVA_HOME to one you have."
    )


class DataLost(TopicError):
    """Rows were removed before the query had read them."""

    code = "data_lost"
    hint = (
        "Keep messages longer, or hold them for the query's group; to go on with what is left, "
        "set failOnDataLoss to false."
    )


class SinkReused(PenstockError):
    """Batches of this name were written by another query, or with other rows."""

    code = "sink_reused"
    hint = (
        "Its checkpoint was deleted, set back or replaced. Choose another txnAppId, or let go of "
        "what was written under this one with penstock.spark.forget_sink()."
    )


class StagingDamaged(StoreError):
    """Rows that were staged for a sink are missing or damaged."""

    code = "staging_damaged"
    hint = "Nothing of the batch's open part was written. Run the query again."


class LakeConflict(PenstockError):
    """The lake was changed by somebody else in the meantime."""

    code = "lake_conflict"
    retryable = True
    hint = "Nothing was added. Is the pipeline running twice? Run it again."


class LakeDamaged(StoreError):
    """A file of the lake is missing, or not as it was written."""

    code = "lake_damaged"
    hint = "Was the lake moved, or only its database restored? 'penstock lake verify' lists them."


class ForeignLake(PenstockError):
    """The folder holds the lake of another database."""

    code = "foreign_lake"
    hint = "Give each database a lake of its own: the setting lake."


class SparkMissing(PenstockError):
    """Pipelines need Spark, which is not installed here."""

    code = "spark_missing"
    hint = "pip install 'penstock[spark]'"


class PipelineBusy(PenstockError):
    """The pipeline is running already."""

    code = "pipeline_busy"
    retryable = True
    hint = "'penstock pipeline status' shows where. Stop that one first."


class PipelineFailed(PenstockError):
    """The pipeline has failed."""

    code = "pipeline_failed"


# Transactions


class TransactionError(PenstockError):
    """The transaction failed and was rolled back."""

    code = "transaction_error"


class InsideTransaction(TransactionError):
    """This call would wait for the transaction it is made in."""

    code = "inside_transaction"
    hint = "Inside 'with hub.transaction() as tx' use tx, such as tx.publish()."


class TransactionTimeout(TransactionError):
    """The transaction was open for too long and was rolled back."""

    code = "transaction_timeout"
    retryable = True
    hint = "Do slow work before it, or pass limit_seconds."


class TransactionClosed(TransactionError):
    """The transaction has ended."""

    code = "transaction_closed"
    hint = "Use tx only inside its 'with' block."


class StatementRefused(TransactionError):
    """This statement is not allowed in a hub's transaction."""

    code = "statement_refused"
    hint = "The hub begins and ends it; ATTACH, PRAGMA and penstock's own tables are off limits."


class StatementFailed(TransactionError):
    """The database refused the statement."""

    code = "statement_failed"


# Mailboxes


class MailboxError(PenstockError):
    """A mailbox cannot be used like this."""

    code = "mailbox_error"


class InvalidMailbox(InvalidInput):
    """This is no name of a mailbox."""

    code = "invalid_mailbox"
    hint = "Use 1 to 200 bytes of text without control characters."


class QuotaExceeded(MailboxError):
    """The mailbox is full: it takes messages again when all that are in it are acknowledged."""

    code = "quota_exceeded"
    retryable = True
    hint = "Read and acknowledge what is in it, or raise mailbox_messages_max."

    def __init__(self, message: str = "", *, mailbox: str = "", hint: str = "") -> None:
        super().__init__(message or (f"The mailbox {mailbox!r} is full." if mailbox else ""))
        self.mailbox = mailbox
        if hint:
            self.hint = hint


class WrongAck(MailboxError):
    """Only the first message of a mailbox can be acknowledged."""

    code = "wrong_ack"
    hint = "Acknowledge the id that peek() returned; nothing was changed."


class MailboxTaken(MailboxError):
    """Another connection has opened this mailbox."""

    code = "mailbox_taken"
    hint = "A mailbox is pushed to the connection that opened it last; open it again to have it."


class MailboxCorrupt(MailboxError):
    """The files of this mailbox are damaged."""

    code = "mailbox_corrupt"
    hint = "'penstock mailboxes verify' shows what is damaged, 'repair' keeps what is not."


class MailboxesFailed(MailboxError):
    """Writing to disk failed: what is there is not known until the mailboxes are opened anew."""

    code = "mailboxes_failed"
    hint = "Mend the disk and restart this process; messages already acknowledged are safe."


# Over the network


class Unauthorized(PenstockError):
    """A valid token is needed."""

    code = "unauthorized"
    hint = "Pass a token that has not expired; 'penstock tokens' makes one."


class Forbidden(PenstockError):
    """This token does not allow that."""

    code = "forbidden"
    hint = "Ask for a token with the right for this topic. A glob must be covered whole."


class BadRequest(InvalidInput):
    """The request is not one of the protocol."""

    code = "bad_request"
    hint = "docs/reference/protocol.md lists the commands and their fields."


class RateLimited(PenstockError):
    """Too much in too short a time."""

    code = "rate_limited"
    retryable = True
    hint = "Slow down, or raise publish_rate_max."


class LimitReached(PenstockError):
    """A limit of the server is reached."""

    code = "limit_reached"
    hint = "Close what is not needed, or raise the limit in the server's settings."


class Disconnected(PenstockError):
    """The connection to the server was lost."""

    code = "disconnected"
    retryable = True
    hint = "Is the server running? What was not acknowledged may have happened."


class Unsupported(PenstockError):
    """This store cannot do that."""

    code = "unsupported"
