"""`penstock mailboxes …`: look into recipients' queues, and look after their files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import parse_duration, show_duration, show_size, show_time
from penstock.cli.layout import LaidOutGroup
from penstock.cli.progress import progress
from penstock.cli.session import Session, command, confirm
from penstock.clock import as_datetime
from penstock.errors import InvalidInput, MailboxError, UndecodablePayload
from penstock.mail import Mail, MailboxSubscription, MailKind
from penstock.model import Start

app = typer.Typer(
    help="See what waits for recipients, and look after the files it waits in.",
    cls=LaidOutGroup,
    no_args_is_help=True,
)

Box = Annotated[str, typer.Argument(metavar="MAILBOX", help="The recipient's name.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.", show_default=False)
]
PEEK = 10
SHOWN = 60


class MailLine(msgspec.Struct, frozen=True):
    """A message, as JSON."""

    id: str
    seq: int
    at: str
    kind: str
    type: str | None
    topic: str | None
    payload: Any
    missing: int


class Changed(msgspec.Struct, frozen=True):
    mailbox: str
    messages: int


class SubscriptionLine(msgspec.Struct, frozen=True):
    """A mailbox that is fed from a topic, as JSON."""

    mailbox: str
    topic: str
    position: str
    since: str


class Moved(msgspec.Struct, frozen=True):
    folder: str
    depth: int
    mailboxes: int


@command(
    app,
    "list",
    examples=("penstock mailboxes list", "penstock mailboxes list --after recipient-41"),
)
def list_boxes(
    session: Session,
    after: Annotated[
        str, typer.Option("--after", metavar="NAME", help="Go on after this name.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="So many at most.")] = 100,
) -> None:
    """Mailboxes by name, and how much waits in each."""
    with session.reach() as hub:
        names = hub.mailboxes.list(after=after, limit=limit)
        found = [hub.mailboxes.open(name).stats() for name in names]
    if session.is_json:
        table.print_json(found)
        return
    table.print_table(
        ("mailbox", "messages", "oldest", "state", "on disk"),
        (
            (
                stats.id,
                stats.messages,
                "-"
                if stats.oldest_age_seconds is None
                else show_duration(stats.oldest_age_seconds),
                "takes messages" if stats.can_write else "full",
                show_size(stats.bytes),
            )
            for stats in found
        ),
        right=("messages", "on disk"),
        empty="No mailboxes" + (f" after {after!r}." if after else "."),
    )


@command(app, "show", examples=("penstock mailboxes show recipient-42",))
def show_box(session: Session, mailbox: Box) -> None:
    """One mailbox: how much waits, since when, and whether it takes more."""
    with session.reach() as hub:
        stats = hub.mailboxes.open(mailbox).stats()
    if session.is_json:
        table.print_json(stats)
        return
    age = stats.oldest_age_seconds
    table.print_fields(
        (
            ("mailbox", stats.id),
            ("messages", f"{stats.messages:,}"),
            ("oldest", "-" if age is None else f"{show_duration(age)} ago"),
            ("state", "takes messages" if stats.can_write else "full until all are acknowledged"),
            ("next number", stats.next_seq),
            ("on disk", show_size(stats.bytes)),
        )
    )


@command(
    app,
    "put",
    examples=(
        'penstock mailboxes put recipient-42 \'{"hello": "you"}\'',
        "penstock mailboxes put recipient-42 hello --text --id greeting-1",
    ),
)
def put_message(
    session: Session,
    mailbox: Box,
    payload: Annotated[str, typer.Argument(help="JSON, or with --text any text.")],
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Put again under it, it is there once."),
    ] = None,
    type: Annotated[str | None, typer.Option("--type", help="The message's type.")] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Text as it is, not JSON.", show_default=False)
    ] = False,
) -> None:
    """Put a message into a mailbox; it is on disk when this ends."""
    value: Any = payload
    if not text:
        try:
            value = msgspec.json.decode(payload)
        except msgspec.MsgspecError as error:
            raise InvalidInput(
                f"The payload is not JSON: {error}.", hint="Put strings in quotes, or pass --text."
            ) from None
    with session.reach() as hub:
        posted = hub.mailboxes.open(mailbox).put(value, id=id, type=type)
    if session.is_json:
        table.print_json(posted)
    else:
        table.say(f"{posted.id} is in {mailbox}" + ("." if posted.is_new else " already."))


@command(
    app,
    "peek",
    examples=("penstock mailboxes peek recipient-42", "penstock mailboxes peek recipient-42 -n 1"),
)
def peek(
    session: Session,
    mailbox: Box,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, help="So many at most.")
    ] = PEEK,
) -> None:
    """The first messages, which stay where they are."""
    with session.reach() as hub:
        mails = hub.mailboxes.open(mailbox).peek_many(count)
    if session.is_json:
        table.print_json([_line(mail) for mail in mails])
        return
    table.print_table(
        ("id", "number", "put", "what"),
        ((mail.id, mail.seq, show_time(mail.at), _what(mail)) for mail in mails),
        right=("number",),
        empty=f"Nothing waits in {mailbox!r}.",
    )


@command(
    app,
    "ack",
    examples=(
        "penstock mailboxes ack recipient-42 greeting-1",
        "penstock mailboxes ack recipient-42 greeting-9 --through",
    ),
)
def ack(
    session: Session,
    mailbox: Box,
    id: Annotated[str, typer.Argument(metavar="ID", help="Of the first message.")],
    through: Annotated[
        bool, typer.Option("--through", help="All up to this one.", show_default=False)
    ] = False,
) -> None:
    """Acknowledge the first message, in the recipient's stead."""
    with session.reach() as hub:
        box = hub.mailboxes.open(mailbox)
        box.ack(id, through=through)
        left = box.size()
    if session.is_json:
        table.print_json(Changed(mailbox, left))
    else:
        table.say(f"{table.plural(left, 'message')} left in {mailbox}.")


