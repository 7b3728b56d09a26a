"""Events reach whoever is attached, are counted, and hurt nobody."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest

import penstock
from penstock.telemetry import Telemetry


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def heard() -> list[tuple[str, dict[str, Any]]]:
    return []


def test_an_attached_handler_gets_events_with_their_measurements(
    telemetry: Telemetry, heard: list[object]
) -> None:
    telemetry.attach(lambda *event: heard.append(event))
    telemetry.emit("commit", operations=1, messages=2)

    assert heard == [("commit", {"operations": 1, "messages": 2})]


def test_a_handler_is_called_on_the_thread_of_the_event(telemetry: Telemetry) -> None:
    threads: list[int] = []
    telemetry.attach(lambda *_: threads.append(threading.get_ident()))
    emitter = threading.Thread(target=telemetry.emit, args=("tail",))
    emitter.start()
    emitter.join()

    assert threads == [emitter.ident]


def test_a_detached_handler_gets_nothing_more(telemetry: Telemetry, heard: list[object]) -> None:
    others: list[object] = []
    detach = telemetry.attach(lambda *event: heard.append(event))
    telemetry.attach(lambda *event: others.append(event))
    detach()
    telemetry.emit("commit")
    detach()

    assert (len(heard), len(others)) == (0, 1)


def test_a_handler_may_detach_itself(telemetry: Telemetry, heard: list[object]) -> None:
    def once(event: str, _: Mapping[str, Any]) -> None:
        heard.append(event)
        detach()

    detach = telemetry.attach(once)
    telemetry.emit("commit")
    telemetry.emit("commit")

    assert heard == ["commit"]


def test_events_and_what_is_counted_by_hand_are_counters(telemetry: Telemetry) -> None:
    telemetry.emit("commit", messages=7)
    telemetry.emit("commit", messages=7)
    telemetry.count("published", 14)

    assert telemetry.counters() == {"commit": 2, "published": 14}


def test_counters_that_are_handed_out_do_not_change(telemetry: Telemetry) -> None:
    before = telemetry.counters()
    telemetry.count("published")

    assert before == {}


def test_threads_do_not_lose_counts(telemetry: Telemetry) -> None:
    def count() -> None:
        for _ in range(2_000):
            telemetry.count("published")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert telemetry.counters() == {"published": 8_000}


def test_a_handler_that_fails_hurts_neither_the_others_nor_the_event(
    telemetry: Telemetry, heard: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: str, measurements: Mapping[str, Any]) -> None:
        raise ValueError("no luck")

    telemetry.attach(fail)
    telemetry.attach(lambda *event: heard.append(event))
    with caplog.at_level(logging.ERROR, logger="penstock"):
        telemetry.emit("commit")

    assert heard == [("commit", {})]
    assert "no luck" in caplog.text


def test_only_what_a_person_should_know_is_logged(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="penstock"):
        telemetry.emit("commit", messages=1)
        telemetry.emit("service_failed", service="tail", error="ValueError()")

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ValueError()" in caplog.text


def test_a_hub_counts_what_it_publishes_and_delivers(memory: penstock.Hub) -> None:
    with memory.topics.subscribe("t") as live:
        memory.topics.publish_many("t", range(3))
        received = [live.get(10) for _ in range(3)]
    counters = memory.telemetry.counters()

    assert len(received) == 3
    assert (counters["published"], counters["delivered"]) == (3, 3)
    assert counters["commit"] >= 1
