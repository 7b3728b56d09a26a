"""Reading the log for one reply: as much as fits, whatever was asked for.

A store reads by count, and a message may be large. So it is read in small steps, and what goes
beyond the limit is left for the next request, which the position given back begins with.
"""

from __future__ import annotations

from penstock.aio import AsyncTopics
from penstock.errors import LogTrimmed
from penstock.model import Message, OnTrimmed, Pattern, Position

REPLY_BYTES_MAX = 2 * 1024 * 1024
"""A reply gets no further message beyond this."""
FIRST_STEP = 4
STEP_MAX = 32
"""Messages read at once: so many large ones may be in memory for a moment."""


async def read_on(
    topics: AsyncTopics,
    topic: str,
    *,
    after: Position | None,
    since: float | None,
    limit: int,
    end: Position,
    on_trimmed: OnTrimmed = "raise",
) -> tuple[list[Message], Position]:
    """Messages oldest first, and where to read on. `end` is where the log ended before."""
    found: list[Message] = []
    is_glob = Pattern(topic).is_glob
    size, step, position = 0, FIRST_STEP, after
    while len(found) < limit:
        wanted = min(step, limit - len(found))
        try:
            part = await topics.read(
                topic,
                after=position,
                since=None if found else since,
                limit=wanted,
                # Of a glob's topics one may be trimmed further than this has come: that is no news.
                on_trimmed="skip" if found and is_glob else on_trimmed,
            )
        except LogTrimmed:
            if not found:
                raise
            break  # Trimmed between two steps: whoever reads on is told.
        for message in part:
            if found and size + len(message.body) > REPLY_BYTES_MAX:
                return found, found[-1].position
            found.append(message)
            size += len(message.body)
        if len(part) < wanted:
            # All there was. Passing what other topics have published keeps the place fresh.
            last = found[-1].position if found else after
            return found, end if last is None else max(end, last)
        position = part[-1].position
        step = min(STEP_MAX, 2 * step)
    return found, found[-1].position


async def read_last(topics: AsyncTopics, topic: str, count: int) -> list[Message]:
    """The last so many that fit, oldest first."""
    wanted = min(count, FIRST_STEP)
    while True:
        found = await topics.read(topic, last=wanted)
        size = sum(len(message.body) for message in found)
        if wanted >= count or len(found) < wanted or size >= REPLY_BYTES_MAX:
            return _newest(found)
        wanted = min(count, 2 * wanted, wanted + STEP_MAX)


def _newest(messages: list[Message]) -> list[Message]:
    size = 0
    for index in range(len(messages) - 1, -1, -1):
        size += len(messages[index].body)
        if size > REPLY_BYTES_MAX and index < len(messages) - 1:
            return messages[index + 1 :]
    return messages
