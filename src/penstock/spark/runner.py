"""Running a pipeline: what it is told, where its places are, how it reports and how it stops.

A pipeline gets a `Run`. It makes its stream with `run.stream()`, writes it, and hands the writer
to `run.drive()`, which starts it, reports each batch, and ends it after a batch when the run is
to stop. What the stream has read is in its checkpoint, and only there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.errors import InvalidInput
from penstock.settings import Settings
from penstock.spark.driving import Driver
from penstock.spark.entities import ENTITIES
from penstock.spark.options import UNITS, SourceOptions, parse_source
from penstock.spark.registry import Pipeline, check_options
from penstock.stores import check_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Source = Literal["log", "lake"]
Step = Callable[[str], None]


class Report(msgspec.Struct, frozen=True):
    """What a pipeline says of one batch."""

    rows: int
    batch: int
    lag: int | None
    """Rows that are still to be read; None if that is not known."""
    seconds: float


class Stop:
    """How a run is told to stop: once for after the batch, twice for at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._children: list[Stop] = []
        self.is_urgent = False

    def ask(self) -> None:
        if self._asked.is_set():
            self.is_urgent = True
        self._asked.set()
        for child in self._children:
            child.ask()

    def child(self) -> Stop:
        """One that is asked when this one is, and can be asked by itself."""
        child = Stop()
        self._children.append(child)
        if self.is_asked:
            child.ask()
        if self.is_urgent:
            child.ask()
        return child

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Until it is asked for, or so long. Returns whether it is."""
        return self._asked.wait(seconds)


def no_step(name: str) -> None:
    """Told of each step of a pipeline. Does nothing."""


def no_report(report: Report) -> None:
    """Told of each batch. Does nothing."""


def no_beat(lag: int | None) -> None:
    """Told that there was nothing to do. Does nothing."""


class Run:
    """One run of a pipeline, as the pipeline sees it."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        settings: Settings,
        *,
        options: Mapping[str, Any] | None = None,
        once: bool = True,
        trigger: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        source: Source = "log",
        checkpoint: str | None = None,
        lake: str | None = None,
        on_step: Step = no_step,
        on_report: Callable[[Report], None] = no_report,
        on_beat: Callable[[int | None], None] = no_beat,
        stop: Stop | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.spark = spark
        self.settings = settings
        self.name = pipeline.name
        self.options: Mapping[str, Any] = check_options(pipeline, options or {})
        """Of the pipeline, checked: each is there, given or by default."""
        self.once = once
        """Read what there is and end. Otherwise look every `trigger` until stopped."""
        self.trigger = check_trigger(
            trigger or pipeline.trigger or f"{settings.pipeline_trigger_seconds:g} seconds"
        )
        self.since, self.until = check_span(since, until)
        self.source: Source = source
        self.checkpoint = checkpoint or checkpoint_of(settings, pipeline.name)
        """The folder of this pipeline's checkpoint."""
        self.lake = lake or lake_of(settings)
        """The folder of the lake."""
        self.stop = stop or Stop()
        self.rows = 0
        """So far, as reported."""
        self._on_step = on_step
        self._on_report = on_report
        self._on_beat = on_beat
        self.sources: list[SourceOptions] = []
        """What its streams were told."""
        self.counted: dict[int, int] = {}
        """Rows of a batch, by its number, where the pipeline knows them better than Spark."""

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def is_backfill(self) -> bool:
        """Whether it reads a piece of the past, rather than going on where it was."""
        return self.until is not None or self.source == "lake"

    @property
    def is_stopping(self) -> bool:
        """Whether to end after what is under way."""
        return self.stop.is_asked

    def listen(
        self, on_report: Callable[[Report], None], on_beat: Callable[[int | None], None]
    ) -> None:
        """Tell these from now on."""
        self._on_report = on_report
        self._on_beat = on_beat

    def step(self, name: str) -> None:
        """A point between two steps, where a crash must do no harm. Tests crash here."""
        self._on_step(name)

    def report(self, *, rows: int, batch: int, lag: int | None, seconds: float) -> None:
        """Say that a batch is done: for the status in the store, and whoever watches."""
        self.rows += rows
        self._on_report(Report(rows, batch, lag, seconds))

    def beat(self, *, lag: int | None = None) -> None:
        """Say that it is there, and has nothing to do."""
        self._on_beat(lag)

    def stream(self, *, schema: str | None = None, **options: Any) -> DataFrame:
        """What `spark.readStream.format("penstock")` gives, with the url, from `since` or the
        beginning unless the options say otherwise. `schema` chooses columns."""
        if self.is_backfill:
            what = "the lake" if self.source == "lake" else "a piece of the past"
            raise InvalidInput(
                f"{self.name} follows the log, and cannot be run over {what}.",
                hint="Leave out until and from: it goes on where it was.",
            )
        given = self._starting(options)
        self.sources.append(parse_source({"url": self.url, **_texts(given)}, ENTITIES))
        reader = self.spark.readStream.format("penstock").option("url", self.url)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**_texts(given)).load()

    def read(self, *, schema: str | None = None, **options: Any) -> DataFrame:
        """The same as a batch: from the log, from `since` up to `until`."""
        reader = self.spark.read.format("penstock").option("url", self.url)
        if schema is not None:
            reader = reader.schema(schema)
        if self.until is not None and not {"endingOffsets", "endingTimestamp"} & set(options):
            options = {**options, "endingTimestamp": self.until.isoformat()}
        return reader.options(**_texts(self._starting(options))).load()

    def drive(self, writer: DataStreamWriter, *, name: str = "") -> None:
        """Start it with this run's trigger and checkpoint, and stay with it until it has ended.

        Each batch is reported. A pipeline with several streams drives one after the other; each
        but one has a `name`, and its checkpoint in a folder of that name.
        """
        checkpoint = f"{self.checkpoint}/{name}" if name else self.checkpoint
        Driver(self, writer, checkpoint).run()

    def _starting(self, options: dict[str, Any]) -> dict[str, Any]:
        if {"startingOffsets", "startingTimestamp"} & set(options):
            return options
        if self.since is not None:
            return {**options, "startingTimestamp": self.since.isoformat()}
        return {**options, "startingOffsets": "earliest"}


