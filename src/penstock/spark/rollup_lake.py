"""Roll-ups in the lake: what counts there as tables, and how batches are compacted into it.

What counts is the files that the manifest names and the parts of batches since. Reading adds them
up; compaction writes the sum down in new files, and then changes the manifest in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.figures import Resolution
from penstock.spark.rollup_folder import (
    Covered,
    Manifest,
    RollupFolder,
    period_of,
    read_table,
)
from penstock.spark.rollup_parts import (
    FACTS,
    FIGURES,
    add_up,
    facts_of,
    figures_of,
    fuller,
    key_of,
    roll,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Step = Callable[[str], None]


def read_rollups(spark: SparkSession, lake: str, resolution: Resolution = "minute") -> DataFrame:
    """All roll-ups as one DataFrame: a row per topic and start, with averages and percentiles.

    What the stream has counted up to its last batch, whether or not it was compacted.
    """
    folder = RollupFolder(lake)
    manifest = folder.manifest()
    facts = roll(_facts_in(folder.parts(manifest).values()), resolution)
    periods = {period_of(resolution, start) for start in _starts(facts)}
    files = folder.figures(manifest, resolution)
    touched = [facts_of(read_table(files[p], FIGURES)) for p in sorted(periods & files.keys())]
    rows = spark.createDataFrame(figures_of(add_up([facts, *touched])))
    untouched = [str(path) for period, path in files.items() if period not in periods]
    if untouched:
        rows = spark.read.schema(rows.schema).parquet(*untouched).unionByName(rows)
    return rows


class RollupLake:
    """The writing side. `on_step` is told between any two steps that a crash can part."""

    def __init__(self, lake: str, on_step: Step) -> None:
        self.folder = RollupFolder(lake)
        self._on_step = on_step

    def minutes(self, manifest: Manifest, touched: pa.Table) -> pa.Table:
        """Figures of the topics and minutes that these facts are of, as they are now."""
        tables = self._facts(manifest, "minute", _starts(touched))
        tables.append(_facts_in(self.folder.parts(manifest).values()))
        wanted = pc.unique(key_of(touched))
        return figures_of(
            add_up(table.filter(pc.is_in(key_of(table), value_set=wanted)) for table in tables)
        )

    def compact(self, manifest: Manifest, through: int | None = None) -> Manifest:
        """Write what batches have counted, up to one of them, into files."""
        parts = self.folder.parts(manifest, through)
        if not parts:
            return manifest
        facts = _facts_in(parts.values())
        counted = Covered(
            *(pc.max(facts[name]).as_py() or 0 for name in ("last_id", "last_report_id"))
        )
        merged = msgspec.structs.replace(
            manifest, merged_through=max(parts), covered=manifest.covered | counted
        )
        return self._next(merged, facts, lambda old, new: add_up([old, new]))

    def recount(self, manifest: Manifest, facts: pa.Table) -> Manifest:
        """Take what was counted again, where that has seen more than was known."""
        return self._next(manifest, facts, fuller) if facts.num_rows else manifest

    def changes(self, manifest: Manifest, resolution: Resolution) -> pa.Table:
        """The figures that the last generation has changed."""
        starts = manifest.changed.get(resolution, [])
        periods = {period_of(resolution, start) for start in starts}
        paths = self.folder.figures(manifest, resolution, periods).values()
        tables = [_beginning(read_table(path, FIGURES), starts) for path in paths]
        return pa.concat_tables([FIGURES.empty_table(), *tables])

    # Inside

    def _next(
        self,
        manifest: Manifest,
        facts: pa.Table,
        join: Callable[[pa.Table, pa.Table], pa.Table],
    ) -> Manifest:
        """The next generation: minutes with these facts, and the hours and days above them."""
        self.folder.clean(self.folder.manifest())
        hours = {start // 3_600 * 3_600 for start in _starts(facts)}
        days = {hour // 86_400 * 86_400 for hour in hours}
        done = msgspec.structs.replace(
            manifest,
            generation=manifest.generation + 1,
            changed={"hour": sorted(hours), "day": sorted(days)},
        )
        for hour in sorted(hours):
            old = add_up(self._facts(done, "minute", [hour]))
            fresh = facts.filter(pc.equal(_seconds(roll(facts, "hour")), hour))
            done = self._write(done, "minute", hour, join(old, fresh))
        done = self._write_above(done, "hour", "minute", hours)
        done = self._write_above(done, "day", "hour", days)
        self._on_step("compacted")
        self.folder.save(done)
        self._on_step("counted")
        return done

    def _write_above(
        self, done: Manifest, resolution: Resolution, below: Resolution, starts: set[int]
    ) -> Manifest:
        """These hours or days made anew from what is below, beside others of their files."""
        periods: dict[str, list[int]] = {}
        for start in sorted(starts):
            periods.setdefault(period_of(resolution, start), []).append(start)
        for begun in periods.values():
            fresh = roll(add_up(self._facts(done, below, begun)), resolution)
            tables = [_beginning(fresh, begun)]
            tables += [
                _beginning(old, begun, are_others=True)
                for old in self._facts(done, resolution, begun)
            ]
            done = self._write(done, resolution, begun[0], add_up(tables))
        return done

    def _write(
        self, manifest: Manifest, resolution: Resolution, start: int, facts: pa.Table
    ) -> Manifest:
        """The manifest with the file of this period. Nobody sees it before it is saved."""
        period = period_of(resolution, start)
        name = f"{period}.{manifest.generation}"
        file = self.folder.write_figures(resolution, name, figures_of(facts))
        files = {**manifest.files.get(resolution, {}), period: file}
        return msgspec.structs.replace(manifest, files={**manifest.files, resolution: files})

    def _facts(
        self, manifest: Manifest, resolution: Resolution, starts: Iterable[int]
    ) -> list[pa.Table]:
        """All that the files have of the periods in which these starts lie."""
        periods = {period_of(resolution, start) for start in starts}
        paths = self.folder.figures(manifest, resolution, periods).values()
        return [facts_of(read_table(path, FIGURES)) for path in paths]


def _facts_in(paths: Iterable[Path]) -> pa.Table:
    return add_up(read_table(path, FACTS) for path in paths)


def _seconds(table: pa.Table) -> pa.ChunkedArray:
    return pc.divide(table["start"].cast(pa.int64()), 1_000_000)


def _starts(table: pa.Table) -> list[int]:
    found: list[int] = pc.unique(_seconds(table)).to_pylist()
    return found


def _beginning(table: pa.Table, starts: Iterable[int], *, are_others: bool = False) -> pa.Table:
    """The rows that begin with one of these, or with none of them."""
    is_meant = pc.is_in(_seconds(table), value_set=pa.array(list(starts), pa.int64()))
    return table.filter(pc.invert(is_meant) if are_others else is_meant)
