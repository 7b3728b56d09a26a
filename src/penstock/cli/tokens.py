"""`penstock tokens …`: who may use the server, and for what."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import parse_duration
from penstock.cli.layout import LaidOutGroup
from penstock.cli.session import Session, command
from penstock.errors import InvalidInput, InvalidSettings
from penstock.model import check_name

if TYPE_CHECKING:
    from penstock.server.tokens_file import TokensFile

DEFAULT_FILE = "tokens.toml"
SECRET_BYTES = 48
JWT_TTL = "1h"

app = typer.Typer(
    help="Make, list and revoke tokens for the server.", cls=LaidOutGroup, no_args_is_help=True
)

File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="The tokens file. Default: the setting tokens_file, then tokens.toml here.",
        show_default=False,
    ),
]
Publish = Annotated[
    list[str] | None,
    typer.Option(
        "--publish", "-p", metavar="TOPIC", help="A topic or glob to publish to; repeatable."
    ),
]
Subscribe = Annotated[
    list[str] | None,
    typer.Option("--subscribe", "-s", metavar="TOPIC", help="A topic or glob to read; repeatable."),
]
Admin = Annotated[
    list[str] | None,
    typer.Option(
        "--admin",
        "-a",
        metavar="TOPIC",
        help="A topic or glob to create, configure, trim and delete; repeatable.",
    ),
]
JobsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="QUEUE",
        help="A queue or glob to enqueue into and to read; repeatable.",
    ),
]
JobsAdmin = Annotated[
    list[str] | None,
    typer.Option(
        "--jobs-admin",
        metavar="QUEUE",
        help="A queue or glob whose jobs may also be retried, cancelled and pruned, and that may "
        "be paused, limited and scheduled for; repeatable.",
    ),
]
MailboxesPut = Annotated[
    list[str] | None,
    typer.Option(
        "--mailboxes-put",
        metavar="MAILBOX",
        help="A mailbox or glob to put messages into; repeatable.",
    ),
]
MailboxesRead = Annotated[
    list[str] | None,
    typer.Option(
        "--mailboxes-read",
        metavar="MAILBOX",
        help="A mailbox or glob to read and acknowledge; repeatable.",
    ),
]
MailboxesAdmin = Annotated[
    list[str] | None,
    typer.Option(
        "--mailboxes-admin",
        metavar="MAILBOX",
        help="A mailbox or glob to list, expire, delete and subscribe to topics; repeatable.",
    ),
]


LedgerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ledger",
        metavar="SCOPE",
        help="A scope of the ledger or glob to look up, mark and claim in; repeatable.",
    ),
]
LedgerAdmin = Annotated[
    list[str] | None,
    typer.Option(
        "--ledger-admin",
        metavar="SCOPE",
        help="A scope of the ledger or glob whose keys may also be forgotten and pruned; "
        "repeatable.",
    ),
]


class Created(msgspec.Struct, frozen=True, omit_defaults=True):
    """A new token, as JSON."""

    name: str
    token: str
    file: str | None = None
    expires: str | None = None


class TokenLine(msgspec.Struct, frozen=True):
    """A key of the file, as JSON."""

    name: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    admin: tuple[str, ...]
    jobs: tuple[str, ...]
    jobs_admin: tuple[str, ...]
    mailboxes_put: tuple[str, ...]
    mailboxes_read: tuple[str, ...]
    mailboxes_admin: tuple[str, ...]
    ledger: tuple[str, ...]
    ledger_admin: tuple[str, ...]
    expires: str | None
    status: str


class Revoked(msgspec.Struct, frozen=True):
    """What a revocation did, as JSON."""

    revoked: str
    was_key: bool


@command(
    app,
    "create",
    examples=(
        "penstock tokens create shop --publish orders",
        "penstock tokens create screen --subscribe 'canvas-*' --expires 30d",
        "penstock tokens create prometheus --subscribe penstock.delivery",
        "penstock tokens create web --jobs mails --jobs reports",
        "penstock tokens create ann --mailboxes-read ann",
    ),
)
def create_token(
    session: Session,
    name: Annotated[str, typer.Argument(help="Whom it is for: limits count by this name.")],
    publish: Publish = None,
    subscribe: Subscribe = None,
    admin: Admin = None,
    jobs: JobsOption = None,
    jobs_admin: JobsAdmin = None,
    mailboxes_put: MailboxesPut = None,
    mailboxes_read: MailboxesRead = None,
    mailboxes_admin: MailboxesAdmin = None,
    ledger: LedgerOption = None,
    ledger_admin: LedgerAdmin = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help="How long it is good for: 12h, 30d."),
    ] = None,
    file: File = None,
) -> None:
    """Make an API key. It is shown this once: the file has only its hash."""
    from penstock.server import tokens_file

    path = _path(session, file)
    check_name(name, "name of a token")
    key = tokens_file.new_key()
    until = None
    if expires is not None:
        until = (datetime.now(UTC) + _duration(expires)).replace(microsecond=0)
    rights = _rights(
        publish=publish,
        subscribe=subscribe,
        admin=admin,
        jobs=jobs,
        jobs_admin=jobs_admin,
        mailboxes_put=mailboxes_put,
        mailboxes_read=mailboxes_read,
        mailboxes_admin=mailboxes_admin,
        ledger=ledger,
        ledger_admin=ledger_admin,
    )
    entry = tokens_file.Key(sha256=tokens_file.hash_key(key).hex(), **rights, expires=until)
    if not any(rights.values()):
        raise InvalidInput(
            "This token would allow nothing.",
            hint="Pass --publish, --subscribe, --admin, --jobs, --mailboxes-…, --ledger or an "
            "-admin of these.",
        )
    with _editing(path) as tokens:
        if name in tokens.keys:
            raise InvalidInput(
                f"There is a token {name!r}.", hint="Revoke it first, or choose another name."
            )
        keys = {**tokens.keys, name: entry}
        # A name that was revoked earlier is good again with its new key.
        tokens_file.write(path, tokens_file.TokensFile(keys, tokens.revoked - {name}))
    _show(session, Created(name, key, str(path), None if until is None else until.isoformat()))


@command(app, "list", examples=("penstock tokens list", "penstock tokens list --json"))
def list_tokens(session: Session, file: File = None) -> None:
    """The API keys of the file: names, rights and expiry, not the keys themselves."""
    from penstock.server import tokens_file

    found = tokens_file.read(_path(session, file))
    now = datetime.now(UTC)
    lines = [
        TokenLine(
            name,
            key.publish,
            key.subscribe,
            key.admin,
            key.jobs,
            key.jobs_admin,
            key.mailboxes_put,
            key.mailboxes_read,
            key.mailboxes_admin,
            key.ledger,
            key.ledger_admin,
            None if key.expires is None else key.expires.isoformat(),
            "revoked" if name in found.revoked else _status(key.expires, now),
        )
        for name, key in sorted(found.keys.items())
    ]
    if session.is_json:
        table.print_json(lines)
        return
    table.print_table(
        (
            *("token", "publish", "subscribe", "admin", "jobs", "jobs admin", "mailboxes"),
            *("ledger", "expires", "status"),
        ),
        (
            (
                line.name,
                " ".join(line.publish),
                " ".join(line.subscribe),
                " ".join(line.admin),
                " ".join(line.jobs),
                " ".join(line.jobs_admin),
                _mailboxes(line),
                _together(("use", line.ledger), ("admin", line.ledger_admin)),
                line.expires or "",
                line.status,
            )
            for line in lines
        ),
        empty="No tokens yet: 'penstock tokens create' makes one.",
    )


@command(app, "revoke", examples=("penstock tokens revoke shop",))
def revoke_token(
    session: Session,
    name: Annotated[
        str, typer.Argument(help="An API key's name, or a signed token's subject or id (jti).")
    ],
    file: File = None,
) -> None:
    """Take a token back. Running servers refuse it, and close its sockets, within seconds."""
    from penstock.server import tokens_file

    path = _path(session, file)
    check_name(name, "name of a token")
    with _editing(path) as tokens:
        was_key = name in tokens.keys
        keys = {other: key for other, key in tokens.keys.items() if other != name}
        # A key that is gone is refused anyway. What is signed stays good until it is listed.
        revoked = tokens.revoked if was_key else tokens.revoked | {name}
        tokens_file.write(path, tokens_file.TokensFile(keys, revoked))
    if session.is_json:
        table.print_json(Revoked(name, was_key))
    elif was_key:
        table.say(f"The key {name} is removed.")
    else:
        table.say(f"Signed tokens with the subject or id {name} are refused from now on.")


@command(
    app,
    "jwt",
    examples=(
        "penstock tokens jwt ann --subscribe 'canvas-*' --expires 1h",
        "penstock tokens jwt ann --subscribe orders --key secret.key --new-key",
    ),
)
def sign_token(
    session: Session,
    subject: Annotated[str, typer.Argument(help="Whom it is for: its sub.")],
    publish: Publish = None,
    subscribe: Subscribe = None,
    admin: Admin = None,
    jobs: JobsOption = None,
    jobs_admin: JobsAdmin = None,
    mailboxes_put: MailboxesPut = None,
    mailboxes_read: MailboxesRead = None,
    mailboxes_admin: MailboxesAdmin = None,
    ledger: LedgerOption = None,
    ledger_admin: LedgerAdmin = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="DURATION", help="How long it is good for.")
    ] = JWT_TTL,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="FILE",
            help="The secret, or private key, to sign with. Default: the setting jwt_key_file.",
            show_default=False,
        ),
    ] = None,
    new_key: Annotated[
        bool,
        typer.Option(
            "--new-key", help="Make the secret if the file does not exist.", show_default=False
        ),
    ] = False,
) -> None:
    """Sign a token (JWT), as your own program would with any JWT library."""
    import jwt

    from penstock.server.auth import prepare_key
    from penstock.server.tokens_file import read_secret

    settings = session.settings()
    path = key or (Path(settings.jwt_key_file) if settings.jwt_key_file else None)
    if path is None:
        raise InvalidSettings(
            "There is no key to sign with.", hint="Pass --key, or set jwt_key_file."
        )
    if new_key:
        _make_secret(path)
    check_name(subject, "subject")
    until = datetime.now(UTC) + _duration(expires)
    claims = {
        "sub": subject,
        "exp": until,
        "aud": settings.jwt_audience,
        "iss": settings.jwt_issuer,
        "jti": secrets.token_hex(8),
        "penstock": _rights(
            publish=publish,
            subscribe=subscribe,
            admin=admin,
            jobs=jobs,
            jobs_admin=jobs_admin,
            mailboxes_put=mailboxes_put,
            mailboxes_read=mailboxes_read,
            mailboxes_admin=mailboxes_admin,
            ledger=ledger,
            ledger_admin=ledger_admin,
        ),
    }
    prepared = prepare_key(read_secret(path, "key file"), path, settings.jwt_algorithm)
    token = jwt.encode(
        {name: value for name, value in claims.items() if value},
        prepared,
        algorithm=settings.jwt_algorithm,
    )
    _show(session, Created(subject, token, None, until.replace(microsecond=0).isoformat()))


def _rights(**given: list[str] | None) -> dict[str, tuple[str, ...]]:
    """By the names that tokens have for them, checked."""
    from penstock.server.tokens_file import check_patterns

    return {
        right: check_patterns(tuple(patterns or ()), f"--{right.replace('_', '-')}")
        for right, patterns in given.items()
    }


def _mailboxes(line: TokenLine) -> str:
    return _together(
        ("put", line.mailboxes_put),
        ("read", line.mailboxes_read),
        ("admin", line.mailboxes_admin),
    )


def _together(*rights: tuple[str, tuple[str, ...]]) -> str:
    """In one column: few tokens have such rights, and a terminal is narrow."""
    return "; ".join(f"{verb} {' '.join(names)}" for verb, names in rights if names)


def _show(session: Session, created: Created) -> None:
    """The token alone on standard output, so that a script can keep it."""
    if session.is_json:
        table.print_json(created)
        return
    table.say(created.token)
    if created.file is not None:
        table.note(f"Keep it: it is not stored. {created.file} has its hash and its rights.")


def _path(session: Session, file: Path | None) -> Path:
    return (file or Path(session.settings().tokens_file or DEFAULT_FILE)).absolute()


@contextmanager
def _editing(path: Path) -> Iterator[TokensFile]:
    """The file's content, while no other command changes it. An empty one if there is none."""
    from penstock.server import tokens_file

    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise InvalidSettings(f"{path.parent}: {error.strerror}.") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield tokens_file.read(path) if path.exists() else tokens_file.TokensFile()
    finally:
        os.close(folder)


def _make_secret(path: Path) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise InvalidSettings(f"The key {path} cannot be written: {error.strerror}.") from None
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_urlsafe(SECRET_BYTES) + "\n")


def _duration(text: str) -> timedelta:
    try:
        return timedelta(seconds=parse_duration(text))
    except OverflowError:
        raise InvalidInput(f"{text!r} is too long.", hint="Such as 12h, 30d or 52w.") from None


def _status(expires: datetime | None, now: datetime) -> str:
    return "expired" if expires is not None and expires <= now else "good"
