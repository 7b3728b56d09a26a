"""Moving over from another tracker: both are asked, the old one is believed (L9)."""

from __future__ import annotations

import inspect
import threading
from collections import deque
from typing import Any, Literal, Protocol

import msgspec

from penstock.errors import PenstockError
from penstock.telemetry import Telemetry

EXAMPLES_MAX = 100

Question = Literal["is_processed", "mark_processed"]


class Tracker(Protocol):
    """What an existing tracker must have. Its methods may be coroutines for `hub.aio`."""

    def is_processed(self, scope: str, key: str) -> Any:
        """Whether the key was marked."""

    def mark_processed(self, scope: str, key: str) -> Any:
        """Mark it. True if nobody had."""


class Difference(msgspec.Struct, frozen=True):
    """A key on which the two did not agree."""

    question: Question
    scope: str
    key: str
    existing: bool
    ledger: bool


class ShadowReport(msgspec.Struct, frozen=True):
    """How often the ledger would have said something else."""

    asked: int
    agreed: int
    differed: int
    failed: int
    """The ledger could not be asked."""
    examples: list[Difference]
    """The latest differences."""

    @property
    def is_clean(self) -> bool:
        return self.asked > 0 and self.agreed == self.asked


class Comparison:
    """Counts and tells where two trackers differ."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._lock = threading.Lock()
        self._asked = self._agreed = self._failed = 0
        self._examples: deque[Difference] = deque(maxlen=EXAMPLES_MAX)

    def compare(
        self, question: Question, scope: str, key: str, existing: bool, ledger: bool
    ) -> None:
        with self._lock:
            self._asked += 1
            if existing == ledger:
                self._agreed += 1
                return
            self._examples.append(Difference(question, scope, key, existing, ledger))
        self._telemetry.emit(
            "ledger_differs",
            question=question,
            scope=scope,
            key=key,
            existing=existing,
            ledger=ledger,
        )

    def fail(self, scope: str, error: PenstockError) -> None:
        with self._lock:
            self._asked += 1
            self._failed += 1
        self._telemetry.emit("ledger_unavailable", scope=scope, keys=1, error=repr(error))

    def report(self) -> ShadowReport:
        with self._lock:
            differed = self._asked - self._agreed - self._failed
            examples = list(self._examples)
            return ShadowReport(self._asked, self._agreed, differed, self._failed, examples)


class Shadow:
    """Answers as the existing tracker does, and asks the ledger the same."""

    def __init__(self, ledger: Tracker, existing: Tracker, telemetry: Telemetry) -> None:
        self._ledger = ledger
        self._existing = existing
        self._comparison = Comparison(telemetry)

    def is_processed(self, scope: str, key: str) -> bool:
        """What the existing tracker says."""
        return self._ask("is_processed", scope, key)

    def mark_processed(self, scope: str, key: str) -> bool:
        """Mark it in both. What the existing tracker says."""
        return self._ask("mark_processed", scope, key)

    def report(self) -> ShadowReport:
        """Where the two have differed since this shadow was made."""
        return self._comparison.report()

    def _ask(self, question: Question, scope: str, key: str) -> bool:
        existing = bool(getattr(self._existing, question)(scope, key))
        try:
            ledger = bool(getattr(self._ledger, question)(scope, key))
        except PenstockError as error:
            self._comparison.fail(scope, error)
        else:
            self._comparison.compare(question, scope, key, existing, ledger)
        return existing


class AsyncShadow:
    """The same for an event loop."""

    def __init__(self, ledger: Tracker, existing: Tracker, telemetry: Telemetry) -> None:
        self._ledger = ledger
        self._existing = existing
        self._comparison = Comparison(telemetry)

    async def is_processed(self, scope: str, key: str) -> bool:
        """What the existing tracker says."""
        return await self._ask("is_processed", scope, key)

    async def mark_processed(self, scope: str, key: str) -> bool:
        """Mark it in both. What the existing tracker says."""
        return await self._ask("mark_processed", scope, key)

    def report(self) -> ShadowReport:
        """Where the two have differed since this shadow was made."""
        return self._comparison.report()

    async def _ask(self, question: Question, scope: str, key: str) -> bool:
        answer = getattr(self._existing, question)(scope, key)
        existing = bool(await answer if inspect.isawaitable(answer) else answer)
        try:
            ledger = bool(await getattr(self._ledger, question)(scope, key))
        except PenstockError as error:
            self._comparison.fail(scope, error)
        else:
            self._comparison.compare(question, scope, key, existing, ledger)
        return existing
