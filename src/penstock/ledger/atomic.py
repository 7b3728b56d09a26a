"""A mark and everything that goes with it, in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class MarkingTransaction(Protocol):
    """What of a hub's transaction is needed here; the hub makes them."""

    def mark_processed(
        self, scope: str, key: str, *, ttl: float | None = None, payload: Any = None
    ) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


class AsyncMarkingTransaction(Protocol):
    async def mark_processed(
        self, scope: str, key: str, *, ttl: float | None = None, payload: Any = None
    ) -> None: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


T = TypeVar("T", bound=MarkingTransaction)
A = TypeVar("A", bound=AsyncMarkingTransaction)


class Atomic(Generic[T]):
    """`with hub.ledger.atomic(scope, key) as tx`. Entering raises `AlreadyProcessed`."""

    def __init__(self, begin: Callable[[], T], mark: Callable[[T], None]) -> None:
        self._begin = begin
        self._mark = mark

    def __enter__(self) -> T:
        self._transaction = self._begin()
        self._transaction.__enter__()
        try:
            self._mark(self._transaction)
        except BaseException as error:
            self._transaction.__exit__(type(error), error, error.__traceback__)
            raise
        return self._transaction

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._transaction.__exit__(kind, error, traceback)


class AsyncAtomic(Generic[A]):
    """`async with hub.aio.ledger.atomic(scope, key) as tx`."""

    def __init__(self, begin: Callable[[], A], mark: Callable[[A], Any]) -> None:
        self._begin = begin
        self._mark = mark

    async def __aenter__(self) -> A:
        self._transaction = self._begin()
        await self._transaction.__aenter__()
        try:
            await self._mark(self._transaction)
        except BaseException as error:
            await self._transaction.__aexit__(type(error), error, error.__traceback__)
            raise
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._transaction.__aexit__(kind, error, traceback)
