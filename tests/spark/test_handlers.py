"""Handlers as an executor runs them (S7). No JVM: a slice comes in as bytes and goes out so."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import codec
from penstock.job import Claim, Kind, State, Worker
from penstock.spark import handlers
from penstock.spark.handlers import Outcomes, Slice, decode_outcomes, do_slice, encode_slice
from tests.factories import file_url, hub_on

PROGRAM = """
import asyncio, sys, time
import penstock
from penstock.jobs.registry import Cancel, Snooze
from penstock.jobs.retry import fixed, never

hub = penstock.connect()
running = most = 0

@hub.job(queue="q")
def double(n: int):
    return 2 * n

@hub.job(queue="q")
async def nap(n: int, job):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.02)
    running -= 1
    return [job.id, job.attempt, most]

@hub.job(queue="q", retry=fixed(60))
def fail(text: str):
    raise LookupError(text)

@hub.job(queue="q", retry=never())
def never_again(text: str):
    sys.exit(text)

@hub.job(queue="q", timeout=0.05)
def stuck(n: int):
    while True:
        try:
            time.sleep(30)
        except Exception:
            pass

@hub.job(queue="q", timeout=0.05)
async def drowsy(n: int):
    await asyncio.sleep(30)

@hub.job(queue="q")
def later(n: int):
    return Snooze(60)

@hub.job(queue="q")
def useless(n: int):
    return Cancel("of no use")

@hub.job(queue="q")
def settles(n: int, job):
    with job.transaction(result="mine") as tx:
        tx.publish("done", n)

@hub.job(queue="q")
def tells(n: int, job):
    job.progress(50, 100)
    return job.max_attempts
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"handlers_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield f"{name}:hub"
    for bench in handlers._benches.values():
        bench._hub.close()
    handlers._benches.clear()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[penstock.Hub]:
    with hub_on(tmp_path / "hub.db") as hub:
        yield hub


class Desk:
    """Claims jobs, and has them done as Spark would."""

    def __init__(self, hub: penstock.Hub, program: str, folder: Path) -> None:
        self._hub = hub
        self._program = program
        self._folder = folder
        self._runtime = hub._open()
        self._runtime.start_reading()

    def claims(self, *jobs: tuple[str, Any]) -> list[Claim]:
        for type, payload in jobs:
            self._hub.jobs.enqueue("q", type, payload)
        instance, now = self._runtime.instance, self._runtime.clock.now()
        assert instance is not None

        def claim(tx: Any) -> list[Claim]:
            worker = Worker(instance.id, "test", {"q": 100}, now)
            tx.jobs.enter(worker, lease_seconds=60, now=now)
            found: list[Claim] = tx.jobs.claim(instance, {"q": 100}, now=now)
            tx.jobs.start(found, now=now)
            return found

        return self._runtime.committer.run(claim).wait()

    def do(self, claims: Sequence[Claim], concurrency: int = 10, **changes: Any) -> Outcomes:
        values = {
            "program": self._program,
            "url": file_url(self._folder / "hub.db"),
            "path": [str(self._folder)],
        }
        slice = Slice(claims=list(claims), concurrency=concurrency, **(values | changes))
        return decode_outcomes(do_slice(encode_slice(slice)))


@pytest.fixture
def desk(hub: penstock.Hub, program: str, tmp_path: Path) -> Desk:
    return Desk(hub, program, tmp_path)


def test_each_job_is_answered_under_its_token(desk: Desk) -> None:
    claims = desk.claims(("double", 1), ("double", 2))
    outcomes = desk.do(claims)

    assert [(a.id, a.token) for a in outcomes.answers] == [(c.id, c.token) for c in claims]
    results = [codec.decode(a.result or b"", a.encoding) for a in outcomes.answers]
    assert results == [2, 4]
    assert (outcomes.setbacks, outcomes.settled, outcomes.trouble) == ([], [], "")


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3)])
def test_coroutines_run_side_by_side_up_to_a_limit(desk: Desk, concurrency: int, most: int) -> None:
    claims = desk.claims(*(("nap", n) for n in range(9)))
    outcomes = desk.do(claims, concurrency)
    results = [codec.decode(a.result or b"", a.encoding) for a in outcomes.answers]

    assert sorted(result[0] for result in results) == [claim.id for claim in claims]
    assert max(result[2] for result in results) == most


