"""Runs handlers: coroutines on the event loop, functions on threads or in processes.

Whatever a handler does or raises becomes an outcome: an answer, or a setback that says when to
try again. Nothing a handler does can end the worker.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock import codec
from penstock.clock import Clock, micros, seconds
from penstock.errors import JobTimeout
from penstock.job import Answer, Claim, Failure, Kind, Setback
from penstock.jobs.context import JobContext
from penstock.jobs.registry import Cancel, Handler, Registry, Snooze
from penstock.jobs.retry import decide, squared
from penstock.settings import Settings

Outcome = Answer | Setback
OnDone = Callable[[Claim, Outcome], None]

TRACEBACK_CHARACTERS_MAX = 16_000
MESSAGE_CHARACTERS_MAX = 2_000

_DEFAULT_RETRY = squared()


class Executor:
    """On one event loop."""

    def __init__(self, registry: Registry, settings: Settings, clock: Clock, threads: int) -> None:
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(max(1, threads), thread_name_prefix="penstock-job")

    def run(self, claim: Claim, context: JobContext, on_done: OnDone) -> asyncio.Future[Any]:
        """Start the handler; `on_done` is called on the loop when it has ended."""
        return self._loop.create_task(self._run(claim, context, on_done))

    def cancel(self, task: asyncio.Future[Any] | None) -> None:
        if task is not None:
            task.cancel()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, claim: Claim, context: JobContext, on_done: OnDone) -> None:
        handler: Handler | None = None
        try:
            handler = self._registry.find(claim.type)
            payload = codec.decode(claim.body, claim.encoding, handler.payload_type)
            arguments = (payload, context) if handler.takes_job else (payload,)
            limit = handler.timeout_seconds
            if claim.timeout is not None:
                limit = seconds(claim.timeout)
            if handler.isolation == "async":
                if limit is None:
                    result = await handler.function(*arguments)
                else:
                    result = await self._limited(handler.function(*arguments), limit)
            else:
                work = self._loop.run_in_executor(
                    self._threads, lambda: handler.function(*arguments)
                )
                result = await (work if limit is None else self._limited(work, limit))
            outcome = self._judge(claim, result)
        except asyncio.CancelledError:
            context.stop()
            outcome = Setback(claim.id, claim.token, Kind.CANCELLED)
        except BaseException as error:
            outcome = self._set_back(claim, handler, error)
            if not isinstance(error, Exception):
                on_done(claim, outcome)
                raise
        on_done(claim, outcome)

    async def _limited(self, work: Any, limit: float) -> Any:
        try:
            async with asyncio.timeout(limit):
                return await work
        except TimeoutError as error:
            raise JobTimeout(f"The job ran for more than {limit:g} seconds.") from error

    def _judge(self, claim: Claim, result: Any) -> Outcome:
        if result is None:
            return Answer(claim.id, claim.token)
        if isinstance(result, Snooze):
            at = self._clock.now() + micros(max(0.0, result.seconds))
            return Setback(claim.id, claim.token, Kind.SNOOZED, at)
        if isinstance(result, Cancel):
            reason = Failure("Cancel", result.reason)
            return Setback(claim.id, claim.token, Kind.CANCELLED, None, reason)
        limit = self._settings.payload_bytes_max
        body, encoding = codec.encode(result, None, limit, self._settings.compress_above_bytes)
        return Answer(claim.id, claim.token, body, encoding)

    def _set_back(self, claim: Claim, handler: Handler | None, error: BaseException) -> Setback:
        failure = describe(error)
        delay: float | None = None
        if claim.attempt < claim.max_attempts:
            policy = _DEFAULT_RETRY if handler is None else handler.retry
            try:
                delay = decide(policy, claim.attempt, error)
            except Exception as mistake:  # noqa: BLE001 - a policy is user code, too
                failure = describe(mistake)
        if delay is None:
            return Setback(claim.id, claim.token, Kind.DIED, None, failure)
        at = self._clock.now() + micros(delay)
        return Setback(claim.id, claim.token, Kind.FAILED, at, failure)


def describe(error: BaseException) -> Failure:
    """An error as it is kept: bounded, and text whatever it holds."""
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = str(error)
    except Exception as mistake:  # noqa: BLE001 - an error that cannot even be printed
        message = f"(its message raises {type(mistake).__name__})"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - the same, inside the traceback
        trace = "".join(traceback.format_tb(error.__traceback__))
    return Failure(
        _text(name, MESSAGE_CHARACTERS_MAX),
        _text(message, MESSAGE_CHARACTERS_MAX),
        _text(trace, TRACEBACK_CHARACTERS_MAX),
    )


def _text(text: str, limit: int) -> str:
    """The end is what matters in a traceback; half of it is left out in the middle."""
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(clean) <= limit:
        return clean
    half = limit // 2
    return f"{clean[:half]}\n… {len(clean) - limit:,} characters left out …\n{clean[-half:]}"
