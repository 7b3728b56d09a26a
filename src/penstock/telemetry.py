"""Counters and events of one hub, for logs, metrics and tests.

Events, in the order a message meets them (`attach` gets the name and a dict of measurements):

| event | measurements | when |
|---|---|---|
| `commit` | operations, messages, seconds | the committer's transaction is on disk |
| `commit_failed` | operations, error | it was rolled back, or its outcome is unknown |
| `tail` | messages, seconds | the tail read new messages after a wake |
| `behind` | subscription | a subscriber fell behind and is served from the log |
| `slow` | subscription, policy | a socket backed up and left the live path |
| `swept` | topic, messages | retention removed messages |
| `hold_broken` | topic, messages | a hold's limit was reached and messages were removed |
| `rescued` | jobs | jobs were taken out of the hands of a process that is gone |
| `refused` | jobs | answers came too late: the jobs are somebody else's |
| `jobs_lost` | jobs | this process was suspended or cut off, and stops its copies of these jobs |
| `job_stuck` | job, type | a handler was told to stop and has not; its slot is not free |
| `jobs_pruned` | jobs | finished jobs were removed after their time |
| `ledger_pruned` | entries | expired entries of the ledger were removed |
| `ledger_unavailable` | scope, keys, error | a consumer went on without asking the ledger |
| `ledger_differs` | question, scope, key, existing, ledger | a shadow disagrees with its tracker |
| `fed` | messages, mailboxes | messages of topics were put into mailboxes that subscribe to them |
| `feed_gap` | topic, mailboxes | messages were removed before these mailboxes had room for them |
| `mailbox_damaged` | mailbox, file, reason | files of a mailbox are not as they were written |
| `mailbox_repaired` | mailbox, messages, missing | what could be read was kept |
| `mailboxes_failed` | error | a sync failed: mailboxes take nothing until they are opened anew |
| `mailboxes_recovered` | logs, boxes | what dead processes left in their logs is in its boxes |
| `clock_jumped` | seconds | the clock was set forward: old mail is not looked for this time |
| `claim_lost` | scope, key | a claim's lease ran out and somebody else took over |
| `listener_failed` | error | a listener's callback raised, or its subscription ended |
| `service_failed` | service, error | background work failed and will be tried again |
| `connected` | instance | a remote hub has reached a server |
| `disconnected` | error | it has lost it, and tries again |

Counters: one per event name, plus `published`, `delivered` and `conflated`; of a remote hub also
`kept_alive`, signs of life sent for followers that are too busy to read.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger("penstock")

Handler = Callable[[str, Mapping[str, Any]], None]

_WARN = frozenset(
    {
        "commit_failed",
        "service_failed",
        "listener_failed",
        "hold_broken",
        "disconnected",
        "ledger_unavailable",
        "ledger_differs",
        "claim_lost",
        "jobs_lost",
        "job_stuck",
    }
)


class Telemetry:
    def __init__(self) -> None:
        self._handlers: tuple[Handler, ...] = ()
        self._counters: Counter[str] = Counter()
        self._lock = threading.Lock()

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` for each event, on the thread where it happens. Returns a detacher."""
        with self._lock:
            self._handlers = (*self._handlers, handler)

        def detach() -> None:
            with self._lock:
                self._handlers = tuple(h for h in self._handlers if h is not handler)

        return detach

    def renew(self) -> None:
        """In a forked child: whoever held the lock is not here."""
        self._lock = threading.Lock()

    def emit(self, event: str, **measurements: Any) -> None:
        self.count(event)
        if event in _WARN:
            logger.warning("%s %s", event, measurements)
        for handler in self._handlers:
            try:
                handler(event, measurements)
            except Exception:
                logger.exception("A telemetry handler failed on %s", event)

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._counters[name] += by

    def counters(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counters)
