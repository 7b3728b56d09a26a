"""From a subscribe command to a subscription: where it starts, and whether anything is missing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.delivery.channel import Channel
from penstock.delivery.subscriber import Subscriber
from penstock.errors import EpochChanged, InvalidInput, LeaseLost, LogTrimmed
from penstock.model import Pattern, Position, Presence, check_count
from penstock.ports import Transaction
from penstock.protocol import Close, Gap, Subscribe, Subscribed
from penstock.topics.followers import Holding
from penstock.topics.positions import check_position

if TYPE_CHECKING:
    from penstock.delivery.session import Session
    from penstock.delivery.switchboard import Switchboard


class Start(msgspec.Struct, frozen=True):
    """Where a subscription begins."""

    cursor: int
    floor: int
    """Trims up to this id are no loss to it."""
    told: dict[str, int] = {}
    """Nor are these, by topic."""
    recovered: bool | None = None
    gap: Gap | None = None


class Subscription:
    """One entry of a session: what it is sent, under which consumer, and whether it is present."""

    def __init__(
        self,
        switchboard: Switchboard,
        session: Session,
        command: Subscribe,
        channel: Channel,
        start: Start,
        holding: Holding | None = None,
    ) -> None:
        self.subscriber = Subscriber(channel, session.socket, start.cursor, start.floor, start.told)
        self.subscriber.on_slow = lambda position: session.close(Close.SLOW, str(position))
        self.subscriber.on_end = partial(session.end, command.topic)
        self.holding = holding
        self._switchboard = switchboard
        self._session = session
        self._topic = command.topic
        self._watches = command.presence
        channel.add(self.subscriber)
        self.answer = Subscribed(
            command.topic,
            str(self.subscriber.position),
            start.recovered,
            start.gap,
        )
        self._join = command.join
        self._has_started = False
        self._acked = Position(channel.epoch, start.cursor)

    def start(self) -> None:
        """After the reply: send what there is to send."""
        self._has_started = True
        roster, session = self._switchboard.roster, self._session
        if self._join is not None:
            roster.join(Presence(self._topic, session.client, self._join))
        if self._watches:
            roster.watch(self._topic, session.socket)
        self.subscriber.start()

    def resume(self) -> None:
        """The socket has room again."""
        if self._watches:
            self._switchboard.roster.resume(self._topic, self._session.socket)
        self.subscriber.resume()

    def acknowledge(self, position: Position) -> Callable[[Transaction], None]:
        """As an operation: move the consumer to a position that was sent."""
        assert self.holding is not None
        sent = self.subscriber.position
        if position.epoch != sent.epoch or position.offset > sent.offset:
            raise InvalidInput(
                f"The position {position} was not sent on this subscription.",
                hint="Acknowledge the position of a message that was received.",
            )
        return self.holding.advance(position.offset, self.subscriber.skipped_through)

    def acked(self, position: Position) -> Position:
        """That is on disk. Returns where the consumer is now: it never moves back."""
        self._acked = max(self._acked, position)
        return self._acked

    def close(self) -> None:
        self.subscriber.close()
        roster = self._switchboard.roster
        if self._watches and self._has_started:
            roster.unwatch(self._topic, self._session.socket)
        if self._join is not None and self._has_started:
            roster.leave(self._topic, self._session.client)
        if self.holding is not None:
            self._switchboard.release(self.holding)


def open_subscription(
    switchboard: Switchboard, session: Session, command: Subscribe
) -> Subscription | Coroutine[Any, Any, Subscription]:
    """At once where memory has all that is needed; otherwise as a coroutine."""
    pattern = Pattern.parse(command.topic)
    _check(switchboard, command, pattern)
    channel = switchboard.find_channel(pattern)
    is_simple = command.consumer is None and command.last is None
    if channel is not None and is_simple:
        start = _start_in_memory(channel, command)
        if start is not None:
            return Subscription(switchboard, session, command, channel, start)
    return _open(switchboard, session, command, pattern)


def _check(switchboard: Switchboard, command: Subscribe, pattern: Pattern) -> None:
    settings = switchboard.runtime.settings
    given = [name for name in ("after", "last", "consumer") if getattr(command, name) is not None]
    if len(given) > 1 and given != ["after", "consumer"]:
        raise InvalidInput(f"Pass one of after, last and consumer, not {' and '.join(given)}.")
    if command.start != "latest" and given and given != ["consumer"]:
        raise InvalidInput(f"Pass either start or {given[0]}, not both.")
    if command.last is not None:
        check_count(command.last, "last")
        if command.last > settings.recent_messages_max:
            raise InvalidInput(f"last is at most {settings.recent_messages_max:,}.")
    if command.after is not None:
        Position.parse(command.after)
    if pattern.is_glob and (command.join is not None or command.presence):
        raise InvalidInput(
            "Presence is of one topic, not of a glob.", hint="Subscribe to the topic by its name."
        )
    if command.join is not None:
        limit = settings.presence_info_bytes_max
        try:
            size = len(msgspec.json.encode(command.join))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidInput(f"The information to join with is not JSON: {error}.") from error
        if size > limit:
            raise InvalidInput(f"The information to join with has more than {limit:,} bytes.")


def _start_in_memory(channel: Channel, command: Subscribe) -> Start | None:
    """None if the log, or its end, has to be looked at."""
    here = channel.position.offset
    if command.after is None:
        return Start(here, here) if command.start == "latest" else None
    after = Position.parse(command.after)
    is_same = after.epoch == channel.epoch  # Otherwise the channel may be the one out of date.
    if is_same and after.offset <= here and channel.recent.covers(after.offset):
        return Start(after.offset, after.offset, recovered=True)
    return None


def _start_after_epoch_change(after: Position, here: Position) -> Start:
    gap = Gap("epoch_changed", str(after), str(here))
    return Start(here.offset, here.offset, recovered=False, gap=gap)


async def _open(
    switchboard: Switchboard, session: Session, command: Subscribe, pattern: Pattern
) -> Subscription:
    holding: Holding | None = None
    while True:
        channel = await switchboard.open_current_channel(pattern)
        try:
            if command.consumer is not None:
                start, holding = await _start_of_consumer(switchboard, session, command, pattern)
            else:
                start = await switchboard.in_thread(_find_start, switchboard, channel, command)
            # The channel may have lingered out or failed while we waited.
            again = await switchboard.open_channel(pattern)
            if again.epoch == channel.epoch:
                return Subscription(switchboard, session, command, again, start, holding)
        except BaseException:
            if holding is not None:
                switchboard.release(holding)
            raise
        if holding is not None:
            switchboard.release(holding)


def _find_start(switchboard: Switchboard, channel: Channel, command: Subscribe) -> Start:
    """On a reader's thread: may look into the log."""
    store, clock = switchboard.runtime.store, switchboard.runtime.clock
    pattern, here = channel.pattern, channel.position
    if command.after is None:
        told = store.topics.trims(pattern, after=0)
        begin = here.offset
        if command.last is not None:
            recent = store.topics.read_last(pattern, count=command.last, now=clock.now())
            begin = min(recent[0].id - 1, begin) if recent else begin
        elif command.start == "earliest":
            begin = 0
        return Start(begin, begin, told)
    after = Position.parse(command.after)
    log = store.log()
    if after.epoch != log.epoch or after.offset > log.last_id:
        return _start_after_epoch_change(after, here)
    try:
        channel.read_log(after.offset, after.offset, {}, 1)
    except LogTrimmed as error:
        resume = error.resume
        gap = Gap("trimmed", command.after, str(resume))
        return Start(resume.offset, resume.offset, error.trims, recovered=False, gap=gap)
    return Start(after.offset, after.offset, recovered=True)


async def _start_of_consumer(
    switchboard: Switchboard, session: Session, command: Subscribe, pattern: Pattern
) -> tuple[Start, Holding]:
    assert command.consumer is not None
    runtime, loop = switchboard.runtime, switchboard.loop
    begin: Position | Literal["latest", "earliest"] = command.start
    if command.after is not None:
        begin = Position.parse(command.after)
        await switchboard.in_thread(check_position, runtime, begin)
    holding = Holding(runtime, command.consumer, pattern, begin)
    state = await runtime.committer.run_async(holding.acquire)

    def lost() -> None:
        error = LeaseLost(f"Another follower has become the consumer {command.consumer!r}.")
        loop.call_soon_threadsafe(session.end, command.topic, error)

    holding.keep(state, lost)
    try:
        log = await switchboard.in_thread(runtime.store.log)
        if state.position.epoch != log.epoch:
            raise EpochChanged("The consumer's position belongs to another generation.")
    except BaseException:
        switchboard.release(holding)
        raise
    return Start(state.position.offset, state.floor), holding
