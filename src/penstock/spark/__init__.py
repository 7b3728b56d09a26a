"""penstock on Spark: `format("penstock")` as a source and a sink, and sessions to use it in.

Importing this loads no Spark: names are fetched when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.commit import forget_sink
    from penstock.spark.declared import pipeline
    from penstock.spark.groups import advance_group
    from penstock.spark.lake import read_topic
    from penstock.spark.running import run
    from penstock.spark.sessions import session

_HOMES = {
    "advance_group": "penstock.spark.groups",
    "forget_sink": "penstock.spark.commit",
    "pipeline": "penstock.spark.declared",
    "read_topic": "penstock.spark.lake",
    "run": "penstock.spark.running",
    "session": "penstock.spark.sessions",
}

__all__ = ["advance_group", "forget_sink", "pipeline", "read_topic", "run", "session"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
