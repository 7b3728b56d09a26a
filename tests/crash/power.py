"""A disk whose power can be cut at any instant, for SQLite through an apsw VFS.

SQLite works on real files as always. Beside that, every write, truncate, sync, creation and
deletion is recorded in one history, together with what the program was told (acknowledgements).
A power cut is an index into that history: `Disk.cut` says what is durable there (what a completed
sync had covered), what was only written, and what had been acknowledged; `PowerCut.materialise`
makes one of the disk states that could be found after it.

The model is that of SQLite with powersafe overwrite: bytes outside a write never change, a
write may be torn at 512-byte sectors, and writes since the last sync reach the disk all, in part,
in any order or not at all. Names are journalled: creations and deletions become durable in order,
at the latest with the sync of their folder.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import apsw

SECTOR = 512

Loss = Literal["drop", "prefix", "torn", "subset", "reorder", "garbage", "keep"]
LOSSES: tuple[Loss, ...] = ("drop", "prefix", "torn", "subset", "reorder", "garbage", "keep")


@dataclass(frozen=True)
class Change:
    """A write, or a truncate (`data` is None and `offset` the new size)."""

    offset: int
    data: bytes | None


@dataclass(frozen=True)
class Event:
    kind: Literal["change", "sync", "create", "delete", "sync_folder", "mark"]
    inode: int = 0
    name: str = ""
    change: Change | None = None
    covers: int = 0
    """For a sync: it covers the events before this index."""
    mark: Any = None


class Disk(apsw.VFS):
    """The recording VFS. Use it with `with disk.plugged_in(monkeypatch):`."""

    def __init__(self, folder: Path) -> None:
        self.name = f"power-{os.getpid()}-{id(self)}"
        self.history: list[Event] = []
        self._folder = folder.resolve()
        self._inodes: dict[str, int] = {}
        self._lock = threading.Lock()
        for found in sorted(folder.iterdir()):
            self._adopt(found)
        super().__init__(self.name, base="")

    @contextmanager
    def plugged_in(self, monkeypatch: Any) -> Iterator[Disk]:
        """Hubs opened meanwhile, in this process, are on this disk."""
        with monkeypatch.context() as patch:
            patch.setattr("penstock.stores.sqlite.connection._vfs", self.name)
            yield self

    def mark(self, value: Any) -> None:
        """Note what the program knows at this instant, such as an acknowledgement."""
        with self._lock:
            self.history.append(Event("mark", mark=value))

    def cut(self, index: int, *, lies_after: int | None = None) -> PowerCut:
        """What there is if the power fails just before the event at `index`.

        From `lies_after` on, the disk answers syncs without doing them.
        """
        return PowerCut.after(self.history[:index], lies_after=lies_after)

    # Called by SQLite, on any thread

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if path is None or Path(path).parent != self._folder:
            return apsw.VFSFile("", name, flags)
        short = Path(path).name
        opened = _RecordedFile(self, name, flags)
        with self._lock:
            if short not in self._inodes:
                inode = len(self.history) + 1
                self._inodes[short] = inode
                self.history.append(Event("create", inode, short))
            opened.inode = self._inodes[short]
            opened.owes_folder_sync = short.endswith(("-wal", "-journal"))
        return opened

    def xDelete(self, filename: str, sync_folder: bool) -> None:  # noqa: N802
        super().xDelete(filename, sync_folder)
        short = Path(filename).name
        with self._lock:
            inode = self._inodes.pop(short, None)
            if inode is not None:
                self.history.append(Event("delete", inode, short))
                if sync_folder:
                    self.history.append(Event("sync_folder", covers=len(self.history)))

    def changed(self, inode: int, change: Change) -> None:
        with self._lock:
            self.history.append(Event("change", inode, change=change))

    def now(self) -> int:
        with self._lock:
            return len(self.history)

    def _adopt(self, found: Path) -> None:
        """A file that is there already, with all its content on the disk."""
        inode = len(self.history) + 1
        self._inodes[found.name] = inode
        self.history.append(Event("create", inode, found.name))
        self.history.append(Event("change", inode, change=Change(0, found.read_bytes())))
        self.history.append(Event("sync", inode, covers=len(self.history)))
        self.history.append(Event("sync_folder", covers=len(self.history)))

    def synced(self, inode: int, covers: int, *, with_folder: bool) -> None:
        with self._lock:
            self.history.append(Event("sync", inode, covers=covers))
            if with_folder:
                self.history.append(Event("sync_folder", covers=covers))


class _RecordedFile(apsw.VFSFile):
    inode = 0
    owes_folder_sync = False

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(data, offset)
        self._disk.changed(self.inode, Change(offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        super().xTruncate(size)
        self._disk.changed(self.inode, Change(size, None))

    def xSync(self, flags: int) -> None:  # noqa: N802
        covers = self._disk.now()
        super().xSync(flags)
        # As SQLite's unix VFS: the first sync of a journal syncs the folder with its name, too.
        self._disk.synced(self.inode, covers, with_folder=self.owes_folder_sync)
        self.owes_folder_sync = False


@dataclass
class _Inode:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Change]] = field(default_factory=list)

    def sync(self, covers: int) -> None:
        while self.pending and self.pending[0][0] < covers:
            _apply(self.durable, self.pending.pop(0)[1])


@dataclass(repr=False)
class PowerCut:
    """Which disk states are possible, and what the program had been told by then."""

    marks: list[Any]
    inodes: dict[int, _Inode]
    durable_names: dict[str, int]
    pending_names: list[Event]

    @classmethod
    def after(cls, history: list[Event], *, lies_after: int | None = None) -> PowerCut:
        marks: list[Any] = []
        inodes: dict[int, _Inode] = {}
        names: dict[str, int] = {}
        pending: list[tuple[int, Event]] = []
        for index, event in enumerate(history):
            match event.kind:
                case "mark":
                    marks.append(event.mark)
                case "change":
                    assert event.change is not None
                    inodes[event.inode].pending.append((index, event.change))
                case "create" | "delete":
                    inodes.setdefault(event.inode, _Inode())
                    pending.append((index, event))
                case "sync":
                    if lies_after is None or index < lies_after:
                        inodes[event.inode].sync(event.covers)
                case "sync_folder":
                    while pending and pending[0][0] < event.covers:
                        _rename(names, pending.pop(0)[1])
        return cls(marks, inodes, names, [event for _, event in pending])

    @property
    def unsynced(self) -> int:
        """How many changes a power cut here puts at risk."""
        return sum(len(inode.pending) for inode in self.inodes.values())

    def materialise(self, folder: Path, loss: Loss, seed: int) -> None:
        """Write one of the states that are possible after this cut."""
        chance = random.Random(seed)
        names = dict(self.durable_names)
        kept = {"drop": 0, "keep": len(self.pending_names)}.get(
            loss, chance.randint(0, len(self.pending_names))
        )
        for event in self.pending_names[:kept]:
            _rename(names, event)
        folder.mkdir(parents=True)
        for name, inode in names.items():
            found = self.inodes[inode]
            changes = [change for _, change in found.pending]
            content = bytearray(found.durable)
            for change in _survivors(changes, loss, chance):
                _apply(content, change)
            (folder / name).write_bytes(content)


def _rename(names: dict[str, int], event: Event) -> None:
    if event.kind == "create":
        names[event.name] = event.inode
    elif names.get(event.name) == event.inode:
        del names[event.name]


def _apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        del content[change.offset :]
        return
    missing = change.offset - len(content)
    if missing > 0:
        content.extend(bytes(missing))
    content[change.offset : change.offset + len(change.data)] = change.data


def _survivors(changes: list[Change], loss: Loss, chance: random.Random) -> list[Change]:
    """What of the unsynced changes is on the disk, in the order it takes effect."""
    if loss == "keep":
        return changes
    if loss == "drop" or not changes:
        return []
    if loss in ("prefix", "torn"):
        count = chance.randrange(len(changes))
        return changes[:count] + (_tear(changes[count], chance) if loss == "torn" else [])
    if loss == "subset":
        return [change for change in changes if chance.random() < 0.5]
    pieces = [piece for change in changes for piece in _sectors(change)]
    if loss == "reorder":
        # A sector holds any of its versions; the choice differs from one sector to the next.
        chosen = [piece for piece in pieces if chance.random() < 0.6]
        return sorted(chosen, key=lambda piece: (piece.data is not None, chance.random()))
    return [
        Change(piece.offset, chance.randbytes(len(piece.data)))
        if piece.data is not None and chance.random() < 0.3
        else piece
        for piece in pieces
        if chance.random() < 0.8
    ]


def _tear(change: Change, chance: random.Random) -> list[Change]:
    if change.data is None:
        return []
    pieces = _sectors(change)
    return pieces[: chance.randint(0, len(pieces))]


def _sectors(change: Change) -> list[Change]:
    """The change cut at sector borders."""
    if change.data is None:
        return [change]
    pieces, start = [], 0
    while start < len(change.data):
        at = change.offset + start
        end = start + SECTOR - at % SECTOR
        pieces.append(Change(at, change.data[start:end]))
        start = end
    return pieces
