"""One tail per process over the global id: the cost follows new messages, not topics.

The tail knows how far this process has read, and hands each new message to the subscriptions it
matches, in id order. What this process committed itself arrives from the committer without being
read back, if it is what comes next; anything else is read from the log after the bell has rung.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from penstock.errors import EpochChanged, HubClosed
from penstock.model import Message, Pattern, Position
from penstock.ports import Store
from penstock.settings import Settings
from penstock.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.topics.subscription import Subscription

ROUTES_MAX = 65_536
LATENCY_WEIGHT = 0.05
PICKY_MAX = 64
"""Subscriptions up to which the store is told what is wanted, instead of reading everything."""
PICKY_SHARE = 0.5
"""When fewer of the new messages than this are wanted, the store is told which ones are."""


class Tail:
    def __init__(self, store: Store, settings: Settings, telemetry: Telemetry) -> None:
        self._store = store
        self._batch_max = settings.tail_batch_max
        self._telemetry = telemetry
        # Reentrant: a reader that is garbage leaves from whatever thread the collector runs on.
        self._lock = threading.RLock()
        self._cursor = 0
        self._epoch = ""
        self._is_closed = False
        self._by_topic: dict[str, tuple[Subscription, ...]] = {}
        self._globs: tuple[Subscription, ...] = ()
        self._patterns: list[Pattern] | None = None
        """What is wanted, for the store; None when it has to be put together again."""
        self._is_picky = False
        self._routes: dict[str, tuple[Subscription, ...]] = {}
        self.poll_latency_ms = 0.0
        self.on_audience: Callable[[bool], None] | None = None
        """Told when the first subscription joins and when the last one has left."""

    @property
    def cursor(self) -> int:
        return self._cursor

    def join(self, subscription: Subscription, position: int) -> bool:
        """Deliver what comes after the position to the subscription, from now on.

        False if the tail is past that position: the subscription must read on from the log.
        """
        with self._lock:
            if self._is_closed:
                raise HubClosed
            had_any = self._has_any
            if not had_any:
                log = self._store.log()
                self._cursor, self._epoch = log.last_id, log.epoch
            if position < self._cursor:
                return False
            subscription.joined(position)
            self._add(subscription)
            if not had_any and self.on_audience is not None:
                self.on_audience(True)
            return True

    def leave(self, subscription: Subscription) -> None:
        with self._lock:
            had_any = self._has_any
            self._remove(subscription)
            if had_any and not self._has_any and self.on_audience is not None:
                self.on_audience(False)

    @property
    def audience(self) -> int:
        """How many subscriptions are here."""
        return sum(map(len, self._by_topic.values())) + len(self._globs)

    @property
    def _has_any(self) -> bool:
        return bool(self._by_topic or self._globs)

    def offer(self, messages: list[Message]) -> None:
        """Messages that were just committed here. Taken if they are what comes next.

        Otherwise, or if the tail is busy reading, they are found in the log like all others.
        """
        if not self._lock.acquire(blocking=False):
            return
        woken: list[Subscription] = []
        try:
            first = messages[0]
            if first.id == self._cursor + 1 and first.epoch == self._epoch:
                self._dispatch(messages, woken)
                self._cursor = messages[-1].id
        finally:
            self._lock.release()
        for subscription in woken:
            subscription.wake()

    def look(self) -> bool:
        """Read what is new and hand it out. True if there was anything."""
        found = False
        while self._has_any:
            woken: list[Subscription] = []
            started = time.perf_counter()
            with self._lock:
                count = self._read(woken)
            elapsed = time.perf_counter() - started
            # Without the lock: what is woken may be a callback, which may do anything.
            for subscription in woken:
                if subscription.run is not None and subscription.is_live:
                    subscription.run()
                else:
                    subscription.wake()
            if count:
                found = True
                self._measure(elapsed, count)
            if count < self._batch_max:
                break
        return found

    def _read(self, woken: list[Subscription]) -> int:
        """One batch, under the lock. Returns how many messages it had."""
        try:
            chunk = self._store.topics.read_tail(
                after=Position(self._epoch, self._cursor),
                patterns=self._wanted() if self._is_picky else None,
                limit=self._batch_max,
            )
        except EpochChanged as error:
            self._change_epoch(error)
            return 0
        if chunk.through == self._cursor:
            return 0
        for topic in chunk.trimmed:
            self._send_to_log(topic, woken)
        wanted = self._dispatch(chunk.messages, woken)
        self._is_picky = wanted < PICKY_SHARE * (chunk.through - self._cursor)
        self._cursor = chunk.through
        return len(chunk.messages)

    def _send_to_log(self, topic: str, woken: list[Subscription]) -> None:
        """This process was so late that messages are gone. Reading the log tells each reader."""
        for subscription in self._routes.get(topic) or self._route(topic):
            subscription.fall_behind()
            self.leave(subscription)
            woken.append(subscription)

    def close(self) -> None:
        """Wake all readers with `HubClosed`."""
        with self._lock:
            self._is_closed = True
            leaving = self._remove_all()
        for subscription in leaving:
            subscription.fail(HubClosed())

    def _dispatch(self, messages: list[Message], woken: list[Subscription]) -> int:
        """Hand them out; `woken` gets those that have something. Returns how many were wanted."""
        shares: dict[Subscription, list[Message]] = {}
        wanted = 0
        for message in messages:
            route = self._routes.get(message.topic)
            if route is None:
                route = self._route(message.topic)
            if route:
                wanted += 1
            for subscription in route:
                share = shares.get(subscription)
                if share is None:
                    shares[subscription] = [message]
                else:
                    share.append(message)
        for subscription, share in shares.items():
            if not subscription.push(share):
                self.leave(subscription)
        woken.extend(shares)
        return wanted

    def _route(self, topic: str) -> tuple[Subscription, ...]:
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        globs = (s for s in self._globs if s.pattern.matches(topic))
        route = (*self._by_topic.get(topic, ()), *globs)
        self._routes[topic] = route
        return route

    def _add(self, subscription: Subscription) -> None:
        pattern = subscription.pattern
        if pattern.is_glob:
            self._globs = (*self._globs, subscription)
        else:
            self._by_topic[pattern.text] = (*self._by_topic.get(pattern.text, ()), subscription)
        self._forget_routes(pattern)

    def _remove(self, subscription: Subscription) -> None:
        pattern = subscription.pattern
        if pattern.is_glob:
            self._globs = tuple(s for s in self._globs if s is not subscription)
        elif pattern.text in self._by_topic:
            rest = tuple(s for s in self._by_topic[pattern.text] if s is not subscription)
            if rest:
                self._by_topic[pattern.text] = rest
            else:
                del self._by_topic[pattern.text]
        self._forget_routes(pattern)

    def _remove_all(self) -> list[Subscription]:
        removed = [s for group in (*self._by_topic.values(), self._globs) for s in group]
        self._by_topic.clear()
        self._globs = ()
        self._routes.clear()
        self._patterns = None
        if removed and self.on_audience is not None:
            self.on_audience(False)
        return removed

    def _forget_routes(self, pattern: Pattern) -> None:
        """One topic's, where that is all: subscriptions come and go by the thousand."""
        self._patterns = None
        if pattern.is_glob:
            self._routes.clear()
        else:
            self._routes.pop(pattern.text, None)

    def _wanted(self) -> list[Pattern] | None:
        """The patterns; None if everything is wanted, or so much that choosing costs more."""
        if len(self._by_topic) + len(self._globs) > PICKY_MAX:
            return None
        if self._patterns is None:
            names = [Pattern(name) for name in self._by_topic]
            self._patterns = [*names, *{s.pattern for s in self._globs}]
        return None if Pattern("*") in self._patterns else self._patterns

    def _change_epoch(self, error: EpochChanged) -> None:
        """The log is another one: whoever listens must choose where to start in it."""
        for subscription in self._remove_all():
            subscription.fail(error)

    def _measure(self, elapsed: float, count: int) -> None:
        latency = elapsed * 1000
        previous = self.poll_latency_ms or latency
        self.poll_latency_ms = previous + LATENCY_WEIGHT * (latency - previous)
        self._telemetry.emit("tail", messages=count, seconds=elapsed)
