"""`@hub.job`: which function does which type of job, and how."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from penstock.errors import InvalidInput, UnknownJobType
from penstock.job import (
    ATTEMPTS_MAX,
    Enqueued,
    OnConflict,
    OnParentFailure,
    check_queue,
    check_type,
)
from penstock.jobs.retry import RetryPolicy, squared

if TYPE_CHECKING:
    from datetime import datetime

    from penstock.jobs.producer import Jobs
    from penstock.jobs.runtime import Runtime

P = TypeVar("P")

Isolation = Literal["async", "thread", "process"]
DEFAULT_QUEUE = "default"


class Snooze(msgspec.Struct, frozen=True):
    """Returned by a handler: not now, try again later. Burns no attempt."""

    seconds: float


class Cancel(msgspec.Struct, frozen=True):
    """Returned by a handler: this job is of no use any more."""

    reason: str = ""


class Handler(msgspec.Struct, frozen=True):
    """A function, and what holds for the jobs it does."""

    type: str
    queue: str
    function: Callable[..., Any]
    isolation: Isolation
    payload_type: Any
    takes_job: bool
    max_attempts: int
    timeout_seconds: float | None
    retry: RetryPolicy
    priority: int
    result_seconds: float | None
    unique: Callable[[Any], str] | Literal[True] | None
    on_conflict: OnConflict


class Registry:
    """Handlers by type."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        known = self._handlers.get(handler.type)
        if known is not None and known.function is not handler.function:
            raise InvalidInput(
                f"The job type {handler.type!r} is {known.function.__qualname__} already.",
                hint="Give one of them a name: @hub.job(name=…).",
            )
        self._handlers[handler.type] = handler

    def find(self, type: str) -> Handler:
        handler = self._handlers.get(type)
        if handler is None:
            raise UnknownJobType(f"This process has no handler for jobs of type {type!r}.")
        return handler

    def __iter__(self) -> typing.Iterator[Handler]:
        return iter(self._handlers.values())

    @property
    def queues(self) -> list[str]:
        return list(dict.fromkeys(handler.queue for handler in self))


class JobFunction(Generic[P]):
    """A decorated function: called, it runs here and now; `enqueue` has a worker run it."""

    def __init__(self, jobs: Jobs, handler: Handler) -> None:
        self._jobs = jobs
        self.handler = handler
        self.__wrapped__ = handler.function
        self.__name__ = handler.function.__name__
        self.__doc__ = handler.function.__doc__

    def runtime(self) -> Runtime:
        """What its hub has open."""
        return self._jobs._open()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.handler.function(*arguments, **keywords)

    def enqueue(
        self,
        payload: P,
        *,
        delay: float | None = None,
        at: datetime | float | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        deadline: datetime | float | None = None,
        timeout: float | None = None,
        unique_key: str | None = None,
        unique_seconds: float | None = None,
        on_conflict: OnConflict | None = None,
        after: Iterable[int | Enqueued] = (),
        on_parent_failure: OnParentFailure = "cancel",
    ) -> Enqueued:
        """As `hub.jobs.enqueue`, with what the decorator says as defaults."""
        handler = self.handler
        return self._jobs.enqueue(
            handler.queue,
            handler.type,
            payload,
            delay=delay,
            at=at,
            priority=handler.priority if priority is None else priority,
            max_attempts=max_attempts or handler.max_attempts,
            deadline=deadline,
            timeout=timeout or handler.timeout_seconds,
            unique_key=unique_key or key_of(handler, payload),
            unique_seconds=unique_seconds,
            on_conflict=on_conflict or handler.on_conflict,
            after=after,
            on_parent_failure=on_parent_failure,
        )

    def enqueue_many(self, payloads: Iterable[P]) -> list[Enqueued]:
        """Many at once; one by one if the handler is `unique`, as each may meet another."""
        handler = self.handler
        if handler.unique is not None:
            return [self.enqueue(payload) for payload in payloads]
        return self._jobs.enqueue_many(
            handler.queue,
            handler.type,
            payloads,
            priority=handler.priority,
            max_attempts=handler.max_attempts,
            timeout=handler.timeout_seconds,
        )


def make_handler(
    function: Callable[..., Any],
    *,
    queue: str,
    name: str | None,
    max_attempts: int,
    timeout: float | None,
    retry: RetryPolicy | None,
    priority: int,
    isolation: Isolation | None,
    result_seconds: float | None,
    unique: Callable[[Any], str] | bool | None,
    on_conflict: OnConflict,
) -> Handler:
    """The handler, if the function can be one."""
    is_async = inspect.iscoroutinefunction(function)
    if isolation is None:
        isolation = "async" if is_async else "thread"
    if isolation not in ("async", "thread", "process"):
        raise InvalidInput(f"isolation is 'async', 'thread' or 'process', not {isolation!r}.")
    if is_async != (isolation == "async"):
        kind = "a coroutine function" if is_async else "a plain function"
        raise InvalidInput(f"{function.__qualname__} is {kind}, which {isolation!r} cannot run.")
    if isolation == "process" and "<locals>" in function.__qualname__:
        raise InvalidInput(
            f"{function.__qualname__} is defined inside a function, where no other process finds "
            "it.",
            hint="Define handlers with isolation='process' at the top of a module.",
        )
    if result_seconds is not None and not 0 <= result_seconds < 1e10:
        raise InvalidInput(f"result_seconds is from 0 up, not {result_seconds!r}.")
    if not isinstance(max_attempts, int) or not 1 <= max_attempts <= ATTEMPTS_MAX:
        raise InvalidInput(f"max_attempts is 1 to {ATTEMPTS_MAX:,}, not {max_attempts!r}.")
    if timeout is not None and not timeout > 0:
        raise InvalidInput(f"timeout is above 0, not {timeout!r}.")
    payload_type, takes_job = _signature(function)
    return Handler(
        check_type(name or function.__name__),
        check_queue(queue),
        function,
        isolation,
        payload_type,
        takes_job,
        max_attempts,
        timeout,
        retry or squared(),
        priority,
        result_seconds,
        True if unique is True else unique or None,
        on_conflict,
    )


def key_of(handler: Handler, payload: Any) -> str | None:
    """The unique key of a job with this payload."""
    if handler.unique is None:
        return None
    if handler.unique is True:
        return f"{handler.type}:{msgspec.json.encode(payload, order='sorted').decode()}"
    return f"{handler.type}:{handler.unique(payload)}"


def _signature(function: Callable[..., Any]) -> tuple[Any, bool]:
    """What the payload is decoded to, and whether the function wants the job."""
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty and p not in positional[:2]]
    required = [p for p in required if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not positional or required:
        raise InvalidInput(
            f"{function.__qualname__} cannot be a job: it is called with the payload, and with "
            "the job if it takes a second argument.",
            hint="def handler(payload): …  or  def handler(payload, job): …",
        )
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise InvalidInput(
            f"The annotations of {function.__qualname__} cannot be resolved: {error}."
        ) from error
    return hints.get(positional[0].name, Any), len(positional) > 1
