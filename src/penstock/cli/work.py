"""`penstock work`: do the jobs of a program's handlers, until told to stop.

The first SIGTERM or Ctrl-C stops it gracefully: it claims no more, finishes what runs within
`worker_stop_seconds`, and hands back the rest. The second one hands back at once.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli import INTERRUPTED, table
from penstock.cli.program import check_queues, load_hub, parse_queues
from penstock.cli.session import Session, command

if TYPE_CHECKING:
    from penstock.hub import Hub
    from penstock.job import Setback
    from penstock.jobs.crew import Crew, CrewStats
    from penstock.jobs.run import Run

STATUS_SECONDS = 0.5


def register(app: typer.Typer, panel: str) -> None:
    command(
        app,
        "work",
        panel=panel,
        examples=(
            "penstock work app:hub                        # all queues with handlers",
            "penstock work app:hub --queues emails:10,reports:2",
            "penstock work app:hub --processes 4          # one for each core",
            "penstock work app:hub --check                # is everything found?",
        ),
    )(work)


def work(
    session: Session,
    program: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:HUB",
            help="Where the hub is, such as app:hub or shop.jobs:hub. The folder you are in is "
            "searched first.",
        ),
    ],
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues",
            metavar="QUEUE:N,…",
            help="Which queues, and how many jobs of each at once.",
            show_default="10 of each queue with a handler",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option("--processes", metavar="N", min=1, max=256, help="How many processes."),
    ] = 1,
    check: Annotated[
        bool,
        typer.Option("--check", help="Show handlers and queues, and end.", show_default=False),
    ] = False,
    is_child: Annotated[
        bool, typer.Option("--one-of-many", help="Started by --processes.", hidden=True)
    ] = False,
) -> None:
    """Do jobs, until Ctrl-C or SIGTERM.

    Start it on as many machines' processes as you like: they share the queues of one database.
    """
    hub = load_hub(program)
    if session.url:
        hub.settings = msgspec.structs.replace(hub.settings, url=session.url)
    session._log(shows_warnings=not session.is_json)
    with hub:
        wanted = check_queues(hub, parse_queues(queues))
        if check:
            _show(session, hub, wanted)
        elif processes > 1:
            # Imported here: nobody else needs it.
            from penstock.cli.supervisor import Supervisor

            raise typer.Exit(Supervisor(session, program, queues, processes).run())
        else:
            raise typer.Exit(Shift(session, hub, wanted, is_child=is_child).run())


class Shift:
    """One process's work, from its start to its end."""

    def __init__(
        self, session: Session, hub: Hub, queues: dict[str, int], *, is_child: bool
    ) -> None:
        self._session = session
        self._hub = hub
        self._queues = queues
        self._is_child = is_child
        self._signals = 0
        self._first = 0
        self._told = threading.Event()

    def run(self) -> int:
        if self._is_child:
            from penstock.cli.supervisor import end_with_parent

            end_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        crew = self._hub.start_workers(self._queues, on_outcome=self._on_outcome)
        name = self._hub._open().name
        self._say("ready", f"{name} works on {_listed(self._queues)}", queues=self._queues)
        status = Status(crew) if self._is_watched else None
        while not self._told.wait(STATUS_SECONDS):
            if status is not None:
                status.show()
        ending = threading.Thread(target=crew.stop)
        ending.start()
        while ending.is_alive() and not crew.is_stopping:
            ending.join(0.001)
        # Said when it is true: from here on nothing is begun.
        self._say("stopping", "stopping: Ctrl-C again hands back what runs at once")
        while ending.is_alive():
            self._told.clear()
            if self._signals > 1:
                crew.stop(0.0)
            if status is not None:
                status.show()
            ending.join(0.05)
        if status is not None:
            status.end()
        stats = crew.stats
        text = f"stopped: {stats.completed:,} completed, {stats.failed:,} attempts failed"
        self._say("stopped", text, completed=stats.completed, failed=stats.failed)
        return INTERRUPTED if self._first == signal.SIGINT else 0

    @property
    def _is_watched(self) -> bool:
        return sys.stderr.isatty() and not self._session.is_json and not self._is_child

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._signals += 1
        self._first = self._first or number
        self._told.set()

    def _on_outcome(self, run: Run, setback: Setback | None) -> None:
        """On the workers' thread."""
        claim = run.claim
        if self._session.is_json:
            event = "completed" if setback is None else setback.kind.name.lower()
            facts: dict[str, Any] = {
                "id": claim.id,
                "type": claim.type,
                "queue": claim.queue,
                "attempt": claim.attempt,
            }
            if setback is not None and setback.failure is not None:
                facts["error"] = setback.failure.error
                facts["message"] = setback.failure.message
            self._say(event, "", **facts)
        elif setback is not None and setback.failure is not None:
            kind = setback.kind.name.lower()
            self._say(
                kind,
                f"job {claim.id} {claim.type} {kind} at attempt {claim.attempt} of "
                f"{claim.max_attempts}: {setback.failure.error}: {setback.failure.message}",
            )

    def _say(self, event: str, text: str, **facts: Any) -> None:
        if self._session.is_json:
            line = msgspec.json.encode({"event": event, "at": round(time.time(), 3), **facts})
            sys.stdout.write(line.decode() + "\n")
            sys.stdout.flush()
        elif text and not (self._is_child and event in ("ready", "stopping", "stopped")):
            if self._is_watched:
                sys.stderr.write("\r\x1b[K")  # The status line makes room.
                sys.stderr.flush()
            typer.echo(table.visible(text))


