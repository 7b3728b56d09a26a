"""The benchmarks answer what they are asked (T14, T15). How fast is never asserted here."""

from __future__ import annotations

import io
import json
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from bench import load, report, topics
from bench.__main__ import SECTIONS
from bench.arena import Arena
from bench.figures import Budget, Figure, Key, percentile
from bench.topics import SUBJECTS, Subject
from bench.workload import PAYLOAD, SIZES

ISSUED = {
    "publish_inflight100_per_s",
    "redis_always_per_s",
    "ratio_publish_vs_redis_always",
    "ratio_bulk_vs_raw_sqlite",
    "publish_steady_vs_burst",
    "wake_p50_ms",
    "wake_p99_ms",
    "ratio_wake_vs_poll_50ms",
    "light_writer_p99_ms",
    "growth_publish_1m_vs_1k",
    "growth_wake_10k_topics_vs_10",
    "rss_overhead_mb",
}


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(tmp_path / "bench", needs_disk=False)


def subject_name(subject: Subject) -> str:
    return subject.keys[0].name


@pytest.mark.soak
@pytest.mark.parametrize("subject", SUBJECTS, ids=subject_name)
def test_a_subject_answers_each_of_its_keys_with_a_figure(subject: Subject, arena: Arena) -> None:
    wanted = {key.name for key in subject.keys}
    figures = list(subject.measure(arena, SIZES["tiny"], wanted))
    assert [figure.key for figure in figures] == [key.name for key in subject.keys]
    for figure in figures:
        assert figure.low <= figure.value <= figure.high
        assert figure.note


@pytest.mark.soak
def test_the_load_tests_answer_each_of_their_keys(arena: Arena) -> None:
    """T14: ten writers; fifty topics. Raises by itself if a published message did not come."""
    figures = load.run(arena, load.SECONDS["tiny"], lambda what: None)
    assert list(figures) == [key.name for key in load.KEYS]


@pytest.mark.slow
def test_a_run_leaves_no_database_behind(arena: Arena) -> None:
    topics.run(arena, SIZES["tiny"], {"ratio_bulk_vs_raw_sqlite"})
    assert list(arena.root.iterdir()) == []


@pytest.mark.slow
def test_json_has_the_figure_and_where_it_belongs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--json", "--size", "tiny", "--dir", str(tmp_path), "--only", "rss_overhead_mb"]
    assert topics.main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert isinstance(printed["rss_overhead_mb"], float)
    assert {"machine", "versions", "settings", "details"} <= set(printed)
    assert printed["settings"]["durability"] == "full"


def test_every_key_of_the_budgets_is_measured() -> None:
    assert {key.name for key in topics.KEYS} >= ISSUED


def test_no_two_keys_have_one_name() -> None:
    names = [key.name for _, _, keys in SECTIONS for key in keys]
    assert len(names) == len(set(names))


def test_the_payload_is_about_250_bytes_of_json() -> None:
    assert 240 <= len(json.dumps(PAYLOAD, separators=(",", ":"))) <= 260


def test_a_folder_in_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.arena.filesystem_kind", lambda folder: "tmpfs")
    with pytest.raises(SystemExit, match="tmpfs"):
        Arena(tmp_path)


def test_a_budget_is_met_at_its_limit_and_missed_beyond() -> None:
    assert Budget(at_least=8).is_met_by(8.0)
    assert not Budget(at_least=8).is_met_by(7.99)
    assert Budget(at_most=10).is_met_by(10.0)
    assert not Budget(at_most=10).is_met_by(10.01)


def test_a_figure_that_is_void_misses_its_budget() -> None:
    assert Figure.of("key", [9.0], is_valid=False).meets(Budget(at_least=8)) is False


def test_a_figure_is_the_median_of_its_runs() -> None:
    figure = Figure.of("key", [5.0, 1.0, 3.0])
    assert (figure.low, figure.value, figure.high) == (1.0, 3.0, 5.0)


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (95, 95), (99, 99), (100, 100)])
def test_a_percentile_is_one_of_the_values(percent: float, expected: int) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == expected


KEYS = (
    Key("fast_per_s", Budget(at_least=10), "By counting."),
    Key("slow_ms", Budget(at_most=1), "By waiting."),
    Key("beside", None, "By the way."),
)
FIGURES = {
    "fast_per_s": Figure.of("fast_per_s", [11.0, 12.0, 13.0], "noted"),
    "slow_ms": Figure.of("slow_ms", [2.0]),
    "beside": Figure.of("beside", [0.5]),
}


def test_missed_budgets_are_named() -> None:
    assert report.missed(KEYS, FIGURES) == ["slow_ms"]


@pytest.mark.parametrize("width", [90, 200])
def test_the_table_shows_figures_marks_and_notes(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    report.print_table(console, KEYS, FIGURES)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for expected in ("fast_per_s", "12", "11 – 13", "≥ 10", "✔", "✘", "noted"):
        assert expected in shown


def test_the_record_names_neither_the_host_nor_a_path(arena: Arena) -> None:
    about = topics.context(arena, "tiny", SIZES["tiny"])
    written = report.as_markdown(
        [("Things", "python -m bench.things", KEYS)], FIGURES, about, datetime.now(UTC)
    )
    assert "| `fast_per_s` | **12** | 11 – 13 | ≥ 10 | ✔ | noted |" in written
    assert "- `slow_ms`: By waiting." in written
    assert socket.gethostname() not in written
    assert str(arena.root) not in written


def test_what_sections_printed_is_put_together_again(arena: Arena) -> None:
    about = topics.context(arena, "tiny", SIZES["tiny"])
    printed = [json.loads(report.as_json([key], FIGURES, about)) for key in KEYS]
    figures, again = report.read(printed)
    assert report.as_json(KEYS, figures, {}) == report.as_json(KEYS, FIGURES, {})
    assert again["machine"] == about["machine"]


def test_an_arena_removes_what_is_done_with_and_nothing_else(arena: Arena) -> None:
    with arena.fresh() as outer:
        with arena.fresh() as inner:
            assert inner != outer
        assert outer.is_dir()
        assert not inner.exists()
    with arena.keeping():
        with arena.fresh() as kept:
            pass
        assert kept.is_dir()
    assert list(arena.root.iterdir()) == []
