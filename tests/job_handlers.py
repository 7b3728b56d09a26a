"""Handlers that other processes import: for tests of `isolation="process"`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec

import penstock
from penstock.jobs.registry import Snooze
from penstock.jobs.retry import fixed, only_on

hub = penstock.connect(os.environ.get("JOB_HANDLERS_URL", "memory:"))


class Point(msgspec.Struct):
    x: int
    y: int


@hub.job(queue="p", isolation="process", max_attempts=1)
def pid(payload: None, job: Any) -> int:
    return os.getpid()


@hub.job(queue="p", isolation="process", max_attempts=1)
def total(payload: Point, job: Any) -> dict[str, int]:
    return {"total": payload.x + payload.y, "attempt": job.attempt}


@hub.job(queue="p", isolation="process", max_attempts=2, retry=fixed(0.01))
def die(how: str, job: Any) -> str:
    if job.attempt == 2:
        return "lived"
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), 9)
    import ctypes

    ctypes.string_at(0)
    return ""


@hub.job(queue="p", isolation="process", max_attempts=5, retry=only_on(OSError, fixed(0.01)))
def raises(name: str, job: Any) -> None:
    if name == "exit":
        raise SystemExit(4)
    raise {"value": ValueError, "os": OSError}[name](f"attempt {job.attempt}")


@hub.job(queue="p", isolation="process", max_attempts=1, timeout=0.3)
def hang(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        time.sleep(60)


@hub.job(queue="p", isolation="process", max_attempts=1)
def cooperate(file: str, job: Any) -> str:
    job.progress(1, 4, "begun")
    while not job.is_cancelled:
        time.sleep(0.005)
    Path(file).write_text("was told")
    return "ended"


@hub.job(queue="p", isolation="process", max_attempts=1)
def defy(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        time.sleep(60)


@hub.job(queue="p", isolation="process", max_attempts=3)
def snoozes(payload: None, job: Any) -> Any:
    return Snooze(0.01) if job.attempt == 1 and not hub.topics.read("snoozed") else "awake"


@hub.job(queue="p", isolation="process", max_attempts=1)
def settles(payload: int, job: Any) -> str:
    with job.transaction({"kept": payload}) as tx:
        tx.publish("done", payload)
    raise ValueError("too late to matter")


@hub.job(queue="p", isolation="process", max_attempts=1)
def unspeakable(payload: None) -> object:
    return object()
