"""A machine whose power can be cut at any instant, for the files of mailboxes.

Programs work on real files as always, through a `Disk` of this machine. Beside that, every write,
truncation, sync and change of names is recorded in one history, together with what the programs
were told. A power cut is an index into that history: what a completed sync had covered is there
afterwards; of all else any part may be.

The model is harsher than any file system we know. Bytes reach the disk in pieces, in any order or
not at all, and so do names: creating, linking, renaming and unlinking in a folder are durable with
the sync of that folder, and before it each on its own. Syncing a file says nothing of its name. A
sync that fails leaves what it was to write in memory only, where it looks as if it were on disk.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from penstock.clock import Micros
from penstock.mailboxes.disk import Disk

SECTOR = 512


class Killed(BaseException):
    """The process is gone: no handler of the program sees this."""


@dataclass(frozen=True)
class Change:
    """A write, or a new size (`data` is None)."""

    offset: int
    data: bytes | None


@dataclass(frozen=True)
class Name:
    """A name in a folder that came (`node`), or went (None). A rename is both at once."""

    name: str
    node: int | None
    source: str = ""
    is_folder: bool = False


@dataclass(frozen=True)
class Event:
    kind: Literal["change", "name", "sync", "lost", "sync_folder", "sync_all", "mark"]
    node: int = 0
    folder: str = ""
    change: Change | None = None
    name: Name | None = None
    mark: Any = None


class Machine:
    """What several programs, each with a disk of its own, do to one folder."""

    def __init__(self, root: Path, *, is_lying: bool = False) -> None:
        self.root = str(root)
        self.booted_at = time.time_ns() // 1000
        self.is_lying = is_lying
        """Syncs are answered, and not done: whoever relies on one must be found out."""
        self.history: list[Event] = []
        self.nodes: dict[str, int] = {}
        self.lock = threading.RLock()
        self._count = itertools.count(1)
        for found in sorted(root.rglob("*")):
            self._adopt(found)

    def disk(self) -> RecordedDisk:
        return RecordedDisk(self)

    def mark(self, *words: Any) -> None:
        """Note what a program was told at this instant."""
        with self.lock:
            self.history.append(Event("mark", mark=words))

    def now(self) -> int:
        with self.lock:
            return len(self.history)

    def cut(self, index: int) -> PowerCut:
        """What there is if the power fails before the event at `index`."""
        return PowerCut.after(self.history[:index], self.is_lying)

    def new_node(self) -> int:
        return next(self._count)

    def named(
        self, path: str, node: int | None, source: str = "", *, is_folder: bool = False
    ) -> None:
        folder, _, name = path.rpartition("/")
        change = Name(name, node, source, is_folder)
        self.history.append(Event("name", folder=folder, name=change))
        if node is None:
            self.nodes.pop(path, None)
        else:
            self.nodes[path] = node

    def _adopt(self, found: Path) -> None:
        """Something that is there already, all of it on the disk."""
        node = self.new_node()
        self.named(str(found), node, is_folder=found.is_dir())
        if found.is_file():
            self.history.append(Event("change", node, change=Change(0, found.read_bytes())))
            self.history.append(Event("sync", node))
        self.history.append(Event("sync_folder", folder=str(found.parent)))


class RecordedDisk(Disk):
    """One program's view of the machine. Real files, and no real syncs: they only are recorded."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.failing = ""
        """Syncs of files and folders with this in their names fail."""
        self.is_dead = False
        self.calls = 0
        self.killed_at: int | None = None
        self._open: dict[int, int] = {}
        self._paths: dict[int, str] = {}

    on_sync: Callable[[], object] | None = None
    """What happens once, while the next sync of a folder is under way."""

    def booted_at(self) -> Micros:
        return self.machine.booted_at

    def die(self) -> None:
        """As if the process were killed: its files are closed, and so its locks are free."""
        self.is_dead = True
        for file in list(self._open):
            super().close(file)
        self._open.clear()

    def _call(self) -> None:
        if self.is_dead:
            raise Killed
        self.calls += 1
        if self.killed_at is not None and self.calls >= self.killed_at:
            self.killed_at = 0
            raise Killed

    def open(self, path: str, flags: int) -> int:
        self._call()
        with self.machine.lock:
            is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
            file = super().open(path, flags)
            if is_new:
                self.machine.named(path, self.machine.new_node())
            node = self.machine.nodes[path]
            self._open[file] = node
            self._paths[file] = path
            if flags & os.O_TRUNC and not is_new:
                self._changed(node, Change(0, None))
            return file

    def close(self, file: int) -> None:
        self._call()
        self._open.pop(file, None)
        super().close(file)

    def read(self, file: int, size: int, offset: int) -> bytes:
        self._call()
        return super().read(file, size, offset)

    def write(self, file: int, data: bytes, offset: int) -> None:
        self._call()
        with self.machine.lock:
            super().write(file, data, offset)
            self._changed(self._open[file], Change(offset, bytes(data)))

    def append(self, file: int, data: bytes) -> None:
        self._call()
        with self.machine.lock:
            offset = os.fstat(file).st_size
            super().append(file, data)
            self._changed(self._open[file], Change(offset, bytes(data)))

    def truncate(self, file: int, size: int) -> None:
        self._call()
        with self.machine.lock:
            super().truncate(file, size)
            self._changed(self._open[file], Change(size, None))

    def allocate(self, file: int, size: int) -> None:
        self._call()
        with self.machine.lock:
            if os.fstat(file).st_size < size:
                os.ftruncate(file, size)
                self._changed(self._open[file], Change(size, None))

    def stat(self, file: int) -> os.stat_result:
        self._call()
        return super().stat(file)

    def stat_path(self, path: str) -> os.stat_result:
        self._call()
        return super().stat_path(path)

    def list(self, path: str) -> list[str]:
        self._call()
        return super().list(path)

    def make_folder(self, path: str) -> None:
        self._call()
        with self.machine.lock:
            super().make_folder(path)
            self.machine.named(path, self.machine.new_node(), is_folder=True)

    def remove_folder(self, path: str) -> None:
        self._call()
        with self.machine.lock:
            super().remove_folder(path)
            self.machine.named(path, None)

    def rename(self, source: str, target: str) -> None:
        self._call()
        assert os.path.dirname(source) == os.path.dirname(target), "not in this model"
        with self.machine.lock:
            super().rename(source, target)
            node = self.machine.nodes.pop(source)
            self.machine.named(target, node, os.path.basename(source))

    def link(self, source: str, target: str) -> None:
        self._call()
        with self.machine.lock:
            super().link(source, target)
            self.machine.named(target, self.machine.nodes[source])

    def unlink(self, path: str) -> None:
        self._call()
        with self.machine.lock:
            super().unlink(path)
            self.machine.named(path, None)

    def sync(self, file: int) -> None:
        self._call()
        with self.machine.lock:
            self._sync("sync", self._paths[file], node=self._open[file])

    def kernel_sync(self) -> None:
        return None

    def sync_folder(self, path: str) -> None:
        self._call()
        action, self.on_sync = self.on_sync, None
        if action is not None:
            action()
        with self.machine.lock:
            self._sync("sync_folder", path, folder=path)

    def sync_all(self, file: int) -> bool:
        self._call()
        with self.machine.lock:
            self._sync("sync_all", self.machine.root)
        return True

    def try_lock(self, file: int, offset: int) -> bool:
        self._call()
        return super().try_lock(file, offset)

    def try_lock_all(self, file: int) -> bool:
        self._call()
        return super().try_lock_all(file)

    def unlock_all(self, file: int) -> None:
        self._call()
        super().unlock_all(file)

    def unlock(self, file: int, offset: int) -> None:
        self._call()
        super().unlock(file, offset)

    def _changed(self, node: int, change: Change) -> None:
        self.machine.history.append(Event("change", node, change=change))

    def _sync(
        self,
        kind: Literal["sync", "sync_folder", "sync_all"],
        path: str,
        node: int = 0,
        folder: str = "",
    ) -> None:
        if self.failing and self.failing in path:
            if kind == "sync":
                self.machine.history.append(Event("lost", node))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.machine.history.append(Event(kind, node, folder))


