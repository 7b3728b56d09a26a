"""Feeds mailboxes from topics: what is published is put into every mailbox that subscribes to it.

One process at a time does it, by a lease; when it ends, another does. It puts first and notes how
far it has come afterwards, so that nothing is skipped; what it put and did not come to note is put
again, and the box, which knows the ids, drops it. That holds for as many messages as a box
remembers, so a batch has no more of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from penstock.clock import Clock
from penstock.committer import Committer
from penstock.doorbell import Doorbell
from penstock.errors import (
    EpochChanged,
    HubClosed,
    LeaseLost,
    LogTrimmed,
    MailboxesFailed,
    PenstockError,
)
from penstock.leases import Kept, LeaseKeeper
from penstock.mail import NewMail
from penstock.mailboxes.audience import Audience, Hold, Member, Move, Place
from penstock.mailboxes.courier import Courier, Load, gap_of
from penstock.mailboxes.mailroom import MailRoom
from penstock.mailboxes.news import BATCH_MAX, News, shares_of
from penstock.model import LogState, Message, Pattern, Position
from penstock.ports import Store, Transaction
from penstock.ports.feeds import Step
from penstock.ports.topics import NOTHING_TOLD
from penstock.service import Service
from penstock.settings import Settings
from penstock.telemetry import Telemetry

LEASE = "mailboxes\x1ffeeder"
LEASE_SECONDS = 15.0
CAMPAIGN_SECONDS = 0.5
IDLE_SECONDS = 5.0
"""How often it looks without being woken."""
PLACES_MAX = 32
"""Looks into the log for those behind, before the news have their turn."""
SAVE_EVERY = 10_000
"""Ids after which also those for whom nothing came are noted as being this far."""


class Runtime(Protocol):
    settings: Settings
    clock: Clock
    telemetry: Telemetry
    name: str
    store: Store
    committer: Committer
    keeper: LeaseKeeper
    doorbell: Doorbell
    mail: MailRoom

    def start_reading(self) -> None: ...


class FeedStatus(msgspec.Struct, frozen=True):
    """How feeding goes in this process."""

    is_feeding: bool = False
    """False: another process does, or nobody subscribes."""
    subscriptions: int = 0
    behind: int = 0
    """Not at the end of the log yet."""
    full: int = 0
    """Their mailbox is full: they go on when it is read."""
    failing: dict[str, str] = {}
    """Mailboxes that cannot be put into, and why; a few of them."""


class Feeder(Service):
    name = "feeder"

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.telemetry)
        self._runtime = runtime
        self._store = runtime.store
        self._courier = Courier(runtime.mail, runtime.settings)
        self._news = News(runtime.store, runtime.clock, runtime.settings.commit_bytes_max)
        self._kept: Kept | None = None
        self._audience = Audience(0)
        self._epoch = ""
        self._ended = -1
        self._newest = 0
        self._noted_at = 0
        self._has_failed = False
        self.fed = 0
        """Messages that it has put, each into one mailbox."""

    @property
    def is_feeding(self) -> bool:
        """Whether this process is the one that feeds."""
        return self._kept is not None and self._kept.is_held

    @property
    def is_stopped(self) -> bool:
        return self._stopping.is_set()

    def status(self) -> FeedStatus:
        audience = self._audience
        if not self.is_feeding:
            return FeedStatus()
        failing = {
            hold.member.mailbox: hold.error.message
            for hold in list(audience.held.values())
            if not hold.is_full
        }
        some = dict(list(failing.items())[:10])
        return FeedStatus(True, len(audience), audience.behind, audience.full, some)

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # The service

    def run_once(self) -> float:
        if self._has_failed:
            return IDLE_SECONDS
        if not self._leads():
            return CAMPAIGN_SECONDS
        try:
            return self._feed()
        except LeaseLost:
            # This process was suspended for too long, or the database was restored.
            self._resign()
            return CAMPAIGN_SECONDS
        except EpochChanged:
            self._epoch = ""  # Restored, or replaced: everybody starts where that one says.
            return 0.0
        except MailboxesFailed:
            # Of what this process puts nothing is certain any more; another may still do it.
            self._has_failed = True
            self._resign()
            raise

    def _on_stop(self) -> None:
        try:
            if self.is_feeding and not self._has_failed:
                self._note_all()
            self._resign()
        except PenstockError as error:
            # It is fed again what was not noted, and drops it.
            self._telemetry.emit("service_failed", service=self.name, error=repr(error))

    def _feed(self) -> float:
        log = self._learn()
        if not len(self._audience):
            self._resign()
            return CAMPAIGN_SECONDS
        is_busy = self._feed_live(log)
        is_busy |= self._feed_behind(log)
        now = time.monotonic()
        for hold in self._audience.take_due(now):
            is_busy |= self._look_at(hold, now)
        if self._audience.position - self._noted_at >= SAVE_EVERY:
            self._note_all()
        return 0.0 if is_busy else self._audience.seconds_until_due(now, IDLE_SECONDS)

    # Leading

    def _leads(self) -> bool:
        if self._kept is not None:
            if self._kept.is_held:
                return True
            self._resign()
        runtime = self._runtime
        if not self._store.feeds.find(limit=1) or self._store.leases.holder(LEASE) is not None:
            return False
        runtime.start_reading()
        asked_at = time.monotonic()
        lease = runtime.committer.run_now(
            lambda tx: tx.leases.acquire(LEASE, owner=runtime.name, seconds=LEASE_SECONDS)
        )
        if lease is None:
            return False
        self._kept = runtime.keeper.keep(
            lease, self.nudge, seconds=LEASE_SECONDS, asked_at=asked_at
        )
        self._epoch = ""
        runtime.doorbell.listen(self._hear)
        return True

    def _resign(self) -> None:
        kept, self._kept = self._kept, None
        self._audience = Audience(0)
        if kept is None:
            return
        self._runtime.doorbell.forget(self._hear)
        self._runtime.keeper.drop(kept.lease)
        try:
            self._runtime.committer.run_now(lambda tx: tx.leases.release(kept.lease))
        except HubClosed:
            return  # It runs out by itself, or ends with the process.

    def _hear(self) -> bool:
        """On the doorbell's thread: something was committed somewhere."""
        self.nudge()
        return False

    # Who is fed

    def _learn(self) -> LogState:
        """Subscriptions that came, and those that have ended."""
        feeds, log = self._store.feeds, self._store.log()
        if log.epoch != self._epoch:
            self._audience = Audience(log.last_id)
            self._epoch, self._newest, self._noted_at = log.epoch, 0, log.last_id
            self._ended = feeds.ended()
        ended = feeds.ended()
        if ended != self._ended:
            self._audience.keep(set(feeds.ids()))
            self._ended = ended
        for found in feeds.find(after=self._newest):
            self._audience.enter(Member.of(found))
            self._newest = found.id
        return log

    # What is new

    def _feed_live(self, log: LogState) -> bool:
        """One batch for all who have everything so far. Whether there was any."""
        audience = self._audience
        if not audience.live:
            audience.position = max(audience.position, log.last_id)
            audience.catch_up()
            return False
        if log.last_id <= audience.position:
            return False
        try:
            messages, through = self._news.read(list(audience.live), audience.position, self._epoch)
        except LogTrimmed:
            # Whose loss it is shows when each looks for itself.
            audience.fall_behind(log.last_id)
            return True
        loads: list[tuple[Member, list[Message], list[NewMail]]] = []
        for pattern, share in shares_of(messages, audience.live).items():
            mails = [self._courier.mail_of(message, pattern) for message in share]
            loads += [(member, share, mails) for member in audience.live[pattern].values()]
        if loads and not self._bring(loads, through):
            return True
        audience.position = through
        audience.catch_up()
        return True

    # Those behind

    def _feed_behind(self, log: LogState) -> bool:
        is_busy = False
        for place, members in self._audience.take_behind(PLACES_MAX):
            try:
                self._serve(place, members, log)
            finally:
                # Wherever they have come to: also where they were, if that has failed.
                for member in members:
                    if member.id not in self._audience.held:
                        self._audience.add(member)
            is_busy = True
        return is_busy

    def _serve(self, place: Place, members: list[Member], log: LogState) -> None:
        """One batch for all who are at this place."""
        pattern, audience = Pattern(place.topic), self._audience
        here = Position(log.epoch, place.position)
        try:
            chunk = self._store.topics.read(
                pattern,
                after=place.position,
                floor=place.floor,
                limit=BATCH_MAX,
                now=self._runtime.clock.now(),
                told=dict(place.told),
            )
        except LogTrimmed as error:
            gap = gap_of("trimmed", place.topic, here, error.resume)
            self._tell(members, gap, error.resume.offset, dict(error.trims))
            return
        except EpochChanged:
            gap = gap_of("epoch_changed", place.topic, here, Position(log.epoch, log.last_id))
            self._tell(members, gap, log.last_id, {})
            return
        messages = [message for message in chunk.messages if message.id <= audience.position]
        messages, through = self._news.cut(messages, min(chunk.through, audience.position))
        if not messages:
            for member in members:
                member.position = through
            return
        mails = [self._courier.mail_of(message, place.topic) for message in messages]
        self._bring([(member, messages, mails) for member in members], through)

    def _tell(
        self, members: list[Member], gap: NewMail, resume: int, trims: dict[str, int]
    ) -> None:
        """Messages are gone: the recipients find that where the messages would be."""
        self._telemetry.emit("feed_gap", topic=members[0].pattern.text, mailboxes=len(members))
        self._bring([(member, [], [gap]) for member in members], resume, trims)

    # Bringing

    def _bring(
        self,
        loads: list[tuple[Member, list[Message], list[NewMail]]],
        through: int,
        trims: Mapping[str, int] = NOTHING_TOLD,
    ) -> bool:
        """Put them and note it. False, and nothing was done, if a subscription has just ended:
        nothing that was published after that may come. `trims` are what they tell of."""
        if self._store.feeds.ended() != self._ended:
            return False
        if self._kept is None or not self._kept.is_held:
            raise LeaseLost("Another process feeds the mailboxes now.")
        requests: list[Load] = [(member.mailbox, mails) for member, _, mails in loads]
        outcomes = self._courier.bring(requests)
        moves = [
            Move.of(member, messages, outcome, through, trims)
            for (member, messages, _), outcome in zip(loads, outcomes, strict=True)
        ]
        self._note(moves)
        now = time.monotonic()
        for move, outcome in zip(moves, outcomes, strict=True):
            move.member.position = move.position
            if outcome.error is not None:
                self._audience.hold(move.member, outcome.error, now)
        put = sum(outcome.put for outcome in outcomes)
        self.fed += put
        self._telemetry.emit("fed", messages=put, mailboxes=len(loads))
        return True

    def _look_at(self, hold: Hold, now: float) -> bool:
        """Whether the mailbox can be fed again: when it is half empty, not at each message."""
        try:
            room = self._courier.room(hold.member.mailbox)
        except MailboxesFailed:
            raise
        except PenstockError as error:
            hold.error = error
            room = 0
        is_too_full = hold.is_full and 2 * room < self._runtime.settings.mailbox_messages_max
        if is_too_full or not room:
            self._audience.postpone(hold, now)
            return False
        self._audience.release(hold)
        return True

    # Noting how far it has come

    def _note(self, moves: Iterable[Move]) -> None:
        groups: dict[Place, list[Move]] = {}
        for move in moves:
            if move.is_news:
                groups.setdefault(move.place, []).append(move)
        if not groups:
            return
        steps = [
            Step([move.member.id for move in some], place.position, place.floor, dict(place.told))
            for place, some in groups.items()
        ]
        assert self._kept is not None
        lease, now = self._kept.lease, self._runtime.clock.now()

        def write(transaction: Transaction) -> None:
            transaction.feeds.advance(steps, lease=lease, now=now)

        self._runtime.committer.run_now(write)
        for place, some in groups.items():
            for move in some:
                member = move.member
                member.saved, member.floor, member.told = (
                    place.position,
                    place.floor,
                    dict(place.told),
                )

    def _note_all(self) -> None:
        """Also of those for whom nothing came for long: that is where they go on."""
        audience = self._audience
        position = audience.position
        members = [member for group in audience.live.values() for member in group.values()]
        self._note(Move(member, position, member.told) for member in members)
        self._noted_at = position
