"""What the demo counts: everything published, and what came of it in each follower."""

from __future__ import annotations

import statistics
from collections import Counter

from penstock.demo.actors import Event


class Tally:
    def __init__(self, followers: tuple[str, ...]) -> None:
        self.published: set[int] = set()
        self.received: dict[str, Counter[int]] = {name: Counter() for name in followers}
        self.latencies: dict[str, list[float]] = {name: [] for name in followers}
        self.backlog: set[int] = set()
        """Published while the consumer was dead: no measure of how fast delivery is."""

    def add(self, actor: str, event: Event) -> None:
        if event.what == "published":
            self.published.add(event.id)
        elif event.what == "received":
            self.received[actor][event.id] += 1
            if not self.note(actor, event.id):
                self.latencies[actor].append(event.millis)

    def note(self, actor: str, id: int) -> str:
        """Why this delivery says nothing about speed; empty if it does."""
        if self.received[actor][id] > 1:
            return "once more"
        return "caught up" if actor == "consumer" and id in self.backlog else ""

    def lost(self, actor: str) -> int:
        return len(self.published - set(self.received[actor]))

    def duplicates(self, actor: str) -> int:
        return sum(self.received[actor].values()) - len(self.received[actor])

    def p50(self, actor: str) -> float | None:
        latencies = self.latencies[actor]
        return statistics.median(latencies) if latencies else None

    @property
    def is_complete(self) -> bool:
        """Every follower has everything that was published."""
        return all(self.lost(actor) == 0 for actor in self.received)
