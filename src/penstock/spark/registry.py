"""Pipelines by name: those that come with penstock, and what each can be told.

A pipeline is a function of a `Run`. Its options are declared beside it, so that a wrong one is
refused before anything starts. The module of a built-in is imported when it is asked for.
"""

from __future__ import annotations

import difflib
import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidInput, InvalidOption, SparkMissing

if TYPE_CHECKING:
    from penstock.settings import Settings
    from penstock.spark.runner import Run

BUILT_IN = "penstock.spark.pipelines"
TRUE = ("true", "yes", "on", "1")
FALSE = ("false", "no", "off", "0")


class Option(msgspec.Struct, frozen=True):
    """One thing a pipeline can be told: `--name VALUE` on the command line."""

    name: str
    help: str
    default: Any = None
    type: type = str
    """str, int, float, bool, or list: names with commas between them."""


class Pipeline(msgspec.Struct, frozen=True):
    """What runs under a name."""

    name: str
    summary: str
    run: Callable[[Run], None]
    options: tuple[Option, ...] = ()
    is_continuous: bool = True
    """Whether it goes on with what comes later. One that is not ends by itself."""
    home: str = "built in"
    """Where it is from, for listings: a module, or penstock itself."""
    trigger: str | None = None
    """How often it looks, where nobody says: '10 seconds'."""
    sinks: tuple[str, ...] = ()
    """The txnAppIds it writes under: a reset lets go of them."""
    tables: tuple[str, ...] = ()
    """The tables of the lake that it writes: a reset sets them aside."""
    on_reset: Callable[[Settings], list[str]] | None = None
    """What else is to be done when it is to begin anew. Says what it did, in sentences."""
    is_for_all: bool = True
    """Whether `run all` means it, too. One that needs to be told something is not."""


def names() -> list[str]:
    """The names of the built-in pipelines, without importing them."""
    package = import_module(BUILT_IN)
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def built_in() -> list[Pipeline]:
    """The pipelines that come with penstock, by name."""
    return [find(name) for name in names()]


def find(name: str) -> Pipeline:
    """The built-in pipeline of this name. Raises `InvalidInput`, which names the nearest one."""
    known = names()
    wanted = name.strip().lower().replace("-", "_")
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.5)
        raise InvalidInput(
            f"There is no pipeline {name!r}.",
            hint=f"Did you mean {near[0]}?"
            if near
            else f"There are {', '.join(known)}; one of your own is MODULE:NAME.",
        )
    try:
        found = import_module(f"{BUILT_IN}.{wanted}").PIPELINE
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("penstock"):
            raise
        raise SparkMissing(f"Pipelines need Spark, and {error.name} is not installed.") from None
    assert isinstance(found, Pipeline), f"{wanted} has no PIPELINE"
    return found


def check_options(pipeline: Pipeline, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of the pipeline, as given or by default. Raises `InvalidOption`."""
    known = {option.name: option for option in pipeline.options}
    values = {option.name: option.default for option in pipeline.options}
    for name, value in given.items():
        spelled = name.replace("-", "_")
        if spelled not in known:
            raise unknown_option([pipeline], name)
        values[spelled] = convert(known[spelled], value)
    return values


def unknown_option(pipelines: list[Pipeline], name: str) -> InvalidOption:
    """None of these pipelines has an option of this name."""
    who = " and ".join(pipeline.name for pipeline in pipelines)
    known = [option.name for pipeline in pipelines for option in pipeline.options]
    near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
    if near:
        hint = f"Did you mean --{near[0].replace('_', '-')}?"
    elif known:
        hint = f"There are {', '.join('--' + option.replace('_', '-') for option in known)}."
    else:
        hint = "It takes none of its own."
    return InvalidOption(f"{who} has no option --{name.replace('_', '-')}.", hint=hint)


def convert(option: Option, value: Any) -> Any:
    """A value as the option wants it, from text or as it is. Raises `InvalidOption`."""
    wanted = option.type
    if value is None or (isinstance(value, wanted) and not isinstance(value, str)):
        return value
    text = str(value).strip()
    try:
        if wanted is bool:
            if text.lower() in TRUE:
                return True
            if text.lower() in FALSE:
                return False
            raise ValueError("neither true nor false")
        if wanted in (list, tuple):
            parts = value if isinstance(value, list | tuple) else text.split(",")
            return wanted(str(part).strip() for part in parts if str(part).strip())
        if wanted is int:
            return int(text.replace("_", ""))
        return wanted(text) if text else _refuse_empty(option)
    except ValueError:
        kinds = {int: "a whole number", float: "a number", bool: "true or false"}
        what = kinds.get(wanted, f"a {wanted.__name__}")
        raise InvalidOption(
            f"--{option.name.replace('_', '-')} is {what}, not {value!r}.", hint=option.help
        ) from None


def _refuse_empty(option: Option) -> Any:
    raise InvalidOption(f"--{option.name.replace('_', '-')} is empty.", hint=option.help)
