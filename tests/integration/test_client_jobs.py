"""Jobs through a remote hub: the local hub's words, and the same answers (J6, J7, J8)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

import penstock
from penstock.client import RemoteHub
from penstock.errors import InvalidInput, JobExists, JobFailed, JobNotFound, WaitTimeout
from penstock.job import State
from tests.factories import hub_on
from tests.serving import HttpServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("remote") / "hub.db") as server:
        yield server


@pytest.fixture
def local(server: HttpServer) -> Iterator[penstock.Hub]:
    with hub_on(server.log.parent / "hub.db") as hub:
        yield hub


@pytest.fixture
def hub(server: HttpServer) -> Iterator[RemoteHub]:
    with penstock.client.connect(server.url) as hub:
        yield hub


class Order(msgspec.Struct):
    id: int


@pytest.mark.parametrize("payload", [None, {"a": [1, "x"]}, b"\x00\xff", 7, Order(3), "ü"])
def test_a_job_is_the_same_from_both_sides(
    hub: RemoteHub, local: penstock.Hub, payload: object
) -> None:
    added = hub.jobs.enqueue("same", "t", payload, delay=60, priority=-2, max_attempts=7, timeout=5)
    there, here = hub.jobs.get(added.id), local.jobs.get(added.id)
    assert added.state == State.SCHEDULED
    assert there == here
    assert there.payload == here.payload
    assert hub.jobs.history(added.id) == local.jobs.history(added.id)
    assert hub.jobs.explain(added).reasons[0].code == "scheduled"
    assert hub.jobs.list("same", limit=1) == [here]
    if isinstance(payload, Order):
        assert there.decode(Order) == payload


def test_many_go_in_groups_and_are_listed_in_pages(hub: RemoteHub, local: penstock.Hub) -> None:
    added = hub.jobs.enqueue_many("pages", "t", range(1_700), delay=60)
    ids = [one.id for one in added]
    assert ids == local.jobs.ids("pages", limit=5_000)
    assert hub.jobs.ids("pages", limit=5_000) == ids
    assert hub.jobs.ids("pages", after=ids[10], limit=3) == ids[11:14]
    assert [job.payload for job in hub.jobs.list("pages", limit=1_200)] == [*range(1_699, 499, -1)]
    assert hub.jobs.enqueue_many("pages", "t", []) == []
    seen: list[int] = []
    assert hub.jobs.cancel_all("pages", reason="enough", progress=seen.append) == 1_700
    assert seen == [1_000, 1_700]
    assert hub.jobs.retry(*ids[:1_100], state="failed") == []
    assert hub.jobs.retry(*ids[:1_100], state=[State.CANCELLED]) == ids[:1_100]
    assert hub.jobs.cancel(*ids, state="scheduled") == []
    assert hub.jobs.cancel(*ids) == ids[:1_100]


def test_waiting_for_results_failures_and_in_vain(hub: RemoteHub, local: penstock.Hub) -> None:
    @local.job(queue="work", name="halve", max_attempts=1)
    def halve(payload: int) -> float:
        if payload % 2:
            raise ValueError(f"{payload} is odd")
        return payload / 2

    late = hub.jobs.enqueue("work", "halve", 8)
    with pytest.raises(WaitTimeout, match="pending"):
        hub.jobs.wait(late, timeout=0.05)
    with local.start_workers({"work": 2}):
        assert hub.jobs.wait(late, timeout=60) == 4
        odd = hub.jobs.enqueue("work", "halve", 3)
        with pytest.raises(JobFailed, match="3 is odd"):
            hub.jobs.wait(odd, timeout=60)
        jobs = hub.jobs.wait_all([odd, late], timeout=60)
        assert [job.state for job in jobs] == [State.FAILED, State.COMPLETED]
        assert [worker.types for worker in hub.jobs.workers()] == [("halve",)]
    [dead] = hub.jobs.dead("work", error="odd")
    assert dead == local.jobs.get(odd.id)
    assert hub.jobs.retry_all("work", error="odd") == 1
    assert hub.jobs.get(odd.id).state == State.PENDING


def test_errors_are_the_local_ones(hub: RemoteHub) -> None:
    with pytest.raises(JobNotFound):
        hub.jobs.get(10**9)
    with pytest.raises(JobNotFound):
        hub.jobs.wait(10**9, timeout=1)
    first = hub.jobs.enqueue("errors", "t", unique_key="k")
    with pytest.raises(JobExists) as taken:
        hub.jobs.enqueue("errors", "t", unique_key="k")
    assert taken.value.job_id == first.id
    assert hub.jobs.enqueue("errors", "t", unique_key="k", on_conflict="return").duplicate
    with pytest.raises(InvalidInput):
        hub.jobs.enqueue("errors", "t", delay=-1)
    with pytest.raises(InvalidInput):
        hub.jobs.list(state="lost")


def test_queues_schedules_and_pruning(hub: RemoteHub, local: penstock.Hub) -> None:
    added = hub.jobs.enqueue("hands", "t", 1)
    hub.jobs.pause("hands")
    assert local.jobs.stats("hands")[0].limits.is_paused
    assert hub.jobs.limit("hands", concurrency=3, rate=2, per_seconds=10).is_paused
    hub.jobs.resume("hands")
    [stats] = hub.jobs.stats("hands")
    assert (stats.limits.concurrency_max, stats.limits.rate_seconds) == (3, 10)
    assert not hub.jobs.limit("hands").concurrency_max
    assert hub.jobs.set_priority(added.id, 5)
    assert local.jobs.get(added.id).priority == 5

    made = hub.schedules.put("nightly", "0 3 * * *", "hands", "t", b"\x01", timezone="Asia/Tokyo")
    assert made == local.schedules.get("nightly") == hub.schedules.get("nightly")
    assert hub.schedules.list() == [made]
    hub.schedules.pause("nightly")
    assert hub.schedules.get("nightly").paused_at is not None
    hub.schedules.resume("nightly")
    ran = hub.schedules.run_now("nightly")
    assert local.jobs.get(ran.id).payload == b"\x01"
    hub.schedules.remove("nightly")
    with pytest.raises(penstock.PenstockError):
        hub.schedules.get("nightly")

    hub.jobs.cancel(added.id, ran.id)
    assert hub.jobs.prune(state="cancelled", older_than_seconds=0) >= 2
    with pytest.raises(JobNotFound):
        hub.jobs.get(added.id)


def test_the_same_on_an_event_loop(server: HttpServer, local: penstock.Hub) -> None:
    @local.job(queue="loop", name="one")
    def one(payload: None) -> int:
        return 1

    async def main() -> None:
        hub = penstock.client.connect(server.url)
        added = [await hub.aio.jobs.enqueue("loop", "one") for _ in range(3)]
        results = await asyncio.gather(*(hub.aio.jobs.wait(a, timeout=60) for a in added))
        assert results == [1, 1, 1]
        assert (await hub.aio.jobs.stats("loop"))[0].completed == 3
        await hub.aio.close()

    with local.start_workers({"loop": 3}):
        asyncio.run(main())
