"""Messages handed to a callback: the shortest way from a commit to user code.

While the listener keeps up, its callback runs on the thread that read the messages, without
another thread in between. While it is behind, it is served from the log on a reader thread.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Protocol

from penstock.errors import HubClosed, PenstockError
from penstock.model import Message, Position
from penstock.telemetry import Telemetry
from penstock.topics.subscription import AsyncLive, Source

Callback = Callable[[Message], object]
AsyncCallback = Callable[[Message], object] | Callable[[Message], Awaitable[object]]


class CallingSource(Source, Protocol):
    run: Callable[[], None] | None

    @property
    def has_waiting(self) -> bool: ...


class Listener:
    """Calls back for each message, one at a time and in order, until it is closed.

    The callback must be quick: others wait for it. What it raises is reported (`listener_failed`)
    and does not stop the listener. An error of the subscription itself (`LogTrimmed`,
    `EpochChanged`) does, and stands in `error`.
    """

    def __init__(
        self,
        subscription: CallingSource,
        callback: Callback,
        batch_max: int,
        executor: Executor,
        telemetry: Telemetry,
    ) -> None:
        self.error: PenstockError | None = None
        self._subscription = subscription
        self._callback = callback
        self._batch_max = batch_max
        self._executor = executor
        self._telemetry = telemetry
        self._busy = threading.Lock()
        self._position = subscription.position
        self._is_closed = False
        subscription.wake = self._drain_later
        subscription.run = self._drain
        executor.submit(self._drain)

    @property
    def position(self) -> Position:
        """Where to listen again, with `after=`, to miss and repeat nothing."""
        return Position(self._subscription.epoch, self._position)

    @property
    def is_live(self) -> bool:
        """Whether it keeps up. If not, it is served from the log until it has caught up."""
        return self._subscription.is_live

    def close(self) -> None:
        """No further call begins. One that is running in another thread ends by itself."""
        self._is_closed = True
        self._subscription.close()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drain_later(self) -> None:
        """For a thread that cannot wait for a callback, such as the committer's."""
        try:
            self._executor.submit(self._drain)
        except RuntimeError:
            return  # The hub is closing.

    def _drain(self) -> None:
        subscription = self._subscription
        # Whoever is at it looks once more after letting go, so nothing that came is left lying.
        while self.error is None and self._busy.acquire(blocking=False):
            try:
                while messages := subscription.take(self._batch_max):
                    for message in messages:
                        if self._is_closed:
                            break
                        self._position = message.id
                        self._call(message)
            except PenstockError as error:
                self.error = error
                if not isinstance(error, HubClosed):
                    self._telemetry.emit("listener_failed", error=repr(error))
            finally:
                self._busy.release()
            if not subscription.has_waiting:
                return

    def _call(self, message: Message) -> None:
        try:
            self._callback(message)
        except Exception as error:  # noqa: BLE001 - user code; one failure is not the others'
            self._telemetry.emit("listener_failed", error=repr(error))


class AsyncListener:
    """As `Listener`; the callback runs on the event loop and may be a coroutine function."""

    def __init__(self, live: AsyncLive, callback: AsyncCallback, telemetry: Telemetry) -> None:
        self.error: PenstockError | None = None
        self._live = live
        self._callback = callback
        self._telemetry = telemetry
        self._position: Position | None = None
        self._is_closed = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def position(self) -> Position:
        """Where to listen again, with `after=`, to miss and repeat nothing."""
        return self._live.position if self._position is None else self._position

    async def close(self) -> None:
        """No further call begins; one that is running is waited for, unless it closes itself."""
        self._is_closed = True
        await self._live.close()
        if self._task is not asyncio.current_task():
            await self._task

    async def __aenter__(self) -> AsyncListener:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self) -> None:
        try:
            while True:
                for message in await self._live.take():
                    if self._is_closed:
                        break
                    self._position = message.position
                    await self._call(message)
        except PenstockError as error:
            self.error = error
            if not isinstance(error, HubClosed):
                self._telemetry.emit("listener_failed", error=repr(error))

    async def _call(self, message: Message) -> None:
        try:
            result = self._callback(message)
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 - user code; one failure is not the others'
            self._telemetry.emit("listener_failed", error=repr(error))
