"""Puts of tasks that the kernel syncs beside their loop (M6, M12, ADR 22)."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import HubClosed, MailboxesFailed, OutcomeUnknown
from penstock.mail import Posted
from penstock.mailboxes.coroutines import AsyncMailbox
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.kernel_sync import Done, KernelSync
from tests.factories import hub_on
from tests.integration.mailbox_desk import Room
from tests.processes import in_fork
from tests.waiting import SOON, wait_until

OpenRoom = Callable[..., Room]


def is_possible() -> bool:
    kernel = Disk().kernel_sync()
    if kernel is not None:
        kernel.abandon()
    return kernel is not None


pytestmark = pytest.mark.skipif(
    not is_possible(), reason="the kernel of this machine does not sync for others"
)


class HeldSync(KernelSync):
    """Begins when a test says so, and ends as it says."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.error = 0
        self.begun = 0
        self._held: tuple[int, Done] | None = None

    def begin(self, file: int, done: Done) -> bool:
        self.begun += 1
        if not self.is_held:
            return super().begin(file, done)
        self._done, self._held = done, (file, done)
        return True

    def let_go(self) -> None:
        """On its loop."""
        assert self._held is not None
        self.is_held, self._done = False, None
        assert super().begin(*self._held)

    def _next(self) -> int | None:
        found = super()._next()
        return self.error if found == 0 else found


class KernelDisk(Disk):
    """Who syncs: a thread, or the kernel."""

    def __init__(self) -> None:
        self.threads_syncs = 0
        self.kernels: list[HeldSync] = []

    def sync(self, file: int) -> None:
        self.threads_syncs += 1
        super().sync(file)

    def kernel_sync(self) -> HeldSync:
        self.kernels.append(HeldSync())
        return self.kernels[-1]


def open_box(room: Room, id: str) -> AsyncMailbox:
    return AsyncMailbox(lambda: room, id)  # type: ignore[arg-type, return-value]


async def open_boxes(room: Room, count: int) -> list[AsyncMailbox]:
    """Boxes that have two messages each, the second synced by the kernel if it does that. Nobody
    else is at work any more."""
    room.stop_janitor()
    boxes = [open_box(room, f"box-{n}") for n in range(count)]
    await asyncio.gather(*(box.put(0) for box in boxes))
    room.wait_for_postman()
    await asyncio.gather(*(box.put(1) for box in boxes))
    return boxes


async def test_no_thread_syncs_what_the_kernel_does(open_room: OpenRoom) -> None:
    disk = KernelDisk()
    room = open_room(disk)
    boxes = await open_boxes(room, 8)
    begun, by_threads = disk.kernels[0].begun, disk.threads_syncs
    for some in (boxes, boxes[:1], boxes[:1] * 5):
        posted = await asyncio.gather(*(box.put("more") for box in some))
        assert all(one.is_new for one in posted)
        segment = room.mail.folder.journal.segment
        assert segment is not None
        assert segment.is_synced
    assert disk.threads_syncs == by_threads
    assert disk.kernels[0].begun == begun + 3
    assert [mail.payload for mail in await boxes[0].peek_many(20)] == [0, 1] + ["more"] * 7


async def test_nobody_is_answered_or_shown_anything_before(open_room: OpenRoom) -> None:
    disk = KernelDisk()
    room = open_room(disk)
    box, other = await open_boxes(room, 2)
    (kernel,) = disk.kernels
    kernel.is_held = True
    first = asyncio.create_task(box.put(2))
    await asyncio.sleep(0.01)
    later = [asyncio.create_task(one.put(3)) for one in (box, other)]
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in (first, *later))
    assert await box.size() == await other.size() == 2
    begun = kernel.begun
    kernel.let_go()
    await asyncio.gather(first, *later)
    assert kernel.begun == begun + 1, "what came meanwhile goes together"
    assert [mail.payload for mail in await box.peek_many(9)] == [0, 1, 2, 3]


