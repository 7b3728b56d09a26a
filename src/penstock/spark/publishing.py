"""Figures on their way into a topic from the driver: through the sink, without a Spark job."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from penstock.settings import Settings
from penstock.spark.commit import Batch, Committer
from penstock.spark.options import parse_sink
from penstock.spark.sink import stage

ROWS_MAX = 10_000


class Figure(msgspec.Struct, frozen=True):
    """A message of a pipeline: under the same key comes the next state of the same thing."""

    key: str
    type: str
    value: msgspec.Struct


def publish(
    settings: Settings,
    topic: str,
    figures: Iterable[Figure],
    *,
    app: str | None = None,
    version: int = 0,
) -> int:
    """Publish them in one go; with a name, once under its version. Returns how many there were."""
    options = {"url": settings.url, "topic": topic, "valueFormat": "json"}
    if app is not None:
        # After a crash the same figures come again; those of another release may look different.
        options |= {"txnAppId": app, "txnVersion": str(version), "failOnMismatch": "false"}
    parsed = msgspec.structs.replace(parse_sink(options), settings=settings)
    rows = [(f.key, f.type, msgspec.json.encode(f.value)) for f in figures]
    batches = (_batch(rows[first : first + ROWS_MAX]) for first in range(0, len(rows), ROWS_MAX))
    staged = stage(parsed, batches)
    Committer(parsed).commit(Batch(app, version, "", (staged.part,), staged.digest))
    return len(rows)


def _batch(rows: list[tuple[str, str, bytes]]) -> pa.RecordBatch:
    keys, types, values = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.string()),
            "type": pa.array(types, pa.string()),
            "value": pa.array(values, pa.binary()),
        }
    )