def test_failures_become_retries_with_their_traceback_as_in_a_worker(desk: Desk) -> None:
    fail, never, unknown = desk.claims(("fail", "no such"), ("never_again", "x"), ("nobody", 1))
    setbacks = {setback.id: setback for setback in desk.do([fail, never, unknown]).setbacks}

    failed = setbacks[fail.id]
    assert (failed.kind, failed.token) == (Kind.FAILED, fail.token)
    assert failed.failure is not None
    assert (failed.failure.error, failed.failure.message) == ("LookupError", "no such")
    assert "raise LookupError(text)" in failed.failure.traceback
    assert "penstock/spark" not in failed.failure.traceback
    assert failed.retry_at is not None
    assert failed.retry_at > fail.created_at + 50_000_000
    assert setbacks[never.id].kind is Kind.DIED
    assert setbacks[unknown.id].kind is Kind.FAILED
    assert setbacks[unknown.id].failure.error == "penstock.errors.UnknownJobType"  # type: ignore[union-attr]


def test_a_handler_that_takes_too_long_is_ended(desk: Desk) -> None:
    claims = desk.claims(("stuck", 1), ("drowsy", 1), ("double", 4))
    outcomes = desk.do(claims)

    errors = [s.failure.error for s in outcomes.setbacks if s.failure is not None]
    assert errors == ["penstock.errors.JobTimeout"] * 2
    assert len(outcomes.answers) == 1


def test_a_handler_can_snooze_cancel_and_settle_by_itself(desk: Desk, hub: penstock.Hub) -> None:
    later, useless, settles, tells = desk.claims(
        ("later", 1), ("useless", 2), ("settles", 3), ("tells", 4)
    )
    outcomes = desk.do([later, useless, settles, tells])

    assert {s.id: s.kind for s in outcomes.setbacks} == {
        later.id: Kind.SNOOZED,
        useless.id: Kind.CANCELLED,
    }
    assert outcomes.settled == [settles.id]
    assert [a.id for a in outcomes.answers] == [tells.id]
    settled = hub.jobs.get(settles.id)
    assert (settled.state, settled.result) == (State.COMPLETED, "mine")
    assert [m.payload for m in hub.topics.read("done")] == [3]


def test_a_broken_payload_fails_its_job_and_no_other(desk: Desk) -> None:
    outcomes = desk.do(desk.claims(("double", "text"), ("double", 3)))

    assert [s.failure.error for s in outcomes.setbacks if s.failure] == [
        "penstock.errors.UndecodablePayload"
    ]
    assert len(outcomes.answers) == 1


@pytest.mark.parametrize(
    ("program", "text"),
    [("no_such_program:hub", "no module 'no_such_program'"), ("json:hub", "no hub 'hub'")],
)
def test_where_the_program_is_not_to_be_had_no_job_is_touched(
    desk: Desk, program: str, text: str
) -> None:
    outcomes = desk.do(desk.claims(("double", 1)), program=program)

    assert text in outcomes.trouble
    assert (outcomes.answers, outcomes.setbacks) == ([], [])


def test_ctrl_c_does_not_reach_a_handler(desk: Desk, tmp_path: Path) -> None:
    """In a terminal it goes to all processes; a handler would count it as its own failure."""
    module = next(iter(tmp_path.glob("handlers_*.py")))
    module.write_text(
        PROGRAM + "\nimport signal\n"
        "@hub.job(queue='q')\ndef rings(n: int):\n    signal.raise_signal(signal.SIGINT)\n"
    )
    assert len(desk.do(desk.claims(("rings", 1))).answers) == 1
