"""Group commit for mailboxes: whatever waits is put and synced together."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from penstock.errors import HubClosed, QueueFull
from penstock.mail import NewMail
from penstock.mailboxes.counter import log_bytes_max
from penstock.mailboxes.deliveries import (
    Delivery,
    Ticket,
    Waiting,
    answer,
    in_order,
    refuse,
    refuse_all,
    requests_of,
    take,
)
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.locking import PATIENCE_SECONDS, PAUSE_SECONDS_MAX
from penstock.mailboxes.round import Answer
from penstock.service import Service
from penstock.settings import Settings
from penstock.telemetry import Telemetry


class Postman(Service):
    name = "postman"

    def __init__(self, folder: Folder, settings: Settings, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._folder = folder
        self._settings = settings
        self._is_waited_for = settings.mailbox_durability == "durable"
        self._queue: deque[Delivery] = deque()
        self._held_until: dict[Waiting, float] = {}
        """When they are given up, of those whose box another process holds."""
        self._queue_max = settings.write_queue_max
        self._count_max, self._bytes_max = settings.commit_group_max, settings.commit_bytes_max
        self._is_asleep = True
        self._is_closed = False
        self._has_ended = False

    def put(self, box: str, mails: list[NewMail]) -> Ticket:
        ticket = Ticket()
        self._submit((box, mails, ticket, False))
        return ticket

    def put_async(self, box: str, mails: list[NewMail]) -> asyncio.Future[list[Answer]]:
        # Belongs to the running loop, and asks for it only once.
        future: asyncio.Future[list[Answer]] = asyncio.Future()
        self._submit((box, mails, future, False))
        return future

    def put_one_async(self, box: str, mail: NewMail) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.Future()
        self._submit((box, [mail], future, True))
        return future

    def _submit(self, delivery: Delivery) -> None:
        if self._is_closed:
            raise HubClosed
        queue = self._queue
        if len(queue) >= self._queue_max:
            raise QueueFull(f"{len(queue):,} messages are waiting for the disk.")
        queue.append(delivery)
        if self._is_asleep:
            self._rouse()

    def _rouse(self) -> None:
        if self._thread is None:
            self.start()
        try:
            # Once per sleep: the thread itself may be long in getting the interpreter's lock. And
            # with no step in between: whoever was struck there would leave it asleep for good.
            self._is_asleep = False
            self._alarm.bed.release()
        except RuntimeError:
            pass  # It was rung for.
        if self._has_ended or self._thread is None:
            self._is_asleep = True
            refuse_all(self._queue, HubClosed())

    @property
    def waiting(self) -> int:
        """How many wait for the disk."""
        return len(self._queue)

    def stop(self, timeout_seconds: float | None = None) -> None:
        self._is_closed = True
        super().stop(timeout_seconds)

    def run_once(self) -> float:
        if not self._queue:
            self._is_asleep = True
            # Whoever appended before seeing the flag is found by this second look.
            if not self._queue and not self._stopping.is_set():
                self._alarm.sleep()
        self._is_asleep = False
        while self._queue:
            self._deliver()
        return 0.0

    def _on_stop(self) -> None:
        while self._queue:
            self._deliver()
        self._has_ended = True
        self._is_asleep = True
        refuse_all(self._queue, HubClosed())

    def _deliver(self) -> None:
        """As much as one sync may wait for; at least one delivery."""
        group, count, size = take(self._queue, count_max=self._count_max, bytes_max=self._bytes_max)
        requests = requests_of(group)
        folder = self._folder
        try:
            if folder.is_log_overfull:
                folder.checkpoint()
            written = folder.put(
                requests,
                is_logged=True,
                log_bytes=log_bytes_max(len(requests), count, size),
                patience_seconds=PATIENCE_SECONDS,
            )
            if self._is_waited_for:
                folder.sync(written)
            folder.show(written)
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            self._telemetry.emit("commit_failed", operations=len(group), error=repr(error))
            for delivery in group:
                self._held_until.pop(delivery[2], None)
            refuse(group, error)
            return
        answers = in_order(group, requests, written.answers)
        if written.busy or self._held_until:
            group, answers = self._without_busy(group, answers, written.busy)
        answer(group, answers)

    def _without_busy(
        self, group: list[Delivery], answers: list[Answer], busy: set[str]
    ) -> tuple[list[Delivery], list[Answer]]:
        """Those whose box is held by another process come again, before all that came later."""
        now = time.monotonic()
        held: list[Delivery] = []
        answered: list[Delivery] = []
        kept: list[Answer] = []
        left = iter(answers)
        for delivery in group:
            box, mails, waiting, _ = delivery
            own = [next(left) for _ in mails]
            if box in busy:
                limit = now + self._settings.lock_timeout_seconds
                if now < self._held_until.setdefault(waiting, limit):
                    held.append(delivery)
                    continue
            self._held_until.pop(waiting, None)
            answered.append(delivery)
            kept += own
        self._queue.extendleft(reversed(held))
        if not answered:
            self._alarm.sleep(PAUSE_SECONDS_MAX)  # Nothing else is to be done.
        return answered, kept


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
