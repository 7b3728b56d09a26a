"""The work of one key, as whoever does it sees it: wherever the ledger is.

In progress while the block runs; then completed with what the work came to, or given back.
Whoever has lost it in between is told so, and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from penstock import codec
from penstock.entry import Entry, EntryState, Outcome
from penstock.errors import AlreadyProcessed, InProgress, LeaseLost, UndecodablePayload, WorkFailed
from penstock.ledger.terms import Terms
from penstock.settings import Settings

PAUSE_SECONDS = 0.005
PAUSE_SECONDS_MAX = 0.1
MESSAGE_MAX = 4_096
"""Characters of an error's text that are kept."""

_UNSET: Any = object()


class StoredFailure(msgspec.Struct, frozen=True):
    """A failure that was kept as the answer."""

    error: str
    message: str


class Work:
    """Terms, the entry that was made under them, and what the work has come to."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._entry: Entry | None = None
        self._is_mine = False
        self._process = 0
        self._is_lost = False
        self._result: Any = _UNSET
        self._outcome = Outcome(ttl=terms.result_ttl)

    @property
    def scope(self) -> str:
        return self._terms.scope

    @property
    def key(self) -> str:
        return self._terms.key

    @property
    def token(self) -> int:
        """Rises with every claim in this database: a remote system can refuse a lower one."""
        return self.entry.token or 0

    @property
    def attempt(self) -> int:
        """1, and one more each time it was taken over."""
        return self.entry.attempts

    @property
    def entry(self) -> Entry:
        """What the ledger said when the block was entered."""
        assert self._entry is not None, "a claim is made by entering its block"
        return self._entry

    @property
    def is_done(self) -> bool:
        """It had been processed before; `result` is what was stored. Only with
        `on_done="result"`."""
        return self._entry is not None and self._entry.state == EntryState.COMPLETED

    @property
    def is_lost(self) -> bool:
        """The lease ran out, and somebody else has it: what the block still does is in vain."""
        return self._is_lost

    @property
    def result(self) -> Any:
        """Set it in the block: it is stored with the completion, for later callers."""
        if self._result is _UNSET:
            return self._entry.result if self._entry is not None else None
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        # Encoded at once: what cannot be stored is the work's error, not the ledger's.
        settings = self._settings()
        body, encoding = codec.encode(
            value, None, settings.payload_bytes_max, settings.compress_above_bytes
        )
        self._outcome = Outcome(body, encoding, self._terms.result_ttl)
        self._result = value

    def check(self) -> None:
        """Raise `LeaseLost` if somebody else has it: before a step that cannot be undone."""
        if self._is_lost:
            raise self._lost()

    # For those who know where the ledger is

    def _settings(self) -> Settings:
        raise NotImplementedError

    def _accept(self, entry: Entry, is_mine: bool) -> bool:
        """False: somebody else is at it, and we wait."""
        if is_mine:
            self._entry, self._is_mine, self._process = entry, True, os.getpid()
            return True
        if not entry.state.is_final:
            if self._terms.on_busy == "wait":
                return False
            raise self._busy()
        if self._terms.on_done == "raise":
            raise AlreadyProcessed(f"{self.key!r} in {self.scope!r} was processed before.")
        if entry.state == EntryState.FAILED:
            raise kept_failure(entry)
        self._entry = entry
        return True

    def _is_to_end(self) -> bool:
        """Not if it has ended in the block; nor in a forked child, which leaves it too."""
        return self._is_mine and self._process == os.getpid()

    def _failure(self, error: BaseException) -> Outcome | None:
        """The failure as an outcome, if it is to be kept. Being interrupted is none."""
        if self._terms.on_failure == "release" or not isinstance(error, Exception):
            return None
        body = msgspec.json.encode(StoredFailure(type(error).__qualname__, text_of(error)))
        return Outcome(body, codec.JSON, self._terms.result_ttl, is_failure=True)

    def _ended(self, is_accepted: bool) -> None:
        self._is_mine = False
        if not is_accepted:
            raise self._lost()

    def _busy(self) -> InProgress:
        return InProgress(f"Somebody else is at {self.key!r} in {self.scope!r}.")

    def _lost(self) -> LeaseLost:
        return LeaseLost(f"Somebody else has {self.key!r} in {self.scope!r}, or had it since.")

    def _lose(self) -> None:
        self._is_lost = True


def kept_failure(entry: Entry) -> WorkFailed:
    stored = StoredFailure("", "")
    with suppress(UndecodablePayload):
        stored = entry.decode(StoredFailure) or stored
    return WorkFailed(
        f"{entry.key!r} in {entry.scope!r} failed before: {stored.error}: {stored.message}.",
        error=stored.error,
    )


def text_of(error: BaseException) -> str:
    """The error's text, whatever it does when it is asked for it."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 - it is the user's class, and must not hide the error
        text = f"its text cannot be had ({type(second).__name__})"
    return text[:MESSAGE_MAX].encode("utf-8", "backslashreplace").decode()


def pauses(longest: float = PAUSE_SECONDS_MAX) -> Iterator[float]:
    """Between looks whether it is free. Short ones first: most work is short."""
    pause = PAUSE_SECONDS
    while True:
        yield pause
        pause = min(longest, 2 * pause)
