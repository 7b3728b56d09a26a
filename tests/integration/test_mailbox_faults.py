"""Mailboxes and a world that fails: disks, descriptors, forks, clocks, names (fault table rows 10,
12, 13, 15, 19, 23; M10, M11, M12)."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import textwrap
import threading
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Hub
from penstock.errors import (
    HubClosed,
    InvalidMailbox,
    MailboxesFailed,
    StoreBusy,
    StoreFull,
)
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.expiry import Expirer
from penstock.mailboxes.locking import RECOVERY, Locks
from penstock.testing import FakeClock
from tests.crash.mailbox_world import FastDisk, new_mail
from tests.integration.mailbox_desk import Desk, Room, box_files, message_file
from tests.processes import in_fork
from tests.waiting import DEADLINE_SECONDS, wait_until

# A sync that fails


class UnsafeDisk(Disk):
    """Syncs fail when a test says so."""

    def __init__(self) -> None:
        self.is_failing = False

    def sync(self, file: int) -> None:
        self._check()
        super().sync(file)

    def kernel_sync(self) -> None:
        return None

    def sync_folder(self, path: str) -> None:
        self._check()
        super().sync_folder(path)

    def sync_all(self, file: int) -> bool:
        self._check()
        return super().sync_all(file)

    def _check(self) -> None:
        if self.is_failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class OnceDisk(FastDisk):
    """A sync that fails is told to the one who began it, as Linux does: those who come to the same
    open file meanwhile, or later, are told that all is well."""

    def __init__(self) -> None:
        super().__init__(is_same_boot=True)
        self.is_failing = False
        self.began, self.others = threading.Event(), threading.Event()

    def sync(self, file: int) -> None:
        if self.is_failing:
            self.is_failing = False
            self.began.set()
            self.others.wait(DEADLINE_SECONDS)
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_sync_that_failed_in_another_thread_is_not_taken_for_a_good_one(tmp_path: Path) -> None:
    """Row 10: the janitor syncs the same log as those who put."""
    disk = OnceDisk()
    desk = Desk(tmp_path / "store", disk=disk)
    desk.put("x", "m1")
    desk.ack("x")
    disk.is_failing = True
    with ThreadPoolExecutor(2) as threads:
        flushing = threads.submit(desk.folder.flush)
        assert disk.began.wait(DEADLINE_SECONDS)
        written = desk.folder.log_bytes
        putting = threads.submit(desk.put, "y", "m2")
        wait_until(lambda: desk.folder.log_bytes > written)
        disk.others.set()
        with pytest.raises(MailboxesFailed):
            flushing.result(DEADLINE_SECONDS)
        with pytest.raises(MailboxesFailed):
            putting.result(DEADLINE_SECONDS)
    desk.folder.close()


def test_after_a_sync_that_failed_in_a_recovery_nothing_is_promised(tmp_path: Path) -> None:
    """Row 10: whoever syncs the boxes next would be told that all is well."""
    disk = UnsafeDisk()
    desk, dead = Desk(tmp_path / "store", disk=disk), Desk(tmp_path / "store")
    dead.put("x", "m1")
    dead.folder.abandon()
    disk.is_failing = True
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        desk.folder.recover()
    disk.is_failing = False
    with pytest.raises(MailboxesFailed):
        desk.put("x", "m2")
    desk.folder.close()
    with Desk(tmp_path / "store") as again:
        assert again.folder.recovered == 1
        assert again.ids("x") == ["m1"]


class CountingDisk(FastDisk):
    def __init__(self) -> None:
        super().__init__(is_same_boot=True)
        self.syncs = 0

    def sync(self, file: int) -> None:
        self.syncs += 1


def test_what_is_on_disk_already_is_not_synced_again(tmp_path: Path) -> None:
    disk = CountingDisk()
    with Desk(tmp_path / "store", disk=disk) as desk:
        desk.put("x", "m1")
        synced = disk.syncs
        desk.folder.flush()
        assert disk.syncs == synced
        desk.ack("x")
        desk.folder.flush()
        assert disk.syncs == synced + 1


def test_after_a_failed_sync_nothing_is_promised_until_it_is_opened_anew(
    open_room: Callable[..., Room],
) -> None:
    """Row 10: every sender of that group is told, and from then on everybody."""
    disk = UnsafeDisk()
    room = open_room(disk)
    room.mailboxes.put("x", b"1", message_id="m1")
    disk.is_failing = True
    errors: list[BaseException] = []

    def send(n: int) -> None:
        try:
            room.mailboxes.put(f"box-{n}", b"lost?")
        except penstock.PenstockError as error:
            errors.append(error)

    senders = [threading.Thread(target=send, args=(n,)) for n in range(5)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert len(errors) == 5
    assert all(isinstance(error, MailboxesFailed) for error in errors)
    disk.is_failing = False
    box = room.mailboxes.open("x")
    for action in (lambda: box.put(b"2"), box.peek, box.size, lambda: box.ack("m1"), box.delete):
        with pytest.raises(MailboxesFailed):
            action()
    assert room.telemetry.counters()["mailboxes_failed"] >= 1
    room.mail.close()
    again = open_room()
    assert [mail.id for mail in again.mailboxes.open("x").peek_many(9)] == ["m1"]
    assert again.mailboxes.verify().is_clean


def test_a_failed_disk_is_closed_without_a_leak_and_recovered(
    open_room: Callable[..., Room], tmp_path: Path
) -> None:
    """Closing says that it failed, closes all the same, and leaves the log for the next."""
    before = descriptors()
    disk = UnsafeDisk()
    room = open_room(disk, mailbox_checkpoint_seconds=3600)
    room.mailboxes.put("x", b"1", message_id="m1")
    disk.is_failing = True
    with pytest.raises(MailboxesFailed):
        room.mail.close()
    assert descriptors() == before
    assert list((tmp_path / "store" / "commits").iterdir())
    again = open_room()
    assert [mail.id for mail in again.mailboxes.open("x").peek_many(9)] == ["m1"]


# A full disk


class SmallDisk(FastDisk):
    """So many bytes fit; of a write that does not fit, its beginning is written."""

    def __init__(self, size: int) -> None:
        super().__init__(is_same_boot=True)
        self.left = size

    def write(self, file: int, data: bytes, offset: int) -> None:
        grown = max(0, offset + len(data) - os.fstat(file).st_size)
        if grown > self.left:
            fitting = max(0, len(data) - (grown - self.left))
            if fitting:
                super().write(file, data[:fitting], offset)
                self.left = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(file, data, offset)
        self.left -= grown

    def append(self, file: int, data: bytes) -> None:
        if len(data) > self.left:
            super().append(file, data[: self.left])
            self.left = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().append(file, data)
        self.left -= len(data)

    def truncate(self, file: int, size: int) -> None:
        self.left += os.fstat(file).st_size - size
        super().truncate(file, size)

    def allocate(self, file: int, size: int) -> None:
        grown = max(0, size - os.fstat(file).st_size)
        if grown > self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= grown
        super().allocate(file, size)

    def unlink(self, path: str) -> None:
        found = os.stat(path)
        if found.st_nlink == 1:
            self.left += found.st_size
        super().unlink(path)


RESERVE = 16 * 1024


@pytest.mark.parametrize("what", ["put", "new box", "rotate"])
def test_on_a_full_disk_a_put_fails_and_leaves_the_files_as_they_were(
    tmp_path: Path, what: str
) -> None:
    """Row 12, with each amount of space that is too little: a typed error, no byte of it stays,
    acknowledging works, and so does putting when there is space again."""
    limits = {"mailbox_messages_max": 5, "mailbox_file_messages_max": 6}
    size = 0
    while True:
        root = tmp_path / f"{size}"
        disk = SmallDisk(1_000_000)
        with Desk(root, disk=disk, mailbox_reserve_bytes=RESERVE, **limits) as desk:
            desk.put("x", "m1", "m2", "m3", "m4", "m5", body=b"b" * 200)
            desk.ack("x")
            desk.ack("x")
            desk.put("x", "m6") if what == "rotate" else None
            before = box_files(root)
            disk.left = size
            box = "new" if what == "new box" else "x"
            try:
                desk.put(box, "m7", body=b"c" * 500)
            except StoreFull:
                assert box_files(root) == before, f"{size} bytes of space"
            else:
                assert size > 500
                break
            first = desk.ids("x")[0]
            desk.ack("x", first)
            desk.folder.flush()
            assert first not in desk.ids("x")
            if not (root / "reserve").stat().st_size:
                # It was needed, and is not taken back by a message, however short.
                with pytest.raises(StoreFull):
                    desk.put("x", "m8", body=b"c")
            disk.left = 1_000_000
            desk.put(box, "m7", body=b"c" * 500)
            assert desk.ids(box)[-1] == "m7"
        with Desk(root, **limits) as desk:
            assert desk.ids(box)[-1] == "m7"
            assert desk.verify().is_clean
        size += 37


def test_a_full_disk_is_emptied_by_reading(tmp_path: Path) -> None:
    """Row 12: from full to drained, with no space but the reserve."""
    disk = SmallDisk(200_000)
    with Desk(tmp_path, disk=disk, mailbox_reserve_bytes=RESERVE, mailbox_scrub="drained") as desk:
        boxes: list[str] = []
        with pytest.raises(StoreFull):
            fill(desk, boxes)
        disk.left = 0
        for box in boxes:
            assert desk.drain(box) == ["m"]
            desk.folder.flush()
        desk.put("x", "m", body=b"x" * 3000)


def fill(desk: Desk, boxes: list[str]) -> None:
    while True:
        desk.put(f"box-{len(boxes)}", "m", body=b"x" * 3000)
        boxes.append(f"box-{len(boxes)}")


@pytest.mark.parametrize("box", ["x", "box-{n}"])
def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path, box: str) -> None:
    """Row 12 with the real kernel: RLIMIT_FSIZE, for the box's file and for the log."""
    script = """
        import resource, sys
        from pathlib import Path
        from penstock.errors import StoreFull
        from tests.integration.mailbox_desk import Desk
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with Desk(Path(sys.argv[1])) as desk:
            put = []
            try:
                for n in range(5):
                    desk.put(sys.argv[2].format(n=n), f"m{n}", body=b"x" * 30_000)
                    put.append(f"m{n}")
            except StoreFull as error:
                print("full", error.code)
            boxes = sorted({sys.argv[2].format(n=n) for n in range(5)})
            found = [id for box in boxes for id in desk.ids(box)]
            assert found == put, found
            desk.ack(boxes[0])
            desk.folder.checkpoint()
            desk.put(boxes[0], "small")
            found = [id for box in boxes for id in desk.ids(box)]
            assert sorted(found) == sorted([*put[1:], "small"]), found
            print("kept", len(put))
    """
    said = run(script, str(tmp_path / "store"), box)
    assert said.split()[:2] == ["full", "store_full"]
    assert int(said.split()[-1]) >= 1


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Descriptors and memory


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_ten_times_as_many_boxes_as_files_may_be_open(tmp_path: Path) -> None:
    """Row 13; M11: with hardly more descriptors than that, nothing fails."""
    script = """
        import os, resource, sys
        from pathlib import Path
        from tests.integration.mailbox_desk import Desk
        count = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 24, count + 24))
        with Desk(Path(sys.argv[1]), mailbox_open_files_max=16) as desk:
            for turn in range(3):
                for n in range(160):
                    desk.put(f"box-{n}", f"m{turn}")
                    assert len(os.listdir("/proc/self/fd")) <= count + 24
            for n in range(160):
                assert desk.ids(f"box-{n}") == ["m0", "m1", "m2"]
                desk.ack(f"box-{n}")
            desk.folder.checkpoint()
            for n in range(160):
                assert desk.drain(f"box-{n}") == ["m1", "m2"]
        print("done")
    """
    assert run(script, str(tmp_path / "store")) == "done\n"