@command(app, "delete", examples=("penstock mailboxes delete recipient-42 --yes",))
def delete(session: Session, mailbox: Box, yes: Yes = False) -> None:
    """Remove a mailbox and all that waits in it."""
    with session.reach() as hub:
        box = hub.mailboxes.open(mailbox)
        waiting = box.size()
        confirm(f"Remove {mailbox} and {table.plural(waiting, 'message')} in it?", is_confirmed=yes)
        if not box.delete():
            raise MailboxError(f"There is no mailbox {mailbox!r}.")
    if session.is_json:
        table.print_json(Changed(mailbox, waiting))
    else:
        table.say(f"{mailbox} is removed.")


@command(
    app,
    "expire",
    examples=(
        "penstock mailboxes expire --older-than 21d",
        "penstock mailboxes expire --mailbox recipient-42 --older-than 1h",
    ),
)
def expire(
    session: Session,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            parser=parse_duration,
            help="Such as 90m, 12h or 21d.",
            show_default="mailbox_ttl_seconds",
        ),
    ] = None,
    mailbox: Annotated[
        str | None,
        typer.Option("--mailbox", metavar="NAME", help="Only this one.", show_default="all"),
    ] = None,
) -> None:
    """Remove messages that waited too long for their recipient."""
    with session.connect() as hub:
        if mailbox is not None:
            removed = hub.mailboxes.open(mailbox).expire(older_than)
        else:
            with progress("Looking", "mailboxes") as update:
                removed = hub.mailboxes.expire(older_than, update)
    if session.is_json:
        table.print_json(Changed(mailbox or "*", removed))
    else:
        table.say(f"{table.plural(removed, 'message')} removed.")


