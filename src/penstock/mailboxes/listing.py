"""Which boxes there are."""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.mailboxes.folder import Folder
from penstock.mailboxes.record import Header
from penstock.mailboxes.state_log import read_whole


def names_in(folder: Folder) -> Iterator[str]:
    """The names of all boxes that have a message file."""
    for path in box_folders(f"{folder.root}/boxes", folder.depth):
        name = name_of(folder, path)
        if name is not None:
            yield name


def name_of(folder: Folder, path: str) -> str | None:
    try:
        files = sorted(name for name in os.listdir(path) if name.startswith("messages."))
    except (FileNotFoundError, NotADirectoryError):
        return None
    for file in reversed(files):
        header = Header.decode(read_whole(folder.disk, f"{path}/{file}") or b"")
        if header is not None:
            return header.id
    return None


def box_folders(path: str, depth: int) -> Iterator[str]:
    try:
        found = sorted(entry.path for entry in os.scandir(path) if entry.is_dir())
    except FileNotFoundError:
        return
    for name in found:
        if depth == 0:
            yield name
        else:
            yield from box_folders(name, depth - 1)
