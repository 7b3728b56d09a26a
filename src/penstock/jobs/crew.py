"""The workers of one process: started, woken, stopped.

A crew runs on an event loop: the caller's, or one of its own on a thread. It stops in three
steps: it claims no more, waits for what runs, and hands back the rest without burning an attempt.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from penstock.errors import InvalidInput
from penstock.job import check_queue
from penstock.jobs.executor import Executor
from penstock.jobs.keeper import WorkerKeeper
from penstock.jobs.registry import Registry
from penstock.jobs.runtime import Runtime
from penstock.jobs.schedule import Ticker
from penstock.jobs.worker import Worker

CONCURRENCY = 10
"""Jobs of a queue at once, where nothing else is said."""


class Crew:
    """On the running event loop."""

    def __init__(
        self, runtime: Runtime, registry: Registry, queues: Mapping[str, int] | None = None
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self.queues = check_queues(registry, queues)
        self._loop = asyncio.get_running_loop()
        self._worker: Worker | None = None
        self._executor: Executor | None = None
        self._keeper: WorkerKeeper | None = None
        self._ticker = Ticker(runtime)
        self._task: asyncio.Task[None] | None = None
        self._is_waking = False

    async def start(self) -> None:
        """Returns when the workers look for jobs."""
        runtime = self._runtime
        self._keeper = await asyncio.to_thread(WorkerKeeper, runtime, self.queues, self._on_cancel)
        await asyncio.to_thread(self._keeper.enter)
        slots = sum(self.queues.values())
        self._executor = Executor(self._registry, runtime.settings, runtime.clock, slots)
        self._worker = Worker(runtime, self._registry, self.queues, self._executor)
        self._keeper.start()
        self._ticker.start()
        runtime.doorbell.listen(self._on_bell)
        self._task = self._loop.create_task(self._worker.run())

    async def stop(self, timeout_seconds: float | None = None) -> None:
        """Finish what runs, within the limit; hand back the rest."""
        if self._worker is None or self._task is None:
            return
        limit = timeout_seconds
        if limit is None:
            limit = self._runtime.settings.worker_stop_seconds
        self._worker.stop()
        await asyncio.to_thread(self._ticker.stop, 10.0)
        done, _ = await asyncio.wait([self._task], timeout=limit)
        if not done:
            await self._worker.abandon()
            await asyncio.wait([self._task])
        assert self._keeper is not None
        await asyncio.to_thread(self._keeper.stop, 10.0)
        await asyncio.to_thread(self._keeper.leave)
        assert self._executor is not None
        self._executor.close()
        self._worker = None
        await self._task

    @property
    def running(self) -> int:
        return 0 if self._worker is None else self._worker.running

    # From other threads

    def _on_bell(self) -> bool:
        """On the doorbell's thread: a look there spares the event loop wakes for nothing."""
        if self._worker is None or self._is_waking:
            return False
        runtime = self._runtime
        if not runtime.store.jobs.look(list(self.queues), now=runtime.clock.now()):
            return False
        self._is_waking = True
        self._call(self._wake)
        return True

    def _wake(self) -> None:
        self._is_waking = False
        if self._worker is not None:
            self._worker.look()

    def _on_cancel(self, ids: list[int]) -> None:
        self._call(lambda: None if self._worker is None else self._worker.cancel(ids))

    def _call(self, call: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call)  # type: ignore[arg-type]
        except RuntimeError:
            return  # The loop has ended.


class ThreadedCrew:
    """A crew on a thread of its own, for programs without an event loop."""

    def __init__(
        self, runtime: Runtime, registry: Registry, queues: Mapping[str, int] | None = None
    ) -> None:
        self.queues = check_queues(registry, queues)
        self._runtime = runtime
        self._registry = registry
        self._ready = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._timeout: float | None = None
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._crew: Crew | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-crew", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    @property
    def running(self) -> int:
        return 0 if self._crew is None else self._crew.running

    def stop(self, timeout: float | None = None) -> None:
        """Finish what runs, within the limit; hand back the rest."""
        self._timeout = timeout
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def __enter__(self) -> ThreadedCrew:
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
        self._stopping = asyncio.Event()
        self._crew = Crew(self._runtime, self._registry, self.queues)
        await self._crew.start()
        self._ready.set()
        await self._stopping.wait()
        await self._crew.stop(self._timeout)


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
