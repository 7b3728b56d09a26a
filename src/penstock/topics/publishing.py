"""What is published, checked and encoded before anything is written."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock import codec
from penstock.clock import micros
from penstock.errors import InvalidInput, InvalidTopic
from penstock.model import (
    RESERVED_PREFIX,
    Alike,
    Format,
    NewMessage,
    Publication,
    check_key,
    check_name,
    check_topic,
)
from penstock.settings import Settings
from penstock.topics.runtime import Runtime

PIPELINED = 4
"""Transactions of one publish_many under way at once."""

REMEMBERED_MAX = 65_536

_publishable: set[str] = set()
_types: set[str] = set()
"""Names found good: each publish asks."""


def check_publishable(topic: str) -> str:
    """The name, if users may publish under it."""
    if not isinstance(topic, str) or topic not in _publishable:
        check_topic(topic)
        if topic.startswith(RESERVED_PREFIX):
            raise InvalidTopic(
                f"The topic {topic!r} is reserved.",
                hint=f"Names that begin with {RESERVED_PREFIX!r} are penstock's own.",
            )
        if len(_publishable) >= REMEMBERED_MAX:
            _publishable.clear()
        _publishable.add(topic)
    return topic


def check_type(type: str) -> None:
    check_name(type, "message type")
    if len(_types) >= REMEMBERED_MAX:
        _types.clear()
    _types.add(type)


def encode_message(
    settings: Settings,
    topic: str,
    payload: Any,
    type: str | None = None,
    key: str | None = None,
    headers: Mapping[str, str] | None = None,
    ttl: float | None = None,
    idempotency_key: str | None = None,
    format: Format | None = None,
) -> NewMessage:
    """Checked and encoded, or an error that says what is wrong. Nothing is written."""
    if topic.__class__ is not str or topic not in _publishable:
        check_publishable(topic)
    body, encoding = codec.encode(
        payload, format, settings.payload_bytes_max, settings.compress_above_bytes
    )
    if type is not None and (type.__class__ is not str or type not in _types):
        check_type(type)
    if key is None and headers is None and ttl is None and idempotency_key is None:
        return NewMessage(topic, body, encoding, type)
    if key is not None:
        check_key(key)
    if idempotency_key is not None:
        check_name(idempotency_key, "idempotency key")
    if ttl is not None and not (isinstance(ttl, (int, float)) and 0 < ttl < 1e10):
        raise InvalidInput(
            f"ttl is a number of seconds above 0, not {ttl!r}.",
            hint="Leave it out for a message that lives as long as its topic keeps it.",
        )
    return NewMessage(
        topic,
        body,
        encoding,
        type,
        key,
        None
        if headers is None
        else codec.encode_headers(headers, bytes_max=settings.headers_bytes_max),
        None if ttl is None else micros(ttl),
        idempotency_key,
    )


def refuse_with_conflate(
    headers: object, ttl: object, idempotency_key: object, format: object
) -> None:
    for name, value in (
        ("headers", headers),
        ("ttl", ttl),
        ("idempotency_key", idempotency_key),
        ("format", format),
    ):
        if value is not None:
            raise InvalidInput(
                f"{name} cannot be used with conflate=True.",
                hint="Many messages become one; it has no place for that.",
            )


def prepare_many(
    runtime: Runtime,
    topic: str,
    payloads: Iterable[Any],
    type: str | None,
    format: Format | None,
) -> Iterator[Sequence[NewMessage]]:
    """The messages, encoded, in groups for one transaction each."""
    settings = runtime.settings
    size = settings.commit_group_max
    bytes_max, compress_above = settings.payload_bytes_max, settings.compress_above_bytes
    check_publishable(topic)
    if type is not None:
        check_type(type)

    def encode(item: Any) -> NewMessage:
        # What is the same for all was checked once. Most items are dicts, told at a glance.
        if item.__class__ is not dict and isinstance(item, Publication):
            return encode_message(
                settings,
                topic,
                item.payload,
                item.type or type,
                item.key,
                item.headers,
                item.ttl,
                item.idempotency_key,
                item.format or format,
            )
        body, encoding = codec.encode(item, format, bytes_max, compress_above)
        return NewMessage(topic, body, encoding, type)

    messages: Iterator[NewMessage] = map(encode, payloads)
    if isinstance(payloads, (list, tuple)):
        small = min(bytes_max, compress_above)
        bodies = codec.encode_dicts(payloads, small) if format is None else None
        if bodies is not None:
            for start in range(0, len(bodies), size):
                yield Alike(topic, bodies[start : start + size], codec.JSON, type)
            return
        messages = iter(list(messages))
    while group := list(itertools.islice(messages, size)):
        yield group
