"""For idempotent followers: keeps back messages that the consumer has had, and notes the others.

What was handed out is marked in the same transaction that moves the consumer's watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from penstock.errors import InvalidInput
from penstock.model import Message
from penstock.ports import Transaction

OnError = Literal["process", "raise"]
KeyOf = Callable[[Message], str]


class Tracker(Protocol):
    """Who remembers; the hub has one over the ledger."""

    def seen(self, consumer: str, keys: Sequence[str], on_error: OnError) -> set[str]:
        """Which of these the consumer has had."""

    def marking(
        self, consumer: str, keys: Sequence[str], on_error: OnError
    ) -> Callable[[Transaction], None]:
        """As an operation: the consumer has had these."""


def key_of(message: Message) -> str:
    """What its publisher called it, or else its place in the log. No topic has a '?'."""
    if message.message_id is not None:
        return f"{message.topic}?key={message.message_id}"
    return f"{message.topic}?id={message.id}"


class Sieve:
    def __init__(self, tracker: Tracker, consumer: str, key: KeyOf, on_error: OnError) -> None:
        self._tracker = tracker
        self._consumer = consumer
        self._key = key
        self._on_error = on_error
        self._handed_out: list[str] = []

    def fresh(self, messages: list[Message]) -> list[Message]:
        """Those the consumer has not had. Asks the ledger."""
        keys = [self._key(message) for message in messages]
        seen = self._tracker.seen(self._consumer, keys, self._on_error)
        seen.update(self._handed_out)
        found: list[Message] = []
        for message, key in zip(messages, keys, strict=True):
            if key not in seen:
                seen.add(key)
                found.append(message)
        return found

    def hand_out(self, messages: Sequence[Message]) -> None:
        self._handed_out += [self._key(message) for message in messages]

    def marking(self) -> Callable[[Transaction], None]:
        """As an operation: mark what was handed out up to now."""
        return self._tracker.marking(self._consumer, list(self._handed_out), self._on_error)

    @property
    def count(self) -> int:
        return len(self._handed_out)

    def marked(self, count: int) -> None:
        """So many of them are on disk."""
        del self._handed_out[:count]


def make_sieve(
    tracker: Tracker, consumer: str, idempotent: bool | KeyOf, on_error: OnError
) -> Sieve | None:
    if on_error not in ("process", "raise"):
        raise InvalidInput(f"on_error is 'process' or 'raise', not {on_error!r}.")
    if idempotent is False:
        return None
    if idempotent is not True and not callable(idempotent):
        raise InvalidInput("idempotent is True, or a function that gives a message's key.")
    return Sieve(tracker, consumer, key_of if idempotent is True else idempotent, on_error)
