"""Durations, sizes and times as they are written on the command line."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
import typer

from penstock.cli.amount import (
    parse_duration,
    parse_moment,
    parse_size,
    show_duration,
    show_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("60s", 60), ("10m", 600), ("12h", 43_200), ("1.5d", 129_600), ("250 ms", 0.25)],
)
def test_a_duration_has_a_unit_or_is_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "10 parsecs", "1h30m", "inf", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("64kB", 64_000), ("10MB", 10**7), ("1GiB", 2**30)]
)
def test_a_size_is_decimal_unless_it_says_otherwise(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1", "10 MBit"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="not a size"):
        parse_size(text)


def test_a_moment_is_a_time_or_so_long_ago() -> None:
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    before = time.time()

    ago = parse_moment("10m")

    assert parse_moment("2026-01-31T12:00:00Z") == at.timestamp()
    assert parse_moment("2026-01-31T13:00:00+01:00") == at.timestamp()
    assert before - 600 <= ago <= time.time() - 600


@pytest.mark.parametrize("text", ["whenever", "2026-13-01", "12:00"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="neither a time"):
        parse_moment(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "0.0123 s"), (59, "59 s"), (90, "1.5 min"), (86_400, "1 d")]
)
def test_a_duration_is_shown_in_its_largest_unit(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(999, "999 B"), (1_500, "1.5 kB"), (2e9, "2.0 GB")])
def test_a_size_is_shown_in_its_largest_unit(size: float, text: str) -> None:
    assert show_size(size) == text
