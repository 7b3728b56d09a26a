"""`docs/explain/jobs.md` draws the states of a job as they are in `job.py` (J3)."""

from __future__ import annotations

import re

from penstock.job import TRANSITIONS, Kind, State
from tests.docs.pages import DOCS

TEXT = (DOCS / "explain" / "jobs.md").read_text(encoding="utf-8")
NAMES = {"–": None, "[*]": None, **{state.name.lower(): state for state in State}}

Way = tuple[State | None, State | None]


def table(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this line."""
    lines = TEXT[TEXT.index(heading) :].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_table_has_every_transition_and_no_other() -> None:
    found: dict[Way, frozenset[Kind]] = {}
    for source, target, events, _ in table("| from | to | event | when |"):
        kinds = [name for name in events.split(", ") if name]
        found[NAMES[source], NAMES[target]] = frozenset(Kind[name.upper()] for name in kinds)

    assert found == dict(TRANSITIONS)


def test_the_drawing_has_every_way_and_no_other() -> None:
    """But those from a state to itself."""
    drawn = re.findall(r"^    (\S+) --> (\S+): ", TEXT, re.MULTILINE)
    ways = [(NAMES[source], NAMES[target]) for source, target in drawn]

    assert len(ways) == len(set(ways))
    assert set(ways) == {(source, target) for source, target in TRANSITIONS if source != target}


def test_every_state_is_explained() -> None:
    assert [name for name, _ in table("| state | a job in it |")] == [
        state.name.lower() for state in State
    ]


def test_every_event_tells_of_a_transition() -> None:
    assert frozenset[Kind]().union(*TRANSITIONS.values()) == frozenset(Kind)


def test_every_state_can_be_reached_and_left() -> None:
    """None is a trap: from each there is a way to an end, and from each end out."""
    for state in State:
        assert any(target == state != source for source, target in TRANSITIONS)
        assert any(source == state != target for source, target in TRANSITIONS)