class Status:
    """One line on the terminal that is written over and over."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._before: tuple[float, int] = (time.monotonic(), 0)

    def show(self) -> None:
        stats, now = self._crew.stats, time.monotonic()
        at, done = self._before
        rate = (stats.completed - done) / max(0.001, now - at)
        self._before = (now, stats.completed)
        sys.stderr.write(f"\r\x1b[K{_line(stats, rate)}")
        sys.stderr.flush()

    def end(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _line(stats: CrewStats, rate: float) -> str:
    parts = [
        f"running {stats.running:,}",
        f"completed {stats.completed:,} ({rate:,.0f}/s)",
        f"failed {stats.failed:,}",
    ]
    if stats.stuck:
        parts.append(f"stuck {stats.stuck:,}")
    if stats.refused:
        parts.append(f"refused {stats.refused:,}")
    return "  ".join(parts)


def _show(session: Session, hub: Hub, queues: dict[str, int]) -> None:
    handlers = sorted(hub.handlers, key=lambda handler: (handler.queue, handler.type))
    if session.is_json:
        found = {
            "url": hub.url,
            "queues": queues,
            "handlers": [
                {
                    "type": handler.type,
                    "queue": handler.queue,
                    "function": f"{handler.function.__module__}:{handler.function.__qualname__}",
                    "isolation": handler.isolation,
                    "max_attempts": handler.max_attempts,
                    "timeout_seconds": handler.timeout_seconds,
                }
                for handler in handlers
            ],
        }
        typer.echo(msgspec.json.encode(found).decode())
        return
    typer.echo(f"{hub.url}\n")
    table.print_table(
        ("TYPE", "QUEUE", "AT ONCE", "RUNS IN", "ATTEMPTS", "TIMEOUT", "FUNCTION"),
        [
            (
                handler.type,
                handler.queue,
                queues.get(handler.queue, "not worked on"),
                {"async": "the loop", "thread": "a thread", "process": "a process"}[
                    handler.isolation
                ],
                handler.max_attempts,
                "" if handler.timeout_seconds is None else f"{handler.timeout_seconds:g} s",
                f"{handler.function.__module__}:{handler.function.__qualname__}",
            )
            for handler in handlers
        ],
        right=("AT ONCE", "ATTEMPTS", "TIMEOUT"),
    )


def _listed(queues: dict[str, int]) -> str:
    return ", ".join(f"{queue} ({slots} at once)" for queue, slots in queues.items())