def checkpoint_of(settings: Settings, name: str) -> str:
    """Where the pipeline's checkpoint is."""
    root = settings.checkpoints or beside(settings, ".pipelines/checkpoints")
    return f"{root.rstrip('/')}/{name}"


def lake_of(settings: Settings) -> str:
    """Where the lake is."""
    return settings.lake.rstrip("/") or beside(settings, ".lake")


def beside(settings: Settings, suffix: str) -> str:
    _, path = check_url(settings.url)
    return f"{Path(path).absolute()}{suffix}"


def check_trigger(text: str) -> str:
    """How often, as Spark takes it: from '10 seconds', '10s', '5m' or a number of seconds."""
    written = text.strip().lower()
    for unit in sorted(UNITS, key=len, reverse=True):
        number = written.removesuffix(unit).strip()
        if written.endswith(unit) and number.replace(".", "", 1).isdigit():
            return _interval(float(number) * UNITS[unit])
    if written.replace(".", "", 1).isdigit():
        return _interval(float(written))
    raise InvalidInput(f"The trigger {text!r} is no time.", hint="Such as 10s, 5m or 1h.")


def _interval(seconds: float) -> str:
    return f"{seconds:g} seconds" if seconds.is_integer() else f"{seconds * 1000:g} milliseconds"


def check_span(
    since: datetime | None, until: datetime | None
) -> tuple[datetime | None, datetime | None]:
    """Both in UTC, if they have a time zone and are in order."""
    for name, time in (("since", since), ("until", until)):
        if time is not None and time.tzinfo is None:
            raise InvalidInput(
                f"{name} has no time zone: {time.isoformat()}.",
                hint="Such as 2026-01-31T12:00:00Z.",
            )
    if since is not None and until is not None and since >= until:
        raise InvalidInput(
            f"since ({since.isoformat()}) is not before until ({until.isoformat()})."
        )
    return (
        None if since is None else since.astimezone(UTC),
        None if until is None else until.astimezone(UTC),
    )


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    """As Spark takes them; those that are None count as not given."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }
