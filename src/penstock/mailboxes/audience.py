"""Who is fed, and where each of them is: at the end of the log, behind it, or held up.

Those at the end have one position together, whatever they subscribe to, so that news are read
once for all. Those behind are together with others at the same place. A mailbox that is full, or
cannot be written to, waits on its own, and is looked at again and again.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import msgspec

from penstock.errors import PenstockError, QuotaExceeded
from penstock.mail import MailboxSubscription
from penstock.mailboxes.courier import Outcome
from penstock.model import Message, Pattern

K = TypeVar("K")

LOOK_SECONDS_MIN = 0.02
LOOK_SECONDS_MAX = 1.0
LOOK_AFTER = 0.1
"""A mailbox is looked at again after this part of the time it has been held up for."""
LOOK_COST_SECONDS = 0.0006
"""With many of them, longer: so that looking takes a few percent of a processor at most."""


class Member(msgspec.Struct):
    """A subscription, as it is fed."""

    id: int
    mailbox: str
    pattern: Pattern
    position: int
    floor: int
    told: dict[str, int]
    saved: int
    """The position that is on disk."""

    @classmethod
    def of(cls, found: MailboxSubscription) -> Member:
        offset = found.position.offset
        pattern = Pattern(found.topic)
        return cls(found.id, found.mailbox, pattern, offset, found.floor, found.told, offset)

    @property
    def place(self) -> Place:
        told = tuple(sorted(self.told.items()))
        return Place(self.pattern.text, self.position, self.floor, told)


class Place(NamedTuple):
    """Those who are at the same one can be served by one look into the log."""

    topic: str
    position: int
    floor: int
    told: tuple[tuple[str, int], ...]


class Move(msgspec.Struct, frozen=True):
    """Up to where a mailbox has everything, and what else its recipient knows to be gone."""

    member: Member
    position: int
    told: dict[str, int]

    @classmethod
    def of(
        cls,
        member: Member,
        messages: list[Message],
        outcome: Outcome,
        through: int,
        trims: Mapping[str, int],
    ) -> Move:
        if outcome.error is None:
            return cls(member, through, {**member.told, **trims})
        if not messages:
            return cls(member, member.position, member.told)
        return cls(member, max(member.position, messages[outcome.put].id - 1), member.told)

    @property
    def is_news(self) -> bool:
        """Whether there is anything to note."""
        return self.position > self.member.saved or self.told != self.member.told

    @property
    def place(self) -> Place:
        """What lies before the position is no loss any more, and need not be remembered."""
        told = tuple(sorted((topic, to) for topic, to in self.told.items() if to > self.position))
        floor = self.member.floor if self.member.floor > self.position else 0
        return Place(self.member.pattern.text, self.position, floor, told)


class Hold(msgspec.Struct):
    """Why a member is not fed, and since when."""

    member: Member
    error: PenstockError
    since: float

    @property
    def is_full(self) -> bool:
        """Whether reading the mailbox is all that it takes."""
        return isinstance(self.error, QuotaExceeded)


class Audience:
    """All times are those of a monotonic clock, and passed in."""

    def __init__(self, position: int) -> None:
        self.position = position
        """Where those are who have everything."""
        self.live: dict[str, dict[int, Member]] = {}
        """Those, by topic or glob and number."""
        self.held: dict[int, Hold] = {}
        self._behind: dict[Place, dict[int, Member]] = {}
        self._due: list[tuple[float, int, int]] = []
        self._ties = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def enter(self, member: Member) -> None:
        self._count += 1
        self.add(member)

    def add(self, member: Member) -> None:
        """To where its position is."""
        if member.position == self.position:
            self.live.setdefault(member.pattern.text, {})[member.id] = member
        else:
            self._behind.setdefault(member.place, {})[member.id] = member

    def keep(self, ids: set[int]) -> None:
        """The others have ended."""
        _keep(self.live, ids)
        _keep(self._behind, ids)
        self.held = {id: hold for id, hold in self.held.items() if id in ids}
        groups = (*self.live.values(), *self._behind.values())
        self._count = sum(map(len, groups)) + len(self.held)

    def take_behind(self, limit: int) -> list[tuple[Place, list[Member]]]:
        """Places before the end, with all who are there. They are to be added again."""
        before = (place for place in self._behind if place.position < self.position)
        places = list(itertools.islice(before, limit))
        return [(place, list(self._behind.pop(place).values())) for place in places]

    def catch_up(self) -> None:
        """Those whom the end has met are at the end."""
        for place in [place for place in self._behind if place.position == self.position]:
            for member in self._behind.pop(place).values():
                self.add(member)

    def fall_behind(self, position: int) -> None:
        """The end is elsewhere now, and nobody is there."""
        leaving = [member for members in self.live.values() for member in members.values()]
        for member in leaving:
            member.position = self.position
        self.live.clear()
        self.position = position
        for member in leaving:
            self.add(member)

    # Those who are held up

    def hold(self, member: Member, error: PenstockError, now: float) -> None:
        members = self.live.get(member.pattern.text, {})
        members.pop(member.id, None)
        if not members:
            self.live.pop(member.pattern.text, None)
        self.held[member.id] = Hold(member, error, now)
        self._look_later(member.id, now + LOOK_SECONDS_MIN)

    def take_due(self, now: float) -> list[Hold]:
        """Those that are to be looked at: each is to be released or postponed."""
        due: list[Hold] = []
        while self._due and self._due[0][0] <= now:
            _, _, id = heapq.heappop(self._due)
            if id in self.held:
                due.append(self.held[id])
        return due

    def postpone(self, hold: Hold, now: float) -> None:
        longest = max(LOOK_SECONDS_MAX, LOOK_COST_SECONDS * len(self.held))
        pause = min(longest, max(LOOK_SECONDS_MIN, LOOK_AFTER * (now - hold.since)))
        self._look_later(hold.member.id, now + pause)

    def release(self, hold: Hold) -> None:
        del self.held[hold.member.id]
        self.add(hold.member)

    def seconds_until_due(self, now: float, longest: float) -> float:
        return min(longest, max(0.0, self._due[0][0] - now)) if self._due else longest

    @property
    def full(self) -> int:
        """How many mailboxes are held up because they are full."""
        return sum(hold.is_full for hold in list(self.held.values()))

    @property
    def behind(self) -> int:
        return sum(map(len, list(self._behind.values())))

    def _look_later(self, id: int, at: float) -> None:
        heapq.heappush(self._due, (at, next(self._ties), id))


def _keep(groups: dict[K, dict[int, Member]], ids: set[int]) -> None:
    for key, members in list(groups.items()):
        for id in members.keys() - ids:
            del members[id]
        if not members:
            del groups[key]
