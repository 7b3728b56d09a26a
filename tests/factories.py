"""What tests are made of: messages, hubs on a file, stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import penstock
from penstock.clock import Clock, micros
from penstock.model import NewMessage
from penstock.ports import Store
from penstock.settings import Settings, load
from penstock.stores import open_store
from penstock.testing import FakeClock


def new_message(
    topic: str = "orders",
    body: bytes = b"x",
    *,
    ttl: float | None = None,
    key: str | None = None,
    type: str | None = None,
    idempotency_key: str | None = None,
    encoding: int = 0,
) -> NewMessage:
    """A message as the committer gets it: encoded, without an id."""
    return NewMessage(
        topic,
        body,
        encoding,
        type=type,
        key=key,
        ttl=None if ttl is None else micros(ttl),
        idempotency_key=idempotency_key,
    )


def settings_for(url: str, **arguments: Any) -> Settings:
    """Settings from these arguments alone, whatever file or environment there is."""
    return load(url, environ={}, **arguments)


def file_url(path: Path) -> str:
    return f"sqlite:///{path}"


def hub_on(path: Path, *, clock: Clock | None = None, **arguments: Any) -> penstock.Hub:
    """A hub on a file; another call is another hub, as another process would have it."""
    return penstock.Hub(settings_for(file_url(path), **arguments), clock)


def store_at(url: str, *, clock: Clock | None = None, **arguments: Any) -> Store:
    return open_store(settings_for(url, **arguments), clock or FakeClock())


def payloads(messages: list[penstock.Message]) -> list[Any]:
    return [message.payload for message in messages]


def ids(messages: list[penstock.Message]) -> list[int]:
    return [message.id for message in messages]
