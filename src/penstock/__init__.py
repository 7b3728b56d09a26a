"""penstock: a durable messaging hub in one file."""

import os as _os
from typing import Any as _Any
from typing import cast as _cast

from penstock.clock import Clock as _Clock
from penstock.errors import (
    AlreadyProcessed,
    ConsumerBusy,
    ConsumerNotFound,
    EpochChanged,
    HubClosed,
    IdempotencyConflict,
    InProgress,
    InsideTransaction,
    InvalidInput,
    InvalidMailbox,
    InvalidPayload,
    InvalidSettings,
    InvalidTopic,
    InvalidURL,
    JobError,
    JobExists,
    JobFailed,
    JobNotFound,
    JobTimeout,
    LeaseLost,
    LedgerConflict,
    LedgerError,
    LockTimeout,
    LogTrimmed,
    MailboxCorrupt,
    MailboxError,
    MailboxesFailed,
    OutcomeUnknown,
    PayloadTooLarge,
    PenstockError,
    ProcessDied,
    QueueFull,
    QuotaExceeded,
    ScheduleNotFound,
    StatementFailed,
    StatementRefused,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReplaced,
    StoreUnavailable,
    TopicExists,
    TopicNotFound,
    TransactionClosed,
    TransactionError,
    TransactionTimeout,
    UndecodablePayload,
    UnknownJobType,
    WaitTimeout,
    WorkFailed,
    WriteTimeout,
    WrongAck,
)
from penstock.health import Health, Metrics
from penstock.hub import Hub
from penstock.job import (
    Enqueued,
    Job,
    JobEvent,
    Progress,
    QueueLimits,
    QueueStats,
    Schedule,
    State,
)
from penstock.jobs import retry
from penstock.jobs.registry import Cancel, Snooze
from penstock.mail import Mail, MailboxStats, MailboxSubscription, MailKind, Posted
from penstock.mailboxes.mailboxes import Parcel
from penstock.model import (
    Check,
    Conflated,
    Consumer,
    Delivery,
    Lag,
    Message,
    Position,
    Publication,
    Receipt,
    Retention,
    Topic,
    TopicStats,
)
from penstock.settings import load as _load_settings

__version__ = "0.1.0"

_SERVERS = ("http://", "https://", "ws://", "wss://")


def connect(
    url: str | None = None,
    *,
    config: str | _os.PathLike[str] | None = None,
    clock: _Clock | None = None,
    **arguments: _Any,
) -> Hub:
    """A hub. Checks the URL and the settings, and opens nothing before the first use.

    `url` defaults to `$PENSTOCK_URL`, then `sqlite:///penstock.db`. Any setting can be passed by
    name; `config` is a TOML file (default: penstock.toml here, if there is one).

    The URL of a server gives a `penstock.client.RemoteHub`: the same names, except for what only
    a process beside the file can do, such as transactions, which raises `Unsupported`.
    """
    settings = _load_settings(url, file=config, **arguments)
    if not settings.url.startswith(_SERVERS):
        return Hub(settings, clock)
    # Not needed, nor installed, where the hub is a file.
    from penstock.client import connect as connect_remotely

    return _cast(Hub, connect_remotely(url, config=config, **arguments))


__all__ = [
    "AlreadyProcessed",
    "Cancel",
    "Check",
    "Conflated",
    "Consumer",
    "ConsumerBusy",
    "ConsumerNotFound",
    "Delivery",
    "Enqueued",
    "EpochChanged",
    "Health",
    "Hub",
    "HubClosed",
    "IdempotencyConflict",
    "InProgress",
    "InsideTransaction",
    "InvalidInput",
    "InvalidMailbox",
    "InvalidPayload",
    "InvalidSettings",
    "InvalidTopic",
    "InvalidURL",
    "Job",
    "JobError",
    "JobEvent",
    "JobExists",
    "JobFailed",
    "JobNotFound",
    "JobTimeout",
    "Lag",
    "LeaseLost",
    "LedgerConflict",
    "LedgerError",
    "LockTimeout",
    "LogTrimmed",
    "Mail",
    "MailKind",
    "MailboxCorrupt",
    "MailboxError",
    "MailboxStats",
    "MailboxSubscription",
    "MailboxesFailed",
    "Message",
    "Metrics",
    "OutcomeUnknown",
    "Parcel",
    "PayloadTooLarge",
    "PenstockError",
    "Position",
    "Posted",
    "ProcessDied",
    "Progress",
    "Publication",
    "QueueFull",
    "QueueLimits",
    "QueueStats",
    "QuotaExceeded",
    "Receipt",
    "Retention",
    "Schedule",
    "ScheduleNotFound",
    "Snooze",
    "State",
    "StatementFailed",
    "StatementRefused",
    "StoreBusy",
    "StoreError",
    "StoreFull",
    "StoreReplaced",
    "StoreUnavailable",
    "Topic",
    "TopicExists",
    "TopicNotFound",
    "TopicStats",
    "TransactionClosed",
    "TransactionError",
    "TransactionTimeout",
    "UndecodablePayload",
    "UnknownJobType",
    "WaitTimeout",
    "WorkFailed",
    "WriteTimeout",
    "WrongAck",
    "__version__",
    "connect",
    "retry",
]
