"""Inline mode: what is enqueued runs at once, in the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.hub import Hub
from penstock.testing.jobs import drain, is_draining

ENQUEUEING = ("enqueue", "enqueue_many")


@contextmanager
def inline(hub: Hub, *, raises: bool = True) -> Iterator[Hub]:
    """Inside the block, a job that is ready has run when `enqueue` returns.

    That holds for `hub.jobs`, `hub.aio.jobs`, for decorated functions, and for transactions when
    they have been committed. A job that a handler enqueues runs after the handler; one with a
    delay waits for `drain`. What a handler raises is raised by `enqueue`, after the job was set
    back; with `raises=False` it is only in the job's history.
    """

    def run() -> None:
        if not is_draining.get():
            drain(hub, until_empty=False, raises=raises)

    patches: list[tuple[Any, str, Any]] = []
    for name in ENQUEUEING:
        patches.append((hub.jobs, name, _then(getattr(hub.jobs, name), run)))
        patches.append((hub.aio.jobs, name, _then_async(getattr(hub.aio.jobs, name), run)))
    for owner in (hub, hub.aio):
        begin = owner.transaction
        patches.append((owner, "transaction", _opened(begin, run)))
    for owner, name, replacement in patches:
        vars(owner)[name] = replacement
    try:
        yield hub
    finally:
        for owner, name, _ in patches:
            del vars(owner)[name]


def _then(call: Callable[..., Any], run: Callable[[], None]) -> Callable[..., Any]:
    def enqueue(*arguments: Any, **keywords: Any) -> Any:
        found = call(*arguments, **keywords)
        run()
        return found

    return enqueue


def _then_async(call: Callable[..., Any], run: Callable[[], None]) -> Callable[..., Any]:
    async def enqueue(*arguments: Any, **keywords: Any) -> Any:
        found = await call(*arguments, **keywords)
        # Not on the event loop: handlers that are coroutines get one of their own.
        await asyncio.to_thread(run)
        return found

    return enqueue


def _opened(begin: Callable[..., Any], run: Callable[[], None]) -> Callable[..., Any]:
    def transaction(*arguments: Any, **keywords: Any) -> Any:
        return _Transaction(begin(*arguments, **keywords), run)

    return transaction


class _Transaction:
    """A transaction, and what is done when it has been committed."""

    def __init__(self, inner: Any, run: Callable[[], None]) -> None:
        self._inner = inner
        self._run = run

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        found = self._inner.__exit__(kind, error, trace)
        if kind is None:
            self._run()
        return found

    async def __aenter__(self) -> Any:
        return await self._inner.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> Any:
        found = await self._inner.__aexit__(kind, error, trace)
        if kind is None:
            await asyncio.to_thread(self._run)
        return found
