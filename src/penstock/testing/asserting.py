"""What a test says about jobs that wait for somebody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from penstock.hub import Hub
from penstock.job import Job, JobFilter, State
from penstock.jobs.registry import JobFunction

SHOWN_MAX = 20
FOUND_MAX = 10_000
OPEN = tuple(state for state in State if not state.is_final)

_ANY: Any = object()


def assert_enqueued(
    hub: Hub,
    type: str | JobFunction[Any],
    payload: Any | Callable[[Any], bool] = _ANY,
    *,
    queue: str | None = None,
    count: int | None = None,
    **fields: Any,
) -> Job:
    """There is a job of this type that has not finished, with this payload. Returns the newest.

    `payload` is the payload, or a function that says whether it is one; `fields` are others of
    `Job`, such as `priority=-10`; `count`, from 1 up, is how many there are, else at least one.
    """
    if count is not None and count < 1:
        raise ValueError("count is from 1 up; refute_enqueued() says that there is none")
    name, found = _find(hub, type, payload, queue, fields)
    if not found if count is None else len(found) != count:
        wanted = "a job" if count is None else f"{count} jobs"
        raise AssertionError(
            f"There should be {wanted} {_described(name, payload, queue, fields)}, and there "
            f"{'is' if len(found) == 1 else 'are'} {len(found) or 'none'}. {_shown(hub, queue)}"
        )
    return found[0]


def refute_enqueued(
    hub: Hub,
    type: str | JobFunction[Any],
    payload: Any | Callable[[Any], bool] = _ANY,
    *,
    queue: str | None = None,
    **fields: Any,
) -> None:
    """There is no such job."""
    name, found = _find(hub, type, payload, queue, fields)
    if found:
        raise AssertionError(
            f"There should be no job {_described(name, payload, queue, fields)}. "
            f"{_shown(hub, queue)}"
        )


def _find(
    hub: Hub, type: str | JobFunction[Any], payload: Any, queue: str | None, fields: dict[str, Any]
) -> tuple[str, list[Job]]:
    name = type.handler.type if isinstance(type, JobFunction) else type
    unknown = sorted(set(fields) - set(Job.__struct_fields__))
    if unknown:
        raise TypeError(f"A job has no field {unknown[0]!r}.")
    filter = JobFilter(queue=queue, type=name, states=OPEN)
    jobs = hub._open().store.jobs.find(filter, before=None, limit=FOUND_MAX)
    if payload is not _ANY and not callable(payload):
        payload = _as_stored(payload)
    return name, [
        job
        for job in jobs
        if _fits(job, payload) and all(getattr(job, key) == fields[key] for key in fields)
    ]


def _fits(job: Job, payload: Any) -> bool:
    if payload is _ANY:
        return True
    return bool(payload(job.payload)) if callable(payload) else job.payload == payload


def _as_stored(payload: Any) -> Any:
    """As it comes back from the store: values become dicts, tuples lists."""
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    return msgspec.json.decode(msgspec.json.encode(payload))


def _described(name: str, payload: Any, queue: str | None, fields: dict[str, Any]) -> str:
    parts = [f"of type {name!r}"]
    if queue is not None:
        parts.append(f"in the queue {queue!r}")
    if payload is not _ANY:
        parts.append("with such a payload" if callable(payload) else f"with {payload!r}")
    parts += [f"with {key}={value!r}" for key, value in fields.items()]
    return " ".join(parts)


def _shown(hub: Hub, queue: str | None) -> str:
    filter = JobFilter(queue=queue, states=OPEN)
    jobs = hub._open().store.jobs.find(filter, before=None, limit=SHOWN_MAX)
    if not jobs:
        return "No job is waiting."
    lines = [
        f"  {job.id} {job.queue} {job.type} {job.state.name.lower()} {job.payload!r:.200}"
        for job in jobs
    ]
    return "Waiting, newest first:\n" + "\n".join(lines)
