"""Progress of long work, on standard error when somebody watches there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli import table

if TYPE_CHECKING:
    from rich.progress import Task

Update = Callable[..., None]


@contextmanager
def progress(description: str, unit: str, total: int | None = None) -> Iterator[Update]:
    """Gives a function to call with what is done so far and, once known, the total."""
    if not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            elapsed = task.elapsed or 0.0
            per_second = task.completed / elapsed if elapsed > 0 else 0.0
            return Text(f"{per_second:,.0f} {unit}/s", style="cyan")

    def count(task: Any) -> str:
        of = f" of {task.total:,.0f}" if task.total else ""
        return f"{task.completed:,.0f}{of} {unit}"

    class Count(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(count(task))

    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        Count(),
        Rate(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=table.console(stderr=True), transient=True) as running:
        task = running.add_task(description, total=total)
        yield lambda done, total=None: running.update(task, completed=done, total=total)
