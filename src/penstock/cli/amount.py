"""Durations, sizes, times and positions as people write and read them."""

from __future__ import annotations

import re
import time
from datetime import datetime

import typer

from penstock.errors import InvalidInput
from penstock.model import Position

_AMOUNT = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*$")
_DURATIONS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SIZES = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), start=1)},
    **{unit: 1000**power for power, unit in enumerate(("k", "m", "g", "t"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), start=1)},
}


def parse_duration(text: str) -> float:
    """Seconds, from 90, 60s, 10m, 12h, 1d or 2w."""
    return _parse(text, _DURATIONS, "a duration like 60s, 10m, 12h or 1d")


def parse_size(text: str) -> int:
    """Bytes, from 4096, 64kB, 10MB or 1GiB."""
    return round(_parse(text, _SIZES, "a size like 64kB, 10MB or 1GiB"))


def parse_moment(text: str) -> float:
    """Seconds since 1970, from an ISO time (local unless it says otherwise) or a duration ago."""
    if _AMOUNT.match(text):
        return time.time() - parse_duration(text)
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is neither a time like 2026-01-31T12:00 nor a duration like 10m."
        ) from None


def parse_position(text: str) -> Position:
    """As receipts and `follow --json` print it."""
    try:
        return Position.parse(text)
    except InvalidInput as error:
        raise typer.BadParameter(str(error)) from None


def show_duration(seconds: float) -> str:
    """In the largest unit that fits: 1 d, 1.5 h, 0.25 s."""
    for unit in ("d", "h", "m"):
        if seconds >= _DURATIONS[unit]:
            return f"{round(seconds / _DURATIONS[unit], 1):g} {'min' if unit == 'm' else unit}"
    return f"{seconds:.3g} s"


def show_size(size: float) -> str:
    for unit in ("TB", "GB", "MB", "kB"):
        if size >= _SIZES[unit.lower()]:
            return f"{size / _SIZES[unit.lower()]:.1f} {unit}"
    return f"{size:.0f} B"


def show_time(at_micros: int) -> str:
    """Local time, with the date unless that is today."""
    at = datetime.fromtimestamp(at_micros / 1e6).astimezone()
    clock = at.strftime("%H:%M:%S.%f")[:-3]
    today = datetime.now().astimezone().date()
    return clock if at.date() == today else f"{at.date()} {clock}"


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str) -> float:
    found = _AMOUNT.match(text)
    unit = found[2].lower() if found else ""
    if found is None or unit not in units:
        raise typer.BadParameter(f"{text!r} is not {what}.")
    return float(found[1]) * units[unit]