async def test_a_thread_that_puts_meanwhile_does_not_overtake(open_room: OpenRoom) -> None:
    """It syncs for both, and finds its own message in the box when it is answered."""
    disk = KernelDisk()
    room = open_room(disk)
    (box,) = await open_boxes(room, 1)
    (kernel,) = disk.kernels
    kernel.is_held = True
    task = asyncio.create_task(box.put(2))
    await asyncio.sleep(0.01)
    await asyncio.to_thread(room.mailboxes.open("box-0").put, 3, timeout=SOON)
    assert [mail.payload for mail in await box.peek_many(9)] == [0, 1, 2, 3]
    assert (await task).seq == 3
    kernel.let_go()
    assert (await box.put(4)).seq == 5


async def test_a_sync_that_fails_is_told_to_all_and_nothing_is_put_any_more(
    open_room: OpenRoom,
) -> None:
    """Row 10."""
    disk = KernelDisk()
    room = open_room(disk)
    boxes = await open_boxes(room, 6)
    disk.kernels[0].error = errno.EIO
    found = await asyncio.gather(*(box.put(2) for box in boxes), return_exceptions=True)
    assert [type(one) for one in found] == [MailboxesFailed] * 6
    with pytest.raises(MailboxesFailed):
        await boxes[0].put(3)
    assert isinstance(room.mail.folder.failure, OSError)


