"""What `penstock pipeline run` is told, from the command line to orders that can be run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from penstock.cli.amount import parse_duration, parse_moment
from penstock.cli.session import Session
from penstock.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from penstock.settings import Settings
    from penstock.spark.registry import Option, Pipeline
    from penstock.spark.running import Order

ALL = "all"
OWN = (
    *("once", "trigger", "module", "set", "since", "until", "from", "master", "conf", "lake"),
    *("checkpoint", "ui", "verbose", "json", "url", "config"),
)

Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        "-m",
        metavar="MODULE",
        help="A module with pipelines of your own; repeatable.",
        show_default="the setting pipeline_modules",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="OPTION=VALUE",
        help="An option of the pipeline, where its own name is taken; repeatable.",
        show_default=False,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Begin with messages of this time, or of so long ago.",
        show_default="the earliest",
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        help="Do only the piece up to this time, apart from what runs all the time.",
        show_default=False,
    ),
]
Source = Annotated[
    Literal["log", "lake"],
    typer.Option("--from", help="Where a piece of the past is read from."),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="MASTER",
        help="Where Spark runs: local[4], spark://host:7077, yarn, k8s://…",
        show_default="the setting spark_master, $SPARK_MASTER, then local[*]",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf", metavar="NAME=VALUE", help="A setting of Spark; repeatable.", show_default=False
    ),
]
Lake = Annotated[
    str | None,
    typer.Option(
        "--lake",
        metavar="FOLDER",
        help="The lake.",
        show_default="the setting lake, then beside the database",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="FOLDER",
        help="Where checkpoints are, a folder in it for each pipeline.",
        show_default="the setting checkpoints, then beside the database",
    ),
]


class Plan(msgspec.Struct, frozen=True):
    """What is to be run, and on which Spark."""

    settings: Settings
    orders: list[Order]
    master: str | None
    conf: dict[str, str]


def parse_run(
    session: Session,
    words: list[str],
    *,
    modules: list[str],
    given: list[str],
    once: bool,
    trigger: str | None,
    since: str | None,
    until: str | None,
    source: Literal["log", "lake"],
    master: str | None,
    conf: list[str],
    lake: str | None,
    checkpoints: str | None,
) -> Plan:
    """All of it, checked before Spark is started."""
    from penstock.spark.programs import require_spark

    require_spark()
    from penstock.spark.java import find_java
    from penstock.spark.running import Order

    settings = settings_for(session, lake=lake, checkpoints=checkpoints)
    names, rest = _split(words)
    pipelines = _find(session, names, modules)
    options = _parse_own(pipelines, rest) | _parse_pairs(given, "--set", "currency=EUR")
    shares = _share(pipelines, options)
    orders = [
        Order(
            pipeline,
            shares[pipeline.name],
            once or until is not None or source == "lake",
            None if trigger is None else f"{parse_duration(trigger):g} seconds",
            None if since is None else _moment(since),
            None if until is None else _moment(until),
            source,
        )
        for pipeline in pipelines
    ]
    for order in orders:
        order.check()
    find_java()
    chosen = master or settings.spark_master or None
    return Plan(settings, orders, chosen, _parse_pairs(conf, "--conf", "spark.ui.port=4050"))


def settings_for(session: Session, *, lake: str | None, checkpoints: str | None) -> Settings:
    """The settings with an absolute path: Spark's processes have folders of their own."""
    from pathlib import Path

    from penstock.spark.checkpoints import is_remote
    from penstock.spark.options import settings_of

    def absolute(place: str) -> str:
        return place if not place or is_remote(place) else str(Path(place).absolute())

    said = session.settings()
    return msgspec.structs.replace(
        said,
        url=settings_of(said.url).url,
        lake=absolute(lake or said.lake),
        checkpoints=absolute(checkpoints or said.checkpoints),
    )


def find_all(session: Session, modules: list[str] | None) -> list[Pipeline]:
    """The built-in ones, then those of the modules."""
    from penstock.spark.programs import import_program, pipelines_of, require_spark

    require_spark()
    from penstock.spark.registry import built_in

    chosen = modules or list(session.settings().pipeline_modules)
    return [
        *built_in(),
        *(one for module in chosen for one in pipelines_of(import_program(module))),
    ]


def find_one(session: Session, name: str, modules: list[str] | None) -> Pipeline:
    from penstock.spark.programs import find_pipeline, require_spark

    require_spark()
    return find_pipeline(name, modules or list(session.settings().pipeline_modules))


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The pipelines' names, and what follows the first option that is not the command's."""
    first = next((n for n, word in enumerate(words) if word.startswith("-")), len(words))
    names, rest = words[:first], words[first:]
    if not names:
        raise InvalidInput(
            f"No pipeline is named before {rest[0]}." if rest else "No pipeline is named.",
            hint="'penstock pipeline list' shows those there are.",
        )
    return names, rest


def _find(session: Session, names: list[str], modules: list[str]) -> list[Pipeline]:
    found: dict[str, Pipeline] = {}
    for name in names:
        if name == ALL:
            chosen = [
                one for one in find_all(session, modules) if one.is_continuous and one.is_for_all
            ]
        else:
            chosen = [find_one(session, name, modules)]
        for pipeline in chosen:
            if found.setdefault(pipeline.name, pipeline) is not pipeline:
                raise InvalidInput(f"Two of these pipelines are called {pipeline.name!r}.")
    return list(found.values())


def _parse_own(pipelines: list[Pipeline], words: list[str]) -> dict[str, Any]:
    """`--topics orders --dry-run`, by what the pipelines say they take."""
    known = {option.name: option for one in pipelines for option in one.options}
    values: dict[str, Any] = {}
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("--") or word == "--":
            raise InvalidInput(
                f"{word!r} is not understood here.",
                hint="Names of pipelines come first, then their options: --option VALUE.",
            )
        name, equals, value = word[2:].partition("=")
        option = known.get(name.replace("-", "_"))
        if option is None:
            raise _unknown(pipelines, name)
        if not equals:
            value = _next_value(option, left)
        if option.type in (list, tuple) and option.name in values:
            value = f"{values[option.name]},{value}"
        values[option.name] = value
    return values


def _next_value(option: Option, left: list[str]) -> str:
    if option.type is bool:
        return "true"
    if not left or left[0].startswith("--"):
        raise InvalidOption(
            f"--{option.name.replace('_', '-')} needs a value.", hint=option.help or "Give one."
        )
    return left.pop(0)


def _unknown(pipelines: list[Pipeline], name: str) -> InvalidOption:
    """It may be one of the command's own, misspelled."""
    import difflib

    from penstock.spark.registry import unknown_option

    own = [option.name.replace("_", "-") for one in pipelines for option in one.options]
    near = difflib.get_close_matches(name, [*own, *OWN], n=1)
    error = unknown_option(pipelines, name)
    return InvalidOption(error.message, hint=f"Did you mean --{near[0]}?") if near else error


def _share(pipelines: list[Pipeline], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each pipeline gets those that it has; one that none has is refused."""
    shares: dict[str, dict[str, Any]] = {one.name: {} for one in pipelines}
    for name, value in options.items():
        takers = [one for one in pipelines if any(o.name == name for o in one.options)]
        if not takers:
            raise _unknown(pipelines, name)
        for one in takers:
            shares[one.name][name] = value
    return shares


def _parse_pairs(pairs: list[str], option: str, example: str) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InvalidInput(
                f"{option} {pair!r} is no name and value.", hint=f"Such as {example}."
            )
        found[name.strip() if option == "--conf" else name.strip().replace("-", "_")] = value
    return found


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(parse_moment(text), tz=UTC)
