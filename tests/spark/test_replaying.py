"""A replay's rows are written once, evenly, whatever comes between (S6). Without a JVM."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import InvalidOption, StagingDamaged
from penstock.ports import Store
from penstock.spark import replaying
from penstock.spark.replaying import Plan, Replayer, Target, rechunk
from penstock.testing import FakeClock
from tests.factories import file_url, hub_on, settings_for
from tests.processes import in_fork
from tests.spark.lakes import no_step, store_of

PLAN = Plan(("orders",), "topic:copy", "log")
ROWS = 23
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FIELDS = {
    "offset": pa.int64(),
    "value": pa.binary(),
    "content_type": pa.string(),
    "key": pa.string(),
    "headers": HEADERS,
    "type": pa.string(),
}
SCHEMA = pa.schema(list(FIELDS.items()))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "CHUNK_ROWS", 5)


def message(number: int, **fields: Any) -> dict[str, Any]:
    base = {"offset": number, "value": str(number).encode(), "content_type": "application/json"}
    return {**base, **fields}


def set_down(folder: Path, rows: list[dict[str, Any]], *, per_file: int = 9) -> None:
    """The rows as Spark sets them down."""
    folder.mkdir(parents=True)
    for place in range(0, len(rows), per_file):
        table = pa.Table.from_pylist(rows[place : place + per_file], schema=SCHEMA)
        pq.write_table(table, folder / f"part-{place:05}.parquet")


def replayer(path: Path, store: Store, id: str = "r", **options: Any) -> Replayer:
    plan = options.pop("plan", PLAN)
    options.setdefault("on_step", no_step)
    return Replayer(store, settings_for(file_url(path)), id, plan, **options)


def replay(
    path: Path,
    rows: list[dict[str, Any]] | None = None,
    *,
    rate: float | None = None,
    wait: Callable[[float], bool] = lambda seconds: False,
    **options: Any,
) -> list[int]:
    """As the pipeline does it. Returns the rows of each chunk that was brought."""
    chunks: list[int] = []
    with store_of(path) as store:
        one = replayer(path, store, **options)
        found = one.find()
        if found is None:
            folder = one.new_folder()
            set_down(folder, rows or [message(n) for n in range(1, ROWS + 1)])
            found = one.enter(folder, rate=rate)
        if found.finished_at is not None:
            one.clean()
        else:
            one.write(found, rate=rate, wait=wait, progress=lambda _, count: chunks.append(count))
    return chunks


def payloads(hub: penstock.Hub, topic: str = "copy") -> list[Any]:
    return [message.payload for message in hub.topics.read(topic, limit=10_000)]


def test_all_rows_are_written_in_order_and_a_second_time_nothing_is(
    hub: penstock.Hub, path: Path
) -> None:
    hub.topics.position()

    assert replay(path) == [5, 5, 5, 5, 3]
    assert replay(path) == []

    assert payloads(hub) == list(range(1, ROWS + 1))
    assert not list(path.parent.glob("hub.db-staging/*")), "nothing is left lying about"


def test_a_message_is_as_it_was(hub: penstock.Hub, path: Path) -> None:
    hub.topics.position()
    replay(
        path,
        [
            message(1, key="k", type="paid", headers=[{"key": "a", "value": b"b"}]),
            message(2, value=b"\x00\xff", content_type="application/octet-stream"),
            message(3, value=b"\x07", content_type="application/msgpack"),
            message(4, value=b'{"broken'),
        ],
    )

    one, two, three, four = hub.topics.read("copy")
    assert (one.payload, one.key, one.type, one.headers) == (1, "k", "paid", {"a": "b"})
    assert (two.payload, two.key, two.headers) == (b"\x00\xff", None, {})
    assert three.payload == 7
    assert four.payload == b'{"broken', "what is no JSON goes on as bytes"


def test_messages_become_jobs(hub: penstock.Hub, path: Path) -> None:
    hub.topics.position()
    columns = {"value": "payload"}
    rows = [message(n, type="charge") for n in range(1, 8)]
    plan = Plan(("orders",), "queue:billing", "log")
    with store_of(path) as store:
        one = replayer(path, store, plan=plan)
        folder = one.new_folder()
        folder.mkdir(parents=True)
        table = pa.Table.from_pylist(rows, schema=SCHEMA).drop_columns(["key", "headers"])
        names = [columns.get(name, name) for name in table.column_names]
        pq.write_table(table.rename_columns(names), folder / "part-0.parquet")
        found = one.enter(folder, rate=None)
        one.write(found, rate=None, wait=lambda _: False, progress=lambda *_: None)

    [stats] = hub.jobs.stats()
    assert (stats.queue, stats.pending) == ("billing", 7)
    found_jobs = hub.jobs.list("billing")
    assert sorted(job.payload for job in found_jobs) == list(range(1, 8))
    assert {job.type for job in found_jobs} == {"charge"}


def test_a_replay_that_is_stopped_goes_on_where_it_was(hub: penstock.Hub, path: Path) -> None:
    hub.topics.position()
    turns = iter([False, False, True])

    assert replay(path, wait=lambda seconds: next(turns)) == [5, 5]
    assert payloads(hub) == list(range(1, 11))
    replay(path)

    assert payloads(hub) == list(range(1, ROWS + 1))


def test_rows_are_written_evenly(hub: penstock.Hub, path: Path, clock: FakeClock) -> None:
    hub.topics.position()
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock.advance(seconds)
        return False

    chunks = replay(path, rate=8, wait=wait, clock=clock)

    assert chunks == [2] * 11 + [1], "a quarter of a second's rows"
    assert waits == pytest.approx([0.0] + [0.25] * 11)


def test_a_slow_store_is_caught_up_with(hub: penstock.Hub, path: Path, clock: FakeClock) -> None:
    hub.topics.position()
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock.advance(max(seconds, 0.4))
        return False

    replay(path, rate=8, wait=wait, clock=clock)

    assert waits == [0.0] * 12, "as fast as it goes, and no faster"


def test_another_replay_under_the_same_id_is_refused(hub: penstock.Hub, path: Path) -> None:
    hub.topics.position()
    replay(path)

    with pytest.raises(InvalidOption, match="was planned as"):
        replay(path, plan=Plan(("orders",), "topic:elsewhere", "log"))
    assert replay(path, id="again") == [5, 5, 5, 5, 3]

    assert len(payloads(hub)) == 2 * ROWS


def test_the_same_words_are_the_same_replay() -> None:
    assert PLAN.id == Plan(("orders",), "topic:copy", "log").id
    assert PLAN.id != Plan(("orders",), "topic:copy", "log", where="offset > 1").id


def test_a_damaged_file_is_noticed_before_anything_of_it_is_written(
    hub: penstock.Hub, path: Path
) -> None:
    hub.topics.position()
    turns = iter([False, True])
    replay(path, wait=lambda seconds: next(turns))
    [victim, *_] = sorted(path.parent.glob("hub.db-staging/*/*/*.parquet"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")

    with pytest.raises(StagingDamaged, match="cannot go on"):
        replay(path)
    victim.unlink()
    with pytest.raises(StagingDamaged):
        replay(path)

    assert payloads(hub) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("text", ["copy", "topic:", "table:x", "topic:a*", ":x", ""])
def test_a_target_is_a_topic_or_a_queue(text: str) -> None:
    with pytest.raises(penstock.errors.InvalidInput):
        Target.parse(text)


@pytest.mark.parametrize("size", [1, 4, 9, 23, 100])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_chunks_are_the_same_however_the_files_are_cut(
    tmp_path: Path, size: int, skip: int
) -> None:
    rows = [message(n) for n in range(1, ROWS + 1)]
    for per_file in (1, 7, 100):
        folder = tmp_path / str(per_file)
        set_down(folder, rows, per_file=per_file)
        found = rechunk(sorted(folder.iterdir()), rows=size, skip=skip)
        numbers = [chunk.column("offset").to_pylist() for chunk in found]
        wanted = list(range(1, ROWS + 1))
        expected = [wanted[place : place + size] for place in range(0, ROWS, size)]
        assert numbers == expected[skip:]


@pytest.mark.crash
def test_a_kill_between_any_two_steps_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    kill_at, ended = 1, -signal.SIGKILL
    while ended == -signal.SIGKILL:
        path = tmp_path / f"{kill_at}.db"
        with hub_on(path) as hub:
            hub.topics.position()
        steps = 0

        def on_step(name: str, at: int = kill_at) -> None:
            nonlocal steps
            steps += 1
            if steps == at:
                os.kill(os.getpid(), signal.SIGKILL)

        ended = in_fork(lambda path=path, on_step=on_step: replay(path, on_step=on_step))
        assert in_fork(lambda path=path: replay(path)) == 0

        with hub_on(path) as hub:
            assert payloads(hub) == list(range(1, ROWS + 1)), f"killed at step {kill_at}"
        left = [found for found in path.parent.rglob("*.parquet") if f"{kill_at}.db" in str(found)]
        assert not left, f"killed at step {kill_at}"
        kill_at += 1
    assert kill_at > 15
