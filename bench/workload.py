"""What is published, and how much of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# As a canvas sends it: 250 bytes of JSON.
PAYLOAD: dict[str, Any] = {
    "id": "obj-7f3a9c52",
    "canvas": "canvas-abc",
    "kind": "rectangle",
    "x": 1024.5,
    "y": 768.25,
    "width": 320,
    "height": 200,
    "fill": "#3366ff",
    "stroke": {"color": "#000000", "width": 2},
    "author": "user-4711",
    "text": "The quick brown fox jumps over the lazy dog, twice a day",
}
TYPE = "object-update"
DATABASE = "bench.db"


@dataclass(frozen=True)
class Sizes:
    """How much each measurement does."""

    runs: int
    seconds: float
    """Of one run of saturated publishing."""
    warm_up_seconds: float
    bulk_rows: int
    retained: int
    wake_messages: int
    poll_messages: int
    light_samples: int
    growth_small: int
    growth_large: int
    growth_burst: int
    growth_single: int
    growth_topics_small: int
    growth_topics_large: int
    growth_wakes: int
    memory_messages: int

    def as_settings(self) -> dict[str, Any]:
        return asdict(self)


SIZES = {
    "full": Sizes(
        runs=3,
        seconds=4.0,
        warm_up_seconds=1.0,
        bulk_rows=300_000,
        retained=50_000,
        wake_messages=2_000,
        poll_messages=1_000,
        light_samples=1_200,
        growth_small=1_000,
        growth_large=1_000_000,
        growth_burst=1_000,
        growth_single=500,
        growth_topics_small=10,
        growth_topics_large=10_000,
        growth_wakes=700,
        memory_messages=100_000,
    ),
    "quick": Sizes(
        runs=1,
        seconds=1.0,
        warm_up_seconds=0.3,
        bulk_rows=50_000,
        retained=20_000,
        wake_messages=400,
        poll_messages=200,
        light_samples=200,
        growth_small=1_000,
        growth_large=100_000,
        growth_burst=2_000,
        growth_single=200,
        growth_topics_small=10,
        growth_topics_large=2_000,
        growth_wakes=150,
        memory_messages=100_000,
    ),
    "tiny": Sizes(
        runs=1,
        seconds=0.05,
        warm_up_seconds=0.01,
        bulk_rows=2_000,
        retained=1_000,
        wake_messages=10,
        poll_messages=4,
        light_samples=5,
        growth_small=10,
        growth_large=100,
        growth_burst=100,
        growth_single=5,
        growth_topics_small=2,
        growth_topics_large=20,
        growth_wakes=5,
        memory_messages=500,
    ),
}


def url(folder: str | Path) -> str:
    return f"sqlite:///{Path(folder) / DATABASE}"