@command(
    app,
    "export",
    examples=(
        "penstock mailboxes export boxes.jsonl",
        "penstock mailboxes export - --mailbox recipient-42",
    ),
)
def export(
    session: Session,
    file: Annotated[Path, typer.Argument(help="Where the lines go; - for standard output.")],
    mailbox: Annotated[
        list[str] | None,
        typer.Option("--mailbox", metavar="NAME", help="Only this one.", show_default="all"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if it exists.", show_default=False)
    ] = False,
) -> None:
    """Write what waits in mailboxes as lines of JSON."""
    if str(file) == "-":
        _export(session, sys.stdout.buffer, mailbox)
        return
    if file.exists() and not force:
        raise InvalidInput(f"{file} exists.", hint="Pass --force to replace it.")
    temporary = file.with_name(f"{file.name}.part")
    with temporary.open("wb") as out:
        lines = _export(session, out, mailbox)
    temporary.replace(file)
    table.note(f"{table.plural(lines, 'message')} in {file}.")


def _export(session: Session, out: BinaryIO, names: list[str] | None) -> int:
    count = -1
    with session.connect() as hub, progress("Exporting", "mailboxes") as update:
        for line in hub.mailboxes.export_lines(names, update):
            out.write(line)
            count += 1
    out.flush()
    return count


@command(app, "import", examples=("penstock mailboxes import boxes.jsonl",))
def import_file(
    session: Session,
    file: Annotated[Path, typer.Argument(help="An export; - for standard input.")],
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Leave out lines that are no message.", show_default=False),
    ] = False,
) -> None:
    """Put in what was exported. What is there already stays as it is."""
    bad: list[int] = []

    def on_bad(number: int, reason: str) -> None:
        bad.append(number)
        table.note(f"line {number}: {reason}")

    if str(file) != "-" and not file.is_file():
        raise InvalidInput(f"There is no file {file}.")
    source = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    with source, session.connect() as hub, progress("Importing", "mailboxes") as update:
        found = hub.mailboxes.import_lines(source, update, on_bad=on_bad if skip_bad else None)
    if session.is_json:
        table.print_json(found)
        return
    table.say(
        f"{table.plural(found.messages, 'message')} put into "
        f"{table.plural(found.mailboxes, 'mailbox')}; {found.known:,} were there already"
        + (f"; {len(bad):,} lines left out." if bad else ".")
    )


@command(
    app,
    "verify",
    examples=("penstock mailboxes verify", "penstock mailboxes verify recipient-42 --json"),
)
def verify(
    session: Session,
    mailbox: Annotated[
        str | None,
        typer.Argument(metavar="MAILBOX", help="Only this one.", show_default="all"),
    ] = None,
) -> None:
    """Read every byte and look for damage. Exit code 1 if anybody misses anything."""
    with session.connect() as hub, progress("Reading", "mailboxes") as update:
        found = hub.mailboxes.verify(mailbox, update)
    if session.is_json:
        table.print_json(found)
    else:
        table.print_table(
            ("mailbox", "file", "what", "lost"),
            (
                (
                    finding.mailbox,
                    finding.file,
                    finding.reason + (" (harmless)" if finding.is_harmless else ""),
                    finding.missing or "-",
                )
                for finding in found.findings
            ),
            right=("lost",),
            empty=f"{table.plural(found.mailboxes, 'mailbox')} with "
            f"{table.plural(found.messages, 'message')}: all is well.",
        )
    if any(not finding.is_harmless for finding in found.findings):
        raise MailboxError(
            "Some mailboxes are damaged.",
            hint="'penstock mailboxes repair MAILBOX' keeps what can be read.",
        )


@command(app, "repair", examples=("penstock mailboxes repair recipient-42 --yes",))
def repair(session: Session, mailbox: Box, yes: Yes = False) -> None:
    """Keep what can be read of a damaged mailbox, and tell its recipient what is gone."""
    with session.connect() as hub:
        damage = hub.mailboxes.verify(mailbox).findings
        lost = sum(finding.missing for finding in damage)
        if damage:
            confirm(
                f"Repair {mailbox}? {table.plural(lost, 'message')} cannot be read and will be "
                "told as a gap; the files as they are go to its quarantine.",
                is_confirmed=yes,
            )
        found = hub.mailboxes.repair(mailbox)
    if session.is_json:
        table.print_json(found)
    elif not found.findings:
        table.say(f"{mailbox} is not damaged; nothing was done.")
    else:
        table.say(
            f"{mailbox} is repaired: {table.plural(found.kept, 'message')} kept, "
            f"{found.lost:,} lost; {', '.join(found.quarantine) or 'nothing'} set aside."
        )


