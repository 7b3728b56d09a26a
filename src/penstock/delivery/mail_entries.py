"""Mail as it travels: one message of a mailbox, in the words of a connection."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, UnsetType

from penstock import codec
from penstock.errors import PenstockError
from penstock.mail import Mail, MailKind
from penstock.protocol import JSON_WIRE, MailEntry, Wire


def encode_mail(mail: Mail, wire: Wire, *, as_stored: bool = False) -> Raw:
    """One message, encoded on its own.

    What the connection's format has no words for comes as it is stored. With `as_stored` all
    that is not JSON does, so that whoever reads it has the very bytes.
    """
    format = mail.encoding & codec.FORMAT_MASK
    own = codec.JSON if wire is JSON_WIRE else codec.MSGPACK
    if mail.kind == MailKind.QUOTA or (mail.kind == MailKind.GAP and not mail.body):
        return _encode(mail, wire)
    try:
        if format == own:
            return _checked(mail, wire)
        if wire.is_text and (format == codec.BYTES or as_stored):
            return _encode(mail, wire, base64=codec.to_base64(mail.data))
        return _encode(mail, wire, mail.payload)
    except (PenstockError, TypeError, ValueError, OverflowError, RecursionError):
        return _as_stored(mail, wire)


def _checked(mail: Mail, wire: Wire) -> Raw:
    """The payload's own bytes, put into the frame as they are: they must not break it."""
    data = mail.data
    wire.decode_any(data)
    return _encode(mail, wire, Raw(data))


def _as_stored(mail: Mail, wire: Wire) -> Raw:
    """One message that cannot be said must not hold up all that follow."""
    try:
        data = mail.data
    except PenstockError:
        data = mail.body
    if wire.is_text:
        return _encode(mail, wire, base64=codec.to_base64(data))
    is_json = mail.encoding & codec.FORMAT_MASK == codec.JSON
    return _encode(mail, wire, data, format="json" if is_json else None)


def _encode(
    mail: Mail,
    wire: Wire,
    payload: Any = UNSET,
    base64: str | UnsetType = UNSET,
    format: Literal["json"] | None = None,
) -> Raw:
    is_msgpack = mail.encoding & codec.FORMAT_MASK == codec.MSGPACK
    entry = MailEntry(
        id=mail.id,
        seq=mail.seq,
        at=mail.at,
        kind=mail.kind.value,
        payload=payload,
        base64=base64,
        format="msgpack" if is_msgpack else format,
        type=mail.type,
        key=mail.key,
        headers=mail.headers or None,
        topic=mail.topic,
        position=None if mail.position is None else str(mail.position),
        missing=mail.missing,
    )
    return Raw(wire.encode(entry))
