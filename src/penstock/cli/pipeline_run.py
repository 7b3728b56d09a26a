"""Running pipelines on the command line: Spark's start, what is seen meanwhile, and the end.

Each pipeline has a thread; the main thread takes signals and shows how far they are. The first
Ctrl-C or SIGTERM ends each after the batch it is at, the second at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from penstock.cli import INTERRUPTED, table
from penstock.cli.amount import show_duration
from penstock.cli.pipeline_options import Plan
from penstock.cli.session import FAILED, Session
from penstock.errors import PenstockError
from penstock.hub import Hub
from penstock.ports.pipelines import PipelineStatus
from penstock.spark.failures import explain
from penstock.spark.post import check_free
from penstock.spark.quiet import started_quietly
from penstock.spark.runner import Report, Stop
from penstock.spark.running import Order, Runner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOW_SECONDS = 0.25
PATIENCE = 3
"""With so many signals the process ends as it is."""


class Conductor:
    """One `penstock pipeline run`."""

    def __init__(self, session: Session, plan: Plan, *, ui: bool, is_verbose: bool) -> None:
        self._session = session
        self._plan = plan
        self._ui = ui
        self._is_verbose = is_verbose
        self._stop = Stop()
        self._signals: list[int] = []
        self._lock = threading.Lock()
        self._errors: dict[str, PenstockError] = {}
        self._log = ""

    def run(self) -> int:
        self._session._log(shows_warnings=not self._session.is_json)
        with Hub(self._plan.settings) as hub:
            for order in self._plan.orders:
                check_free(hub._open(), order.pipeline.name)
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            spark = self._start()
            # Spark has put a handler of its own in its place.
            signal.signal(signal.SIGINT, self._on_signal)
            try:
                self._run_all(spark)
            finally:
                spark.stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        for name, error in self._errors.items():
            if len(self._plan.orders) > 1:
                error.message = f"{name}: {error.message}"
            table.print_error(error)
        if self._errors:
            if self._log and not self._session.is_json:
                table.note(f"Spark's log: {self._log}")
            return FAILED
        return INTERRUPTED if self._signals and self._signals[0] == signal.SIGINT else 0

    def _start(self) -> SparkSession:
        plan = self._plan
        if self._session.config is not None:
            # Spark's own Python processes look for the settings, too.
            os.environ["PENSTOCK_CONFIG"] = str(self._session.config.absolute())
        names = ", ".join(order.pipeline.name for order in plan.orders)
        with _waiting(f"Starting Spark for {names} …"):
            spark, self._log = started_quietly(
                plan.settings,
                f"penstock {names}",
                master=plan.master,
                conf=plan.conf,
                ui=self._ui,
                is_verbose=self._is_verbose,
            )
        if self._ui:
            table.note(f"Spark's pages: {spark.sparkContext.uiWebUrl}")
        return spark

    def _run_all(self, spark: SparkSession) -> None:
        with Runner(self._plan.settings, spark) as runner, make_screen(self._session) as screen:
            threads = [
                threading.Thread(target=self._run_one, args=(runner, order, screen), daemon=True)
                for order in self._plan.orders
            ]
            for order in self._plan.orders:
                screen.begin(order)
            for thread in threads:
                thread.start()
            has_said = False
            while any(thread.is_alive() for thread in threads):
                time.sleep(SHOW_SECONDS)
                screen.refresh()
                if self._signals and not has_said:
                    has_said = True
                    screen.say("stopping after this batch; Ctrl-C again stops at once")

    def _run_one(self, runner: Runner, order: Order, screen: Screen) -> None:
        name = order.pipeline.name
        started = time.monotonic()
        try:
            status = runner.run(
                order,
                stop=self._stop,
                on_report=lambda report: screen.report(name, report),
                on_beat=lambda lag: screen.beat(name, lag),
            )
        except Exception as error:  # noqa: BLE001 - told at the end, to whoever started it
            known = explain(error)
            with self._lock:
                self._errors[name] = known
            screen.fail(name, known)
        else:
            screen.end(status, time.monotonic() - started)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)
        self._stop.ask()
        if len(self._signals) >= PATIENCE:
            os._exit(INTERRUPTED)


class Screen:
    """What is seen of pipelines while they run. This one: a line for each batch."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._lock = threading.Lock()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None: ...

    def begin(self, order: Order) -> None:
        self._tell("started", order.pipeline.name, "")

    def report(self, name: str, report: Report) -> None:
        rate = report.rows / report.seconds if report.seconds else 0.0
        behind = "" if report.lag is None else f", {report.lag:,} behind"
        text = (
            f"batch {report.batch}, {table.plural(report.rows, 'row')} in "
            f"{show_duration(report.seconds)} ({rate:,.0f} rows/s){behind}"
        )
        self._tell("batch", name, text, **msgspec.structs.asdict(report))

    def beat(self, name: str, lag: int | None) -> None:
        """It is there, and has nothing to do."""

    def fail(self, name: str, error: PenstockError) -> None:
        self._tell("failed", name, "", error=error.code, message=error.message)

    def end(self, status: PipelineStatus, took: float) -> None:
        text = (
            f"{status.state}, {table.plural(status.rows, 'row')} in "
            f"{table.plural(status.batches, 'batch').replace('batchs', 'batches')}, "
            f"{show_duration(took)}"
        )
        if status.lag:
            text += f", {status.lag:,} behind"
        facts = {"rows": status.rows, "batches": status.batches, "lag": status.lag}
        self._tell(status.state, status.name, text, seconds=round(took, 3), **facts)

    def say(self, text: str) -> None:
        if not self._is_json:
            table.note(text)

    def refresh(self) -> None: ...

    def _tell(self, event: str, name: str, text: str, **facts: Any) -> None:
        with self._lock:
            if self._is_json:
                line = {"event": event, "pipeline": name, "at": round(time.time(), 3), **facts}
                table.write_line(msgspec.json.encode(line))
            elif text:
                typer.echo(table.visible(f"{name}: {text}"))


