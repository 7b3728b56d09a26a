"""A user's modules as pipelines find them: `@pipeline` functions, and hubs with handlers."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

from penstock.errors import InvalidInput, PenstockError, SparkMissing
from penstock.hub import Hub
from penstock.spark import registry
from penstock.spark.registry import Pipeline

NEEDED = ("pyspark", "pyarrow", "pandas")


def require_spark() -> None:
    """Raises `SparkMissing` if pyspark, or what it needs, is not installed."""
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise SparkMissing(
                f"Pipelines need Spark, and {name} is not installed here."
                if isinstance(error, ModuleNotFoundError)
                else f"{name} cannot be imported: {error}."
            ) from None


def import_program(name: str) -> ModuleType:
    """The module of this name; the folder we are in is searched first."""
    if not name or name.endswith(".py") or "/" in name:
        shown = name.removesuffix(".py").strip("./").replace("/", ".") or "shop"
        raise InvalidInput(
            f"{name!r} is not the name of a module.", hint=f"Write it as in Python: {shown}."
        )
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.split(".")[0] in NEEDED:
            raise SparkMissing from None
        if name == missing or name.startswith(f"{missing}."):
            raise InvalidInput(
                f"There is no module {name!r} here.",
                hint=f"Looked in {folder} and where Python looks. Start in your program's folder.",
            ) from None
        raise _broken(name, error) from None
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told as it is, to whoever wrote it
        raise _broken(name, error) from None


def pipelines_of(module: ModuleType) -> list[Pipeline]:
    """Those that the module has, by name. Two of one name are refused."""
    from penstock.spark.declared import PipelineFunction

    found: dict[str, Pipeline] = {}
    for value in vars(module).values():
        one = value.pipeline if isinstance(value, PipelineFunction) else value
        if not isinstance(one, Pipeline):
            continue
        if found.setdefault(one.name, one) is not one:
            raise InvalidInput(f"The module {module.__name__!r} has two pipelines {one.name!r}.")
    return [found[name] for name in sorted(found)]


def find_pipeline(text: str, modules: Sequence[str] = ()) -> Pipeline:
    """A pipeline by its name, in these modules or among the built-in ones; or by `MODULE:NAME`,
    where NAME may also be the function's."""
    module, colon, name = text.partition(":")
    if colon:
        found = pipelines_of(import_program(module))
        for one in found:
            if name in (one.name, one.home.partition(":")[2]):
                return one
        raise _none(f"The module {module!r} has no pipeline {name!r}.", module, name, found)
    own = [one for module in modules for one in pipelines_of(import_program(module))]
    chosen = [one for one in own if one.name == text]
    if len(chosen) > 1:
        homes = " and ".join(one.home for one in chosen)
        raise InvalidInput(f"There are two pipelines {text!r}: {homes}.", hint="Say MODULE:NAME.")
    if chosen:
        return chosen[0]
    try:
        return registry.find(text)
    except InvalidInput:
        near = difflib.get_close_matches(text, [one.name for one in own], n=1, cutoff=0.5)
        if near:
            raise InvalidInput(
                f"There is no pipeline {text!r}.", hint=f"Did you mean {near[0]}?"
            ) from None
        raise


def find_hub(program: str) -> Hub:
    """The hub that `module:name` stands for."""
    module_name, _, name = program.partition(":")
    name = name or "hub"
    module = import_program(module_name)
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Hub):
        return found
    hubs = sorted(key for key, value in vars(module).items() if isinstance(value, Hub))
    raise InvalidInput(
        f"The module {module_name!r} has no hub {name!r}.",
        hint=f"It has {', '.join(f'{module_name}:{key}' for key in hubs)}."
        if hubs
        else "Make one there: hub = penstock.connect().",
    )


def _none(text: str, module: str, name: str, found: list[Pipeline]) -> InvalidInput:
    names = [one.name for one in found]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        hint = f"Did you mean {module}:{near[0]}?"
    elif names:
        hint = f"It has {', '.join(names)}."
    else:
        hint = "Decorate a function there with @pipeline(…)."
    return InvalidInput(text, hint=hint)


def _broken(name: str, error: BaseException) -> InvalidInput:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename]
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
        own = [frame for frame in own if f"{os.sep}pyspark{os.sep}" not in frame.filename]
        line = f", line {own[-1].lineno}" if own else ""
        return InvalidInput(
            f"The module {name!r} needs Spark while it is imported{line}, and Spark has not "
            "started yet.",
            hint="Make it inside the function; of a udf, say StringType() instead of 'string'.",
        )
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return InvalidInput(
        f"The module {name!r} cannot be imported: {type(error).__name__}: {error}{where}.",
        hint=f"'python -c \"import {name}\"' shows it whole.",
    )
