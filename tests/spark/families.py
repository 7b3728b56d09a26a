"""Processes with all that they have started: a Spark driver has a JVM, and that has its tasks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

import psutil

from tests.waiting import wait_until


def kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """At one moment, as when the power fails."""
    if process.poll() is not None:
        return
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    for member in family:
        member.suspend()  # So that none of them sees another one's end.
    for member in family:
        member.kill()
    process.wait()
    wait_for_end(family)


def wait_for_end(family: Iterable[psutil.Process]) -> None:
    """Until none of them runs. Where nobody asks after orphans, they stay as names in a list."""
    for member in family:
        wait_until(lambda member=member: _has_ended(member), f"{member} has ended")


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
