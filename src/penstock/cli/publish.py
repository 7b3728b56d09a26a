"""`penstock publish`: one message from the command line, or one for each line of input."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from penstock.cli import table
from penstock.cli.amount import parse_duration
from penstock.cli.completion import complete_topic
from penstock.cli.progress import progress
from penstock.cli.session import Session, command
from penstock.clock import as_datetime
from penstock.errors import InvalidInput, InvalidPayload, PayloadTooLarge, PenstockError
from penstock.model import Publication, Receipt

if TYPE_CHECKING:
    from penstock.hub import Hub

STANDARD_INPUT = "-"
CHUNK_BYTES = 1024 * 1024
# A JSON escape takes six bytes for one; a line beyond this cannot become a payload.
LINE_FACTOR = 6


class Published(msgspec.Struct, frozen=True):
    """The receipt, as JSON."""

    topic: str
    id: int
    position: str
    time: str
    duplicate: bool


class PublishedMany(msgspec.Struct, frozen=True):
    """The receipt of a whole input, as JSON."""

    topic: str
    published: int
    first: str | None
    last: str | None
    seconds: float
    per_second: int


def register(app: typer.Typer, panel: str) -> None:
    command(
        app,
        "publish",
        panel=panel,
        examples=(
            "penstock publish orders '{\"id\": 1}' --type created --key 1",
            "penstock publish log 'not JSON: published as a string'",
            "penstock publish images --bytes-from-file cat.png --header name=cat.png",
            "tail -F app.log | penstock publish log -",
            "penstock publish orders - < orders.jsonl",
        ),
    )(publish)


def publish(
    session: Session,
    topic: Annotated[
        str,
        typer.Argument(help="The topic; it is made if need be.", autocompletion=complete_topic),
    ],
    payload: Annotated[
        str | None,
        typer.Argument(
            help="JSON, or any other text, which is published as a JSON string. "
            "'-' reads standard input: each line is one message.",
            show_default=False,
        ),
    ] = None,
    type: Annotated[
        str | None,
        typer.Option(
            "--type", metavar="TEXT", help="What kind of message it is.", show_default=False
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="TEXT", help="What it is about.", show_default=False),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="NAME=VALUE", help="A header; repeatable.", show_default=False
        ),
    ] = None,
    ttl: Annotated[
        float | None,
        typer.Option(
            "--ttl",
            metavar="DURATION",
            parser=parse_duration,
            help="Hide it after this time: 60s, 10m, 12h, 1d.",
            show_default=False,
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="TEXT",
            help="Publishing again under this key returns the first receipt.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        Literal["json", "msgpack", "bytes"] | None,
        typer.Option(
            "--format",
            help="How it is stored. With bytes, the text is published as it stands.",
            show_default="json",
        ),
    ] = None,
    bytes_from_file: Annotated[
        Path | None,
        typer.Option(
            "--bytes-from-file",
            metavar="FILE",
            help="Publish the content of a file, as bytes.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Publish a message; returns when it is on disk.

    The payload is parsed as JSON. Text that is not valid JSON is published as a JSON string.
    """
    if (payload is None) == (bytes_from_file is None):
        raise typer.BadParameter(
            "give one of PAYLOAD, '-' for standard input and --bytes-from-file.",
            param_hint="PAYLOAD",
        )
    if bytes_from_file is not None and format not in (None, "bytes"):
        raise typer.BadParameter("a file is published as bytes.", param_hint="--format")
    template = Publication(
        None,
        type=type,
        key=key,
        headers=_headers(header or []),
        ttl=ttl,
        idempotency_key=idempotency_key,
        format=format,
    )
    if payload == STANDARD_INPUT:
        if idempotency_key is not None:
            raise typer.BadParameter(
                "many messages cannot share one key.", param_hint="--idempotency-key"
            )
        with session.reach() as hub:
            _publish_lines(session, hub, topic, template)
        return
    if bytes_from_file is not None:
        value: Any = _content(bytes_from_file)
    else:
        assert payload is not None
        value = parse_payload(os.fsencode(payload), format)
    with session.reach() as hub:
        message = msgspec.structs.replace(template, payload=value)
        [receipt] = hub.topics.publish_many(topic, [message])
    _print_receipt(session, receipt)


