"""`drain`: the jobs of a queue, done by handlers on Spark's executors.

The driver claims jobs in large batches, keeps their lease, and answers for them in batches, each
under its token. Executors only run handlers. A lost executor's jobs are run by another; the jobs
of a lost driver are rescued, as those of any worker are.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from penstock.errors import InvalidInput
from penstock.hub import Hub
from penstock.job import check_queue
from penstock.spark.programs import find_hub
from penstock.spark.registry import Option, Pipeline
from penstock.spark.slices import SLICE_MAX, Foreman

if TYPE_CHECKING:
    from penstock.spark.runner import Run

CONCURRENCY = 10


def run(run: Run) -> None:
    """Do the jobs there are; unless `once`, go on with those that come."""
    program = _program(run)
    handlers = find_hub(program).handlers
    queues = _queues(run, handlers.queues)
    _check(run)
    with Hub(run.settings) as hub:
        foreman = Foreman(
            run,
            hub._open(),
            handlers,
            queues,
            program=program,
            path=find_path(),
        )
        foreman.work()


def find_path() -> list[str]:
    """Where Python looks for modules here, for executors on this machine."""
    return [os.path.abspath(entry or ".") for entry in sys.path]


def _program(run: Run) -> str:
    program: str | None = run.options["app"]
    if not program:
        raise InvalidInput(
            "drain needs the program with the handlers.",
            hint="--app MODULE:HUB, as for 'penstock work'.",
        )
    return program


def _queues(run: Run, known: list[str]) -> list[str]:
    if not known:
        raise InvalidInput(
            "The program has no handlers.",
            hint="Decorate a function with @hub.job, and import its module where the hub is made.",
        )
    queues: list[str] = run.options["queues"] or known
    return [check_queue(queue) for queue in queues]


def _check(run: Run) -> None:
    if run.is_backfill or run.since is not None:
        raise InvalidInput("drain does the jobs that are ready: since and until say nothing here.")
    for name, least in (("slice", 1), ("concurrency", 1)):
        if run.options[name] < least:
            raise InvalidInput(f"--{name} is a number from {least} up, not {run.options[name]}.")
    conf = run.spark.sparkContext.getConf()
    if str(conf.get("spark.speculation", "false")).lower() == "true":
        raise InvalidInput(
            "With spark.speculation, Spark would run jobs twice at the same time.",
            hint="Leave it out, or set it to false.",
        )


PIPELINE = Pipeline(
    name="drain",
    summary="Do a queue's jobs with handlers on Spark's executors",
    run=run,
    options=(
        Option("app", "The program with the handlers, as for 'penstock work': MODULE:HUB."),
        Option("queues", "Which queues, with commas. Default: all with handlers.", None, list),
        Option("slice", "Jobs that a task gets at once, at most.", SLICE_MAX, int),
        Option("concurrency", "Coroutines that a task runs at once.", CONCURRENCY, int),
        Option(
            "until_empty", "Also wait for jobs that are due later, such as retries.", False, bool
        ),
    ),
    is_for_all=False,
)
