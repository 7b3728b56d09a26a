"""Pipelines in this process: one session and one hub for all of them, a post for each."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidInput, LeaseLost, PenstockError, SinkReused
from penstock.hub import Hub
from penstock.ports.pipelines import Ending, PipelineRun, PipelineStatus
from penstock.settings import Settings
from penstock.spark.failures import explain, is_passing
from penstock.spark.options import settings_of
from penstock.spark.post import Post, describe
from penstock.spark.registry import Pipeline, check_options, find
from penstock.spark.runner import (
    Report,
    Run,
    Source,
    Step,
    Stop,
    check_span,
    check_trigger,
    no_beat,
    no_report,
    no_step,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger("penstock.spark")

PAUSES = (1.0, 5.0, 15.0, 30.0, 60.0)
"""Before a pipeline is begun again, when it failed with what may pass."""


class Order(msgspec.Struct, frozen=True):
    """A pipeline and how it is to run."""

    pipeline: Pipeline
    options: Mapping[str, Any] = {}
    once: bool = True
    trigger: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    source: Source = "log"

    def check(self) -> None:
        """Raises if it cannot be done like this. Needs no Spark."""
        check_options(self.pipeline, self.options)
        check_span(self.since, self.until)
        if self.trigger is not None:
            check_trigger(self.trigger)


class Runner:
    """Runs pipelines on one store. Close it at the end."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession,
        *,
        on_step: Step = no_step,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._settings = settings
        self._pauses = pauses
        self._spark = spark
        self._on_step = on_step
        self._hub = Hub(settings)

    def run(
        self,
        order: Order,
        *,
        stop: Stop | None = None,
        on_report: Callable[[Report], None] = no_report,
        on_beat: Callable[[int | None], None] = no_beat,
    ) -> PipelineStatus:
        """Run it to its end, or until it is told to stop. Raises `PipelineBusy` if it is running
        elsewhere, and what it failed with."""
        # Its own: others that are run beside it may share the one that was given.
        own = (stop or Stop()).child()
        lost = threading.Event()

        def on_lost() -> None:
            """Somebody else runs it now: at once, not after the batch."""
            lost.set()
            own.ask()
            own.ask()

        post = self._take(self._make(order, own), on_lost)
        patience = Patience(own, self._pauses)

        def tell(report: Report) -> None:
            patience.renew()
            post.report(report)
            on_report(report)

        def beat(lag: int | None) -> None:
            post.beat(lag)
            on_beat(lag)

        ending: Ending = "failed"
        failure = ""
        try:
            while True:
                run = self._make(order, own)
                run.listen(tell, beat)
                try:
                    run.pipeline.run(run)
                    break
                except Exception as error:
                    if lost.is_set() or not patience.bears(explain(error)):
                        raise
            if lost.is_set():
                raise LeaseLost(f"The pipeline {run.name} was taken over by somebody else.")
            ending = "stopped" if own.is_asked else "finished"
        except Exception as error:
            known = _advised(explain(error), order.pipeline.name)
            failure = describe(known)
            if known is error:
                raise
            raise known from error
        except BaseException:
            ending = "stopped"
            raise
        finally:
            post.end(ending, failure)
        return post.status

    def _make(self, order: Order, stop: Stop) -> Run:
        return Run(
            order.pipeline,
            self._spark,
            self._settings,
            options=order.options,
            once=order.once or not order.pipeline.is_continuous,
            trigger=order.trigger,
            since=order.since,
            until=order.until,
            source=order.source,
            on_step=self._on_step,
            stop=stop,
        )

    def _take(self, run: Run, on_lost: Callable[[], None]) -> Post:
        runtime = self._hub._open()
        return Post(
            runtime,
            PipelineRun(
                run.name,
                run.pipeline.home,
                runtime.name,
                is_continuous=not run.once,
                trigger="" if run.once else run.trigger,
                checkpoint=run.checkpoint,
                options=msgspec.json.encode(run.options, enc_hook=str).decode(),
            ),
            lease_seconds=self._settings.pipeline_lease_seconds,
            on_lost=on_lost,
        )

    def close(self) -> None:
        self._hub.close()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Patience:
    """How often a pipeline is begun again after what may pass by itself.

    It goes on where it was, as after a crash. With each batch that is done, patience is new.
    """

    def __init__(self, stop: Stop, pauses: Sequence[float]) -> None:
        self._stop = stop
        self._pauses = pauses
        self._tried = 0

    def renew(self) -> None:
        self._tried = 0

    def bears(self, error: PenstockError) -> bool:
        """Whether to try again, after the pause that is made here."""
        if not is_passing(error) or self._tried == len(self._pauses) or self._stop.is_asked:
            return False
        pause = self._pauses[self._tried]
        self._tried += 1
        logger.warning("%s It is tried again in %g s.", error.message, pause)
        return not self._stop.wait(pause)


def run(
    pipeline: str | Pipeline | Callable[..., Any],
    url: str | None = None,
    *,
    spark: SparkSession | None = None,
    once: bool = True,
    trigger: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    source: Source = "log",
    lake: str | None = None,
    checkpoints: str | None = None,
    on_report: Callable[[Report], None] = no_report,
    stop: Stop | None = None,
    **options: Any,
) -> PipelineStatus:
    """Run a pipeline here: one that comes with penstock, by its name, or one of your own.

    By default it reads what there is and returns how it went. With `once=False` it goes on,
    looking every `trigger`, until Ctrl-C or `stop.ask()`; either ends it after a batch.
    """
    from penstock.spark.sessions import session

    settings = settings_of(url)
    changes = {"lake": lake, "checkpoints": checkpoints}
    settings = msgspec.structs.replace(settings, **{k: v for k, v in changes.items() if v})
    order = Order(as_pipeline(pipeline), options, once, trigger, since, until, source)
    order.check()
    stop = stop or Stop()
    found = spark or session(master=settings.spark_master or None)
    with Runner(settings, found) as runner, stopped_by_signals(stop):
        return runner.run(order, stop=stop, on_report=on_report)


def _advised(error: PenstockError, name: str) -> PenstockError:
    """With the hint that helps whoever runs a pipeline, and not a query of their own."""
    if isinstance(error, SinkReused):
        sentence = f"{error.message.split('. ')[0].rstrip('.')}."
        return SinkReused(
            sentence,
            hint="Its checkpoint was deleted, set back or replaced: 'penstock pipeline reset "
            f"{name}' begins anew, and writes again what was written.",
        )
    return error


def as_pipeline(given: str | Pipeline | Callable[..., Any]) -> Pipeline:
    if isinstance(given, str):
        return find(given)
    if isinstance(given, Pipeline):
        return given
    found = getattr(given, "pipeline", None)
    if not isinstance(found, Pipeline):
        raise InvalidInput(
            f"{given!r} is no pipeline.", hint="Decorate the function with @pipeline(…)."
        )
    return found


@contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Inside, Ctrl-C and SIGTERM ask it to stop; elsewhere than on the main thread nothing does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(_: int, __: FrameType | None) -> None:
        stop.ask()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
