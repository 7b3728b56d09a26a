"""Copies of the whole hub, and starting anew after one was put in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from penstock.committer import inside_transaction
from penstock.errors import BackupFailed, InsideTransaction
from penstock.topics.runtime import Runtime

Progress = Callable[[int, int], None]


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
    runtime.store.backup(Path(target), progress)


def restore(runtime: Runtime, source: str | os.PathLike[str], progress: Progress | None) -> None:
    _refuse_inside_transaction()
    runtime.store.restore(Path(source), progress)


def new_generation(runtime: Runtime) -> str:
    _refuse_inside_transaction()
    return runtime.store.new_generation()


def _refuse_inside_transaction() -> None:
    if inside_transaction.get():
        raise InsideTransaction
