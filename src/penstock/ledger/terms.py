"""What callers ask of the ledger, checked before anything is written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, get_args

import msgspec

from penstock import codec
from penstock.clock import Micros
from penstock.entry import NewMark, check_entry_key, check_scope, keep_for
from penstock.errors import InvalidInput, InvalidPayload, QueueFull, StatementFailed, StoreError

OnBusy = Literal["raise", "wait"]
OnDone = Literal["raise", "result"]
OnFailure = Literal["release", "keep"]
OnError = Literal["process", "raise"]

UNREACHABLE = (StoreError, QueueFull, StatementFailed)
"""The ledger could not be asked: it has said nothing about the key."""

LEASE_SECONDS = 30.0
SECONDS_MAX = 1e10
REMEMBERED_MAX = 65_536

_known: set[str] = set()
"""Scopes found good: each mark asks."""


class Terms(msgspec.Struct, frozen=True):
    """What a claim is asked for with."""

    scope: str
    key: str
    lease_seconds: float
    hash: bytes | None
    on_busy: OnBusy
    on_done: OnDone
    timeout: float | None
    result_ttl: Micros | None
    on_failure: OnFailure


def make_terms(
    scope: str,
    key: str,
    *,
    lease_seconds: float,
    payload: Any,
    on_busy: OnBusy,
    on_done: OnDone,
    timeout: float | None,
    result_ttl: float | None,
    on_failure: OnFailure,
) -> Terms:
    check_choice(on_busy, OnBusy, "on_busy")
    check_choice(on_done, OnDone, "on_done")
    check_choice(on_failure, OnFailure, "on_failure")
    if timeout is not None and on_busy != "wait":
        raise InvalidInput("timeout goes with on_busy='wait'.")
    if timeout is not None and not _is_number(timeout, from_zero=True):
        raise InvalidInput(f"timeout is a number of seconds from 0 up, not {timeout!r}.")
    if not _is_number(lease_seconds) or lease_seconds == math.inf:
        raise InvalidInput(f"lease_seconds is a number above 0, not {lease_seconds!r}.")
    return Terms(
        check_known(scope),
        check_entry_key(key),
        lease_seconds,
        hash_of(payload),
        on_busy,
        on_done,
        timeout,
        duration(result_ttl, "result_ttl"),
        on_failure,
    )


def make_mark(scope: str, key: str, ttl: float | None, payload: Any) -> NewMark:
    return NewMark(check_known(scope), check_entry_key(key), duration(ttl, "ttl"), hash_of(payload))


def make_marks(scope: str, keys: Iterable[str], ttl: float | None) -> list[NewMark]:
    check_known(scope)
    keep = duration(ttl, "ttl")
    return [NewMark(scope, check_entry_key(key), keep) for key in keys]


def check_known(scope: str) -> str:
    if scope not in _known:
        check_scope(scope)
        if len(_known) >= REMEMBERED_MAX:
            _known.clear()
        _known.add(scope)
    return scope


def duration(seconds: float | None, what: str) -> Micros | None:
    """Seconds as they were given; infinity is for ever."""
    if seconds is None:
        return None
    if not _is_number(seconds):
        raise InvalidInput(f"{what} is a number of seconds above 0, or math.inf; not {seconds!r}.")
    return keep_for(seconds)


def hash_of(payload: Any) -> bytes | None:
    """Tells whether two calls with one key mean the same."""
    if payload is None:
        return None
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return codec.digest(bytes(payload))
    try:
        return codec.digest("json", msgspec.json.encode(payload, order="sorted"))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidPayload(f"The payload cannot be compared: {error}.") from error


def check_choice(value: object, choices: Any, what: str) -> None:
    allowed = get_args(choices)
    if value not in allowed:
        raise InvalidInput(f"{what} is {' or '.join(map(repr, allowed))}, not {value!r}.")


def _is_number(value: object, *, from_zero: bool = False) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return (value > 0 or (from_zero and value == 0)) and (value < SECONDS_MAX or value == math.inf)
