"""Roll-ups, the part without Spark: facts are added up, and become figures. Functions of tables.

A fact is a flat row with numbers of a topic and a start: sums, least and greatest values, and the
count of one bucket of a histogram or the name of one publisher. Adding up is exact, and neither
its order nor its steps matter: facts of hours made of minutes are those made of messages.

A figure is a row for people: a topic in a minute, an hour or a day, with averages and percentiles,
and the histograms and names that it can be taken apart into facts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.delivery.stats import GROWTH, SMALLEST_MS
from penstock.figures import Resolution, Rollup

SECONDS: Mapping[Resolution, int] = {"minute": 60, "hour": 3_600, "day": 86_400}

KEYS = ("topic", "start", "kind", "bucket", "producer")
SUMS = (
    *("messages", "bytes", "delivered", "deliveries", "delivered_bytes", "batches", "dropped"),
    *("catch_ups", "reports", "latency_total_us", "broken"),
)
LEAST = ("size_min",)
GREATEST = ("size_max", "batch_max", "last_id", "last_report_id")
NUMBERS = (*SUMS, *LEAST, *GREATEST)
"""`last_id` and `last_report_id` tell which messages and reports were counted."""

TIME = pa.timestamp("us", tz="UTC")
FACTS = pa.schema(
    [
        *(("topic", pa.string()), ("start", TIME), ("kind", pa.string()), ("bucket", pa.int32())),
        *(("producer", pa.string()), ("count", pa.int64())),
        *((name, pa.int64()) for name in NUMBERS),
    ]
)
"""`kind` is 'size' or 'latency', of which the fact has a bucket; or NULL."""

HISTOGRAM = pa.list_(pa.struct([("bucket", pa.int32()), ("count", pa.int64())]))
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
FIGURES = pa.schema(
    [
        ("topic", pa.string()),
        ("start", TIME),
        *((name, pa.int64()) for name in NUMBERS),
        ("publishers", pa.int64()),
        ("size_avg", pa.float64()),
        *((f"size_{name}", pa.int64()) for name in SHARES),
        ("batch_avg", pa.float64()),
        ("latency_avg_ms", pa.float64()),
        *((f"latency_{name}_ms", pa.float64()) for name in SHARES),
        ("sizes", HISTOGRAM),
        ("latencies", HISTOGRAM),
        ("producers", pa.list_(pa.string())),
    ]
)


def add_up(tables: Iterable[pa.Table]) -> pa.Table:
    """Facts added up to as few as possible."""
    facts = pa.concat_tables([FACTS.empty_table(), *(table.cast(FACTS) for table in tables)])
    return _added(facts, KEYS, ("count", *SUMS)).select(FACTS.names).cast(FACTS)


def roll(facts: pa.Table, resolution: Resolution) -> pa.Table:
    """The same facts as facts of minutes, hours or days."""
    length = SECONDS[resolution] * 1_000_000
    begun = pc.multiply(pc.divide(facts["start"].cast(pa.int64()), length), length).cast(TIME)
    return facts.set_column(facts.column_names.index("start"), "start", begun)


def facts_of(figures: pa.Table) -> pa.Table:
    """Figures taken apart, to be added to others."""
    figures = figures.combine_chunks()
    heads = figures.select(["topic", "start", *NUMBERS])
    found = [heads]
    for kind, name in (("size", "sizes"), ("latency", "latencies")):
        entries = pc.list_flatten(figures[name])
        rows = _parents(figures, name)
        rows["kind"] = pa.repeat(pa.scalar(kind), len(entries))
        rows["bucket"] = pc.struct_field(entries, "bucket")
        rows["count"] = pc.struct_field(entries, "count")
        found.append(pa.table(rows))
    rows = _parents(figures, "producers")
    rows["producer"] = pc.list_flatten(figures["producers"])
    found.append(pa.table(rows))
    return pa.concat_tables(map(_filled, found))


def figures_of(facts: pa.Table) -> pa.Table:
    """A row for each topic and start, by start and topic."""
    heads = _added(facts, ("start", "topic"), SUMS)
    heads = heads.sort_by([("start", "ascending"), ("topic", "ascending")])
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        name: pc.fill_null(heads[name], 0) if name in SUMS else heads[name]
        for name in ("topic", "start", *NUMBERS)
    }
    place = _Places(heads)
    sizes, latencies = (place.histogram(facts, kind) for kind in ("size", "latency"))
    columns["sizes"], columns["latencies"] = sizes.as_lists(), latencies.as_lists()
    columns["producers"] = producers = place.producers(facts)
    columns["publishers"] = pc.list_value_length(producers).cast(pa.int64())
    columns["size_avg"] = _ratio(columns["bytes"], columns["messages"])
    columns["batch_avg"] = _ratio(columns["delivered"], columns["batches"])
    total_ms = pc.divide(columns["latency_total_us"].cast(pa.float64()), 1000.0)
    columns["latency_avg_ms"] = _ratio(total_ms, pa.array(latencies.totals))
    for name, share in SHARES.items():
        size = pc.round(sizes.percentile(share, 1.0)).cast(pa.int64())
        # What is known of the ends is better than the middle of a bucket.
        inside = pc.min_element_wise(
            pc.max_element_wise(size, columns["size_min"]), columns["size_max"]
        )
        columns[f"size_{name}"] = pc.if_else(pc.is_valid(size), inside, None)
        columns[f"latency_{name}_ms"] = latencies.percentile(share, SMALLEST_MS)
    return pa.table({name: columns[name] for name in FIGURES.names}).cast(FIGURES)


def fuller(facts: pa.Table, others: pa.Table) -> pa.Table:
    """Of two counts of the same time, what has seen more: of messages, and of reports, for each
    topic and start. Where they have seen as many, the first.

    Neither can have seen what was not there; the one that has seen less came too late.
    """
    found = []
    for name, half in (("messages", _of_messages), ("reports", _of_reports)):
        mine, theirs = half(facts), half(others)
        seen, seen_by_them = _seen(mine, name), _seen(theirs, name)
        more = [key for key, count in seen_by_them.items() if count > seen.get(key, -1)]
        better = pa.array(more, pa.string())
        found.append(mine.filter(pc.invert(pc.is_in(key_of(mine), value_set=better))))
        found.append(theirs.filter(pc.is_in(key_of(theirs), value_set=better)))
    return add_up(found)


def to_rollups(figures: pa.Table, resolution: Resolution) -> Iterator[Rollup]:
    """Figures as they are published."""
    names = [name for name in figures.column_names if name in _PUBLISHED]
    for row in figures.to_pylist():
        yield Rollup(
            resolution,
            row["topic"],
            row["start"],
            **{name: row[name] for name in names},
            size_buckets={entry["bucket"]: entry["count"] for entry in row["sizes"]},
            latency_buckets={entry["bucket"]: entry["count"] for entry in row["latencies"]},
        )


_PUBLISHED = frozenset(Rollup.__struct_fields__) - {"resolution", "topic", "start"}


class _Places:
    """Which row of the heads a fact belongs to."""

    def __init__(self, heads: pa.Table) -> None:
        self._keys = key_of(heads)
        self.count = heads.num_rows

    def histogram(self, facts: pa.Table, kind: str) -> _Histograms:
        wanted = pc.and_(pc.equal(facts["kind"], kind), pc.greater(facts["count"], 0))
        found = facts.filter(pc.fill_null(wanted, False))
        added = found.group_by(["topic", "start", "bucket"]).aggregate([("count", "sum")])
        places = self._of(added)
        buckets = added["bucket"].to_numpy().astype(np.int32)
        counts = added["count_sum"].to_numpy().astype(np.int64)
        order = np.lexsort((buckets, places))
        return _Histograms(self._offsets(places), buckets[order], counts[order])

    def producers(self, facts: pa.Table) -> pa.Array:
        found = facts.filter(pc.is_valid(facts["producer"]))
        added = found.group_by(["topic", "start", "producer"]).aggregate([])
        added = added.sort_by("producer")
        places = self._of(added)
        names = added["producer"].combine_chunks().take(pa.array(np.argsort(places, kind="stable")))
        return pa.ListArray.from_arrays(pa.array(self._offsets(places), pa.int32()), names)

    def _of(self, rows: pa.Table) -> np.ndarray:
        found: np.ndarray = pc.index_in(key_of(rows), value_set=self._keys).to_numpy()
        return found.astype(np.int64)

    def _offsets(self, places: np.ndarray) -> np.ndarray:
        return np.concatenate(([0], np.cumsum(np.bincount(places, minlength=self.count))))


class _Histograms:
    """One for each row: its buckets lie between two offsets, in order."""

    def __init__(self, offsets: np.ndarray, buckets: np.ndarray, counts: np.ndarray) -> None:
        self._offsets, self._buckets, self._counts = offsets, buckets, counts
        self._seen = np.concatenate(([0], np.cumsum(counts)))
        self.totals: np.ndarray = self._seen[offsets[1:]] - self._seen[offsets[:-1]]

    def as_lists(self) -> pa.Array:
        entries = pa.StructArray.from_arrays(
            [pa.array(self._buckets, pa.int32()), pa.array(self._counts, pa.int64())],
            fields=list(HISTOGRAM.value_type),
        )
        return pa.ListArray.from_arrays(pa.array(self._offsets, pa.int32()), entries)

    def percentile(self, share: float, smallest: float) -> pa.Array:
        """The middle of the bucket that the share falls into; NULL where nothing was counted."""
        is_empty = self.totals == 0
        wanted = self._seen[self._offsets[:-1]] + share * self.totals
        places = np.searchsorted(self._seen[1:], wanted, side="left")
        buckets = np.zeros(len(wanted), dtype=np.int32)
        buckets[~is_empty] = self._buckets[places[~is_empty]]
        values = np.where(buckets == 0, smallest, smallest * GROWTH ** (buckets - 0.5))
        return pa.array(values, mask=is_empty)


def key_of(rows: pa.Table) -> pa.Array:
    """Topic and start in one. No start has a slash."""
    start = rows["start"].cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(start, rows["topic"], "/").combine_chunks()


def _parents(figures: pa.Table, name: str) -> dict[str, pa.Array | pa.ChunkedArray]:
    """For each entry of a list, the topic and start of its row."""
    rows = pc.list_parent_indices(figures[name])
    return {key: figures[key].take(rows) for key in ("topic", "start")}


def _filled(rows: pa.Table) -> pa.Table:
    """With all columns of a fact."""
    return pa.table(
        {
            field.name: rows[field.name]
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in FACTS
        }
    ).cast(FACTS)


def _added(facts: pa.Table, keys: Sequence[str], sums: Sequence[str]) -> pa.Table:
    """Rows with the same keys as one."""
    wanted = [
        *((name, "sum") for name in sums),
        *((name, "min") for name in LEAST),
        *((name, "max") for name in GREATEST),
    ]
    added = facts.group_by(list(keys)).aggregate(wanted)
    columns = {name: added[name] for name in keys}
    return pa.table(columns | {name: added[f"{name}_{how}"] for name, how in wanted})


def _ratio(total: pa.ChunkedArray, count: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    is_some = pc.greater(count, 0)
    divisor = pc.if_else(is_some, count, 1).cast(pa.float64())
    return pc.if_else(is_some, pc.divide(total.cast(pa.float64()), divisor), None)


_MESSAGE_NUMBERS = ("messages", "bytes", "size_min", "size_max", "last_id")


def _of_messages(facts: pa.Table) -> pa.Table:
    """What the facts say of messages, and not of reports."""
    rows = facts.filter(pc.fill_null(pc.not_equal(facts["kind"], "latency"), True))
    others = (name for name in NUMBERS if name not in _MESSAGE_NUMBERS)
    return _filled(rows.drop_columns(list(others)))


def _of_reports(facts: pa.Table) -> pa.Table:
    rows = facts.filter(pc.fill_null(pc.equal(facts["kind"], "latency"), True))
    rows = rows.filter(pc.is_null(rows["producer"]))
    return _filled(rows.drop_columns(list(_MESSAGE_NUMBERS)))


def _seen(facts: pa.Table, name: str) -> dict[str, int]:
    """How many messages or reports each topic and start has."""
    table = pa.table({"key": key_of(facts), "seen": pc.fill_null(facts[name], 0)})
    added = table.group_by("key").aggregate([("seen", "sum")])
    return dict(zip(added["key"].to_pylist(), added["seen_sum"].to_pylist(), strict=True))
