"""`docs/explain/file-format.md` names every table and every kind of event that there is."""

from __future__ import annotations

import re

import penstock
from penstock.job import Kind, State
from tests.docs.pages import DOCS

TEXT = (DOCS / "explain" / "file-format.md").read_text(encoding="utf-8")


def test_every_table_is_on_the_page_and_no_other(memory: penstock.Hub) -> None:
    with memory.connection() as connection:
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'penstock%'"
        )

    assert set(re.findall(r"`(penstock_\w+)`", TEXT)) == {name for (name,) in rows}


def test_every_column_of_a_job_is_on_the_page(memory: penstock.Hub) -> None:
    with memory.connection() as connection:
        rows = connection.execute("SELECT name FROM pragma_table_info('penstock_jobs')")
    part = TEXT[TEXT.index("**`penstock_jobs`**") : TEXT.index("| `penstock_job_ready`")]

    assert [name for (name,) in rows if f"`{name}`" not in part] == []


def test_events_and_final_states_have_the_numbers_they_have() -> None:
    words = " ".join(TEXT.split())
    for kind in Kind:
        assert re.search(rf"[(, ]{int(kind)} {kind.name.lower()}[,)]", words), kind
    for state in State:
        if state.is_final:
            assert re.search(rf"[(, ]{int(state)} {state.name.lower()}[,)]", words), state
