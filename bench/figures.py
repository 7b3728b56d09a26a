"""A figure, the budget it is held against, and how it was made."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    at_least: float | None = None
    at_most: float | None = None

    def is_met_by(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (
            self.at_most is None or value <= self.at_most
        )

    def __str__(self) -> str:
        if self.at_least is not None:
            return f"≥ {show(self.at_least)}"
        assert self.at_most is not None
        return f"≤ {show(self.at_most)}"


@dataclass(frozen=True)
class Key:
    """What is measured: its name, its budget if it has one, and how, in one sentence."""

    name: str
    budget: Budget | None
    how: str


@dataclass(frozen=True)
class Figure:
    """The median of its runs, the lowest and the highest of them, and what is worth knowing."""

    key: str
    value: float
    low: float
    high: float
    note: str = ""
    is_valid: bool = True
    """False if the run did not show what it was meant to; the note says why."""

    @classmethod
    def of(
        cls, key: str, runs: Sequence[float], note: str = "", *, is_valid: bool = True
    ) -> Figure:
        return cls(key, statistics.median(runs), min(runs), max(runs), note, is_valid)

    def meets(self, budget: Budget | None) -> bool | None:
        """None if there is nothing to meet."""
        if budget is None:
            return None
        return self.is_valid and budget.is_met_by(self.value)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def show(value: float) -> str:
    """Three significant digits, whole numbers with separators."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
