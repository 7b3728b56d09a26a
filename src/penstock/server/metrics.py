"""`/metrics`: one set of figures, as JSON for the dashboard and as OpenMetrics for Prometheus.

The JSON names under `uptime_seconds`, `topics` and `global` are fixed by requirement D9; those
under `queue` are the hub's own (T11). Deliveries are this instance's, the queue is everybody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from penstock.delivery.stats import DeliveryMetrics, Latency, TopicDelivery
from penstock.health import Metrics
from penstock.jobs.overview import Pace
from penstock.mailboxes.figures import MailboxFigures
from penstock.ports.pipelines import PipelineStatus, State

OPENMETRICS = "application/openmetrics-text"
TEXT = "text/plain"
JSON = "application/json"
CONTENT_TYPES = {
    OPENMETRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8",
    TEXT: "text/plain; version=0.0.4; charset=utf-8",
    JSON: "application/json",
}

Kind = Literal["gauge", "counter"]


class TopicFigures(msgspec.Struct, frozen=True):
    queue_depth: int
    queue_max_size: int
    batch_size_avg: float
    messages_published: int
    messages_delivered: int
    messages_dropped: int
    subscriber_count: int
    latency_ms: Latency


class GlobalFigures(msgspec.Struct, frozen=True):
    active_topics: int
    active_subscribers: int
    total_published: int
    total_delivered: int
    total_dropped: int


class MetricsReply(msgspec.Struct, frozen=True, rename={"globally": "global"}):
    uptime_seconds: float
    topics: dict[str, TopicFigures]
    globally: GlobalFigures
    queue: Metrics


def as_reply(delivery: DeliveryMetrics, queue: Metrics) -> MetricsReply:
    """Exactly the names the dashboard asks for."""
    return MetricsReply(
        delivery.uptime_seconds,
        {name: _figures(topic) for name, topic in delivery.topics.items()},
        GlobalFigures(
            delivery.active_topics,
            delivery.active_subscribers,
            delivery.total_published,
            delivery.total_delivered,
            delivery.total_dropped,
        ),
        queue,
    )


def preferred(accept: str) -> str:
    """The form that an Accept header asks for. JSON unless it asks for something else."""
    ranked: list[tuple[float, int, str]] = []
    for number, part in enumerate(accept.split(",")):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if kind in CONTENT_TYPES:
            ranked.append((-_quality(parameters), number, kind))
    return min(ranked)[2] if ranked else JSON


def as_openmetrics(kind: str, delivery: DeliveryMetrics, queue: Metrics, connections: int) -> bytes:
    """In Prometheus' own form, or its older one."""
    registry = CollectorRegistry()
    registry.register(Figures(delivery, queue, connections))
    ProcessCollector(registry=registry)
    generate: Callable[[Any], bytes] = (
        generate_openmetrics if kind == OPENMETRICS else generate_text
    )
    return generate(registry)


_TOPIC: tuple[tuple[str, Kind, str, Callable[[TopicDelivery], float]], ...] = (
    ("queue_depth", "gauge", "Messages waiting for delivery", lambda t: t.queue_depth),
    ("queue_max_size", "gauge", "How many may wait", lambda t: t.queue_max_size),
    ("batch_size_avg", "gauge", "Messages in a batch", lambda t: t.batch_size_avg),
    ("subscribers", "gauge", "Subscribers of this instance", lambda t: t.subscriber_count),
    ("messages_published", "counter", "Messages published", lambda t: t.messages_published),
    ("messages_delivered", "counter", "Messages delivered", lambda t: t.messages_delivered),
    ("messages_dropped", "counter", "Left out for slow clients", lambda t: t.messages_dropped),
    ("delivered_bytes", "counter", "Payload bytes delivered", lambda t: t.bytes_delivered),
    ("catch_ups", "counter", "Slow clients served from the log", lambda t: t.catch_ups),
)

