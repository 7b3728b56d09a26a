"""A message as one line: JSON for programs, readable and coloured for people."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import codec
from penstock.cli import table
from penstock.cli.amount import show_time
from penstock.errors import UndecodablePayload

if TYPE_CHECKING:
    from rich.text import Text

    from penstock.model import Message

TOPIC_COLOURS = ("cyan", "magenta", "blue", "yellow", "green", "red")
FORMAT_NAMES = {number: name for name, number in codec.FORMATS.items()}


class MessageLine(msgspec.Struct, frozen=True):
    """What `penstock follow --json` prints. Bytes are base64; `format` tells them from text."""

    id: int
    topic: str
    type: str | None
    key: str | None
    headers: dict[str, str]
    payload: Any
    time: str
    position: str
    format: str


def as_json(message: Message) -> bytes:
    """The message as one line of JSON, whatever its payload is."""
    try:
        return msgspec.json.encode(_line(message, message.payload))
    except (UndecodablePayload, TypeError, ValueError):
        # MessagePack has values JSON has not; a foreign writer can have stored anything.
        raw = base64.b64encode(message.body).decode()
        return msgspec.json.encode(_line(message, raw, format="undecodable"))


def as_text(message: Message) -> Text:
    """Time, topic, type and key, payload."""
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    payload = Text(table.visible(_payload_text(message)))
    JSONHighlighter().highlight(payload)
    colour = TOPIC_COLOURS[sum(message.topic.encode()) % len(TOPIC_COLOURS)]
    text = Text.assemble(
        (show_time(message.created_at), "dim"), "  ", (table.visible(message.topic), colour), "  "
    )
    if message.type:
        text.append(table.visible(message.type), style="bold")
        text.append("  ")
    if message.key:
        text.append(f"[{table.visible(message.key)}]", style="dim")
        text.append("  ")
    text.append_text(payload)
    return text


def _payload_text(message: Message) -> str:
    try:
        payload = message.payload
        if isinstance(payload, bytes):
            return f"<{len(payload):,} bytes> {payload[:64].hex(' ')}"
        return msgspec.json.encode(payload).decode()
    except (UndecodablePayload, TypeError, ValueError):
        return f"<{len(message.body):,} bytes that cannot be decoded>"


def _line(message: Message, payload: Any, format: str | None = None) -> MessageLine:
    return MessageLine(
        message.id,
        message.topic,
        message.type,
        message.key,
        message.headers,
        payload,
        message.time.isoformat(),
        str(message.position),
        format or FORMAT_NAMES.get(message.encoding & codec.FORMAT_MASK, "unknown"),
    )