def test_fewer_descriptors_than_promised_are_made_do_with(tmp_path: Path) -> None:
    """Row 13: the limit of the process is lower than the setting."""
    script = """
        import os, resource, sys
        from pathlib import Path
        from tests.integration.mailbox_desk import Desk
        count = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (count + 24, count + 24))
        with Desk(Path(sys.argv[1]), mailbox_open_files_max=10_000) as desk:
            for n in range(100):
                desk.put(f"box-{n}", "m1", "m2")
                desk.ack(f"box-{n}")
            for n in range(100):
                assert desk.ids(f"box-{n}") == ["m2"]
        print("done")
    """
    assert run(script, str(tmp_path / "store")) == "done\n"


def test_nothing_is_left_open(tmp_path: Path) -> None:
    """As many descriptors and threads afterwards as before, whatever was done."""
    before, threads = descriptors(), threading.active_count()
    for n in range(3):
        with penstock.connect(f"sqlite:///{tmp_path / 'hub.db'}") as hub:
            for k in range(20):
                box = hub.mailboxes.open(f"box-{k}")
                box.put(b"1")
                mail = box.wait(10)
                assert mail is not None
                box.ack(mail.id)
            hub.mailboxes.verify()
            hub.mailboxes.repair("box-1")
            hub.mailboxes.open(f"deleted-{n}").put(b"2")
            hub.mailboxes.open(f"deleted-{n}").delete()
    wait_until(lambda: threading.active_count() <= threads)
    assert descriptors() == before


