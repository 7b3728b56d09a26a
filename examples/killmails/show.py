"""How far the chain is: a bar for each step, and what is being priced."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

import penstock
from penstock import State

STEPS = ("fetch", "price", "notify")
LOOK_SECONDS = 0.2
LINE_SECONDS = 1.0


def watch(
    hub: penstock.Hub, jobs: int, on_look: Callable[[int], object] = lambda done: None
) -> None:
    """Show progress until every kill is announced or given up. `on_look` is told how many are."""
    console = Console(file=sys.stdout)
    said_at = 0.0
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks = {step: bars.add_task(step, total=jobs, note="") for step in STEPS}
        while True:
            counts = finished(hub)
            for step in STEPS:
                bars.update(tasks[step], completed=counts[step], note=doing(hub, step))
            if not console.is_terminal and time.monotonic() - said_at >= LINE_SECONDS:
                said_at = time.monotonic()
                steps = ", ".join(f"{step} {counts[step]}/{jobs}" for step in STEPS)
                print(f"{steps}  {doing(hub, 'price')}".rstrip(), flush=True)
            on_look(counts["notify"])
            if counts["notify"] >= jobs:
                return
            time.sleep(LOOK_SECONDS)


def finished(hub: penstock.Hub) -> dict[str, int]:
    states = [state for state in State if state.is_final]
    jobs = hub.jobs.list(state=states, limit=10_000)
    return {step: sum(job.type == step for job in jobs) for step in STEPS}


def doing(hub: penstock.Hub, step: str) -> str:
    """What one of its jobs says of itself."""
    for job in hub.jobs.list(type=step, state=State.PROCESSING, limit=10):
        if job.progress is not None and job.progress.percent is not None:
            return f"job {job.id}: {job.progress.percent:.0f} % {job.progress.note}"
    return ""
