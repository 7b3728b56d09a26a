"""A user's program as a command finds it: its hub, and the queues it has handlers for."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.errors import InvalidInput, PenstockError

if TYPE_CHECKING:
    from penstock.hub import Hub

DEFAULT_NAME = "hub"


def load_hub(program: str) -> Hub:
    """The hub that `module:name` stands for."""
    from penstock.hub import Hub

    module_name, _, name = program.partition(":")
    name = name or DEFAULT_NAME
    module = _import(module_name)
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Hub):
        return found
    hubs = [key for key, value in vars(module).items() if isinstance(value, Hub)]
    if hubs:
        hint = f"It has {', '.join(f'{module_name}:{key}' for key in sorted(hubs))}."
    else:
        hint = f"Make one there: {DEFAULT_NAME} = penstock.connect()."
    what = "nothing of the name" if found is None else f"a {type(found).__name__} called"
    raise InvalidInput(f"The module {module_name!r} has {what} {name!r}, and no hub.", hint=hint)


def _import(name: str) -> ModuleType:
    if not name or name.endswith(".py") or "/" in name:
        shown = name.removesuffix(".py").replace("/", ".") or "app"
        raise InvalidInput(
            f"{name!r} is not the name of a module.", hint=f"Write it as in Python: {shown}:hub."
        )
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise InvalidInput(
                f"There is no module {name!r} here.",
                hint=f"Looked in {folder} and where Python looks. Start in your program's folder.",
            ) from None
        raise _broken(name, error) from None
    except PenstockError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told as it is, to whoever wrote it
        raise _broken(name, error) from None


def _broken(name: str, error: BaseException) -> InvalidInput:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return InvalidInput(
        f"The module {name!r} cannot be imported: {type(error).__name__}: {error}{where}.",
        hint=f"'python -c \"import {name}\"' shows it whole.",
    )


def parse_queues(text: str | None) -> dict[str, int] | None:
    """`a:10,b:5`; a queue without a number has the default."""
    from penstock.jobs.crew import CONCURRENCY

    if text is None:
        return None
    queues: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, count = part.rpartition(":")
        if not colon:
            name, count = part, str(CONCURRENCY)
        if not name or not count.isdecimal() or int(count) < 1:
            raise InvalidInput(
                f"{part!r} is not a queue and a number.", hint="Such as --queues emails:10,reports."
            )
        if name in queues:
            raise InvalidInput(f"The queue {name!r} is named twice.")
        queues[name] = int(count)
    if not queues:
        raise InvalidInput("No queue is named.", hint="Such as --queues emails:10,reports.")
    return queues


def check_queues(hub: Hub, queues: dict[str, int] | None) -> dict[str, int]:
    """The queues to work on, if there is anything to do in each."""
    from penstock.jobs import crew

    known = hub.handlers.queues
    if not known:
        raise InvalidInput(
            "The program has no handlers.",
            hint="Decorate a function with @hub.job, and import its module where the hub is made.",
        )
    for queue in queues or ():
        # Jobs can be put into any queue, whatever their handler says.
        if queue not in known and not hub.jobs.stats(queue):
            raise InvalidInput(
                f"There is no queue {queue!r}: no handler is for it, and it has no jobs.",
                hint=f"Handlers are for {', '.join(sorted(known))}.",
            )
    return crew.check_queues(hub.handlers, queues)
