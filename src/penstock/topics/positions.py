"""Where reading starts: positions checked, and subscriptions opened at them."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import EpochChanged, InvalidInput
from penstock.model import LogState, OnTrimmed, Pattern, Position, check_count
from penstock.ports.topics import NOTHING_TOLD
from penstock.topics.runtime import Runtime
from penstock.topics.subscription import Subscription


def check_position(runtime: Runtime, position: Position) -> LogState:
    """Raises `EpochChanged` unless the position is one of this log as it is now."""
    log = runtime.store.log()
    if position.epoch != log.epoch:
        raise EpochChanged(
            f"The position {position} belongs to another generation than {log.epoch}."
        )
    if position.offset > log.last_id:
        raise EpochChanged(
            f"The position {position} is ahead of the log, which ends at {log.last_id}."
        )
    return log


def open_subscription(
    runtime: Runtime,
    pattern: Pattern,
    position: Position,
    *,
    floor: int,
    told: Mapping[str, int] = NOTHING_TOLD,
    on_trimmed: OnTrimmed,
) -> Subscription:
    check_on_trimmed(on_trimmed)
    runtime.start_reading()
    return Subscription(
        runtime.tail,
        runtime.store.topics,
        runtime.clock,
        runtime.telemetry,
        pattern,
        position,
        floor=floor,
        told=told,
        buffer_max=runtime.settings.subscriber_buffer_max,
        on_trimmed=on_trimmed,
    )


def open_live_subscription(
    runtime: Runtime,
    pattern: Pattern,
    *,
    after: Position | None,
    last: int | None,
    on_trimmed: OnTrimmed,
) -> Subscription:
    """From now on, from a position, or from the last so many messages."""
    if after is not None and last is not None:
        raise InvalidInput("Pass either after= or last=, not both.")
    if after is not None:
        check_position(runtime, after)
        return open_subscription(runtime, pattern, after, floor=after.offset, on_trimmed=on_trimmed)
    # Before the place to start from is known: what is trimmed after this is a loss.
    told = runtime.store.topics.trims(pattern, after=0)
    log = runtime.store.log()
    start = log.last_id
    if last is not None:
        check_count(last, "last")
        recent = runtime.store.topics.read_last(pattern, count=last, now=runtime.clock.now())
        start = recent[0].id - 1 if recent else start
    position = Position(log.epoch, start)
    return open_subscription(
        runtime, pattern, position, floor=start, told=told, on_trimmed=on_trimmed
    )


def check_on_trimmed(on_trimmed: OnTrimmed) -> None:
    if on_trimmed not in ("raise", "skip"):
        raise InvalidInput(f"on_trimmed is 'raise' or 'skip', not {on_trimmed!r}.")
