"""Jobs and queues as people see them in a terminal."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.cli import table
from penstock.cli.amount import show_duration, show_time
from penstock.cli.job_options import JobLine, readable
from penstock.cli.session import Session
from penstock.job import Job, Kind, QueueStats
from penstock.jobs.overview import Overview, Pace

TEXT_MAX = 60
WIDE = 120
COLOURS = {"failed": "critical", "cancelled": "warning", "completed": "ok"}


def print_jobs(session: Session, jobs: list[Job], limit: int, empty: str) -> None:
    if session.is_json:
        table.print_json([JobLine.of(job) for job in jobs])
        return
    table.print_table(
        ("job", "queue", "type", "state", "tries", "enqueued", "what"),
        (
            (
                job.id,
                job.queue,
                job.type,
                state_of(job),
                attempts_of(job),
                show_time(job.created_at),
                _short(job),
            )
            for job in jobs
        ),
        right=("job",),
        empty=empty,
    )
    if len(jobs) == limit:
        table.note(f"There may be more: --before {jobs[-1].id}")


def print_overview(found: Overview) -> None:
    """A column that has nothing to say is left out; the times are for wide terminals."""
    is_wide = table.console().width >= WIDE
    seldom = {
        name: any(getattr(queue, name) for queue in found.queues)
        for name in ("scheduled", "waiting", "cancelled")
    }

    def row(name: str, stats: QueueStats, pace: Pace) -> tuple[object, ...]:
        age = stats.oldest_pending_seconds
        return (
            name,
            f"{stats.pending:,}",
            f"{stats.scheduled:,}" if seldom["scheduled"] else "",
            f"{stats.waiting:,}" if seldom["waiting"] else "",
            f"{stats.processing:,}",
            f"{stats.completed:,}",
            f"{stats.failed:,}",
            f"{stats.cancelled:,}" if seldom["cancelled"] else "",
            "" if age is None else show_duration(age),
            f"{pace.completed_per_second:,.1f}" if pace.completed else "",
            _latency(pace.wait_p50_seconds, pace.wait_p95_seconds) if is_wide else "",
            _latency(pace.run_p50_seconds, pace.run_p95_seconds) if is_wide else "",
            _limits(stats, stats.queue in found.unattended),
        )

    headers = (
        *("queue", "pending", "scheduled", "waiting", "running", "completed", "failed"),
        *("cancelled", "oldest", "done/s", "wait p50/95", "run p50/95", "note"),
    )
    rows = [row(one.queue, one, found.paces.get(one.queue, Pace())) for one in found.queues]
    if len(rows) > 1:
        rows.append(row("all", found.overall, found.pace))
    table.print_table(headers, rows, right=headers[1:-1], empty="No jobs yet.")
    table.say(f"{table.plural(found.workers, 'worker')}.")


def _limits(stats: QueueStats, is_unattended: bool) -> str:
    limits, notes = stats.limits, []
    if limits.is_paused:
        notes.append("paused")
    if is_unattended:
        notes.append("no worker")
    if limits.concurrency_max is not None:
        notes.append(f"{limits.concurrency_max} at once")
    if limits.rate_max is not None:
        notes.append(f"{limits.rate_max} in {limits.rate_seconds:g} s")
    return ", ".join(notes)


def _latency(half: float | None, most: float | None) -> str:
    if half is None or most is None:
        return ""
    return f"{show_duration(half)} / {show_duration(most)}"


def state_of(job: Job) -> Any:
    name = job.state.name.lower()
    shown = "stopping" if job.is_cancelling else name
    return table.coloured(shown, COLOURS[name]) if name in COLOURS else shown


def attempts_of(job: Job) -> str:
    crashed = f", {table.plural(job.crashes, 'crash').replace('crashs', 'crashes')}"
    return f"{job.attempts}/{job.max_attempts}{crashed if job.crashes else ''}"


def progress_of(job: Job) -> str:
    if job.progress is None:
        return ""
    percent = job.progress.percent
    far = f"{job.progress.done:g}" if percent is None else f"{percent:.0f} %"
    return f"{far} {job.progress.note}".strip()


def _short(job: Job) -> str:
    """What a list says about it: how far it is, what went wrong, or what it is about."""
    text = progress_of(job)
    if not text and job.failure is not None:
        lines = job.failure.message.strip().splitlines()
        text = f"{job.failure.error}: {lines[0]}" if lines else job.failure.error
    text = text or as_text(readable(lambda: job.payload, job.body))
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def what_of(kind: Kind, data: dict[str, Any]) -> str:
    if "error" in data:
        lines = str(data.get("message", "")).strip().splitlines()
        text = f"{data['error']}: {lines[0]}" if lines else str(data["error"])
    elif kind == Kind.PROGRESS:
        of = f" of {data['total']:g}" if data.get("total") else ""
        text = f"{data.get('done', 0):g}{of} {data.get('note', '')}".strip()
    else:
        text = str(data.get("reason", ""))
    if "retry_at" in data:
        text = f"{text}; again at {show_time(data['retry_at'])}".removeprefix("; ")
    return text


def as_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
