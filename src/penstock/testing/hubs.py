"""Hubs for tests: private, in memory, gone at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock.clock import Clock
from penstock.hub import Hub, Runtime
from penstock.settings import Settings, load


def memory_hub(*, clock: Clock | None = None, **settings: Any) -> Hub:
    """A hub on a private store in memory, with the defaults whatever the environment says.

    Use it as a context manager, or close it: `with memory_hub() as hub`.
    """
    return Hub(load("memory:", environ={}, **settings), clock)


@contextmanager
def override(
    hub: Hub, url: str = "memory:", *, clock: Clock | None = None, **settings: Any
) -> Iterator[Hub]:
    """Put a program's own hub on another store inside the block, by default on an empty one.

    With a `clock`, the hub goes by that one meanwhile. What the hub had open stays open and is
    used again afterwards. Iterators made inside the block end with it.
    """
    own_settings, own_runtime, own_clock = hub.settings, hub._runtime, hub._clock
    _swap(hub, msgspec.structs.replace(own_settings, url=url, **settings), None, clock or own_clock)
    try:
        yield hub
    finally:
        inside = _swap(hub, own_settings, own_runtime, own_clock)
        if inside is not None:
            inside.close()


def _swap(hub: Hub, settings: Settings, runtime: Runtime | None, clock: Clock) -> Runtime | None:
    """Give the hub these; returns the runtime it had."""
    with hub._lock:
        hub._clock = clock
        before, hub._runtime, hub.settings = hub._runtime, runtime, settings
        return before