_QUEUE: tuple[tuple[str, str, Callable[[Metrics], float | None]], ...] = (
    ("messages", "Messages in the log", lambda q: q.queue_size),
    ("bytes", "Their payload bytes", lambda q: q.queue_bytes),
    ("topics", "Topics", lambda q: q.topics),
    ("oldest_message_age_seconds", "Of the oldest", lambda q: q.oldest_message_age_seconds),
    ("messages_per_second", "Published in the last minute", lambda q: q.messages_per_second),
    (
        "poll_latency_seconds",
        "From a wake to the messages, averaged over processes",
        lambda q: q.average_poll_latency_ms / 1000,
    ),
    ("active_pollers", "Processes that read", lambda q: q.active_pollers),
    ("last_id", "The end of the log", lambda q: q.last_id),
    ("waiting_writes", "Writes waiting in this process", lambda q: q.waiting_writes),
    ("lag_messages_max", "Of the consumer furthest behind", lambda q: q.max_lag_messages),
    ("lag_seconds_max", "Of the consumer furthest behind", lambda q: q.max_lag_seconds),
)


_MAILBOXES: tuple[tuple[str, Kind, str, Callable[[MailboxFigures], float]], ...] = (
    ("mailboxes_known", "gauge", "Mailboxes this instance used lately", lambda m: m.known),
    ("mailboxes_damaged", "gauge", "Of them, those to be repaired", lambda m: m.damaged),
    ("mailboxes_failed", "gauge", "1: the disk failed, nothing is put", lambda m: m.is_failed),
    ("mailbox_puts", "counter", "Messages put", lambda m: m.puts),
    ("mailbox_acks", "counter", "Messages acknowledged", lambda m: m.acks),
    ("mailbox_quota_refusals", "counter", "Refused by full ones", lambda m: m.quota_refusals),
    ("mailbox_waiting_puts", "gauge", "Puts that wait for the disk", lambda m: m.waiting_puts),
    ("mailbox_log_bytes", "gauge", "In the commit log", lambda m: m.log_bytes),
    ("mailbox_subscriptions", "gauge", "Mailboxes fed from topics", lambda m: m.subscriptions),
    ("mailbox_feeding", "gauge", "1: this instance feeds them", lambda m: m.is_feeding),
    ("mailbox_fed", "counter", "Messages of topics put into them", lambda m: m.fed),
    ("mailbox_feeds_behind", "gauge", "Subscriptions that catch up", lambda m: m.behind),
    ("mailbox_feeds_full", "gauge", "Subscriptions that wait for room", lambda m: m.full),
)

_STATES = ("pending", "scheduled", "waiting", "processing", "completed", "failed", "cancelled")

_PACE: tuple[tuple[str, str, Callable[[Pace], float | None]], ...] = (
    ("completed_per_second", "Completed in the last minute", lambda p: p.completed_per_second),
    ("wait_p50_seconds", "From ready to started, half of them", lambda p: p.wait_p50_seconds),
    ("wait_p95_seconds", "From ready to started, 95 of 100", lambda p: p.wait_p95_seconds),
    ("run_p50_seconds", "From started to done, half of them", lambda p: p.run_p50_seconds),
    ("run_p95_seconds", "From started to done, 95 of 100", lambda p: p.run_p95_seconds),
)


_PIPELINE: tuple[tuple[str, Kind, str, Callable[[PipelineStatus], float | None]], ...] = (
    ("rows", "counter", "Rows read, over all runs", lambda p: p.rows_total),
    ("lag_rows", "gauge", "Rows still to be read", lambda p: p.lag),
    ("batch_rows", "gauge", "Rows of the last batch", lambda p: p.batch_rows),
    ("batch_seconds", "gauge", "How long the last batch took", lambda p: p.batch_seconds),
    (
        "seen_timestamp_seconds",
        "gauge",
        "When it last said something",
        lambda p: p.updated_at / 1e6,
    ),
)