def parse_payload(text: bytes, format: str | None) -> Any:
    """The value if it is JSON, the text itself if not; with the format bytes, the bytes."""
    if format == "bytes":
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise InvalidPayload(
            "The payload is neither JSON nor UTF-8 text.",
            hint="Publish it as it is with --format bytes.",
        ) from None


def _publish_lines(session: Session, hub: Hub, topic: str, template: Publication) -> None:
    """Publish what has arrived on standard input in one batch, and again, until it ends."""
    if sys.stdin.isatty():
        table.note("One message a line; Ctrl-D ends.")
    started = time.perf_counter()
    tally = _Tally()
    try:
        with progress(f"Publishing to {topic}", "messages") as update:
            for lines in _batches(sys.stdin.fileno(), hub.settings.payload_bytes_max, tally):
                _publish_batch(hub, topic, template, lines, tally)
                update(tally.published)
    except (PenstockError, KeyboardInterrupt):
        table.note(f"Published before this: {table.plural(tally.published, 'message')}.")
        raise
    seconds = round(time.perf_counter() - started, 3)
    per_second = round(tally.published / seconds) if seconds else 0
    if session.is_json:
        table.print_json(
            PublishedMany(topic, tally.published, tally.first, tally.last, seconds, per_second)
        )
        return
    where = f", {tally.first} to {tally.last}" if tally.published else ""
    table.say(
        f"{table.plural(tally.published, 'message')} published to {topic} in {seconds:.2f} s "
        f"({per_second:,}/s){where}"
    )


class _Tally:
    """What came of the lines so far."""

    def __init__(self) -> None:
        self.published = 0
        self.first: str | None = None
        self.last: str | None = None

    def add(self, receipts: list[Receipt]) -> None:
        self.published += len(receipts)
        self.first = self.first or str(receipts[0].position)
        self.last = str(receipts[-1].position)


def _batches(descriptor: int, payload_bytes_max: int, tally: _Tally) -> Iterator[list[bytes]]:
    """The lines there are, without waiting for more; the last one needs no newline."""
    parts: list[bytes] = []
    size = 0
    while chunk := os.read(descriptor, CHUNK_BYTES):
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            lines = b"".join((*parts, head)).split(b"\n")
            parts, size = [tail], len(tail)
            yield lines
        else:
            parts.append(chunk)
            size += len(chunk)
        if size > LINE_FACTOR * payload_bytes_max + CHUNK_BYTES:
            raise PayloadTooLarge(f"Line {tally.published + 1} is longer than a payload can be.")
    if rest := b"".join(parts):
        yield [rest]


def _publish_batch(
    hub: Hub, topic: str, template: Publication, lines: list[bytes], tally: _Tally
) -> None:
    try:
        tally.add(hub.topics.publish_many(topic, [_message(template, line) for line in lines]))
    except InvalidPayload:
        # Nothing of the batch is written yet. One by one, everything before the bad line is.
        for line in lines:
            try:
                tally.add(hub.topics.publish_many(topic, [_message(template, line)]))
            except InvalidPayload as error:
                at = f"Line {tally.published + 1}: {error.message}"
                raise type(error)(at, hint=error.hint) from None


def _message(template: Publication, line: bytes) -> Publication:
    if template.format != "bytes":
        line = line.removesuffix(b"\r")
    value = parse_payload(line, template.format)
    return Publication(
        value,
        template.type,
        template.key,
        template.headers,
        template.ttl,
        None,
        template.format,
    )


def _headers(pairs: list[str]) -> dict[str, str] | None:
    headers = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE.", param_hint="--header")
        headers[name] = value
    return headers or None


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from error


def _print_receipt(session: Session, receipt: Receipt) -> None:
    if session.is_json:
        table.print_json(
            Published(
                receipt.topic,
                receipt.id,
                str(receipt.position),
                as_datetime(receipt.created_at).isoformat(),
                receipt.duplicate,
            )
        )
    else:
        seen = " (published before, under this idempotency key)" if receipt.duplicate else ""
        table.say(f"{receipt.position}{seen}")
