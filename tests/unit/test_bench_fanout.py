"""The fan-out benchmark answers what it is asked, and sees what goes wrong (D1–D3, D11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from picows import WSMsgType

from bench import fanout
from bench.arena import Arena
from bench.broadcast import faults, per_cpu
from bench.dialects import Ear, Penstock, Series
from bench.machine import nats_server_version
from bench.peers.asgi import Asgi
from bench.peers.nats import Nats, stream_of

ISSUED = {
    "deliveries_per_cpu_s": None,
    "naive_asgi_deliveries_per_cpu_s": None,
    "ratio_vs_naive_asgi": "≥ 20",
    "nats_ws_deliveries_per_cpu_s": None,
    "ratio_vs_nats": "≥ 2",
    "unbatched_deliveries_per_cpu_s": None,
    "idle_two_instances_p50_ms": "≤ 2",
    "loaded_two_instances_p99_ms": "≤ 25",
    "rss_kb_per_idle_connection": "≤ 20",
    "lost": "≤ 0",
    "duplicated": "≤ 0",
}


class Frame:
    """As picows hands one over."""

    def __init__(self, data: bytes, kind: WSMsgType = WSMsgType.TEXT) -> None:
        self.msg_type = kind
        self._data = data

    def get_payload_as_bytes(self) -> bytes:
        return self._data


def hear(ear: Ear, *frames: bytes) -> None:
    for data in frames:
        ear.on_ws_frame(None, Frame(data))  # type: ignore[arg-type]


class Answers:
    """What a client sends back."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, kind: WSMsgType, data: bytes) -> None:
        self.sent.append(data)


def greet(ear: Ear) -> None:
    """As nats-server does, before any message."""
    answers: Any = Answers()
    greeting: Any = Frame(b'INFO {"server_id":"x"}\r\nPING\r\n', WSMsgType.BINARY)
    ear.on_ws_frame(answers, greeting)
    assert answers.sent == [b"PONG\r\n"]


def push(series: Series, *numbers: int) -> bytes:
    entries = [{"id": n, "at": 1, "payload": msgspec.Raw(series.bodies[n])} for n in numbers]
    return msgspec.json.encode({"push": "messages", "topic": "bench", "messages": entries})


def listen(dialect: Any, series: Series) -> Ear:
    ear: Ear = dialect.ear(series, lambda: None)
    return ear


def wrongs(ear: Ear) -> tuple[int, int, int]:
    return ear.lost, ear.duplicated, ear.changed


def test_every_key_that_was_asked_for_is_measured_against_its_budget() -> None:
    budgets = {key.name: key.budget and str(key.budget) for key in fanout.KEYS}
    assert {name: budgets[name] for name in ISSUED} == ISSUED


def test_all_messages_of_the_series_have_one_size_and_differ() -> None:
    bodies = Series(1_000).bodies
    assert len({len(body) for body in bodies}) == 1
    assert len(set(bodies)) == 1_000


def test_those_who_get_the_same_frames_have_heard_the_same() -> None:
    series = Series(5)
    first, second = listen(Penstock(), series), listen(Penstock(), series)
    frames = [push(series, 0), push(series, 1, 2, 3), push(series, 4)]
    hear(first, *frames)
    hear(second, *frames)
    assert (first.heard, second.heard) == (5, 5)
    assert wrongs(first) == wrongs(second) == (0, 0, 0)


def test_one_whose_batches_are_cut_otherwise_has_heard_all_too() -> None:
    series = Series(4)
    first, second = listen(Penstock(), series), listen(Penstock(), series)
    hear(first, push(series, 0, 1), push(series, 2, 3))
    hear(second, push(series, 0), push(series, 1, 2), push(series, 3))
    assert second.heard == 4
    assert wrongs(second) == (0, 0, 0)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_missing_frame_is_a_loss_whoever_misses_it(is_first: bool) -> None:
    series = Series(5)
    if not is_first:
        hear(listen(Penstock(), series), push(series, 0), push(series, 1, 2), push(series, 3, 4))
    ear = listen(Penstock(), series)
    hear(ear, push(series, 0), push(series, 3, 4))
    assert wrongs(ear) == (2, 0, 0)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_frame_that_comes_twice_is_counted_as_such(is_first: bool) -> None:
    series = Series(4)
    if not is_first:
        hear(listen(Penstock(), series), push(series, 0, 1), push(series, 2, 3))
    ear = listen(Penstock(), series)
    hear(ear, push(series, 0, 1), push(series, 0, 1), push(series, 2, 3))
    assert ear.heard == 4
    assert wrongs(ear) == (0, 2, 0)


def test_another_payload_than_the_one_published_is_noticed() -> None:
    series = Series(2)
    ear = listen(Penstock(), series)
    hear(ear, push(series, 0).replace(b"rectangle", b"circle"), push(series, 1))
    assert wrongs(ear) == (0, 0, 1)


def test_an_error_of_the_server_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match="rate_limited"):
        hear(listen(Penstock(), Series(1)), b'{"id":3,"error":{"code":"rate_limited"}}')


def test_nats_may_cut_its_stream_anywhere() -> None:
    series = Series(3)
    ear = listen(Nats(), series)
    stream, size = stream_of(series)
    greet(ear)
    hear(ear, stream[:10], stream[10 : size + 5], stream[size + 5 :])
    assert ear.heard == 3
    assert wrongs(ear) == (0, 0, 0)


def test_a_message_of_nats_that_is_missing_is_noticed() -> None:
    series = Series(3)
    ear = listen(Nats(), series)
    stream, size = stream_of(series)
    greet(ear)
    hear(ear, stream[:size], stream[2 * size :])
    assert (ear.heard, ear.changed) == (1, 1)


def test_a_plain_frame_must_be_the_next_message() -> None:
    series = Series(3)
    ear = listen(Asgi(), series)
    hear(ear, b"ready", series.bodies[0], series.bodies[2])
    assert (ear.heard, ear.changed) == (1, 1)


def test_a_run_in_which_something_went_missing_is_void() -> None:
    fine = {"deliveries": 1_000, "server_seconds": 0.5}
    fine |= dict.fromkeys(("lost", "duplicated", "changed", "gone"), 0)
    assert (per_cpu(fine), faults(fine)) == (2_000.0, 0)
    assert all(faults(fine | {name: 1}) for name in ("lost", "duplicated", "changed", "gone"))


def test_the_peers_version_is_a_number() -> None:
    assert nats_server_version()[0].isdigit()


@pytest.mark.soak
def test_the_benchmark_answers_each_of_its_keys(tmp_path: Path) -> None:
    """Real servers, few clients: nothing is lost, and no process or file is left."""
    arena = Arena(tmp_path / "bench", needs_disk=False)
    figures = fanout.run(arena, fanout.FAN_SIZES["tiny"], lambda what: None)
    assert list(figures) == [key.name for key in fanout.KEYS]
    assert all(figure.note for figure in figures.values())
    assert all(figure.is_valid for figure in figures.values())
    assert (figures["lost"].value, figures["duplicated"].value) == (0, 0)
    assert list(arena.root.iterdir()) == []
