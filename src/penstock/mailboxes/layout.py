"""How the folder of mailboxes is laid out, as it says itself in store.json."""

from __future__ import annotations

import os

import msgspec

from penstock.errors import InvalidSettings, StoreError
from penstock.mailboxes.disk import Disk, make_parents
from penstock.mailboxes.state_log import read_whole

VERSION = 1


class Layout(msgspec.Struct, frozen=True):
    """store.json: how the folder is laid out."""

    version: int
    depth: int
    is_moving: bool = False
    """Boxes are on their way to this depth."""


def open_layout(disk: Disk, root: str, depth: int | None, name: str) -> int:
    """The depth of the boxes' folders. Of a new store, the one asked for, or 1.

    `name` is this process's, for what it makes before another one does.
    """
    make_parents(disk, root)
    path = f"{root}/store.json"
    content = read_whole(disk, path)
    if content is None:
        layout = Layout(VERSION, depth or 1)
        temporary = f"{path}.{name}"
        file = disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            disk.write(file, msgspec.json.encode(layout), 0)
            disk.sync(file)
        finally:
            disk.close(file)
        try:
            disk.link(temporary, path)
            disk.sync_folder(root)
        except FileExistsError:
            pass  # Another process was faster.
        disk.unlink(temporary)
        content = read_whole(disk, path)
    try:
        layout = msgspec.json.decode(content or b"", type=Layout)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{path} is damaged: {error}.") from error
    if layout.version != VERSION:
        raise StoreError(f"{path} is of version {layout.version}; this is {VERSION}.")
    if layout.is_moving:
        raise StoreError(
            f"The mailboxes in {root} are being moved.",
            hint="Wait for 'penstock mailboxes migrate'; if it was interrupted, run it again.",
        )
    if depth is not None and depth != layout.depth:
        raise InvalidSettings(
            f"The mailboxes in {root} have the depth {layout.depth}, not {depth}.",
            hint="'penstock mailboxes migrate' changes it.",
        )
    make_parents(disk, f"{root}/boxes")
    return layout.depth
