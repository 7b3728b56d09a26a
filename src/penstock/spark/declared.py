"""`@pipeline(...)`: a function of DataFrames in a user's module, run by name.

The function holds the logic and nothing else: it gets what was read, as a stream, as a batch or in
a test, and returns what is to be written. Its other arguments are the pipeline's options.
"""

from __future__ import annotations

import inspect
import time
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock.errors import InvalidInput
from penstock.model import Pattern, check_name
from penstock.spark import tables
from penstock.spark.registry import Option, Pipeline
from penstock.spark.runner import check_trigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.spark.runner import Run

Mode = Literal["append", "update", "complete", "batch"]
MODES = typing.get_args(Mode)
ENTITIES = ("job_events", "ledger_events")
BATCH_ID = "batch_id"
"""An argument of this name is no option: it gets the batch's number."""


class Source(msgspec.Struct, frozen=True):
    """What a pipeline reads: topics by name or glob, or another history of the store."""

    entity: str = "messages"
    topics: tuple[str, ...] = ()

    @classmethod
    def parse(cls, given: str | tuple[str, ...] | list[str]) -> Source:
        names = [given] if isinstance(given, str) else list(given)
        if len(names) == 1 and names[0] in ENTITIES:
            return cls(names[0])
        if not names:
            raise InvalidInput("The pipeline has no source.", hint="Such as source='orders'.")
        topics = tuple(Pattern.parse(name.removeprefix("topic:")).text for name in names)
        return cls("messages", topics)

    @property
    def options(self) -> dict[str, Any]:
        if self.entity != "messages":
            return {"entity": self.entity}
        return {"subscribePattern": msgspec.json.encode(self.topics).decode()}

    def __str__(self) -> str:
        return ", ".join(self.topics) or self.entity


class Sink(msgspec.Struct, frozen=True):
    """Where a pipeline writes to."""

    kind: Literal["topic", "queue", "lake"]
    name: str

    @classmethod
    def parse(cls, text: str) -> Sink:
        kind, colon, name = text.partition(":")
        if kind not in ("topic", "queue", "lake") or not colon:
            raise InvalidInput(
                f"The sink {text!r} is not understood.",
                hint="It is 'topic:NAME', 'queue:NAME', 'lake:TABLE' or None.",
            )
        if kind == "lake":
            tables.check_table(name)
        else:
            check_name(name, f"{kind} name")
        return cls(kind, name)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class PipelineFunction:
    """A decorated function: called, it is the function; by its name, it is a pipeline."""

    def __init__(
        self,
        function: Callable[..., DataFrame | None],
        name: str,
        source: Source,
        sink: Sink | None,
        trigger: str | None,
        mode: Mode,
        source_options: Mapping[str, Any],
        sink_options: Mapping[str, Any],
    ) -> None:
        self.function = function
        self.source = source
        self.sink = sink
        self.mode = mode
        self.app = f"pipeline:{name}"
        """What its batches are written under."""
        self._source_options = {**source.options, **source_options}
        self.sink_options = sink_options
        options, self.takes_batch_id = _options(function)
        if self.takes_batch_id and sink is not None and mode != "batch":
            raise InvalidInput(
                f"{name} takes a {BATCH_ID}, and is one stream.", hint="Say mode='batch'."
            )
        self.pipeline = Pipeline(
            name,
            _summary(function) or f"{source} → {sink or 'nowhere'}",
            self._run,
            options,
            home=f"{function.__module__}:{function.__qualname__}",
            trigger=trigger,
            sinks=() if sink is None or sink.kind == "lake" else (self.app,),
            tables=(sink.name,) if sink is not None and sink.kind == "lake" else (),
        )
        self.__wrapped__ = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.function(*arguments, **keywords)

    def __repr__(self) -> str:
        return f"<pipeline {self.pipeline.name}: {self.source} → {self.sink}>"

    # Inside

    def _run(self, run: Run) -> None:
        if run.is_backfill:
            self._backfill(run)
            return
        rows = run.stream(**self._source_options)
        if self.mode == "batch" or self.sink is None:
            writer = rows.writeStream.foreachBatch(
                lambda batch, number: self._each(run, batch, number)
            )
        else:
            result = self._call(run, rows)
            writer = result.writeStream.outputMode(self.mode).foreachBatch(
                lambda batch, number: self._write(run, batch, number)
            )
        run.drive(writer)

    def _backfill(self, run: Run) -> None:
        """A piece of the past, in one batch. The same piece again writes nothing."""
        started = time.monotonic()
        if run.source == "lake":
            value_format = self._source_options.get("valueFormat", "raw")
            rows = tables.read_lake(run, self.source.topics, value_format=value_format)
        else:
            rows = run.read(**self._source_options)
        piece = f"{run.source}:{run.since or ''}:{run.until or ''}"
        result = self._call(run, rows, number=0)
        if result is not None:
            self._write(run, result, 0, app=f"{self.app}:{piece}")
        run.report(rows=rows.count(), batch=0, lag=None, seconds=time.monotonic() - started)

    def _each(self, run: Run, batch: DataFrame, number: int) -> None:
        result = self._call(run, batch, number=number)
        if self.sink is not None:
            self._write(run, result, number)

    def _call(self, run: Run, rows: DataFrame, number: int | None = None) -> Any:
        options = dict(run.options)
        if self.takes_batch_id:
            options[BATCH_ID] = number
        result = self.function(rows, **options)
        if self.sink is not None and not isinstance(result, type(rows)):
            raise InvalidInput(
                f"The pipeline {run.name} returned {type(result).__name__}, not a DataFrame.",
                hint="Return what is to be written, or say sink=None.",
            )
        return result

    def _write(self, run: Run, batch: DataFrame, number: int, app: str | None = None) -> None:
        run.step("write")
        if self.sink is None:
            return
        if self.sink.kind == "lake":
            tables.write_batch(run, self.sink.name, batch, number, app)
            return
        writer = batch.write.format("penstock").mode("append").option("url", run.url)
        writer = writer.option(self.sink.kind, self.sink.name)
        writer = writer.option("txnAppId", app or self.app).option("txnVersion", number)
        for name, value in self.sink_options.items():
            writer = writer.option(name, str(value))
        writer.save()
        run.step("written")


