"""Workers of one process: started, woken, stopped.

A crew runs on an event loop: the caller's, or one of its own on a thread. It stops in three
steps: it claims no more, waits for what runs, and hands back the rest without burning an attempt.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any

import msgspec

from penstock.errors import InvalidInput, PenstockError
from penstock.job import check_queue
from penstock.jobs.executor import STOP_SECONDS, Executor
from penstock.jobs.keeper import Stops
from penstock.jobs.registry import Registry
from penstock.jobs.run import Run
from penstock.jobs.runtime import Runtime
from penstock.jobs.worker import OnOutcome, Worker

CONCURRENCY = 10
"""Jobs of a queue at once, where nothing else is said."""
HAND_BACK_SECONDS = 10.0
"""How long handing back may take when the database cannot be written."""


class CrewStats(msgspec.Struct, frozen=True):
    """A crew in figures."""

    running: int = 0
    claimed: int = 0
    """Claimed ahead, and not running yet."""
    stuck: int = 0
    """Slots whose handlers were told to stop and have not ended."""
    completed: int = 0
    failed: int = 0
    """Attempts that did not complete."""
    refused: int = 0
    """Answers that came too late."""


class AsyncCrew:
    """On the running event loop: `async with hub.aio.start_workers()`, or await it and stop it."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        queues: Mapping[str, int] | None = None,
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._on_outcome = on_outcome
        self.queues = check_queues(registry, queues)
        self._names = tuple(self.queues)
        self._loop = asyncio.get_running_loop()
        self._worker: Worker | None = None
        self._executor: Executor | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._is_waking = False
        self._has_entered = False
        self._last = CrewStats()
        self._hurry = asyncio.Event()
        self.stopped = asyncio.Event()

    async def start(self) -> AsyncCrew:
        """Returns when the workers look for jobs."""
        runtime = self._runtime
        await _aside(lambda: runtime.roster.enter(self))
        self._has_entered = True
        self._executor = Executor(
            self._registry, runtime.settings, runtime.clock, runtime=lambda: runtime
        )
        self._worker = Worker(runtime, self.queues, self._executor)
        self._worker.on_outcome = self._on_outcome
        self._task = self._loop.create_task(self._worker.run())
        runtime.doorbell.listen(self._on_bell)
        return self

    async def stop(self, timeout: float | None = None) -> None:
        """Finish what runs, within the limit; hand back the rest."""
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop(timeout))
        elif timeout is not None:
            # Asked again, by somebody with less patience.
            self._loop.call_later(timeout, self._hurry.set)
        await asyncio.shield(self._stopping)

    async def _stop(self, timeout: float | None) -> None:
        worker, task, executor = self._worker, self._task, self._executor
        if worker is not None and task is not None and executor is not None:
            self._runtime.doorbell.forget(self._on_bell)
            limit = self._runtime.settings.worker_stop_seconds if timeout is None else timeout
            worker.stop()
            hurry = self._loop.create_task(self._hurry.wait())
            await asyncio.wait([task, hurry], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            if not task.done():
                worker.abandon()
                await asyncio.wait([task], timeout=STOP_SECONDS + HAND_BACK_SECONDS)
            self._last = self.stats
            self._worker = None
            if not task.done():
                # Nothing can be written. The others rescue what is left, when this process ends.
                task.cancel()
            executor.close()
            await asyncio.wait([task])
        if self._has_entered:
            await _aside(lambda: self._runtime.roster.leave(self))
        self.stopped.set()
        if task is not None and not task.cancelled():
            task.result()

    def close(self) -> None:
        """With the hub, from any thread: as `stop`, and returns when it is done."""
        if self.stopped.is_set():
            return
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if not is_here and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(self.stop(), self._loop).result()
        else:
            self._break_off()

    def _break_off(self) -> None:
        """Nobody can wait here for what runs: hand it back now."""
        self._runtime.doorbell.forget(self._on_bell)
        worker, self._worker = self._worker, None
        if worker is not None:
            if not self._loop.is_closed():
                worker.abandon()
            claims = [run.claim for run in worker.known.copy().values()]
            runtime = self._runtime
            try:
                runtime.committer.run_now(
                    lambda tx: tx.jobs.release(claims, now=runtime.clock.now())
                )
            except PenstockError as error:
                runtime.telemetry.emit("service_failed", service="worker", error=repr(error))
        if self._task is not None and not self._loop.is_closed():
            self._task.cancel()
        if self._executor is not None and not self._loop.is_closed():
            self._executor.close()
        self._runtime.roster.leave(self)
        self.stopped.set()

    @property
    def stats(self) -> CrewStats:
        worker = self._worker
        if worker is None:
            return self._last
        return CrewStats(
            worker.running,
            worker.claimed,
            worker.stuck,
            worker.completed,
            worker.failed,
            worker.refused,
        )

    def __await__(self) -> Generator[Any, None, AsyncCrew]:
        return self.start().__await__()

    async def __aenter__(self) -> AsyncCrew:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # From other threads

    @property
    def types(self) -> tuple[str, ...]:
        # A list first, in one step: another thread may be registering.
        return tuple(handler.type for handler in list(self._registry))

    def known(self) -> dict[int, Run]:
        worker = self._worker
        return {} if worker is None else worker.known.copy()

    def tell(self, stops: Stops) -> None:
        self._call(lambda: None if self._worker is None else self._worker.tell(stops))

    def look(self) -> bool:
        """A look here, on another thread, spares the event loop wakes and the database claims
        for nothing."""
        worker = self._worker
        if worker is None or self._is_waking:
            return False
        runtime = self._runtime
        if not runtime.store.jobs.look(self._names, now=runtime.clock.now()):
            return False
        if not worker.hear():
            self._is_waking = True
            self._call(self._wake)
        return True

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop, and claims nothing any more."""
        return self._worker is None or self._worker.is_stopping

    @property
    def is_failing(self) -> bool:
        worker = self._worker
        return worker is not None and worker.is_failing

    def _on_bell(self) -> bool:
        found = self.look()
        self._runtime.roster.rang()
        return found

    def _wake(self) -> None:
        self._is_waking = False
        if self._worker is not None:
            self._worker.look()

    def _call(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            return  # The loop has ended.


class Crew:
    """A crew on a thread of its own, for programs without an event loop."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        queues: Mapping[str, int] | None = None,
        on_outcome: OnOutcome | None = None,
    ) -> None:
        self._on_outcome = on_outcome
        self.queues = check_queues(registry, queues)
        self._runtime = runtime
        self._registry = registry
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._crew: AsyncCrew | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-crew", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._check()

    def _check(self) -> None:
        """Whether it could start."""
        if self._error is not None:
            self._thread.join()
            raise self._error

    @property
    def stats(self) -> CrewStats:
        return CrewStats() if self._crew is None else self._crew.stats

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop, and claims nothing any more."""
        return self._crew is None or self._crew.is_stopping

    def stop(self, timeout: float | None = None) -> None:
        """Finish what runs, within the limit; hand back the rest."""
        if self._loop is not None and self._crew is not None and self._thread.is_alive():
            crew = self._crew
            try:
                self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(crew.stop(timeout)))
            except RuntimeError:
                pass  # It has just ended.
            self._thread.join()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001 - told to whoever started it
            self._error = error
        finally:
            self._ready.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._crew = AsyncCrew(self._runtime, self._registry, self.queues, self._on_outcome)
        await self._crew.start()
        self._ready.set()
        await self._crew.stopped.wait()


def check_queues(registry: Registry, queues: Mapping[str, int] | None) -> dict[str, int]:
    """Which queues, and how many jobs of each at once."""
    if queues is None:
        queues = dict.fromkeys(registry.queues, CONCURRENCY)
    if not queues:
        raise InvalidInput(
            "There is no queue to work on.", hint="Register a handler with @hub.job, or name one."
        )
    for queue, slots in queues.items():
        check_queue(queue)
        if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
            raise InvalidInput(f"The queue {queue!r} needs 1 slot or more, not {slots!r}.")
    return dict(queues)


async def _aside(call: Callable[[], None]) -> None:
    """On a thread of its own: when the interpreter is ending, pools take nothing more."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            failures.append(error)
        try:
            loop.call_soon_threadsafe(done.set)
        except RuntimeError:
            return  # Nobody waits any more.

    threading.Thread(target=run, name="penstock-aside", daemon=True).start()
    await done.wait()
    if failures:
        raise failures[0]