def test_an_opening_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    class Broken(FastDisk):
        def list(self, path: str) -> list[str]:
            if path.endswith("commits"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().list(path)

    before = descriptors()
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            Desk(tmp_path / "store", disk=Broken())
    assert descriptors() == before


def test_few_boxes_are_kept_in_memory(tmp_path: Path) -> None:
    """M11: mailbox_cached_max holds, and those that were put out come back as they were."""
    with Desk(tmp_path / "store", mailbox_cached_max=5) as desk:
        for n in range(50):
            desk.put(f"box-{n}", "m1", "m2")
            assert len(desk.folder._boxes) <= 5
        for n in range(50):
            desk.ack(f"box-{n}")
        for n in range(50):
            assert desk.drain(f"box-{n}") == ["m2"]
            assert len(desk.folder._boxes) <= 5


def test_what_is_not_on_disk_yet_is_shown_to_nobody_here(tmp_path: Path) -> None:
    """Also when the box it is in would be put out of memory meanwhile."""
    with Desk(tmp_path / "store", mailbox_cached_max=1) as desk:
        desk.put("x", "m1")
        group = desk.folder.put([("x", [new_mail("m2")])], is_logged=True)
        desk.put("y", "m3")
        assert desk.ids("x") == ["m1"]
        desk.folder.sync(group)
        desk.folder.show(group)
        assert desk.ids("x") == ["m1", "m2"]


# A process that is stopped


def test_a_box_held_by_another_process_keeps_nobody_else(
    open_room: Callable[..., Room], tmp_path: Path
) -> None:
    """One that was stopped in the middle: its box is busy, the others are not."""
    room = open_room(lock_timeout_seconds=0.3)
    room.mailboxes.put("x", b"1", message_id="m1")
    box = room.mailboxes.open("x")
    with Desk(tmp_path / "store") as other, other.folder.locked("x"):
        waiting = [room.mail.postman.put("x", [new_mail("m2")]) for _ in range(1)]
        for n in range(20):
            room.mailboxes.put("y", b"2", message_id=f"y{n}")
        assert room.mailboxes.open("y").size() == 20
        assert isinstance(waiting[0].wait(60)[0], StoreBusy)
        for action in (lambda: box.put(b"3"), box.peek, lambda: box.ack("m1")):
            with pytest.raises(StoreBusy):
                action()
    assert [mail.id for mail in box.peek_many(9)] == ["m1"]
    box.put(b"4", id="m4")
    assert [mail.id for mail in box.peek_many(9)] == ["m1", "m4"]


def test_what_waits_for_a_held_box_keeps_its_order(
    open_room: Callable[..., Room], tmp_path: Path
) -> None:
    room = open_room(lock_timeout_seconds=60)
    with Desk(tmp_path / "store") as other:
        with other.folder.locked("x"):
            waiting = [room.mail.postman.put("x", [new_mail(f"m{n}")]) for n in range(10)]
            room.mailboxes.put("y", b"1")
        for delivery in waiting:
            delivery.wait(60)
        assert other.ids("x") == [f"m{n}" for n in range(10)]


def test_a_reader_lets_others_go_on_while_it_waits_for_a_box(
    open_room: Callable[..., Room], tmp_path: Path
) -> None:
    room = open_room(lock_timeout_seconds=60)
    with Desk(tmp_path / "store") as other:
        with other.folder.locked("x"):
            found: list[object] = []
            reader = threading.Thread(target=lambda: found.append(room.mailboxes.open("x").peek()))
            reader.start()
            for n in range(20):
                room.mailboxes.put("y", b"1", message_id=f"m{n}")
            assert room.mailboxes.open("y").size() == 20
            assert not found
        reader.join(60)
        assert found == [None]


# A fork


def test_a_forked_child_has_mailboxes_of_its_own(hub: Hub) -> None:
    """Row 15: it opens the folder anew; the parent's locks and log are the parent's."""
    box = hub.mailboxes.open("x")
    box.put(b"1", id="m1")
    inherited = hub._open().mail.folder

    def work() -> None:
        with pytest.raises(MailboxesFailed):
            inherited.check()
        assert [mail.id for mail in box.peek_many(9)] == ["m1"]
        box.put(b"2", id="m2")

    assert in_fork(work) == 0
    box.put(b"3", id="m3")
    assert [mail.id for mail in box.peek_many(9)] == ["m1", "m2", "m3"]
    assert hub.mailboxes.verify().is_clean


def test_a_forked_child_does_not_silence_its_waiting_parent(hub: Hub) -> None:
    """What the parent said of itself in shared memory stays said."""
    folder = hub._open().mail.folder
    key = object()
    folder.arrivals.wait_for(1, key, lambda: None)
    assert folder._changes.is_awaited
    assert in_fork(lambda: hub.mailboxes.put("x", b"1")) == 0
    assert folder._changes.is_awaited
    folder.arrivals.forget(1, key)


def test_a_child_that_lives_on_does_not_hold_its_parents_log(tmp_path: Path) -> None:
    """The parent is killed; what it promised is recovered though its child is alive."""
    script = """
        import os, signal, sys, time, penstock
        hub = penstock.connect(sys.argv[1])
        hub.mailboxes.put("x", b"1", message_id="m1")
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            while os.getppid() == parent:
                time.sleep(0.001)
            with penstock.connect(sys.argv[1]) as other:
                found = other._open().mail.folder.recovered
                ids = [m.id for m in other.mailboxes.open("x").peek_many(9)]
                print(found, ids, flush=True)
            os._exit(0)
        os.kill(parent, signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-Wignore", "-c", textwrap.dedent(script), f"sqlite:///{tmp_path}/h.db"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "1 ['m1']\n", done.stderr


# Clocks


@pytest.mark.parametrize("jump", [-86_400, 86_400])
def test_a_clock_that_jumps_changes_no_order(tmp_path: Path, jump: int) -> None:
    """Row 19."""
    clock = FakeClock()
    with Desk(tmp_path / "store", clock=clock) as desk:
        desk.put("x", "m1", "m2")
        desk.ack("x")
        clock.set_back(-jump)
        desk.put("x", "m3")
        desk.ack("x")
        clock.set_back(jump)
        desk.put("x", "m4")
        assert desk.ids("x") == ["m3", "m4"]
    with Desk(tmp_path / "store", clock=clock) as desk:
        assert desk.ids("x") == ["m3", "m4"]
        assert desk.put("x", "m5")[0].seq == 5
        assert desk.verify().is_clean


def test_a_clock_set_forward_throws_nothing_away_at_once(
    open_room: Callable[..., Room],
) -> None:
    """Row 19; M13: a sweep that finds time ahead of itself waits for the next one to believe it."""
    room = open_room(mailbox_ttl_seconds=3600)
    box = room.mailboxes.open("x")
    box.put(b"1")
    expirer = Expirer(room.mail.folder, room.settings, room.telemetry)
    assert expirer.sweep() == 0
    room.clock.advance(86_400)
    assert expirer.sweep() == 0
    assert box.size() == 1
    assert room.telemetry.counters()["clock_jumped"] == 1
    room.clock.set_back(86_400)
    assert expirer.sweep() == 0
    assert box.size() == 1
    room.clock.set_back(86_400)
    assert expirer.sweep() == 0
    assert box.size() == 1


def test_a_message_of_the_future_does_not_keep_those_before_it(tmp_path: Path) -> None:
    """Row 19: put while the clock was wrong, it is the last to expire, and holds up its followers
    until then: what is behind it came later."""
    clock = FakeClock()
    room = Room(tmp_path / "store", None, mailbox_file_messages_max=60)
    room.clock = clock
    try:
        with Desk(tmp_path / "store", clock=clock) as desk:
            desk.put("x", "old")
            clock.set_back(-86_400)
            desk.put("x", "future")
            clock.set_back(86_400)
            desk.put("x", "young")
        clock.advance(10)
        box = room.mailboxes.open("x")
        assert [mail.id for mail in box.peek_many(9)] == ["old", "future", "young"]
    finally:
        room.close()


# Names

NAMES = [
    "..",
    ".",
    "../x",
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "%2e%2e%2f",
    "%00",
    "CON",
    "con",
    "nul.txt",
    "x",
    "X",
    " x",
    "x ",
    "-rf",
    "*",
    "~",
    "$HOME",
    "queue.log",
    "messages.0000000000000001.log",
    "quarantine",
    "é",
    unicodedata.normalize("NFD", "é"),
    "ſ",
    "s",
    "İ",
    "i",
    "\u202eevil",
    "😀",
    "x" * 200,
    "é" * 100,
]


def test_a_name_is_no_path_and_no_two_are_one(tmp_path: Path) -> None:
    """Row 23; M10: no byte of a name reaches a path; twins of case or form are two boxes."""
    root = tmp_path / "store"
    with Desk(root) as desk:
        for n, name in enumerate(NAMES):
            desk.put(name, f"m{n}")
            assert desk.path(name).resolve().is_relative_to(root.resolve() / "boxes")
        for n, name in enumerate(NAMES):
            assert desk.ids(name) == [f"m{n}"]
        found = desk.verify()
        assert (found.mailboxes, found.messages) == (len(NAMES), len(NAMES))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    names = {part for path in root.rglob("*") for part in path.relative_to(root).parts}
    known = {"boxes", "commits", "locks", "changes", "arrivals", "store.json", "queue.log"}
    left = {name for name in names - known if not name.startswith("messages.")}
    assert all(set(name) <= set("0123456789abcdef") for name in left), left


@pytest.mark.parametrize(
    "name", ["", "\0", "a\0b", "a\nb", "\x7f", "\x1b[31m", "x" * 201, "é" * 101, "x" * 10_240]
)
def test_what_is_no_name_is_refused_and_makes_nothing(hub: Hub, name: str, path: Path) -> None:
    """Row 23."""
    for action in (
        lambda: hub.mailboxes.open(name),
        lambda: hub.mailboxes.put(name, b"1"),
        lambda: hub.mailboxes.verify(name),
        lambda: hub.mailboxes.repair(name),
    ):
        with pytest.raises(InvalidMailbox):
            action()
    assert hub.mailboxes.list() == []


@pytest.mark.parametrize("name", ["\ud800", 7, None, b"x", ["x"]])
def test_what_is_no_text_is_refused(hub: Hub, name: Any) -> None:
    """Row 23."""
    with pytest.raises(InvalidMailbox):
        hub.mailboxes.open(name)


@pytest.mark.parametrize("id", ["\0", "a\nb", "../x", "é" * 127, "x" * 255, "gap-1", "v1 n=1"])
def test_a_message_may_have_any_id_of_some_length(hub: Hub, id: str) -> None:
    """Row 23: it is stored as it is, and stands in no line of text."""
    box = hub.mailboxes.open("x")
    assert box.put(b"1", id=id).is_new
    assert not box.put(b"1", id=id).is_new
    mail = box.peek()
    assert mail is not None
    assert mail.id == id
    assert box.ack(id)
    for wrong in ("", "x" * 256, "é" * 128, "\ud800"):
        with pytest.raises(InvalidMailbox):
            box.put(b"1", id=wrong)
    assert box.size() == 0


def test_a_closed_hub_says_so(path: Path) -> None:
    hub = penstock.connect(f"sqlite:///{path}")
    box = hub.mailboxes.open("x")
    box.put(b"1")
    folder = hub._open().mail.folder
    hub.close()
    with pytest.raises(HubClosed):
        box.peek()
    with pytest.raises(HubClosed), folder.locked("x"):
        pass
    with pytest.raises(HubClosed):
        folder.put([], is_logged=True)
    folder.close()


async def test_coroutines_verify_and_repair_too(hub: Hub, path: Path) -> None:
    box = hub.aio.mailboxes.open("x")
    await asyncio.gather(*[box.put(b"1", id=f"m{n}") for n in range(3)])
    assert (await hub.aio.mailboxes.verify()).messages == 3
    assert (await hub.aio.mailboxes.repair("x")).findings == []
    file = message_file(path.with_name("hub.db.mailboxes"))
    content = bytearray(file.read_bytes())
    content[600] ^= 1
    file.write_bytes(content)
    assert (await hub.aio.mailboxes.verify("x")).findings
    assert (await hub.aio.mailboxes.repair("x")).lost == 1
    kinds = [mail.kind for mail in await box.peek_many(9)]
    assert sorted(kinds) == ["gap", "message", "message"]


def test_who_puts_into_many_boxes_does_not_end_the_recovery_of_another_thread(
    tmp_path: Path,
) -> None:
    """M12: one process at a time looks for the logs of the dead."""
    with Desk(tmp_path / "store") as desk, desk.folder.locks.recovering():
        desk.put_all({f"box-{n}": [new_mail("m")] for n in range(8)})
        other = Locks(desk.folder.disk, f"{desk.folder.root}/locks")
        try:
            assert not other.try_take(RECOVERY)
        finally:
            other.close()


class WatchedDisk(FastDisk):
    """Something happens once, between the making of a file and its lock."""

    on_made: Callable[[], object] | None = None

    def open(self, path: str, flags: int) -> int:
        file = super().open(path, flags)
        if path.endswith(".lock") and self.on_made is not None:
            action, self.on_made = self.on_made, None
            action()
        return file


@pytest.mark.parametrize("who", ["a thread", "a process"])
def test_a_log_that_is_taken_for_a_dead_ones_before_it_is_locked_is_made_anew(
    tmp_path: Path, who: str
) -> None:
    """M12: it would be removed by the next one who looks, with all that is in it."""
    disk = WatchedDisk(is_same_boot=True)
    with Desk(tmp_path / "store", disk=disk) as desk, Desk(tmp_path / "store") as other:
        recoverer = desk if who == "a thread" else other
        with ThreadPoolExecutor(1) as threads:
            disk.on_made = lambda: threads.submit(recoverer.folder.recover).result()
            desk.put("box", "m")
        logs = sorted(os.listdir(tmp_path / "store" / "commits"))
        assert len(logs) == 3
        other.folder.recover()
        assert sorted(os.listdir(tmp_path / "store" / "commits")) == logs
