"""How help is laid out: names without types, commands in the order a user meets them."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

MESSAGES = "Messages"
JOBS = "Jobs"
PLACES = "Topics and consumers"
PIPELINES = "Pipelines"
OPERATING = "Operating"

COMMANDS = {
    "publish": ("publish", MESSAGES),
    "follow": ("follow", MESSAGES),
    "serve": ("serve", MESSAGES),
    "work": ("work", JOBS),
    "jobs": ("jobs", JOBS),
    "schedules": ("schedules", JOBS),
    "topics": ("topics", PLACES),
    "consumers": ("consumers", PLACES),
    "ledger": ("ledger", PLACES),
    "mailboxes": ("mailboxes", PLACES),
    "pipeline": ("pipeline", PIPELINES),
    "lake": ("lake", PIPELINES),
    "health": ("health", OPERATING),
    "doctor": ("doctor", OPERATING),
    "backup": ("backup", OPERATING),
    "restore": ("backup", OPERATING),
    "migrate": ("migrate", OPERATING),
    "tokens": ("tokens", OPERATING),
}
"""What a command line can begin with, in the order of help: the module it is in, and its panel."""


class LaidOutCommand(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))


class LaidOutGroup(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))


class MainGroup(LaidOutGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        # Typer has all groups behind all commands, which tears the panels apart.
        return sorted(super().list_commands(ctx), key=list(COMMANDS).index)


def _plain(params: list[Any]) -> list[Any]:
    """`--json` and `TOPIC`, not `--json <bool>` and `{topic}`."""
    for param in params:
        if param.metavar is None:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif param.param_type_name == "argument":
                param.metavar = param.name.upper()
    return params
