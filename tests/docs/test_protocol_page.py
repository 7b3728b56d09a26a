"""`docs/reference/protocol.md` and `protocol.py` say the same (D6)."""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec
import pytest

from penstock import errors, protocol
from penstock.delivery.stats import DeliverySecond
from penstock.mail import Posted
from penstock.model import Format, SlowPolicy, Start
from penstock.settings import Settings
from tests.docs.pages import DOCS

PAGE = DOCS / "reference" / "protocol.md"
TEXT = PAGE.read_text(encoding="utf-8")

Rows = dict[str, list[str]]

COMMANDS = {command.__struct_config__.tag: command for command in get_args(protocol.AnyCommand)}
PUSHES = {push.__struct_config__.tag: push for push in get_args(protocol.AnyPush)}
REPLIES = {
    "connect": protocol.Connected,
    "subscribe": protocol.Subscribed,
    "publish": protocol.Published,
    "publish_many": protocol.PublishedMany,
    "ack": protocol.Acked,
    "presence": protocol.Members,
    "mailbox.open": protocol.MailboxOpened,
    "mailbox.put": Posted,
    "mailbox.ack": protocol.MailAcked,
}
SHAPES = {
    "An entry": protocol.Entry,
    "A mail": protocol.MailEntry,
    "A gap": protocol.Gap,
    "A member": protocol.Member,
    "A problem": protocol.Problem,
}
NOT_ON_THE_WIRE = {
    errors.InvalidURL: "of connect(), in the server's own process",
    errors.InvalidSettings: "the server does not start",
    errors.UndecodablePayload: "such a message is sent as it is stored",
    errors.SchemaTooOld: "the server does not start",
    errors.UnsafeSQLite: "the server does not start",
    errors.ForeignConnection: "the server opens no other SQLite",
    errors.BackupFailed: "no command makes a backup",
    errors.WriteTimeout: "no command has a timeout",
    errors.TopicError: "only its kinds are raised",
    errors.TopicNotFound: "publishing and subscribing need no topic to exist",
    errors.TopicExists: "no command creates a topic",
    errors.ConsumerNotFound: "subscribing makes one",
    errors.InvalidOption: "of Spark's source and sink, in Spark's own processes",
    errors.JavaNotFound: "the same",
    errors.DataLost: "the same",
    errors.SinkReused: "the same",
    errors.LakeConflict: "the same",
    errors.LakeDamaged: "the same",
    errors.ForeignLake: "the same",
    errors.SparkMissing: "the same",
    errors.PipelineBusy: "the same",
    errors.PipelineFailed: "the same",
    errors.StagingDamaged: "the same",
    errors.TransactionError: "no command opens a transaction of a user",
    errors.InsideTransaction: "the same",
    errors.TransactionTimeout: "the same",
    errors.TransactionClosed: "the same",
    errors.StatementRefused: "the same",
    errors.StatementFailed: "the same",
    errors.LockTimeout: "no command takes a lock",
    errors.JobError: "jobs go over HTTP",
    errors.JobNotFound: "the same",
    errors.JobExists: "the same",
    errors.ScheduleNotFound: "the same",
    errors.UnknownJobType: "the same",
    errors.JobTimeout: "the same",
    errors.ProcessDied: "the same",
    errors.JobFailed: "the same",
    errors.WaitTimeout: "the same",
    errors.MailboxError: "only its kinds are raised",
    errors.LedgerError: "no command asks the ledger",
    errors.AlreadyProcessed: "the same",
    errors.InProgress: "the same",
    errors.LedgerConflict: "the same",
    errors.WorkFailed: "the same",
    errors.Disconnected: "made by the client when there is no wire",
    errors.Unsupported: "of stores the server does not run on yet",
}


def sections(level: str) -> dict[str, str]:
    """The text below each heading of a level, up to the next of it or above."""
    found: dict[str, str] = {}
    for match in re.finditer(rf"^{level} (.+)$", TEXT, re.MULTILINE):
        rest = TEXT[match.end() :]
        end = re.search(rf"^#{{1,{len(level)}}} ", rest, re.MULTILINE)
        found[match[1].strip()] = rest[: end.start()] if end else rest
    return found


def parts(chapter: str) -> dict[str, str]:
    """The sections of a chapter by their name."""
    inside = sections("##")[chapter]
    pieces = re.split(r"^### (.+)$", inside, flags=re.MULTILINE)
    return {name.strip("` "): text for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}


def table(text: str, first: str) -> Rows:
    """The rows of the table whose head begins with `first`, by the name in their first cell."""
    rows: Rows = {}
    is_inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            is_inside = False
        elif cells[0] == first:
            is_inside = True
        elif is_inside and not cells[0].startswith("-"):
            rows[cells[0].strip("`")] = cells
    return rows


