"""Mailboxes that are replaced by a copy while other processes use them (M12, M13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.mailboxes.commit_log import read_segment
from penstock.mailboxes.relocation import copy_boxes, restore_boxes
from tests.crash.mailbox_world import FastDisk
from tests.integration.mailbox_desk import Desk, copied

QUOTA = 50


class SlowDisk(FastDisk):
    """Something happens once, while the next file or folder is being synced."""

    on_sync: Callable[[], object] | None = None

    def sync(self, file: int) -> None:
        self._act()

    def sync_folder(self, path: str) -> None:
        self._act()

    def _act(self) -> None:
        action, self.on_sync = self.on_sync, None
        if action is not None:
            action()


class Pair:
    """A process that uses the boxes, and one that replaces them by a copy."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.disk = SlowDisk(is_same_boot=True)
        self.user = self.desk(self.disk)
        self.restorer = self.desk()
        self.copied: list[str] = []

    def desk(self, disk: FastDisk | None = None) -> Desk:
        return Desk(
            self._path / "store",
            disk=disk,
            mailbox_messages_max=QUOTA,
            mailbox_file_messages_max=QUOTA + 10,
        )

    def use(self, name: str, count: int) -> None:
        """Put so many, and acknowledge some whenever there are many."""
        for n in range(count):
            if self.user.size("box") == QUOTA - 10:
                for _ in range(30):
                    self.user.ack("box")
            self.user.put("box", f"{name}-{n}")

    def copy(self) -> None:
        copy_boxes(self.restorer.folder, self._path / "copy", None)
        self.copied = self.restorer.ids("box")

    def restore(self) -> None:
        restore_boxes(self.restorer.folder, self._path / "copy", None)

    def close(self) -> None:
        self.user.folder.close()
        self.restorer.folder.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    yield pair
    pair.close()


@pytest.mark.parametrize("before", [0, 1, 30, 45])
@pytest.mark.parametrize("after", [1, 30, 100])
def test_what_a_killed_process_knew_of_the_boxes_before_does_not_come_back(
    pair: Pair, tmp_path: Path, before: int, after: int
) -> None:
    """Its log has messages and acknowledgements of boxes that are no more."""
    pair.use("before", before)
    pair.user.folder.checkpoint()
    pair.copy()
    pair.use("after", after)
    pair.restore()
    left = copied(tmp_path / "store", tmp_path / "left")
    with Desk(left, mailbox_messages_max=QUOTA, mailbox_file_messages_max=QUOTA + 10) as desk:
        assert desk.folder.recovered
        assert desk.ids("box") == pair.copied
        assert desk.verify().is_clean


def test_a_living_process_goes_on_with_the_copy(pair: Pair) -> None:
    pair.use("before", 45)
    pair.copy()
    pair.use("after", 100)
    pair.restore()
    pair.user.put("box", "new")
    pair.user.folder.checkpoint()
    with pair.desk() as desk:
        assert desk.ids("box") == [*pair.copied, "new"]
        assert desk.verify().is_clean


def test_a_file_of_the_copy_is_not_removed_for_one_that_was_read_through(pair: Pair) -> None:
    pair.use("before", 45)
    pair.copy()
    pair.use("after", 25)
    pair.user.drain("box")
    pair.disk.on_sync = pair.restore
    pair.user.folder.flush()
    assert pair.disk.on_sync is None
    with pair.desk() as desk:
        assert desk.ids("box") == pair.copied
        assert not desk.heard("mailbox_damaged")


def test_what_was_synced_is_not_said_of_the_copy(pair: Pair) -> None:
    pair.use("before", 2)
    pair.copy()
    pair.use("after", 30)
    pair.user.folder.flush()
    pair.disk.on_sync = pair.restore
    pair.user.folder.checkpoint()
    assert pair.disk.on_sync is None
    pair.user.ack("box")
    with pair.desk() as desk:
        assert desk.ids("box") == pair.copied[1:]
        assert not desk.heard("mailbox_damaged")


def test_the_log_of_whoever_restored_counts(pair: Pair) -> None:
    """Its own is begun anew, too: what it puts from then on must be found in it."""
    pair.restorer.put("box", "before")
    pair.copy()
    pair.restore()
    pair.restorer.put("box", "after")
    assert pair.restorer.verify().is_clean
    logs = [path.read_bytes() for path in (pair.restorer.root / "commits").glob("*.log")]
    assert any(b"after" in entry.data for log in logs for entry in read_segment(log))
