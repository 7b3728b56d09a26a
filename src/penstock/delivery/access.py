"""What a client may do, by patterns of topics, of queues, of mailboxes and of ledger scopes."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import msgspec

from penstock.clock import Micros
from penstock.errors import Forbidden, InvalidTopic
from penstock.mail import check_mailbox
from penstock.model import NAME_BYTES_MAX, RESERVED_PREFIX, Pattern

EVERYTHING = ("*", f"{RESERVED_PREFIX}*")
RIGHTS = (
    *("publish", "subscribe", "admin", "jobs", "jobs_admin"),
    *("mailboxes_put", "mailboxes_read", "mailboxes_admin"),
    *("ledger", "ledger_admin"),
)
"""As tokens name them; each is a tuple of patterns."""


class Access(msgspec.Struct, frozen=True):
    """The rights of one token. Each is a tuple of names and globs: of topics, queues, mailboxes,
    scopes of the ledger."""

    subject: str
    """Whom the token was made for: limits count by it."""
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    """Topics that may be created, configured, trimmed and deleted."""
    jobs: tuple[str, ...] = ()
    """Queues whose jobs may be enqueued and read."""
    jobs_admin: tuple[str, ...] = ()
    """Queues whose jobs may also be retried, cancelled and pruned, and that may be paused,
    limited and scheduled for."""
    mailboxes_put: tuple[str, ...] = ()
    """Mailboxes that messages may be put into."""
    mailboxes_read: tuple[str, ...] = ()
    """Mailboxes that may be read and acknowledged."""
    mailboxes_admin: tuple[str, ...] = ()
    """Mailboxes that may be listed, expired, deleted and subscribed to topics. Not read."""
    ledger: tuple[str, ...] = ()
    """Scopes of the ledger whose keys may be looked up, marked and claimed."""
    ledger_admin: tuple[str, ...] = ()
    """Scopes whose keys may also be forgotten and pruned, and whose retention may be set."""
    expires_at: Micros | None = None
    token_id: str = ""
    """By which it can be revoked."""

    def check_publish(self, topic: str) -> None:
        self._check(self.publish, topic, "publish to")

    def check_subscribe(self, pattern: str) -> None:
        self._check(self.subscribe, pattern, "read")

    def check_admin(self, pattern: str) -> None:
        self._check(self.admin, pattern, "administer")

    def check_jobs(self, queue: str) -> None:
        self._check((*self.jobs, *self.jobs_admin), queue, "use the queue")

    def check_jobs_admin(self, queue: str) -> None:
        self._check(self.jobs_admin, queue, "administer the queue")

    def check_mailboxes_put(self, mailbox: str) -> None:
        self._check(self.mailboxes_put, check_mailbox(mailbox), "put into the mailbox")

    def check_mailboxes_read(self, mailbox: str) -> None:
        self._check(self.mailboxes_read, check_mailbox(mailbox), "read the mailbox")

    def check_mailboxes_admin(self, mailbox: str) -> None:
        self._check(self.mailboxes_admin, check_mailbox(mailbox), "administer the mailbox")

    def check_mailboxes_see(self, mailbox: str) -> None:
        """How full it is, and what it subscribes to."""
        granted = (*self.mailboxes_read, *self.mailboxes_admin)
        self._check(granted, check_mailbox(mailbox), "see the mailbox")

    def check_ledger(self, scope: str) -> None:
        self._check((*self.ledger, *self.ledger_admin), scope, "use the ledger's scope")

    def check_ledger_admin(self, scope: str) -> None:
        self._check(self.ledger_admin, scope, "administer the ledger's scope")

    def _check(self, granted: tuple[str, ...], wanted: str, verb: str) -> None:
        if len(wanted) > NAME_BYTES_MAX:
            # Before it is looked up: a name of megabytes is neither remembered nor repeated.
            raise InvalidTopic(f"The name is longer than {NAME_BYTES_MAX} bytes.")
        # The same words whether it exists or not: they must not tell.
        if not any(covers(grant, wanted) for grant in granted):
            raise Forbidden(f"This token does not allow to {verb} {wanted!r}.")


ALL_ACCESS = Access(
    "local",
    *(EVERYTHING, EVERYTHING, EVERYTHING),
    *(EVERYTHING, EVERYTHING),
    *(EVERYTHING, EVERYTHING, EVERYTHING),
    *(EVERYTHING, EVERYTHING),
)
"""Where no tokens are asked for: on loopback, unless told otherwise."""


class Authenticator(Protocol):
    def authenticate(self, token: str | None) -> Access:
        """The rights of a token. Raises `Unauthorized`, in the same words whatever is wrong."""

    def is_revoked(self, access: Access) -> bool:
        """Whether an access given earlier is no longer good."""


class Anybody:
    """For a server without tokens."""

    def authenticate(self, token: str | None) -> Access:
        return ALL_ACCESS

    def is_revoked(self, access: Access) -> bool:
        return False


@lru_cache(maxsize=16_384)
def covers(grant: str, wanted: str) -> bool:
    """Whether everything that `wanted` names or matches is matched by `grant`.

    A star in `wanted` can only be covered by a star; a question mark by either. Topics under
    `penstock.` are covered only by a grant that says so.
    """
    if wanted.startswith(RESERVED_PREFIX) and not grant.startswith(RESERVED_PREFIX):
        return False
    if not Pattern(grant).is_glob:
        return grant == wanted
    return _covers(grant, wanted)


def _covers(grant: str, wanted: str) -> bool:
    """Greedy matching with one point of return, as for any glob; linear in practice."""
    g = w = 0
    star = -1
    retry = 0
    while w < len(wanted):
        if g < len(grant) and grant[g] == "*":
            star, retry = g, w
            g += 1
        elif g < len(grant) and _stands_for(grant[g], wanted[w]):
            g += 1
            w += 1
        elif star >= 0:
            retry += 1
            g, w = star + 1, retry
        else:
            return False
    return all(c == "*" for c in grant[g:])


def _stands_for(granted: str, wanted: str) -> bool:
    if granted == "?":
        return wanted != "*"
    return granted == wanted and wanted not in "*?"