def field_names(shape: Any) -> set[str]:
    return set(shape.__struct_fields__)


COMMAND_PARTS = parts("Commands")
PUSH_PARTS = parts("Pushes")


def test_the_page_has_every_command_and_no_other() -> None:
    assert set(COMMAND_PARTS) == set(COMMANDS)


def test_the_page_has_every_push_and_no_other() -> None:
    assert set(PUSH_PARTS) == set(PUSHES)


@pytest.mark.parametrize("op", COMMANDS)
def test_a_command_has_the_fields_that_it_has(op: str) -> None:
    rows = table(COMMAND_PARTS[op], "field")
    fields = {f.name: f for f in msgspec.structs.fields(COMMANDS[op]) if f.name != "id"}
    assert set(rows) == set(fields)
    for name, cells in rows.items():
        field = fields[name]
        if field.default is msgspec.UNSET:
            shown = "–"
        elif field.required:
            shown = "required"
        else:
            shown = str(msgspec.json.encode(field.default), "utf-8").strip('"')
        assert cells[2].strip("`") == shown, name


def test_a_message_of_publish_many_has_the_fields_the_page_says() -> None:
    left_out = {"id", "topic", "conflate"}
    assert field_names(protocol.Outgoing) == field_names(protocol.Publish) - left_out


@pytest.mark.parametrize("op", REPLIES)
def test_a_reply_has_the_fields_that_it_has(op: str) -> None:
    assert set(table(COMMAND_PARTS[op], "in `ok`")) == field_names(REPLIES[op])


@pytest.mark.parametrize("op", sorted(set(COMMANDS) - set(REPLIES)))
def test_other_replies_are_described_in_words(op: str) -> None:
    assert table(COMMAND_PARTS[op], "in `ok`") == {}
    assert "`ok`" in COMMAND_PARTS[op]


@pytest.mark.parametrize("kind", PUSHES)
def test_a_push_has_the_fields_that_it_has(kind: str) -> None:
    assert set(table(PUSH_PARTS[kind], "field")) == field_names(PUSHES[kind])


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_the_fields_that_it_has(name: str) -> None:
    assert set(table(parts("Shapes")[name], "field")) == field_names(SHAPES[name])


def test_the_page_has_no_other_shape() -> None:
    assert set(parts("Shapes")) == set(SHAPES)


def test_every_error_that_can_occur_is_on_the_page_and_no_other() -> None:
    rows = table(sections("##")["Errors"], "code")
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.PenstockError)
    ]
    possible = {kind.code: kind for kind in kinds if kind not in NOT_ON_THE_WIRE}
    assert set(rows) == set(possible)
    for code, cells in rows.items():
        assert cells[1] == ("yes" if possible[code].retryable else "no"), code
        assert cells[2]


def test_every_close_code_is_on_the_page_and_no_other() -> None:
    rows = table(sections("##")["Close codes"], "code")
    assert {(int(code), cells[1].strip("`")) for code, cells in rows.items()} == {
        (code.value, code.name) for code in protocol.Close
    }
    for code, cells in rows.items():
        assert cells[2] == ("no" if protocol.Close(int(code)).is_final else "yes"), code


def test_limits_are_settings_with_their_defaults() -> None:
    defaults = Settings()
    rows = table(sections("##")["Limits"], "setting")
    assert rows
    for name, cells in rows.items():
        assert float(cells[1]) == getattr(defaults, name), name


def test_numbers_in_the_text_are_the_defaults_they_stand_behind() -> None:
    """`batch_ms` (20): such a pair must not grow old."""
    pairs = re.findall(r"`(\w+)` \((\d+)\)", TEXT)
    assert pairs
    for name, shown in pairs:
        assert float(shown) == getattr(Settings(), name), name


def test_the_statistics_are_documented_as_they_are_published() -> None:
    """D9: whoever reads `penstock.delivery` in a pipeline goes by `explain/delivery.md`."""
    text = (DOCS / "explain" / "delivery.md").read_text(encoding="utf-8")
    assert set(table(text, "field")) == field_names(DeliverySecond)


@pytest.mark.parametrize(
    "word", [protocol.WEBSOCKET_PATH, *protocol.SUBPROTOCOLS, "/ws", "Authorization: Bearer"]
)
def test_how_to_connect_is_on_the_page(word: str) -> None:
    assert word in TEXT


def test_every_choice_of_a_field_is_on_the_page() -> None:
    for kind in (Start, Format):
        assert ", ".join(f"`{value}`" for value in get_args(kind)) in TEXT
    policies = table(sections("##")["Slow clients"], "policy")
    assert [name.split("`")[0] for name in policies] == list(get_args(SlowPolicy))
