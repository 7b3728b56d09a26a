"""Is it well, how far behind are consumers, and what to do about it (T11, T12)."""

from __future__ import annotations

import threading
import time
from typing import Literal, Protocol

import msgspec

from penstock.clock import micros, seconds
from penstock.entry import ScopeStats
from penstock.errors import PenstockError
from penstock.jobs.overview import Overview, look_over
from penstock.ledger.fallback import Fallback
from penstock.mailboxes.condition import check_mailboxes
from penstock.mailboxes.feeder import Feeder
from penstock.mailboxes.figures import MailboxFigures, measure_mailboxes
from penstock.mailboxes.mailroom import MailRoom
from penstock.model import Check, Instance, Lag, NewMessage, Pattern
from penstock.ports.pipelines import PipelineStatus
from penstock.settings import Settings
from penstock.topics.consumers import measure_lag
from penstock.topics.runtime import Runtime

RATE_SECONDS = 60
ROUND_TRIP_SECONDS = 5.0
SCOPES_MAX = 100
"""Scopes of the ledger that metrics name."""
DOCTOR_TOPIC = "penstock.doctor"

Status = Literal["ok", "warning", "critical"]
_ORDER: dict[Status, int] = {"ok": 0, "warning": 1, "critical": 2}


class Metrics(msgspec.Struct, frozen=True):
    """The queue in figures."""

    queue_size: int
    queue_bytes: int
    topics: int
    oldest_message_age_seconds: float
    messages_per_second: float
    average_poll_latency_ms: float
    active_pollers: int
    lowest_position: int | None
    last_id: int
    waiting_writes: int
    max_lag_messages: int
    max_lag_seconds: float
    ledger_entries: int = 0
    """Keys that the ledger knows as processed."""
    ledger_in_progress: int = 0
    ledger_scopes: dict[str, int] = {}
    """The processed keys by scope; of the largest, where there are many."""
    jobs: Overview = Overview()
    pipelines: list[PipelineStatus] = []
    """How far each pipeline has come, without its options and places."""
    mailboxes: MailboxFigures = MailboxFigures()
    """As the process that measures sees them."""


class Health(msgspec.Struct, frozen=True):
    status: Status
    checks: list[Check]
    lags: list[Lag]
    metrics: Metrics


class Watched(Runtime, Protocol):
    """What health is about."""

    fallback: Fallback
    mail: MailRoom
    feeder: Feeder | None


def measure(runtime: Watched, lags: list[Lag] | None = None) -> Metrics:
    store, now = runtime.store, runtime.clock.now()
    topics = store.topics.find(Pattern("*"))
    instances: list[Instance] = store.instances.alive()
    log = store.log()
    oldest = store.topics.oldest_at()
    recent = log.last_id - store.topics.offset_at(now - micros(RATE_SECONDS))
    latencies = [i.poll_latency_ms for i in instances if i.poll_latency_ms]
    lags = _lags(runtime) if lags is None else lags
    scopes = _scopes(runtime)
    return Metrics(
        queue_size=sum(topic.messages for topic in topics),
        queue_bytes=sum(topic.bytes for topic in topics),
        topics=len(topics),
        oldest_message_age_seconds=0.0 if oldest is None else seconds(max(0, now - oldest)),
        messages_per_second=recent / RATE_SECONDS,
        average_poll_latency_ms=sum(latencies) / len(latencies) if latencies else 0.0,
        active_pollers=len(instances),
        lowest_position=store.instances.lowest_position(),
        last_id=log.last_id,
        waiting_writes=runtime.committer.waiting,
        max_lag_messages=max((lag.messages for lag in lags), default=0),
        max_lag_seconds=max((lag.seconds for lag in lags), default=0.0),
        ledger_entries=sum(scope.processed for scope in scopes),
        ledger_in_progress=sum(scope.in_progress for scope in scopes),
        ledger_scopes={scope.scope: scope.processed for scope in scopes[:SCOPES_MAX]},
        jobs=look_over(store, now),
        pipelines=[
            msgspec.structs.replace(status, checkpoint="", options="")
            for status in store.pipelines.find()
        ],
        mailboxes=measure_mailboxes(store, runtime.mail, runtime.feeder),
    )


def report(runtime: Watched) -> Health:
    """Judged on consumers' lag; a hold that was broken is critical."""
    lags = _lags(runtime)
    checks = [_judge(lag, runtime.settings) for lag in lags]
    checks += [
        Check(service.name, "warning", f"failing: {service.last_error}", "It is tried again.")
        for service in (runtime.committer, runtime.keeper, runtime.conflator)
        if service.last_error is not None
    ]
    checks += _ledger_checks(runtime)
    metrics = measure(runtime, lags)
    checks += _job_checks(metrics.jobs, runtime.settings)
    checks += _pipeline_checks(metrics.pipelines)
    checks += check_mailboxes(runtime.store, runtime.mail, runtime.feeder, metrics.mailboxes)
    return Health(worst(checks), checks, lags, metrics)


