"""The decorator: a function that runs once per key, whoever calls it and whatever crashes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
import typing
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

import msgspec

from penstock import codec
from penstock.entry import Entry, EntryState, Outcome
from penstock.errors import InProgress, InvalidInput
from penstock.ledger.claim import AsyncClaim, Claim
from penstock.ledger.fallback import Done, Fallback, check_raises
from penstock.ledger.runtime import Runtime
from penstock.ledger.terms import (
    UNREACHABLE,
    OnBusy,
    OnDone,
    OnError,
    OnFailure,
    Terms,
    check_choice,
    make_terms,
)
from penstock.ledger.work import kept_failure

F = TypeVar("F", bound=Callable[..., Any])

PAUSE_SECONDS = 0.01


class Rules(msgspec.Struct, frozen=True):
    """What the decorator was given."""

    scope: str
    key: Callable[..., str]
    lease_seconds: float
    payload: Callable[..., Any] | None
    on_busy: OnBusy
    on_done: OnDone
    timeout: float | None
    result_ttl: float | None
    on_failure: OnFailure
    on_error: OnError
    store_result: bool

    def terms(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Terms:
        return make_terms(
            self.scope,
            self.key(*arguments, **keywords),
            lease_seconds=self.lease_seconds,
            payload=None if self.payload is None else self.payload(*arguments, **keywords),
            on_busy=self.on_busy,
            on_done=self.on_done,
            timeout=self.timeout,
            result_ttl=self.result_ttl,
            on_failure=self.on_failure,
        )


class Doing(Protocol):
    """A claim, entered by hand."""

    @property
    def entry(self) -> Entry: ...

    @property
    def is_done(self) -> bool: ...

    @property
    def result(self) -> Any: ...

    @result.setter
    def result(self, value: Any) -> None: ...


class SyncDoing(Doing, Protocol):
    def __enter__(self) -> Any: ...
    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None: ...
    def complete(self) -> None: ...


class AsyncDoing(Doing, Protocol):
    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None: ...
    async def complete(self) -> None: ...


class Source(Protocol):
    """Where the ledger is."""

    unreachable: tuple[type[Exception], ...]
    """Errors that mean that it could not be asked."""

    def claim(self, terms: Terms) -> SyncDoing: ...
    def claim_async(self, terms: Terms) -> AsyncDoing: ...

    def flush(self) -> None:
        """Enter what was done without it. Raises if it cannot be asked still."""


class OwnSource:
    """In this process's own database."""

    unreachable: tuple[type[Exception], ...] = UNREACHABLE

    def __init__(self, open_runtime: Callable[[], Runtime], fallback: Fallback) -> None:
        self._open = open_runtime
        self._fallback = fallback

    def claim(self, terms: Terms) -> Claim:
        return Claim(self._open, terms)

    def claim_async(self, terms: Terms) -> AsyncClaim:
        return AsyncClaim(self._open, terms)

    def flush(self) -> None:
        self._fallback.flush(self._open())


def make_idempotent(source: Source, fallback: Fallback, rules: Rules) -> Callable[[F], F]:
    check_choice(rules.on_error, OnError, "on_error")
    if not callable(rules.key):
        raise InvalidInput("key is a function of the call's arguments: key=lambda event: event.id.")

    def decorate(function: F) -> F:
        runner = Runner(source, fallback, rules, function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*arguments: Any, **keywords: Any) -> Any:
                return await runner.run_async(arguments, keywords)

            return cast("F", call_async)

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            return runner.run(arguments, keywords)

        return cast("F", call)

    return decorate


