"""Handlers on Spark's executors: a slice of claimed jobs comes in, what became of each goes back.

Nothing here writes to the store: the driver does, under each claim's token. What runs twice,
because its executor was lost, is answered once.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec

from penstock.clock import SystemClock
from penstock.errors import PenstockError, UnknownJobType
from penstock.hub import Hub
from penstock.job import Answer, Claim, Progress, Setback
from penstock.jobs.context import JobContext
from penstock.jobs.handling import Entry, Outcome, set_back
from penstock.jobs.run import Phase, Run
from penstock.spark.programs import find_hub


class Slice(msgspec.Struct, frozen=True):
    """Jobs for one task, and where their handlers are."""

    program: str
    url: str
    path: list[str]
    """Where the driver's Python looks for modules."""
    claims: list[Claim]
    concurrency: int


class Outcomes(msgspec.Struct, frozen=True):
    """What became of them."""

    answers: list[Answer] = []
    setbacks: list[Setback] = []
    settled: list[int] = []
    """Completed by their handlers, in transactions of their own."""
    seconds: float = 0.0
    trouble: str = ""
    """Why none of them could be done: the program is not to be had here."""


_encoder = msgspec.msgpack.Encoder()
_slices = msgspec.msgpack.Decoder(Slice)
_outcomes = msgspec.msgpack.Decoder(Outcomes)


def encode_slice(slice: Slice) -> bytes:
    return _encoder.encode(slice)


def decode_outcomes(data: bytes) -> Outcomes:
    found: Outcomes = _outcomes.decode(data)
    return found


def do_slice(data: bytes) -> bytes:
    """In a task: run the handlers of these jobs, one after the other, coroutines side by side."""
    slice = _slices.decode(data)
    started = time.monotonic()
    try:
        bench = _bench(slice)
    except PenstockError as error:
        return _encoder.encode(Outcomes(trouble=str(error)))
    with _deaf_to_interrupts():
        outcomes = bench.do(slice.claims, slice.concurrency)
    return _encoder.encode(msgspec.structs.replace(outcomes, seconds=time.monotonic() - started))


class Bench:
    """A program's handlers, in one of an executor's Python processes."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._clock = SystemClock()
        self._entries: dict[str, Entry] = {}

    def do(self, claims: Sequence[Claim], concurrency: int = 1) -> Outcomes:
        runs = [(Run(claim), self._entry(claim)) for claim in claims]
        coroutines = [(run, e) for run, e in runs if e and e.handler.isolation == "async"]
        others = [(run, e) for run, e in runs if not (e and e.handler.isolation == "async")]
        found: list[tuple[Run, Outcome]] = []
        if coroutines:
            found += asyncio.run(self._await_all(coroutines, concurrency))
        found += [(run, self._call(run, entry)) for run, entry in others]
        said = [outcome for run, outcome in found if not run.is_settled]
        return Outcomes(
            [outcome for outcome in said if isinstance(outcome, Answer)],
            [outcome for outcome in said if isinstance(outcome, Setback)],
            [run.id for run, _ in found if run.is_settled],
        )

    def _entry(self, claim: Claim) -> Entry | None:
        """None: there is no handler of this type."""
        if claim.type not in self._entries:
            try:
                handler = self._hub.handlers.find(claim.type)
            except UnknownJobType:
                return None
            self._entries[claim.type] = Entry(handler, self._hub.settings, self._clock)
        return self._entries[claim.type]

    def _call(self, run: Run, entry: Entry | None) -> Outcome:
        claim = run.claim
        if entry is None:
            unknown = UnknownJobType(f"The program has no handler for jobs of type {claim.type!r}.")
            return set_back(claim, unknown, self._clock)
        limit = entry.limit_seconds(claim)
        try:
            arguments = self._arguments(run, entry)
            with _time_limit(limit):
                result = entry.function(*arguments)
            return entry.judge(claim, result)
        except _TimeUp:
            return entry.timed_out(claim)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: it ends a job, no task
            return entry.set_back(claim, error)

    async def _await_all(
        self, runs: Sequence[tuple[Run, Entry]], concurrency: int
    ) -> list[tuple[Run, Outcome]]:
        seats = asyncio.Semaphore(concurrency)

        async def one(run: Run, entry: Entry) -> tuple[Run, Outcome]:
            async with seats:
                return run, await self._await(run, entry)

        return list(await asyncio.gather(*(one(run, entry) for run, entry in runs)))

    async def _await(self, run: Run, entry: Entry) -> Outcome:
        claim = run.claim
        timer = asyncio.timeout(entry.limit_seconds(claim))
        try:
            async with timer:
                result = await entry.function(*self._arguments(run, entry))
            return entry.judge(claim, result)
        except BaseException as error:  # noqa: BLE001 - the same
            if isinstance(error, TimeoutError) and timer.expired():
                return entry.timed_out(claim)
            return entry.set_back(claim, error)

    def _arguments(self, run: Run, entry: Entry) -> tuple[Any, ...]:
        run.entry, run.phase = entry, Phase.RUNNING
        run.context = JobContext(run.claim, _drop, run=run, runtime=self._hub._open)
        payload = entry.payload(run.claim)
        return (payload, run.context) if entry.takes_job else (payload,)


_benches: dict[tuple[str, str], Bench] = {}


def _bench(slice: Slice) -> Bench:
    """Kept from task to task, as Spark keeps its Python processes."""
    key = slice.program, slice.url
    if key not in _benches:
        # Behind what is searched here: what was shipped to the executor comes first.
        sys.path += [entry for entry in slice.path if entry not in sys.path]
        hub = find_hub(slice.program)
        if hub._runtime is None:
            hub.settings = msgspec.structs.replace(hub.settings, url=slice.url)
        _benches[key] = Bench(hub)
    return _benches[key]


class _TimeUp(BaseException):
    """Raised in a handler. Not an `Exception`: a handler that catches those is not to catch it."""


@contextmanager
def _time_limit(seconds: float | None) -> Iterator[None]:
    """Raises inside when the time is up. Where signals cannot be had, there is no limit."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_: int, __: FrameType | None) -> None:
        raise _TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Ctrl-C in a terminal reaches all of its processes, and is meant for the driver."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A function and not SIG_IGN, which programs that a handler starts would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _drop(claim: Claim, progress: Progress) -> None:
    """The store may not be within reach of an executor: progress is not told."""
