"""Conflated publishing: the latest message per (topic, key), written once per interval.

For cursors, positions, gauges: what is outdated a moment later need not be kept. Entries wait in
memory; a flush writes one message per topic that holds them all. A normal publish of the topic
takes what waits along, in front of itself, so that the order is the publisher's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock import codec
from penstock.clock import Clock
from penstock.committer import Committer, inside_transaction
from penstock.errors import (
    InsideTransaction,
    InvalidInput,
    InvalidPayload,
    OutcomeUnknown,
    PenstockError,
    QueueFull,
)
from penstock.model import CONFLATED_TYPE, Conflated, NewMessage, Receipt, check_name
from penstock.service import Service
from penstock.settings import Settings
from penstock.telemetry import Telemetry

Entries = dict[str, Conflated]


class Conflator(Service):
    name = "conflator"

    def __init__(
        self, committer: Committer, settings: Settings, clock: Clock, telemetry: Telemetry
    ) -> None:
        super().__init__(telemetry)
        self._committer = committer
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self.waiting: dict[str, Entries] = {}
        """Entries by topic and key. Others look; only the conflator changes it."""

    def put(self, topic: str, key: str | None, payload: Any, type: str | None) -> Receipt:
        """Replace what waits under the key. Not durable before the next flush."""
        if inside_transaction.get():
            raise InsideTransaction
        if not key or not isinstance(key, str):
            raise InvalidInput("Conflated messages need a key, which is text.", hint="Pass key=…")
        if type is not None:
            check_name(type, "message type")
        limit = self._settings.payload_bytes_max
        body, encoding = codec.encode(payload, None, limit // 2, compress_above=limit)
        if encoding != codec.JSON:
            raise InvalidPayload("Conflated messages are JSON.", hint="Publish bytes normally.")
        entry = Conflated(key, msgspec.Raw(body), type)
        with self._lock:
            entries = self.waiting.setdefault(topic, {})
            if key not in entries and len(entries) >= 2 * self._settings.conflate_keys_max:
                raise QueueFull(f"{len(entries):,} conflated keys of {topic!r} wait to be written.")
            # The order of a batch is that of the latest publishes.
            entries.pop(key, None)
            entries[key] = entry
            is_full = len(entries) >= self._settings.conflate_keys_max
        self._telemetry.count("conflated")
        self.start()
        if is_full:
            self.nudge()
        return Receipt(topic, None, self._clock.now(), durable=False)

    def take(self, topic: str) -> Entries:
        """What waits for the topic; the caller writes it, or gives it back."""
        if topic not in self.waiting:
            return {}
        with self._lock:
            return self.waiting.pop(topic, {})

    @contextmanager
    def ahead_of(self, topic: str) -> Iterator[list[NewMessage]]:
        """What waits for the topic, to be written in front of something else.

        Given back if that fails for certain. If its outcome is unknown, or the caller stops
        waiting, it may be on disk; repeating outdated entries later would be worse than losing
        them.
        """
        entries = self.take(topic)
        try:
            yield self.messages(topic, entries)
        except OutcomeUnknown:
            raise
        except PenstockError:
            self.give_back(topic, entries)
            raise

    def give_back(self, topic: str, entries: Entries) -> None:
        """After a failed write. What came under the same keys meanwhile is newer and stays."""
        if not entries:
            return
        with self._lock:
            newer = self.waiting.get(topic, {})
            self.waiting[topic] = {**{k: e for k, e in entries.items() if k not in newer}, **newer}

    def messages(self, topic: str, entries: Entries) -> list[NewMessage]:
        """The entries as few messages as the payload limit allows: nearly always one."""
        limit = self._settings.payload_bytes_max - 2
        encoding = codec.JSON | codec.CONFLATED
        messages: list[NewMessage] = []
        parts: list[bytes] = []
        size = 0
        for entry in entries.values():
            part = msgspec.json.encode(entry)
            if parts and size + len(part) + 1 > limit:
                messages.append(_join(topic, parts, encoding))
                parts, size = [], 0
            parts.append(part)
            size += len(part) + 1
        if parts:
            messages.append(_join(topic, parts, encoding))
        return messages

    def run_once(self) -> float:
        self.flush()
        return self._settings.conflate_interval_ms / 1000

    def flush(self) -> None:
        """Write everything that waits; give it back if that fails."""
        with self._lock:
            taken, self.waiting = self.waiting, {}
        if not taken:
            return
        messages = [m for topic, entries in taken.items() for m in self.messages(topic, entries)]
        try:
            self._committer.append_now(messages)
        except BaseException:
            for topic, entries in taken.items():
                self.give_back(topic, entries)
            raise

    def _pause(self, seconds: float) -> None:
        # No jitter: the interval is a promise about how fresh the data is.
        self._alarm.sleep(seconds)

    def _on_start(self) -> None:
        self._pause(self._settings.conflate_interval_ms / 1000)


def _join(topic: str, parts: list[bytes], encoding: int) -> NewMessage:
    return NewMessage(topic, b"[" + b",".join(parts) + b"]", encoding, type=CONFLATED_TYPE)