def diagnose(runtime: Runtime) -> list[Check]:
    """What `penstock doctor` shows: the file, a write, a wake, the consumers."""
    checks = list(runtime.store.checks())
    for probe in (_write_round_trip, _wake_round_trip):
        try:
            checks.append(probe(runtime))
        except PenstockError as error:
            name = probe.__name__.strip("_").split("_")[0]
            checks.append(Check(name, "critical", error.message, error.hint))
    checks.append(_instances(runtime))
    lags = [_judge(lag, runtime.settings) for lag in _lags(runtime)]
    return checks + (lags or [Check("consumers", "ok", "none registered")])


def worst(checks: list[Check]) -> Status:
    return max((check.status for check in checks), key=_ORDER.__getitem__, default="ok")


def _scopes(runtime: Runtime) -> list[ScopeStats]:
    """The largest first. None of a damaged ledger, which has a check of its own."""
    try:
        found = runtime.store.ledger.stats()
    except PenstockError:
        return []
    return sorted(found, key=lambda scope: scope.processed, reverse=True)


def _job_checks(jobs: Overview, settings: Settings) -> list[Check]:
    """Queues whose jobs wait. Dead letters are figures: they wait for people, not for workers."""
    checks = []
    for queue in jobs.queues:
        name, age = f"queue {queue.queue}", queue.oldest_pending_seconds or 0.0
        found = f"{queue.pending:,} ready, {queue.processing:,} running, {queue.failed:,} failed"
        if queue.queue in jobs.unattended:
            advice = f"penstock work MODULE:hub --queues {queue.queue}"
            checks.append(Check(name, "warning", f"no worker takes its jobs; {found}", advice))
        elif (
            queue.pending and not queue.limits.is_paused and age > settings.job_wait_warning_seconds
        ):
            found = f"the oldest has been ready for {age:,.0f} s; {found}"
            advice = "'penstock jobs explain JOB' says why one is not running."
            checks.append(Check(name, "warning", found, advice))
    return checks


def _pipeline_checks(pipelines: list[PipelineStatus]) -> list[Check]:
    """Those that run, and those that should."""
    checks = []
    for found in pipelines:
        name = f"pipeline {found.name}"
        if found.is_running:
            behind = "" if found.lag is None else f", {found.lag:,} rows behind"
            checks.append(Check(name, "ok", f"{found.state}{behind}"))
        elif found.state == "failed":
            advice = f"'penstock pipeline run {found.name}' goes on where it was."
            checks.append(Check(name, "warning", f"failed: {found.error}", advice))
        elif found.state == "lost":
            advice = f"'penstock pipeline run {found.name}' goes on where it was."
            text = f"{found.runner} has ended, or hangs, and did not say why"
            checks.append(Check(name, "warning", text, advice))
    return checks


def _ledger_checks(runtime: Watched) -> list[Check]:
    found = runtime.fallback.check()
    if found is not None:
        return [found]
    try:
        runtime.store.ledger.stats()
    except PenstockError as error:
        return [Check("ledger", "critical", error.message, error.hint)]
    return []


def _lags(runtime: Runtime) -> list[Lag]:
    return [measure_lag(runtime, consumer) for consumer in runtime.store.consumers.find()]


def _judge(lag: Lag, settings: Settings) -> Check:
    name = f"consumer {lag.consumer} on {lag.subscription}"
    found = f"{lag.messages:,} messages, {lag.seconds:,.1f} s behind"
    if lag.lost:
        return Check(
            name,
            "critical",
            f"messages were removed before it had them; {found}",
            "Follow with on_trimmed='skip' to go on, and keep messages longer or hold them.",
        )
    advice = "Is its follower running and fast enough? 'penstock consumers list' shows holders."
    if lag.messages > settings.lag_critical_messages or lag.seconds > settings.lag_critical_seconds:
        return Check(name, "critical", found, advice)
    if lag.messages >= settings.lag_warning_messages or lag.seconds >= settings.lag_warning_seconds:
        return Check(name, "warning", found, advice)
    return Check(name, "ok", found)


def _write_round_trip(runtime: Runtime) -> Check:
    started = time.perf_counter()
    message = NewMessage(DOCTOR_TOPIC, b"", 0, ttl=micros(1))
    runtime.committer.append([message]).wait(ROUND_TRIP_SECONDS)
    elapsed = (time.perf_counter() - started) * 1000
    kind = "fsynced" if runtime.store.capabilities.durable else "not fsynced"
    return Check("write", "ok", f"a message was on disk ({kind}) after {elapsed:.1f} ms")


def _wake_round_trip(runtime: Runtime) -> Check:
    wake = runtime.store.open_wake()
    try:
        wake.wait(0.0)
        woken = threading.Event()
        at: list[float] = []

        def listen() -> None:
            if wake.wait(ROUND_TRIP_SECONDS):
                at.append(time.perf_counter())
                woken.set()

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        started = time.perf_counter()
        runtime.store.ring()
        listener.join(ROUND_TRIP_SECONDS)
    finally:
        wake.close()
    if not woken.is_set():
        return Check(
            "wake",
            "warning",
            "the bell was not heard",
            "Delivery works through the safety net, up to poll_idle_ms later.",
        )
    return Check("wake", "ok", f"the bell was heard after {(at[0] - started) * 1000:.2f} ms")


def _instances(runtime: Runtime) -> Check:
    names = [instance.name for instance in runtime.store.instances.alive()]
    return Check("processes", "ok", ", ".join(names) or "none listening")