def pipeline(
    name: str,
    *,
    source: str | tuple[str, ...] | list[str],
    sink: str | None,
    trigger: str | None = None,
    mode: Mode = "append",
    source_options: Mapping[str, Any] | None = None,
    sink_options: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], PipelineFunction]:
    """Decorator: this function of a DataFrame is the pipeline of this name.

    `source` is a topic, a glob, a list of them, 'job_events' or 'ledger_events'. `sink` is
    'topic:NAME', 'queue:NAME' or 'lake:TABLE', written exactly once; None if the function writes
    itself. The function's further arguments, by keyword and with defaults, are its options.

    `mode` is how a stream's result is written: 'append' what is final, 'update' what has changed,
    'complete' everything each time; with 'batch' the function gets each batch by itself, as a
    plain DataFrame. `source_options` and `sink_options` are those of `format("penstock")`.
    """
    check_name(name, "pipeline name")
    if "/" in name or name.startswith("."):
        raise InvalidInput(f"{name!r} is no name for a pipeline: it also names a folder.")
    if mode not in MODES:
        raise InvalidInput(f"mode is not {mode!r}.", hint=f"It is one of {', '.join(MODES)}.")
    if trigger is not None:
        check_trigger(trigger)
    from_ = Source.parse(source)
    into = None if sink is None else Sink.parse(sink)
    if into is not None and into.kind == "topic" and into.name in from_.topics:
        raise InvalidInput(f"The pipeline {name} would read what it writes: {into.name}.")

    def decorate(function: Callable[..., Any]) -> PipelineFunction:
        return PipelineFunction(
            function,
            name,
            from_,
            into,
            trigger,
            mode,
            source_options or {},
            sink_options or {},
        )

    return decorate


SIMPLE = (str, int, float, bool, list, tuple)


def _options(function: Callable[..., Any]) -> tuple[tuple[Option, ...], bool]:
    """The options that a function's arguments after the first are, and whether it takes the
    batch's number."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise InvalidInput(
            f"{function.__qualname__} cannot be a pipeline: it is called with a DataFrame.",
            hint="def totals(messages): …  or  def totals(messages, *, currency='EUR'): …",
        )
    names = getattr(function, "__globals__", {})
    options, takes_batch_id = [], False
    for parameter in parameters[1:]:
        if parameter.name == BATCH_ID:
            takes_batch_id = True
        elif parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        elif parameter.default is parameter.empty:
            raise InvalidInput(
                f"The argument {parameter.name} of {function.__qualname__} has no default.",
                hint="Arguments after the first are options: give each a default.",
            )
        else:
            kind, help = _kind(parameter, names)
            options.append(Option(parameter.name, help, parameter.default, kind))
    return tuple(options), takes_batch_id


def _kind(parameter: inspect.Parameter, names: Mapping[str, Any]) -> tuple[type, str]:
    """Of which type an option is, by its annotation or its default; and its help, which is the
    text in `Annotated[int, "…"]`."""
    annotation: Any = parameter.annotation
    if isinstance(annotation, str):
        annotation = _resolved(annotation, names)
    help = ""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *notes = typing.get_args(annotation)
        help = next((note for note in notes if isinstance(note, str)), "")
    members = [typing.get_origin(one) or one for one in typing.get_args(annotation)]
    for one in (typing.get_origin(annotation) or annotation, *members):
        if one in SIMPLE:
            return one, help
    default = type(parameter.default)
    return (default if default in SIMPLE else str), help


def _resolved(annotation: str, names: Mapping[str, Any]) -> Any:
    """By itself: others of the function may name what is imported for a type checker only."""
    try:
        return typing.get_type_hints(
            type("Holder", (), {"__annotations__": {"it": annotation}}),
            dict(names),
            include_extras=True,
        )["it"]
    except (NameError, TypeError, AttributeError, SyntaxError):
        return inspect.Parameter.empty


def _summary(function: Callable[..., Any]) -> str:
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    return lines[0].rstrip(".") if lines else ""