@dataclass
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            apply(self.durable, change)
        self.pending.clear()


@dataclass
class _Folder:
    durable: dict[str, int] = field(default_factory=dict)
    pending: list[Name] = field(default_factory=list)

    def sync(self) -> None:
        for name in self.pending:
            rename(self.durable, name)
        self.pending.clear()


@dataclass(repr=False)
class PowerCut:
    """Which states of the disk are possible, and what the programs had been told by then."""

    marks: list[tuple[Any, ...]]
    files: dict[int, _File]
    folders: dict[str, _Folder]
    folder_nodes: set[int] = field(default_factory=set)

    @classmethod
    def after(cls, history: list[Event], is_lying: bool) -> PowerCut:
        cut = cls([], {}, {})
        for event in history:
            match event.kind:
                case "mark":
                    cut.marks.append(event.mark)
                case "change":
                    assert event.change is not None
                    cut.files.setdefault(event.node, _File()).pending.append(event.change)
                case "name":
                    assert event.name is not None
                    cut.folders.setdefault(event.folder, _Folder()).pending.append(event.name)
                    if event.name.is_folder:
                        assert event.name.node is not None
                        cut.folder_nodes.add(event.name.node)
                case "lost":
                    cut.files.setdefault(event.node, _File()).pending.clear()
                case "sync" if not is_lying:
                    cut.files.setdefault(event.node, _File()).sync()
                case "sync_folder" if not is_lying:
                    cut.folders.setdefault(event.folder, _Folder()).sync()
                case "sync_all" if not is_lying:
                    for file in cut.files.values():
                        file.sync()
                    for folder in cut.folders.values():
                        folder.sync()
        return cut

    @property
    def pieces(self) -> int:
        """How many changes may be there or not, each on its own."""
        files = sum(len(split(f.pending)) for f in self.files.values())
        return files + sum(len(folder.pending) for folder in self.folders.values())

    def losses(self, chance: random.Random, count: int) -> Iterator[Callable[[], bool]]:
        """Ways to lose: for each change, whether it is kept. All there are, or a sample."""
        pieces = self.pieces
        if 2**pieces <= count:
            for choice in itertools.product((False, True), repeat=pieces):
                yield iter(choice).__next__
            return
        yield lambda: False
        yield lambda: True
        yield from _without_one(pieces, chance, (count - 2) // 3)
        for _ in range(count - 2 - (count - 2) // 3):
            share = chance.choice((0.15, 0.5, 0.85))
            yield _coin(random.Random(chance.random()), share)

    def materialise(self, origin: str, target: Path, keeps: Callable[[], bool]) -> None:
        """Write one of the possible states of the folder `origin` to `target`."""
        names: dict[str, dict[str, int]] = {}
        for path, folder in self.folders.items():
            found = dict(folder.durable)
            for name in folder.pending:
                if keeps():
                    rename(found, name)
            names[path] = found
        contents: dict[int, bytes] = {}
        for node, file in self.files.items():
            content = bytearray(file.durable)
            for change in split(file.pending):
                if keeps():
                    apply(content, change)
            contents[node] = bytes(content)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        self._write(origin, target, names, contents)

    def _write(
        self,
        path: str,
        target: Path,
        names: dict[str, dict[str, int]],
        contents: dict[int, bytes],
    ) -> None:
        for name, node in names.get(path, {}).items():
            if node in self.folder_nodes:
                (target / name).mkdir()
                self._write(f"{path}/{name}", target / name, names, contents)
            else:
                (target / name).write_bytes(contents.get(node, b""))


def rename(names: dict[str, int], name: Name) -> None:
    if name.source:
        names.pop(name.source, None)
    if name.node is None:
        names.pop(name.name, None)
    else:
        names[name.name] = name.node


def apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        if change.offset < len(content):
            del content[change.offset :]
        else:
            content.extend(bytes(change.offset - len(content)))
        return
    missing = change.offset - len(content)
    if missing > 0:
        content.extend(bytes(missing))
    content[change.offset : change.offset + len(change.data)] = change.data


def split(changes: list[Change]) -> list[Change]:
    """Cut at sector borders: a sector is there or not, nothing in between."""
    pieces: list[Change] = []
    for change in changes:
        if change.data is None:
            pieces.append(change)
            continue
        start = 0
        while start < len(change.data):
            at = change.offset + start
            end = start + SECTOR - at % SECTOR
            pieces.append(Change(at, change.data[start:end]))
            start = end
    return pieces


def _coin(chance: random.Random, share: float) -> Callable[[], bool]:
    return lambda: chance.random() < share


def _without_one(pieces: int, chance: random.Random, count: int) -> Iterator[Callable[[], bool]]:
    """All but one, and one alone: most of what is wrong shows there."""
    chosen = range(pieces) if 2 * pieces <= count else chance.sample(range(pieces), count // 2)
    for place in chosen:
        for value in (False, True):
            numbers = itertools.count()
            yield lambda n=numbers, p=place, v=value: (next(n) == p) == v  # type: ignore[misc]
