"""Group commit for mailboxes: whatever waits is put and synced together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from itertools import islice
from typing import Any

import msgspec

from penstock.callers import answer, held_lock, refuse_all, take
from penstock.errors import HubClosed, QueueFull, WriteTimeout
from penstock.mail import NewMail
from penstock.mailboxes.counter import log_bytes_max
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.locking import PATIENCE_SECONDS, PAUSE_SECONDS_MAX
from penstock.mailboxes.round import Answer, Request
from penstock.service import Service
from penstock.settings import Settings
from penstock.telemetry import Telemetry

_UNSET: Any = object()


class Delivery(msgspec.Struct):
    """What is to be put into one box, and who waits for it."""

    box: str
    mails: list[NewMail]
    count: int
    weight: int
    """Bytes of their bodies, and what goes beside them."""
    future: asyncio.Future[list[Answer]] | None = None
    done: threading.Lock | None = None
    result: list[Answer] = _UNSET
    error: BaseException | None = None
    tried_until: float = 0.0
    """When it is given up, of one whose box another process holds."""

    def wait(self, timeout_seconds: float | None = None) -> list[Answer]:
        assert self.done is not None, "an asyncio caller awaits its future"
        if not self.done.acquire(timeout=-1 if timeout_seconds is None else timeout_seconds):
            raise WriteTimeout(f"The put was not acknowledged within {timeout_seconds} seconds.")
        self.done.release()
        if self.error is not None:
            raise self.error
        return self.result


class Postman(Service):
    name = "postman"

    def __init__(self, folder: Folder, settings: Settings, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._folder = folder
        self._settings = settings
        self._is_waited_for = settings.mailbox_durability == "durable"
        self._queue: deque[Delivery] = deque()
        self._queue_max = settings.write_queue_max
        self._count_max, self._bytes_max = settings.commit_group_max, settings.commit_bytes_max
        self._bed = held_lock()
        self._is_asleep = True
        self._is_closed = False
        self._has_ended = False

    def put(self, box: str, mails: list[NewMail]) -> Delivery:
        return self._submit(_new_delivery(box, mails, None, held_lock()))

    def put_async(self, box: str, mails: list[NewMail]) -> asyncio.Future[list[Answer]]:
        # Belongs to the running loop, and asks for it only once.
        future: asyncio.Future[list[Answer]] = asyncio.Future()
        self._submit(_new_delivery(box, mails, future, None))
        return future

    def _submit(self, delivery: Delivery) -> Delivery:
        if self._is_closed:
            raise HubClosed
        queue = self._queue
        if len(queue) >= self._queue_max:
            raise QueueFull(f"{len(queue):,} messages are waiting for the disk.")
        queue.append(delivery)
        if self._is_asleep:
            self._rouse()
        return delivery

    def _rouse(self) -> None:
        if self._thread is None:
            self.start()
        self._is_asleep = False  # Once per sleep: it may take long to get to run.
        self.nudge()
        if self._has_ended or self._thread is None:
            self._is_asleep = True
            refuse_all(self._queue)

    @property
    def waiting(self) -> int:
        """How many wait for the disk."""
        return len(self._queue)

    def nudge(self) -> None:
        try:
            self._bed.release()
        except RuntimeError:
            return  # It is awake already, or about to be.

    def stop(self, timeout_seconds: float | None = None) -> None:
        self._is_closed = True
        self._stopping.set()
        self.nudge()
        super().stop(timeout_seconds)

    def run_once(self) -> float:
        if not self._queue:
            self._is_asleep = True
            # Whoever appended before seeing the flag is found by this second look.
            if not self._queue and not self._stopping.is_set():
                self._bed.acquire()
            self._is_asleep = False
        while self._queue:
            self._deliver(*self._next_group())
        return 0.0

    def _on_stop(self) -> None:
        while self._queue:
            self._deliver(*self._next_group())
        self._has_ended = True
        self._is_asleep = True
        refuse_all(self._queue)

    def _next_group(self) -> tuple[list[Delivery], list[Request], int]:
        """As much as one sync may wait for; at least one delivery. One request for each box. And
        what it may take in the log."""
        group, count, size = take(self._queue, count_max=self._count_max, bytes_max=self._bytes_max)
        requests = {delivery.box: delivery.mails for delivery in group}
        if len(requests) < len(group):
            # Lists of their own: these are their callers'.
            requests = {box: [] for box in requests}
            for delivery in group:
                requests[delivery.box] += delivery.mails
        return group, list(requests.items()), log_bytes_max(len(requests), count, size)

    def _deliver(self, group: list[Delivery], requests: list[Request], log_bytes: int) -> None:
        folder = self._folder
        try:
            if folder.is_log_overfull:
                folder.checkpoint()
            written = folder.put(
                requests,
                is_logged=True,
                log_bytes=log_bytes,
                patience_seconds=PATIENCE_SECONDS,
            )
            if self._is_waited_for:
                folder.sync(written)
            folder.show(written)
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            self._telemetry.emit("commit_failed", operations=len(group), error=repr(error))
            for delivery in group:
                delivery.error = error
        else:
            _hand_out(group, requests, written.answers)
            if written.busy:
                group = self._without_busy(group, {requests[n][0] for n in written.busy})
        answer(group)

    def _without_busy(self, group: list[Delivery], boxes: set[str]) -> list[Delivery]:
        """Those whose box is held by another process come again, before all that came later."""
        now = time.monotonic()
        held: list[Delivery] = []
        answered: list[Delivery] = []
        for delivery in group:
            if not delivery.tried_until:
                delivery.tried_until = now + self._settings.lock_timeout_seconds
            is_held = delivery.box in boxes and now < delivery.tried_until
            (held if is_held else answered).append(delivery)
        self._queue.extendleft(reversed(held))
        if not answered:
            self._bed.acquire(timeout=PAUSE_SECONDS_MAX)  # Nothing else is to be done.
        return answered


def _new_delivery(
    box: str,
    mails: list[NewMail],
    future: asyncio.Future[list[Answer]] | None,
    done: threading.Lock | None,
) -> Delivery:
    weight = 0
    for mail in mails:
        weight += len(mail.body) + len(mail.attributes)
    return Delivery(box, mails, len(mails), weight, future, done)


def _hand_out(group: list[Delivery], requests: list[Request], answers: list[list[Answer]]) -> None:
    """Each delivery its own answers."""
    if len(group) == len(requests):
        for delivery, result in zip(group, answers, strict=True):
            delivery.result = result
        return
    left = {box: iter(some) for (box, _), some in zip(requests, answers, strict=True)}
    for delivery in group:
        delivery.result = list(islice(left[delivery.box], len(delivery.mails)))


class Janitor(Service):
    """Syncs acknowledgements soon, and the boxes now and then."""

    name = "janitor"

    def __init__(self, folder: Folder, settings: Settings, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._folder = folder
        is_timed = settings.mailbox_durability == "interval"
        limit = settings.mailbox_interval_ms if is_timed else settings.mailbox_ack_ms
        self._interval = min(limit, settings.mailbox_ack_ms) / 1000
        self._checkpoint_seconds = settings.mailbox_checkpoint_seconds
        self._waited = 0.0

    def run_once(self) -> float:
        self._folder.flush()
        self._waited += self._interval
        if self._waited >= self._checkpoint_seconds or self._folder.is_log_full:
            self._folder.checkpoint()
            self._waited = 0.0
        return self._interval
