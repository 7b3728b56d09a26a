"""Pipelines in tests: the function on a few rows, and what it makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.rehearsal import MessageRow


def run_pipeline(
    function: Any, rows: Iterable[Any], *, spark: Any = None, **options: Any
) -> list[dict[str, Any]]:
    """What a `@pipeline` function makes of these rows, as one batch, without a store.

    A row is a payload, or a `message(...)` where more than the payload matters; of other sources
    than topics, a dict with its columns. Returns what would be written, a dict for each row, with
    payloads as their readers get them. `spark` is a session of yours; else one is started.
    """
    # Imported here: whoever tests no pipelines needs no Spark.
    from penstock.spark.rehearsal import rehearse

    return rehearse(function, rows, spark=spark, options=options)


def message(
    payload: Any = None,
    *,
    topic: str | None = None,
    key: str | None = None,
    type: str | None = None,
    timestamp: datetime | None = None,
    offset: int | None = None,
    message_id: str | None = None,
    value: bytes | None = None,
) -> MessageRow:
    """A row for `run_pipeline`. `value` is the stored bytes, such as broken JSON."""
    from penstock.spark.rehearsal import MessageRow

    return MessageRow(payload, topic, key, type, timestamp, offset, message_id, value)
