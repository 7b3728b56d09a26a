"""Which boxes there are."""

from __future__ import annotations

import os
from collections.abc import Iterator

from penstock.mailboxes.folder import Folder
from penstock.mailboxes.record import HEADER_SIZE, Header
from penstock.mailboxes.recovery import message_files
from penstock.mailboxes.shelf import path_of
from penstock.mailboxes.state_log import read_beginning, read_state


def names_in(folder: Folder) -> Iterator[str]:
    """The names of all boxes that have a message file which is not read through: one that is, or
    whose box was deleted, is removed a moment later."""
    for path in box_folders(f"{folder.root}/boxes", folder.depth):
        state, _ = read_state(folder.disk, path)
        name = name_of(folder, path, first_file=1 if state is None else state.read_file)
        if name is not None:
            yield name


def name_of(folder: Folder, path: str, first_file: int = 1) -> str | None:
    """The name of the box in this folder, as its message files have it, from this one on."""
    try:
        files = message_files(folder.disk.list(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    for file in reversed(files):
        if file >= first_file:
            beginning = read_beginning(folder.disk, path_of(path, file), HEADER_SIZE)
            header = Header.decode(beginning or b"")
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
