"""What the demo shows: a line for each event, in the colour of its process, and a summary."""

from __future__ import annotations

from datetime import datetime

from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from penstock.demo.actors import CONSUMER, PATTERN, Event
from penstock.demo.tally import Tally

STYLES = {"publisher": "yellow", "follower": "cyan", "consumer": "magenta"}
NAMES = {"publisher": "publisher", "follower": "follower", "consumer": CONSUMER}
SIGNS = {"publisher": "▶", "follower": "◀", "consumer": "◀"}


class Stage:
    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def open(self, location: str, pids: dict[str, int]) -> None:
        title = Text.assemble(("penstock", "bold"), " · three processes, one file: ", location)
        self._console.print(title, soft_wrap=True)
        roles = {
            "publisher": "returns from publish() when it is on disk",
            "follower": f"live on {PATTERN}",
            "consumer": f"a named consumer on {PATTERN}; will be killed",
        }
        for actor, text in roles.items():
            self._console.print(
                Text.assemble(
                    f"  {SIGNS[actor]} ",
                    (f"{NAMES[actor]:<10}", STYLES[actor]),
                    (f"pid {pids[actor]:<8}", "dim"),
                    text,
                )
            )
        self._console.print(Text("  Ctrl-C ends it.", style="dim"))
        self._console.print()

    def show(self, actor: str, event: Event, note: str = "") -> None:
        """One message at one process; a note says why its latency does not count."""
        style = STYLES[actor]
        if event.what == "published":
            took = Text(f"{event.millis:8.2f} ms  on disk", style="dim")
        elif note:
            took = Text(f"{event.millis / 1000:8.2f} s   {note}", style="bold yellow")
        else:
            took = Text(f"{event.millis:8.2f} ms", style="bold green")
        line = Text.assemble(
            (datetime.now().astimezone().strftime("%H:%M:%S.%f")[:-3], "dim"),
            "  ",
            (f"{SIGNS[actor]} {NAMES[actor]:<10}", style),
            (f"{'#' + str(event.id):>6}  ", style),
            f"{event.topic:<15} {event.type:<8}",
        )
        line.append_text(took)
        room = self._console.width - line.cell_len - 2
        if room >= len(event.text):
            line.append(f"  {event.text}", style="dim")
        self._console.print(line, soft_wrap=True)

    def announce(self, text: str, style: str = "bold") -> None:
        self._console.print(Rule(Text(f" {text} ", style=style), style=style, align="left"))

    def tell(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))

    def close(self, tally: Tally) -> None:
        self._console.print()
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        table.add_column("process")
        for column in ("published", "received", "lost", "duplicates", "p50 latency"):
            table.add_column(column, justify="right")
        table.add_row(
            Text("publisher", style=STYLES["publisher"]), f"{len(tally.published):,}", *("",) * 4
        )
        for actor in tally.received:
            lost, p50 = tally.lost(actor), tally.p50(actor)
            table.add_row(
                Text(NAMES[actor], style=STYLES[actor]),
                "",
                f"{len(tally.received[actor]):,}",
                Text(f"{lost:,}", style="bold green" if lost == 0 else "bold red"),
                f"{tally.duplicates(actor):,}",
                "-" if p50 is None else f"{p50:.2f} ms",
            )
        self._console.print(table)
        self._console.print()
