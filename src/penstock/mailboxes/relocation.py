"""The whole folder: laid out with another depth, or copied for a backup and back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.errors import BackupFailed, InvalidInput, StoreBusy
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.layout import VERSION, Layout
from penstock.mailboxes.listing import box_folders

DIGEST_DIGITS = 64

Progress = Callable[[int, int], None]


def migrate(root: str, depth: int, progress: Progress) -> int:
    """Lay the boxes out with so many levels of folders. Nobody else may have them open.

    Can be interrupted and begun again: until it is done, the folder cannot be opened otherwise.
    Returns how many boxes have moved.
    """
    if not 0 <= depth <= 8:
        raise InvalidInput(f"A depth is between 0 and 8, not {depth}.")
    disk = Disk()
    with _alone(disk, root):
        boxes = f"{root}/boxes"
        found = list(_all_boxes(boxes))
        _write_layout(root, Layout(VERSION, depth, is_moving=True))
        moved = 0
        for number, (digest, path) in enumerate(found, 1):
            parts = [digest[2 * level : 2 * level + 2] for level in range(depth)]
            target = "/".join([boxes, *parts, digest[2 * depth :]])
            if target != path:
                os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
                os.rename(path, target)
                moved += 1
            progress(number, len(found))
        for folder, _, _ in os.walk(boxes, topdown=False):
            if folder != boxes and not os.listdir(folder):
                os.rmdir(folder)
        _sync_tree(disk, root)
        _write_layout(root, Layout(VERSION, depth))
    return moved


class _alone:  # noqa: N801 - reads as a statement
    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._file = -1
        self._root = root

    def __enter__(self) -> None:
        try:
            self._file = self._disk.open(f"{self._root}/changes", os.O_RDWR)
        except FileNotFoundError:
            raise InvalidInput(f"There are no mailboxes in {self._root}.") from None
        if not self._disk.try_lock_all(self._file):
            self._disk.close(self._file)
            raise StoreBusy(
                "Other processes have the mailboxes open.",
                hint="Stop them for as long as it takes.",
            )

    def __exit__(self, *_: object) -> None:
        self._disk.close(self._file)


def _all_boxes(path: str, digits: str = "") -> Iterator[tuple[str, str]]:
    """Every box below, whatever the depth: their names make up a digest."""
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if not entry.is_dir():
            continue
        name = digits + entry.name
        if len(name) == DIGEST_DIGITS:
            yield name, entry.path
        else:
            yield from _all_boxes(entry.path, name)


def _write_layout(root: str, layout: Layout) -> None:
    disk, path = Disk(), f"{root}/store.json"
    file = disk.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        disk.write(file, msgspec.json.encode(layout), 0)
        disk.sync(file)
    finally:
        disk.close(file)
    disk.rename(f"{path}.new", path)
    disk.sync_folder(root)


def _sync_tree(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/locks", os.O_RDWR | os.O_CREAT)
    try:
        if not disk.sync_all(file):
            for folder, _, names in os.walk(root):
                for name in names:
                    descriptor = os.open(f"{folder}/{name}", os.O_RDONLY)
                    os.fsync(descriptor)
                    os.close(descriptor)
                disk.sync_folder(folder)
    finally:
        disk.close(file)


# Copies


def copy_boxes(folder: Folder, target: Path, progress: Progress | None) -> int:
    """A copy of every box, each from one moment. Everybody goes on working."""
    paths = list(box_folders(f"{folder.root}/boxes", folder.depth))
    (target / "boxes").mkdir(parents=True, mode=0o700)
    for number, path in enumerate(paths, 1):
        place = path.removeprefix(f"{folder.root}/boxes/")
        with folder.holding(digest_of(place)):
            _copy_box(Path(path), target / "boxes" / place)
        if progress is not None:
            progress(number, len(paths))
    _write_layout(str(target), Layout(VERSION, folder.depth))
    _sync_tree(Disk(), str(target))
    return len(paths)


def digest_of(place: str) -> bytes:
    return bytes.fromhex(place.replace("/", ""))


def _copy_box(source: Path, target: Path) -> None:
    target.mkdir(parents=True, mode=0o700)
    for name in sorted(os.listdir(source)):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
            (target / name).chmod(0o600)


def restore_boxes(folder: Folder, source: Path, progress: Progress | None) -> int:
    """The boxes of a copy, in place of those that are here."""
    try:
        layout = msgspec.json.decode((source / "store.json").read_bytes(), type=Layout)
    except (OSError, msgspec.MsgspecError) as error:
        raise BackupFailed(f"{source} is no copy of mailboxes: {error}.") from error
    kept = {digest: Path(path) for digest, path in _all_boxes(str(source / "boxes"))}
    here = dict(_all_boxes(f"{folder.root}/boxes"))
    assert layout.version == VERSION, "an older one is migrated when there is one"
    digests = sorted({*kept, *here})
    with folder.replacing():
        for number, digits in enumerate(digests, 1):
            path = folder.folder_of(bytes.fromhex(digits))
            if digits in here:
                shutil.rmtree(path)
            if digits in kept:
                _copy_box(kept[digits], Path(path))
            if progress is not None:
                progress(number, len(digests))
        _sync_tree(Disk(), folder.root)
    return len(kept)
