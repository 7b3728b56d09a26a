"""The reference is complete: what the code has, the pages have, with the same facts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock
from penstock import errors
from tests.docs import settings_page, signatures
from tests.docs.pages import DOCS, ROOT

REFERENCE = DOCS / "reference"
SOURCE = ROOT / "src" / "penstock"


def error_classes() -> list[type[errors.PenstockError]]:
    found = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.PenstockError)
    ]
    return sorted(found, key=lambda error: error.__name__)


def table_rows(page: Path) -> dict[str, list[str]]:
    """The rows of a page's tables by the name in code font in their first cell."""
    rows: dict[str, list[str]] = {}
    for line in page.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        name = re.match(r"^`(\w+)`", cells[0])
        if line.startswith("|") and name:
            rows[name[1]] = cells
    return rows


@pytest.mark.parametrize("name", sorted(set(penstock.__all__) - {"__version__"}))
def test_every_public_name_has_a_place_in_the_reference(name: str) -> None:
    pages = [page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md")]
    stated = re.compile(rf"`(?:penstock\.)?{name}\b")
    assert any(stated.search(page) for page in pages)


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_every_error_is_listed_with_its_code_retryability_and_hint(
    error: type[errors.PenstockError],
) -> None:
    rows = table_rows(REFERENCE / "errors.md")
    assert error.__name__ in rows
    _, code, retryable, when, hint = rows[error.__name__]
    assert code == f"`{error.code}`"
    assert retryable == ("yes" if error.retryable else "no")
    assert when
    assert hint == (error.hint or "–")


def test_no_error_is_listed_that_does_not_exist() -> None:
    listed = set(table_rows(REFERENCE / "errors.md"))
    assert listed == {error.__name__ for error in error_classes()}


def test_the_settings_page_is_what_the_settings_say() -> None:
    """T10: every setting with its default and meaning; `python -m tests.docs.settings_page`."""
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.render()


def test_every_event_that_is_emitted_is_in_the_catalogue() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    emitted = set(re.findall(r"\.emit\(\s*\"(\w+)\"", source))
    assert emitted
    assert set(table_rows(REFERENCE / "telemetry.md")) >= emitted


@pytest.mark.parametrize("page", signatures.PAGES)
def test_every_function_is_stated_with_its_signature(page: str) -> None:
    text = (REFERENCE / page).read_text(encoding="utf-8")
    for signature in signatures.of_page(page):
        assert f"{signature}`" in text, signature


def test_the_error_tree_is_as_it_is() -> None:
    def tree(error: type[errors.PenstockError], depth: int = 0) -> list[str]:
        below = [line for kind in error.__subclasses__() for line in tree(kind, depth + 1)]
        return ["  " * depth + error.__name__, *below]

    shown = "\n".join(tree(errors.PenstockError))
    assert shown in (REFERENCE / "errors.md").read_text(encoding="utf-8")