class Runner:
    """One decorated function."""

    def __init__(
        self, source: Source, fallback: Fallback, rules: Rules, function: Callable[..., Any]
    ) -> None:
        self._source = source
        self._fallback = fallback
        self._rules = rules
        self._function = function
        self._to = _return_type(function)

    def run(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        terms = self._rules.terms(arguments, keywords)
        done = self._fallback.find(terms.scope, terms.key)
        if done is not None:
            return self._answer(terms, done)
        claim = self._source.claim(terms)
        try:
            claim.__enter__()
        except self._source.unreachable as error:
            self._unreachable(error)
            return self._run_in_memory(terms, arguments, keywords)
        self._reached()
        if claim.is_done:
            return self._decode(claim.entry)
        try:
            value = self._function(*arguments, **keywords)
            if self._rules.store_result:
                claim.result = value
        except BaseException as error:
            claim.__exit__(type(error), error, error.__traceback__)
            raise
        try:
            claim.complete()
        except self._source.unreachable as error:
            self._unreachable(error)
            self._fallback.finish(
                terms.scope, terms.key, Done(self._outcome(terms, value), claim.entry)
            )
        return value

    async def run_async(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        terms = self._rules.terms(arguments, keywords)
        done = self._fallback.find(terms.scope, terms.key)
        if done is not None:
            return self._answer(terms, done)
        claim = self._source.claim_async(terms)
        try:
            await claim.__aenter__()
        except self._source.unreachable as error:
            self._unreachable(error)
            return await self._run_in_memory_async(terms, arguments, keywords)
        if not self._fallback.is_empty:
            await asyncio.get_running_loop().run_in_executor(None, self._reached)
        if claim.is_done:
            return self._decode(claim.entry)
        try:
            value = await self._function(*arguments, **keywords)
            if self._rules.store_result:
                claim.result = value
        except BaseException as error:
            await claim.__aexit__(type(error), error, error.__traceback__)
            raise
        try:
            await claim.complete()
        except self._source.unreachable as error:
            self._unreachable(error)
            self._fallback.finish(
                terms.scope, terms.key, Done(self._outcome(terms, value), claim.entry)
            )
        return value

    # Without the ledger

    def _run_in_memory(
        self, terms: Terms, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        deadline = _deadline(terms)
        while True:
            try:
                done = self._fallback.begin(terms.scope, terms.key)
            except InProgress:
                if terms.on_busy == "raise" or time.monotonic() >= deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
                continue
            if done is not None:
                return self._answer(terms, done)
            break
        try:
            value = self._function(*arguments, **keywords)
            outcome = self._outcome(terms, value)
        except BaseException:
            self._fallback.drop(terms.scope, terms.key)
            raise
        self._fallback.finish(terms.scope, terms.key, Done(outcome))
        return value

    async def _run_in_memory_async(
        self, terms: Terms, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        deadline = _deadline(terms)
        while True:
            try:
                done = self._fallback.begin(terms.scope, terms.key)
            except InProgress:
                if terms.on_busy == "raise" or time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if done is not None:
                return self._answer(terms, done)
            break
        try:
            value = await self._function(*arguments, **keywords)
            outcome = self._outcome(terms, value)
        except BaseException:
            self._fallback.drop(terms.scope, terms.key)
            raise
        self._fallback.finish(terms.scope, terms.key, Done(outcome))
        return value

    def _unreachable(self, error: BaseException) -> None:
        if self._rules.on_error == "raise":
            raise error
        self._fallback.unreachable(self._rules.scope, error)

    def _reached(self) -> None:
        """It answers: enter what was done meanwhile. If that fails, it waits for the next time."""
        self._fallback.reached()
        if not self._fallback.is_empty:
            try:
                self._source.flush()
            except self._source.unreachable as error:
                self._fallback.unreachable(self._rules.scope, error, 0)

    # Results

    def _outcome(self, terms: Terms, value: Any) -> Outcome:
        if not self._rules.store_result:
            return Outcome(ttl=terms.result_ttl)
        # The limits of the settings hold for the ledger; this is for as long as it is away.
        body, encoding = codec.encode(value, None, RESULT_BYTES_MAX, RESULT_BYTES_MAX)
        return Outcome(body, encoding, terms.result_ttl)

    def _answer(self, terms: Terms, done: Done) -> Any:
        check_raises(terms.scope, terms.key, terms.on_done)
        entry = Entry(
            terms.scope,
            terms.key,
            EntryState.COMPLETED,
            0,
            1,
            raw_result=done.outcome.raw_result,
            result_encoding=done.outcome.result_encoding,
        )
        return self._decode(entry)

    def _decode(self, entry: Entry) -> Any:
        if entry.state == EntryState.FAILED:
            raise kept_failure(entry)
        return entry.decode(self._to)


RESULT_BYTES_MAX = 256 * 1024 * 1024


def _deadline(terms: Terms) -> float:
    return float("inf") if terms.timeout is None else time.monotonic() + terms.timeout


def _return_type(function: Callable[..., Any]) -> Any:
    """What stored results are decoded to: the function's own annotation, if it can be."""
    try:
        found = typing.get_type_hints(function).get("return", Any)
        if found is None or found is type(None):
            return Any
        msgspec.json.Decoder(found)
    except (NameError, TypeError, AttributeError):
        return Any
    return found