class Bars(Screen):
    """On a terminal: a bar for each pipeline."""

    def __init__(self) -> None:
        super().__init__(is_json=False)
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[rows]}", justify="right"),
            TextColumn("[cyan]{task.fields[rate]}", justify="right"),
            TextColumn("{task.fields[lag]}"),
            TimeElapsedColumn(),
            console=table.console(stderr=True),
            transient=True,
        )
        self._tasks: dict[str, Any] = {}
        self._rows: dict[str, int] = {}

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, order: Order) -> None:
        name = order.pipeline.name
        self._rows[name] = 0
        self._tasks[name] = self._progress.add_task(
            name, total=None, rows="first batch", rate="", lag=""
        )

    def report(self, name: str, report: Report) -> None:
        with self._lock:
            self._rows[name] += report.rows
            rows = self._rows[name]
        rate = f"{report.rows / report.seconds:,.0f} rows/s" if report.seconds else ""
        self._progress.update(
            self._tasks[name],
            completed=rows if rows or report.lag else 1,
            total=None if report.lag is None else max(1, rows + report.lag),
            rows=table.plural(rows, "row"),
            rate=rate,
            lag="" if report.lag is None else f"{report.lag:,} behind",
        )

    def beat(self, name: str, lag: int | None) -> None:
        rows = self._rows[name]
        # A bar that is full, and not one that pulses as if something was under way.
        self._progress.update(
            self._tasks[name],
            completed=max(1, rows),
            total=max(1, rows + (lag or 0)),
            rows=table.plural(rows, "row"),
            rate="waiting",
            lag="" if lag is None else f"{lag:,} behind",
        )

    def fail(self, name: str, error: PenstockError) -> None:
        self._progress.update(self._tasks[name], rows="[red]failed", rate="", lag="")
        self._progress.stop_task(self._tasks[name])

    def end(self, status: PipelineStatus, took: float) -> None:
        self._progress.update(self._tasks[status.name], visible=False)
        super().end(status, took)

    def say(self, text: str) -> None:
        self._progress.console.print(f"[dim]{text}[/dim]")

    def refresh(self) -> None:
        self._progress.refresh()

    def _tell(self, event: str, name: str, text: str, **facts: Any) -> None:
        """Above the bars, which make room."""
        if text:
            self._progress.console.print(f"[bold]{name}[/bold]: {text}", soft_wrap=True)


def make_screen(session: Session) -> Screen:
    if sys.stderr.isatty() and not session.is_json:
        return Bars()
    return Screen(session.is_json)


class _waiting:  # noqa: N801 - used as a function
    """A sign of life while nothing else can be shown."""

    def __init__(self, text: str) -> None:
        self._status: Any = None
        if sys.stderr.isatty():
            self._status = table.console(stderr=True).status(text)

    def __enter__(self) -> None:
        if self._status is not None:
            self._status.start()

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
