"""The benchmarks of jobs and of the ledger answer what they are asked. How fast is never asserted
here."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import jobs, ledger, queues
from bench.arena import Arena
from bench.jobs import JOB_SIZES, SUBJECTS, Subject
from bench.ledger import LEDGER_SIZES
from bench.queues import PEERS, Peer

ISSUED = {
    "drain_per_s",
    "drain_os_per_s",
    "ratio_drain_vs_best_peer",
    "enqueue_inflight100_per_s",
    "ratio_enqueue_vs_best_peer",
    "enqueue_many_per_s",
    "idle_start_p50_ms",
    "growth_claim_1m_vs_1k",
    "two_workers_speedup",
}
COMPARISONS = 2
"""The first subjects, which run other people's queues, too."""


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(tmp_path / "bench", needs_disk=False)


@pytest.fixture
def open_arena() -> Iterator[Arena]:
    """Where any user may look: PostgreSQL is run as another one, if these tests are root's."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        Path(folder).chmod(0o755)
        yield Arena(Path(folder), needs_disk=False)


def test_every_key_of_the_budgets_is_measured() -> None:
    assert {key.name for key in jobs.KEYS} >= ISSUED
    assert {key.name for key in ledger.KEYS} >= {
        "mark_inflight100_per_s",
        "mark_alone_p95_ms",
        "growth_mark_1m_vs_1k",
    }


@pytest.mark.soak
@pytest.mark.parametrize("subject", SUBJECTS[COMPARISONS:], ids=lambda s: s.keys[0].name)
def test_a_subject_answers_each_of_its_keys_with_a_figure(subject: Subject, arena: Arena) -> None:
    wanted = {key.name for key in subject.keys}
    figures = list(subject.measure(arena, JOB_SIZES["tiny"], wanted))
    assert [figure.key for figure in figures] == [key.name for key in subject.keys]
    for figure in figures:
        assert figure.low <= figure.value <= figure.high
        assert figure.note


@pytest.mark.soak
@pytest.mark.parametrize("what", ["drain", "enqueue"])
def test_penstock_is_compared_with_others_in_turns(
    what: str, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the one that needs neither a server nor a folder of its own."""
    monkeypatch.setattr(queues, "PEERS", [peer for peer in PEERS if peer.name == "litequeue"])
    measure = queues.draining if what == "drain" else queues.enqueueing
    figures = {figure.key: figure for figure in measure(arena, JOB_SIZES["tiny"], set())}
    assert figures[f"litequeue_{what}_per_s"].value > 0
    assert "litequeue" in figures[f"ratio_{what}_vs_best_peer"].note
    assert queues.as_object(figures)["litequeue"]["version"].startswith("litequeue ")


@pytest.mark.soak
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_drains_and_enqueues(peer: Peer, open_arena: Arena) -> None:
    if peer.name == "arq":
        pytest.skip("arq is installed by the benchmark itself, which needs an index")
    arena = open_arena
    assert queues._measure(arena, peer, "drain", jobs=20) > 0
    assert queues._measure(arena, peer, "enqueue", seconds=0.05) > 0
    if peer.name in queues.TUNED:
        assert queues._measure(arena, peer, "drain", jobs=20, is_tuned=True) > 0


@pytest.mark.soak
def test_the_ledger_answers_each_of_its_keys(arena: Arena) -> None:
    figures = ledger.run(arena, LEDGER_SIZES["tiny"])
    assert list(figures) == [key.name for key in ledger.KEYS]


@pytest.mark.slow
def test_json_has_the_figures_and_what_they_are_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--json", "--size", "tiny", "--dir", str(tmp_path), "--only", "enqueue_many_per_s"]
    assert jobs.main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert isinstance(printed["enqueue_many_per_s"], float)
    assert printed["peers"] == {}
    assert printed["settings"]["jobs"]["concurrency"] == 100


@pytest.mark.parametrize("is_random", [True, False])
def test_keys_of_the_ledger_are_all_different(is_random: bool) -> None:
    keys = ledger.new_keys(is_random=is_random)
    found = [next(keys) for _ in range(10_000)]
    assert len(set(found)) == len(found)
    assert (found == sorted(found)) is not is_random