@pytest.mark.parametrize("how", ["none", "refused", "no such file"])
async def test_where_the_kernel_does_not_a_thread_syncs(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    disk = KernelDisk()
    if how == "none":
        monkeypatch.setattr(disk, "kernel_sync", lambda: None)
    room = open_room(disk)
    (box,) = await open_boxes(room, 1)
    if how == "refused":
        monkeypatch.setattr(disk.kernels[0], "begin", lambda file, done: False)
    elif how == "no such file":
        begin = disk.kernels[0].begin
        monkeypatch.setattr(disk.kernels[0], "begin", lambda file, done: begin(10_000, done))
    before = disk.threads_syncs
    assert (await box.put(2)).seq == 3
    assert disk.threads_syncs == before + 1


async def test_a_loop_that_cannot_wait_for_files_has_a_thread(
    open_room: OpenRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = KernelDisk()

    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
    monkeypatch.setattr(asyncio.get_running_loop(), "remove_reader", lambda *_: False)
    room = open_room(disk)
    (box,) = await open_boxes(room, 1)
    assert (await box.put(2)).seq == 3
    assert disk.threads_syncs


async def test_nobody_in_the_loop_waits_for_the_mutex_when_it_is_synced(
    open_room: OpenRoom,
) -> None:
    disk = KernelDisk()
    room = open_room(disk)
    (box,) = await open_boxes(room, 1)
    (kernel,) = disk.kernels
    kernel.is_held = True
    task = asyncio.create_task(box.put(2))
    await asyncio.sleep(0.01)
    with held(room.mail.folder.mutex):
        kernel.let_go()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not task.done()
    assert (await task).seq == 3
    assert await box.size() == 3


@contextmanager
def held(mutex: threading.RLock) -> Iterator[None]:  # type: ignore[valid-type]
    """By another thread."""
    has_it, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:  # type: ignore[attr-defined]
            has_it.set()
            may_go.wait(SOON)

    holder = threading.Thread(target=hold)
    holder.start()
    has_it.wait(SOON)
    yield
    may_go.set()
    holder.join(SOON)


def test_what_a_loop_left_is_shown_when_it_has_ended(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub.db") as hub:
        box = hub.aio.mailboxes.open("box")

        async def leave() -> None:
            await box.put(0)
            await box.put(1)
            task = asyncio.ensure_future(box.put(2))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not task.done()

        asyncio.run(leave())
        wait_until(lambda: hub.mailboxes.open("box").size() == 3, "it is shown")


def test_what_a_loop_that_is_busy_has_put_is_shown(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub.db") as hub:
        box = hub.aio.mailboxes.open("box")

        async def put() -> Posted:
            await box.put(0)
            await box.put(1)
            task = asyncio.ensure_future(box.put(2))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            # Nothing else runs in this loop meanwhile.
            wait_until(lambda: hub.mailboxes.open("box").size() == 3, "it is shown")
            return await task

        assert asyncio.run(put()).seq == 3


def test_loops_that_come_and_go_leave_nothing_behind(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub.db") as hub:
        box = hub.aio.mailboxes.open("box")

        async def put() -> None:
            await box.put(0)
            await box.put(1)

        before = open_files()
        for _ in range(20):
            asyncio.run(put())
        wait_until(lambda: open_files() == before, "the last one is left, too")
        assert not hub._open().mail.postman._kernel_syncs


def open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # The listing itself.
    return sorted(path for path in found if "eventfd" in path)


async def test_hubs_that_are_closed_leave_a_loop_as_it_was(tmp_path: Path) -> None:
    loop, before = asyncio.get_running_loop(), open_files()
    for n in range(3):
        hub = hub_on(tmp_path / f"hub-{n}.db")
        box = hub.aio.mailboxes.open("box")
        await box.put(0)
        await box.put(1)
        await asyncio.to_thread(hub.close)
        await asyncio.sleep(0)
    assert open_files() == before
    # The number of the file is another's now, and the loop knows nothing of the one it was.
    event, rung = os.eventfd(0), asyncio.Event()
    loop.add_reader(event, rung.set)
    os.eventfd_write(event, 1)
    async with asyncio.timeout(SOON):
        await rung.wait()
    loop.remove_reader(event)
    os.close(event)


async def test_who_puts_while_the_hub_is_closed_is_told(tmp_path: Path) -> None:
    for n in range(10):
        hub = hub_on(tmp_path / f"hub-{n}.db")
        box = hub.aio.mailboxes.open("box")
        await box.put(0)
        closing = asyncio.create_task(asyncio.to_thread(hub.close))
        refused = False
        async with asyncio.timeout(SOON):
            while not refused:
                for found in await asyncio.gather(
                    *(box.put(n) for n in range(5)), return_exceptions=True
                ):
                    if isinstance(found, HubClosed | OutcomeUnknown):
                        refused = True
                    elif not isinstance(found, Posted):
                        assert "quota" in repr(found).lower()
            await closing


def test_a_forked_child_has_its_own(tmp_path: Path) -> None:
    with hub_on(tmp_path / "hub.db") as hub:
        box = hub.aio.mailboxes.open("box")

        async def put(first: int) -> int:
            await box.put(first)
            return (await box.put(first + 1)).seq

        with asyncio.Runner() as runner:
            assert runner.run(put(0)) == 2
            in_fork(lambda: asyncio.run(put(2)))
            assert runner.run(put(4)) == 6
        assert [mail.payload for mail in hub.mailboxes.open("box").peek_many(9)] == list(range(6))


# By itself


async def test_it_syncs_one_file_after_the_other(tmp_path: Path) -> None:
    kernel, loop = KernelSync(), asyncio.get_running_loop()
    kernel.join(loop)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    for _ in range(3):
        os.write(file, b"x" * 5000)
        done: asyncio.Future[OSError | None] = loop.create_future()
        assert kernel.begin(file, done.set_result)
        assert kernel.is_busy
        assert await done is None
        assert not kernel.is_busy
    os.close(file)
    assert not kernel.begin(file, done.set_result)
    assert not kernel.is_busy
    kernel.leave(loop)
    assert not kernel.begin(file, done.set_result)
    await asyncio.sleep(0)


async def test_one_whose_thread_was_struck_is_not_used_again(tmp_path: Path) -> None:
    class Struck(BaseException):
        pass

    kernel, loop = KernelSync(), asyncio.get_running_loop()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(file, b"x")

    def strike(error: OSError | None) -> None:
        raise Struck

    assert kernel.begin(file, strike)
    wait_until(lambda: is_struck(kernel, Struck), "it is done")
    assert not kernel.is_busy
    assert not kernel.begin(file, strike)
    kernel.join(loop)
    kernel.leave(loop)
    await asyncio.sleep(0)
    os.close(file)


def is_struck(kernel: KernelSync, error: type[BaseException]) -> bool:
    try:
        kernel._look()
    except error:
        return True
    return False