class Figures(Collector):
    """One moment's figures, as Prometheus' library wants them."""

    def __init__(self, delivery: DeliveryMetrics, queue: Metrics, connections: int) -> None:
        self._delivery = delivery
        self._queue = queue
        self._connections = connections

    def collect(self) -> Iterable[Metric]:
        delivery = self._delivery
        yield GaugeMetricFamily(
            "penstock_uptime_seconds", "Since the server started", delivery.uptime_seconds
        )
        yield GaugeMetricFamily("penstock_connections", "Open connections", self._connections)
        yield GaugeMetricFamily(
            "penstock_slow_connections", "Whose client reads slowly", delivery.slow_connections
        )
        yield from self._topics()
        for name, help, value in _QUEUE:
            found = value(self._queue)
            if found is not None:
                yield GaugeMetricFamily(f"penstock_queue_{name}", help, found)
        yield from self._jobs()
        yield from self._ledger()
        yield from self._mailboxes()
        yield from self._pipelines()

    def _pipelines(self) -> Iterable[Metric]:
        states = GaugeMetricFamily(
            "penstock_pipeline_state", "1 for the state it is in", labels=["pipeline", "state"]
        )
        for found in self._queue.pipelines:
            for state in get_args(State):
                states.add_metric([found.name, state], float(found.state == state))
        yield states
        for name, kind, help, value in _PIPELINE:
            family = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
            metric = family(f"penstock_pipeline_{name}", help, labels=["pipeline"])
            for found in self._queue.pipelines:
                if (figure := value(found)) is not None:
                    metric.add_metric([found.name], figure)
            yield metric

    def _mailboxes(self) -> Iterable[Metric]:
        found = self._queue.mailboxes
        for name, kind, help, value in _MAILBOXES:
            family = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
            yield family(f"penstock_{name}", help, value(found))
        yield GaugeMetricFamily(
            "penstock_mailboxes_open", "That are pushed to a socket", self._delivery.open_mailboxes
        )
        yield CounterMetricFamily(
            "penstock_mailbox_pushed", "Messages pushed to sockets", self._delivery.pushed_mail
        )

    def _ledger(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "penstock_ledger_in_progress", "Keys being processed", self._queue.ledger_in_progress
        )
        entries = GaugeMetricFamily("penstock_ledger_entries", "Keys processed", labels=["scope"])
        for scope, count in self._queue.ledger_scopes.items():
            entries.add_metric([scope], count)
        yield entries

    def _jobs(self) -> Iterable[Metric]:
        found = self._queue.jobs
        jobs = GaugeMetricFamily("penstock_jobs", "Jobs in a state", labels=["queue", "state"])
        oldest = GaugeMetricFamily(
            "penstock_job_oldest_pending_seconds", "Of the oldest ready job", labels=["queue"]
        )
        paused = GaugeMetricFamily("penstock_job_queue_paused", "1: it is", labels=["queue"])
        alone = GaugeMetricFamily(
            "penstock_job_queue_unattended", "1: ready jobs and no worker", labels=["queue"]
        )
        for queue in found.queues:
            name = queue.queue
            for state in _STATES:
                jobs.add_metric([name, state], getattr(queue, state))
            oldest.add_metric([name], queue.oldest_pending_seconds or 0.0)
            paused.add_metric([name], queue.limits.is_paused)
            alone.add_metric([name], name in found.unattended)
        yield from (jobs, oldest, paused, alone)
        for name, help, value in _PACE:
            metric = GaugeMetricFamily(f"penstock_job_{name}", help, labels=["queue"])
            for queue_name, pace in found.paces.items():
                if (figure := value(pace)) is not None:
                    metric.add_metric([queue_name], figure)
            yield metric
        yield GaugeMetricFamily(
            "penstock_job_workers", "Processes that take jobs", float(found.workers)
        )

    def _topics(self) -> Iterable[Metric]:
        topics = self._delivery.topics
        for name, kind, help, value in _TOPIC:
            family = GaugeMetricFamily if kind == "gauge" else CounterMetricFamily
            metric = family(f"penstock_topic_{name}", help, labels=["topic"])
            for topic, figures in topics.items():
                metric.add_metric([topic], value(figures))
            yield metric
        yield self._latencies()

    def _latencies(self) -> Metric:
        metric = GaugeMetricFamily(
            "penstock_topic_latency_seconds",
            "From publishing to sending",
            labels=["topic", "quantile"],
        )
        for topic, figures in self._delivery.topics.items():
            latency = figures.latency_ms
            for quantile, ms in (
                ("avg", latency.avg),
                ("0.95", latency.p95),
                ("0.99", latency.p99),
            ):
                metric.add_metric([topic, quantile], ms / 1000)
        return metric


def _figures(topic: TopicDelivery) -> TopicFigures:
    return TopicFigures(
        topic.queue_depth,
        topic.queue_max_size,
        topic.batch_size_avg,
        topic.messages_published,
        topic.messages_delivered,
        topic.messages_dropped,
        topic.subscriber_count,
        topic.latency_ms,
    )


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
