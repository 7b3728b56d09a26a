"""Pipelines by name, and their options (S8). No JVM."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidInput, InvalidOption
from penstock.spark import registry
from penstock.spark.registry import Option, Pipeline, check_options
from penstock.spark.runner import check_trigger

OPTIONS = (
    Option("topics", "Which topics.", None, list),
    Option("rows_max", "How many rows.", 100, int),
    Option("share", "Of all.", 0.5, float),
    Option("dry_run", "Only look.", False, bool),
    Option("target", "Where to."),
)
PIPELINE = Pipeline("totals", "", lambda run: None, OPTIONS)


def test_every_built_in_pipeline_is_found_and_says_what_it_does() -> None:
    found = registry.built_in()
    assert "drain" in {one.name for one in found}
    for one in found:
        assert registry.find(one.name) is one
        assert one.summary
        assert one.home == "built in"
        for option in one.options:
            assert option.help, f"{one.name} --{option.name}"
            assert option.name.isidentifier()


@pytest.mark.parametrize("name", ["drain", "DRAIN", " drain "])
def test_a_name_is_found_however_it_is_written(name: str) -> None:
    assert registry.find(name).name == "drain"


def test_a_misspelled_name_gets_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="no pipeline 'drian'") as raised:
        registry.find("drian")
    assert raised.value.hint == "Did you mean drain?"


def test_options_that_are_not_given_have_their_defaults() -> None:
    assert check_options(PIPELINE, {}) == {
        "topics": None,
        "rows_max": 100,
        "share": 0.5,
        "dry_run": False,
        "target": None,
    }


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("topics", "a, b,,c", ["a", "b", "c"]),
        ("topics", ["a", "b"], ["a", "b"]),
        ("rows_max", "1_000", 1_000),
        ("rows-max", 7, 7),
        ("share", "0.25", 0.25),
        ("dry_run", "yes", True),
        ("dry-run", "false", False),
        ("dry_run", True, True),
        ("target", " here ", "here"),
    ],
)
def test_an_option_becomes_what_it_is_meant_to_be(name: str, given: Any, value: Any) -> None:
    assert check_options(PIPELINE, {name: given})[name.replace("-", "_")] == value


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("rows_max", "many", "--rows-max is a whole number, not 'many'"),
        ("share", "half", "--share is a number, not 'half'"),
        ("dry_run", "maybe", "--dry-run is true or false, not 'maybe'"),
        ("target", " ", "--target is empty"),
    ],
)
def test_a_wrong_value_is_refused_with_the_options_help(name: str, given: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=text) as raised:
        check_options(PIPELINE, {name: given})
    assert raised.value.hint == next(o.help for o in OPTIONS if o.name == name)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(InvalidOption, match="totals has no option --topcis") as raised:
        check_options(PIPELINE, {"topcis": "a"})
    assert raised.value.hint == "Did you mean --topics?"
    with pytest.raises(InvalidOption) as raised:
        check_options(Pipeline("plain", "", lambda run: None), {"x": 1})
    assert raised.value.hint == "It takes none of its own."


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("10 seconds", "10 seconds"),
        ("10s", "10 seconds"),
        ("5m", "300 seconds"),
        ("1 hour", "3600 seconds"),
        ("2", "2 seconds"),
        ("500ms", "500 milliseconds"),
    ],
)
def test_a_trigger_is_a_time_however_it_is_written(given: str, meant: str) -> None:
    assert check_trigger(given) == meant


@pytest.mark.parametrize("given", ["soon", "", "-1s", "10 parsecs"])
def test_what_is_no_time_is_no_trigger(given: str) -> None:
    with pytest.raises(InvalidInput, match="is no time"):
        check_trigger(given)
