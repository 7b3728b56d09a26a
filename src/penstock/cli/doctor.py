"""`penstock doctor`: what is looked at, what was found, and what to do about it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli import table
from penstock.cli.session import FAILED, Session, command, confirm
from penstock.errors import PenstockError
from penstock.health import worst
from penstock.model import Check
from penstock.settings import FIELDS, Settings, sources
from penstock.stores import check_unopened, check_url


class Diagnosis(msgspec.Struct, frozen=True):
    """All checks, as JSON."""

    status: str
    checks: list[Check]


class SettingLine(msgspec.Struct, frozen=True):
    """One setting in force, as JSON."""

    name: str
    value: Any
    source: str


def register(app: typer.Typer, panel: str) -> None:
    command(
        app,
        "doctor",
        panel=panel,
        examples=(
            "penstock doctor",
            "penstock doctor --settings",
            "penstock doctor --new-generation   # after the file was copied by hand",
        ),
    )(doctor)


def doctor(
    session: Session,
    show_settings: Annotated[
        bool,
        typer.Option(
            "--settings",
            help="Instead, show all settings in force and where each comes from.",
            show_default=False,
        ),
    ] = False,
    new_generation: Annotated[
        bool,
        typer.Option(
            "--new-generation",
            help="Instead, declare this file another one than the one it was copied from: "
            "positions taken before are refused from then on.",
            show_default=False,
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", show_default=False)
    ] = False,
) -> None:
    """Check the file, a write, a wake and the consumers, and say what to do.

    The exit code is 0 unless something is critical.
    """
    if show_settings:
        _print_settings(session)
    elif new_generation:
        _start_generation(session, yes)
    else:
        _print_checks(session, examine(session))


def examine(session: Session) -> list[Check]:
    """All checks; those that cannot be made are critical, for the reason they cannot."""
    try:
        settings = session.settings()
    except PenstockError as error:
        return [Check("settings", "critical", error.message, error.hint)]
    checks = [_settings(settings)]
    try:
        check_url(settings.url)
    except PenstockError as error:
        return [*checks, Check("url", "critical", error.message, error.hint)]
    try:
        with session.connect() as hub:
            return [*checks, *hub.diagnose()]
    except PenstockError as error:
        return [*checks, *check_unopened(settings, error)]


def _settings(settings: Settings) -> Check:
    if settings.durability == "os":
        return Check(
            "settings",
            "warning",
            f"{settings.url}, durability os: acknowledged messages can be lost in a power loss",
            "Unset durability, or set it to full, if that is not meant.",
        )
    return Check("settings", "ok", f"{settings.url}, profile {settings.profile}")


def _print_checks(session: Session, checks: list[Check]) -> None:
    status = worst(checks)
    if session.is_json:
        table.print_json(Diagnosis(status, checks))
    else:
        table.print_table(
            ("", "check", "found", "advice"),
            ((table.mark(c.status), c.name, c.found, c.advice) for c in checks),
        )
    if status == "critical":
        raise typer.Exit(FAILED)


def _print_settings(session: Session) -> None:
    settings = session.settings()
    where = sources(session.url, file=session.config)
    lines = [SettingLine(name, getattr(settings, name), where[name]) for name in FIELDS]
    if session.is_json:
        table.print_json(lines)
        return
    table.print_table(
        ("setting", "value", "from"),
        (
            (
                table.emphasised(line.name, line.source != "default"),
                line.value if line.value != "" else "-",
                line.source,
            )
            for line in lines
        ),
    )


def _start_generation(session: Session, is_confirmed: bool) -> None:
    confirm(
        "Refuse all positions taken before? Live followers must start again.",
        is_confirmed=is_confirmed,
    )
    with session.connect() as hub:
        epoch = hub.new_generation()
    if session.is_json:
        table.print_json({"epoch": epoch})
    else:
        table.say(f"The database is {epoch} from now on.")
