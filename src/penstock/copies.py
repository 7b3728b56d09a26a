"""Copies of the whole hub, and starting anew after one was put in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from penstock.committer import inside_transaction
from penstock.errors import BackupFailed, InsideTransaction
from penstock.mailboxes.mailroom import MailRoom
from penstock.mailboxes.relocation import copy_boxes, restore_boxes
from penstock.topics.runtime import Runtime as TopicsRuntime

Progress = Callable[[int, int], None]


class Runtime(TopicsRuntime, Protocol):
    mail: MailRoom


def backup(
    runtime: Runtime,
    target: str | os.PathLike[str],
    progress: Progress | None,
    *,
    overwrite: bool,
) -> None:
    _refuse_inside_transaction()
    if not overwrite and Path(target).exists():
        raise BackupFailed(f"{target} exists.", hint="Choose another name, or overwrite it.")
    # The database first: what it has given to mailboxes meanwhile is given again, never lost.
    runtime.store.backup(Path(target), progress)
    if runtime.mail.has_boxes:
        copy_boxes(runtime.mail.folder, _mailboxes_of(Path(target), overwrite), progress)


def restore(runtime: Runtime, source: str | os.PathLike[str], progress: Progress | None) -> None:
    _refuse_inside_transaction()
    runtime.store.restore(Path(source), progress)
    boxes = _beside(Path(source))
    if boxes.is_dir():
        restore_boxes(runtime.mail.folder, boxes, progress)


def _beside(database: Path) -> Path:
    return database.with_name(database.name + ".mailboxes")


def _mailboxes_of(target: Path, overwrite: bool) -> Path:
    folder = _beside(target)
    if folder.exists():
        if not overwrite:
            raise BackupFailed(f"{folder} exists.", hint="Choose another name, or overwrite it.")
        shutil.rmtree(folder)
    return folder


def new_generation(runtime: Runtime) -> str:
    _refuse_inside_transaction()
    return runtime.store.new_generation()


def _refuse_inside_transaction() -> None:
    if inside_transaction.get():
        raise InsideTransaction
