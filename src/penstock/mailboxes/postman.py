"""Group commit for mailboxes: whatever waits is put and synced together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Final

from penstock.errors import HubClosed, OutcomeUnknown, PenstockError, QueueFull
from penstock.mail import NewMail
from penstock.mailboxes.commit_log import Segment
from penstock.mailboxes.counter import log_bytes_max
from penstock.mailboxes.deliveries import (
    Delivery,
    Round,
    Ticket,
    Waiting,
    in_order,
    parted,
    refuse,
    refuse_all,
    requests_of,
    take,
)
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.kernel_sync import KernelSync
from penstock.mailboxes.locking import PATIENCE_SECONDS, PAUSE_SECONDS_MAX
from penstock.mailboxes.round import Answer, Group
from penstock.service import Service
from penstock.settings import Settings
from penstock.telemetry import Telemetry

TURN_MAX: Final = 256
TURN_BYTES_MAX: Final = 256 * 1024
"""What an event loop writes by itself in one of its turns: others wait for it meanwhile."""


class Postman(Service):
    """Threads hand their deliveries to its thread, which writes and syncs them. What the tasks of
    an event loop put in one of its turns is written by the loop's own thread, as far as that takes
    no waiting, so that it does not go from one core to another. The kernel syncs it beside the
    loop; where it does not, or somebody would have to be waited for, the postman's thread does.
    """

    name = "postman"

    def __init__(self, folder: Folder, settings: Settings, telemetry: Telemetry) -> None:
        super().__init__(telemetry)
        self._folder = folder
        self._settings = settings
        self._is_waited_for = settings.mailbox_durability == "durable"
        self._sync = folder.sync if self._is_waited_for else folder.sync_later
        self._kernel_syncs: dict[asyncio.AbstractEventLoop, KernelSync | None] = {}
        """Who syncs beside each loop. None: the thread."""
        self._gathered: dict[asyncio.AbstractEventLoop, deque[Delivery]] = {}
        """What was put in this turn of each loop. Used by the loop's thread alone."""
        self._written: deque[Round] = deque()
        """What loops have written, and is to be synced. Whoever removes a round answers it."""
        self._seen_written: Round | None = None
        self._queue: deque[Delivery] = deque()
        """What is to be written and synced."""
        self._is_writing = False
        """Whether what was taken from the queue is not in its boxes yet."""
        self._held_until: dict[Waiting, float] = {}
        """When they are given up, of those whose box another process holds."""
        self._queue_max = settings.write_queue_max
        self._count_max, self._bytes_max = settings.commit_group_max, settings.commit_bytes_max
        self._is_asleep = True
        self._is_closed = False
        self._has_ended = False

    # By callers

    def put(self, box: str, mails: list[NewMail]) -> Ticket:
        """By a thread, which then waits."""
        if self._is_closed or len(self._queue) >= self._queue_max:
            raise self._refusal()
        ticket = Ticket()
        self._queue.append((box, mails, ticket, False))
        if self._is_asleep:
            self._rouse()
        return ticket

    def put_async(self, box: str, mails: list[NewMail]) -> asyncio.Future[list[Answer]]:
        # Belongs to the running loop, and asks for it only once.
        future: asyncio.Future[list[Answer]] = asyncio.Future()
        self._gather((box, mails, future, False), future.get_loop())
        return future

    def put_one_async(self, box: str, mail: NewMail) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.Future()
        self._gather((box, [mail], future, True), future.get_loop())
        return future

    def _refusal(self) -> PenstockError:
        if self._is_closed:
            return HubClosed()
        return QueueFull(f"More than {self._queue_max:,} messages are waiting for the disk.")

    def _gather(self, delivery: Delivery, loop: asyncio.AbstractEventLoop) -> None:
        gathered = self._gathered.get(loop, ())
        if self._is_closed or len(self._queue) + len(gathered) >= self._queue_max:
            raise self._refusal()
        if not gathered:
            # In this order: one who is struck in between leaves a turn with nothing to write.
            loop.call_soon(self._write, loop)
            gathered = self._gathered[loop] = deque()
        gathered.append(delivery)

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop's thread, when all that was ready has had its turn."""
        gathered = self._gathered.pop(loop, None)
        if not gathered:
            return
        everybody = tuple(gathered)
        try:
            # What came before them goes first.
            if not self._queue and not self._is_writing:
                self._try_write(gathered, loop)
            self._queue += gathered
            self._go_on(loop)
        except BaseException:
            refuse(everybody, OutcomeUnknown())  # The thread was struck.
            raise

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """See to it that what waits is written and synced."""
        if not self._is_asleep or not self._has_work:
            return
        kernel = self._kernel_syncs.get(loop)
        if self._queue or self._has_ended or kernel is None or not kernel.is_busy:
            self._rouse()

    def _try_write(self, gathered: deque[Delivery], loop: asyncio.AbstractEventLoop) -> None:
        """Some of them, or none; what is too much for one turn is for the thread."""
        group, count, size = take(gathered, count_max=TURN_MAX, bytes_max=TURN_BYTES_MAX)
        requests = requests_of(group)
        written, is_put = Group(), False
        try:
            if size <= TURN_BYTES_MAX:
                log_bytes = log_bytes_max(len(requests), count, size)
                # Whatever is wrong, the thread meets it, too.
                with suppress(PenstockError):
                    is_put = self._folder.try_put(
                        requests,
                        written,
                        log_bytes=log_bytes,
                        begin_sync=lambda segment: self._begin_sync(segment, loop),
                    )
            if not is_put:
                self._queue += group
                return
            answers = in_order(group, requests, written.answers)
            if left := written.left:
                late, group, answers = parted(group, answers, lambda one: one[0] in left)
                self._queue += late
            if group:
                self._written.append(Round(group, answers, written, loop))
        except BaseException:
            # What is in boxes is shown when it is synced.
            self._written.append(Round([], [], written))
            raise

    # Syncing beside a loop

    def _begin_sync(self, segment: Segment, loop: asyncio.AbstractEventLoop) -> None:
        """By the kernel, if it does that, and the thread is not about to."""
        if not self._is_waited_for or not self._is_asleep:
            return
        try:
            kernel = self._kernel_syncs[loop]
        except KeyError:
            kernel = self._kernel_syncs[loop] = self._kernel_sync_for(loop)
        if kernel is None or kernel.is_busy:
            return
        # Else the thread meets what is wrong.
        with suppress(OSError):
            segment.begin_sync(kernel, lambda error: self._synced(error, loop))

    def _kernel_sync_for(self, loop: asyncio.AbstractEventLoop) -> KernelSync | None:
        """That of a loop that has ended, or a new one."""
        found: KernelSync | None = None
        for other, kernel in tuple(self._kernel_syncs.items()):
            is_free = other.is_closed() and kernel is not None and kernel.is_free
            if is_free and self._kernel_syncs.pop(other, None) is not None:
                found = kernel
                break
        found = found or self._folder.disk.kernel_sync()
        if found is None:
            return None
        try:
            found.join(loop)
        except NotImplementedError:
            found.leave(loop)  # There are loops that cannot wait for files.
            return None
        return found

    def _synced(self, error: OSError | None, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop. Whatever would take waiting is left to the thread; and what is done twice,
        by both of them, does no harm."""
        if error is not None:
            self._folder.fail(error)
            self._rouse()
            return
        while (round := self._first_written) is not None:
            if not round.group.is_synced:
                assert round.group.segment is not None
                self._begin_sync(round.group.segment, loop)
                break
            if not self._folder.try_show(round.group):
                break
            if round.loop is loop:
                round.answer_here()
            else:
                round.answer()
            with suppress(ValueError):
                self._written.remove(round)
        self._go_on(loop)

    @property
    def _first_written(self) -> Round | None:
        try:
            return self._written[0]
        except IndexError:
            return None

    def rescue(self) -> None:
        """Now and then: a loop that has ended, or is kept busy, answers nobody."""
        first = self._first_written
        if first is not None and first is self._seen_written and self._is_asleep:
            self._rouse()
        self._seen_written = first
        self._leave(only_closed=True)

    def _leave(self, *, only_closed: bool) -> None:
        """The loops that have ended, or all. Takes a while."""
        for loop in tuple(self._kernel_syncs):
            if loop.is_closed() or not only_closed:
                kernel = self._kernel_syncs.pop(loop, None)
                if kernel is not None:
                    kernel.leave(loop)

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
            self._refuse_all()

    @property
    def waiting(self) -> int:
        """How many wait for the disk."""
        return len(self._queue) + sum(len(round.deliveries) for round in tuple(self._written))

    def stop(self, timeout_seconds: float | None = None) -> None:
        self._is_closed = True
        super().stop(timeout_seconds)
        self._leave(only_closed=False)

    def abandon(self) -> None:
        """In a forked child."""
        for kernel in self._kernel_syncs.values():
            if kernel is not None:
                kernel.abandon()

    # The thread

    def run_once(self) -> float:
        if not self._has_work:
            self._is_asleep = True
            # Whoever appended before seeing the flag is found by this second look.
            if not self._has_work and not self._stopping.is_set():
                self._alarm.sleep()
        self._is_asleep = False
        while self._has_work:
            self._deliver()
        return 0.0

    def _on_stop(self) -> None:
        while self._has_work:
            self._deliver()
        self._has_ended = True
        self._is_asleep = True
        self._refuse_all()

    @property
    def _has_work(self) -> bool:
        return bool(self._queue or self._written)

    def _refuse_all(self) -> None:
        """Those who came through the door while it was closing."""
        refuse_all(self._queue, HubClosed())
        for round in self._take_written():
            refuse(round.deliveries, OutcomeUnknown())

    def _take_written(self) -> list[Round]:
        rounds: list[Round] = []
        while True:
            try:
                rounds.append(self._written.popleft())
            except IndexError:
                return rounds

    def _deliver(self) -> None:
        """What loops have written, and of the queue as much as one sync may wait for."""
        rounds = self._take_written()
        if self._queue:
            self._is_writing = True
            try:
                rounds += self._write_some()
            finally:
                self._is_writing = False
        if not rounds:
            if self._held_until:
                self._alarm.sleep(PAUSE_SECONDS_MAX)  # Nothing else is to be done.
            return
        try:
            self._sync(*[round.group for round in rounds])
            for round in rounds:
                self._folder.show(round.group)
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            self._fail([delivery for round in rounds for delivery in round.deliveries], error)
            return
        for round in rounds:
            round.answer()

    def _write_some(self) -> list[Round]:
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
        except Exception as error:  # noqa: BLE001 - every caller must be answered
            for _, _, waiting, _ in group:
                self._held_until.pop(waiting, None)
            self._fail(group, error)
            return []
        answers = in_order(group, requests, written.answers)
        if written.left or self._held_until:
            group, answers = self._hold(group, answers, written.left)
        return [Round(group, answers, written)] if group or written.discards else []

    def _fail(self, group: list[Delivery], error: Exception) -> None:
        self._telemetry.emit("commit_failed", operations=len(group), error=repr(error))
        refuse(group, error)

    def _hold(
        self, group: list[Delivery], answers: list[Answer], left: set[str]
    ) -> tuple[list[Delivery], list[Answer]]:
        """Those whose box is held by another process come again, before all that came later, until
        that has lasted too long."""
        now, until = time.monotonic(), self._held_until
        limit = now + self._settings.lock_timeout_seconds
        held, answered, answers = parted(
            group, answers, lambda one: one[0] in left and now < until.setdefault(one[2], limit)
        )
        for _, _, waiting, _ in answered:
            until.pop(waiting, None)
        self._queue.extendleft(reversed(held))
        return answered, answers


class Janitor(Service):
    """Syncs acknowledgements soon, and the boxes now and then; sees that no put is forgotten."""

    name = "janitor"

    def __init__(
        self, folder: Folder, postman: Postman, settings: Settings, telemetry: Telemetry
    ) -> None:
        super().__init__(telemetry)
        self._folder = folder
        self._postman = postman
        is_timed = settings.mailbox_durability == "interval"
        limit = settings.mailbox_interval_ms if is_timed else settings.mailbox_ack_ms
        self._interval = min(limit, settings.mailbox_ack_ms) / 1000
        self._checkpoint_seconds = settings.mailbox_checkpoint_seconds
        self._waited = 0.0

    def run_once(self) -> float:
        self._postman.rescue()
        self._folder.flush()
        self._waited += self._interval
        if self._waited >= self._checkpoint_seconds or self._folder.is_log_full:
            self._folder.checkpoint()
            self._waited = 0.0
        return self._interval