@command(
    app,
    "subscribe",
    examples=(
        "penstock mailboxes subscribe recipient-42 'orders-*'",
        "penstock mailboxes subscribe recipient-42 orders --start earliest",
    ),
)
def subscribe(
    session: Session,
    mailbox: Box,
    topic: Annotated[str, typer.Argument(help="A topic, or a glob in quotes.")],
    start: Annotated[
        str, typer.Option("--start", metavar="WHERE", help="latest, or earliest for all there is.")
    ] = "latest",
) -> None:
    """Put what is published under a topic into a mailbox, as long as a server runs."""
    with session.reach() as hub:
        found = hub.mailboxes.subscribe(mailbox, topic, cast("Start", start))
    if session.is_json:
        table.print_json(_fed(found))
    else:
        table.say(f"{mailbox} gets {topic}, from after {found.position} on.")


@command(
    app,
    "unsubscribe",
    examples=("penstock mailboxes unsubscribe recipient-42 'orders-*'",),
)
def unsubscribe(
    session: Session,
    mailbox: Box,
    topic: Annotated[
        str | None, typer.Argument(help="As it was subscribed.", show_default="all of them")
    ] = None,
) -> None:
    """End a mailbox's subscription. What is in the mailbox stays."""
    with session.reach() as hub:
        ended = hub.mailboxes.unsubscribe(mailbox, topic)
    if not ended:
        raise MailboxError(f"{mailbox!r} does not subscribe to {topic or 'anything'}.")
    if session.is_json:
        table.print_json(Changed(mailbox, ended))
    else:
        table.say(f"{table.plural(ended, 'subscription')} of {mailbox} ended.")


@command(app, "subscriptions", examples=("penstock mailboxes subscriptions",))
def subscriptions(
    session: Session,
    mailbox: Annotated[
        str | None,
        typer.Argument(metavar="MAILBOX", help="Only this one.", show_default="all"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="So many at most.")] = 100,
) -> None:
    """Which mailboxes are fed from which topics, and how far."""
    with session.reach() as hub:
        found = hub.mailboxes.subscriptions(mailbox, limit=limit)
    if session.is_json:
        table.print_json([_fed(one) for one in found])
        return
    table.print_table(
        ("mailbox", "topic", "position", "since"),
        ((one.mailbox, one.topic, str(one.position), show_time(one.created_at)) for one in found),
        empty="No mailbox subscribes to a topic.",
    )


def _fed(found: MailboxSubscription) -> SubscriptionLine:
    since = as_datetime(found.created_at).isoformat()
    return SubscriptionLine(found.mailbox, found.topic, str(found.position), since)


@command(
    app,
    "migrate",
    examples=("penstock mailboxes migrate --depth 2",),
)
def migrate(
    session: Session,
    depth: Annotated[
        int,
        typer.Option("--depth", metavar="N", min=0, max=8, help="Levels of folders above a box's."),
    ],
) -> None:
    """Lay the folders out with another depth. Nobody else may have them open.

    One level is right for up to some millions of mailboxes, two for more.
    """
    from penstock.mailboxes.relocation import migrate as relocate

    with session.connect() as hub:
        root = hub._open().mail.root
        if hub._open().mail.has_boxes and hub._open().mail.folder.depth == depth:
            table.note(f"{root} has the depth {depth} already.")
            return
    with progress("Moving", "mailboxes") as update:
        moved = relocate(root, depth, update)
    if session.is_json:
        table.print_json(Moved(root, depth, moved))
    else:
        table.say(f"{table.plural(moved, 'mailbox')} moved; {root} has the depth {depth} now.")


def _line(mail: Mail) -> MailLine:
    return MailLine(
        mail.id,
        mail.seq,
        as_datetime(mail.at).isoformat(),
        mail.kind.value,
        mail.type,
        mail.topic,
        _payload(mail) if mail.kind == MailKind.MESSAGE else None,
        mail.missing,
    )


def _payload(mail: Mail) -> Any:
    try:
        return mail.payload
    except UndecodablePayload:
        return mail.body


def _what(mail: Mail) -> str:
    if mail.kind == MailKind.QUOTA:
        return "(the mailbox was full from here on)"
    if mail.kind == MailKind.GAP:
        return f"({table.plural(mail.missing, 'message')} lost)"
    payload = _payload(mail)
    text = (
        payload.decode(errors="backslashreplace")
        if isinstance(payload, bytes)
        else (msgspec.json.encode(payload).decode())
    )
    kind = f"{mail.type}: " if mail.type else ""
    return table.visible(kind + (text if len(text) <= SHOWN else text[:SHOWN] + "…"))
