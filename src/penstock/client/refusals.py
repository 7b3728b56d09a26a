"""Why a server did not take a client, or let it go, as errors of a hub."""

from __future__ import annotations

import os

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from penstock.errors import BadRequest, Forbidden, LimitReached, PenstockError, Unauthorized
from penstock.protocol import Close, Problem


class Refused(Exception):
    """Connecting again would not help."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(error)
        self.error = error


class Unavailable(InvalidHandshake):
    """Not now."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(error.message)
        self.error = error


class ErrorReply(msgspec.Struct):
    """What a server says over HTTP instead of what was asked for."""

    error: Problem


def describe(error: BaseException) -> str:
    if isinstance(error, ConnectionClosed):
        code, reason = close_of(error)
        return f"closed with {code}{' ' if reason else ''}{reason}" if code else "connection lost"
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def close_of(closed: ConnectionClosed) -> tuple[int | None, str]:
    return (None, "") if closed.rcvd is None else (closed.rcvd.code, closed.rcvd.reason)


def error_of_close(code: int, reason: str) -> PenstockError:
    match code:
        case Close.BAD_TOKEN | Close.REVOKED:
            return Unauthorized(reason)
        case Close.LIMIT:
            return LimitReached(reason)
        case Close.BAD_REQUEST:
            return BadRequest(reason)
    return PenstockError(reason or f"The server closed the connection with {code}.")


def refusal(error: InvalidStatus) -> Exception:
    """What an HTTP status means to somebody who wanted a WebSocket."""
    status = error.response.status_code
    try:
        problem = msgspec.json.decode(error.response.body or b"", type=ErrorReply).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    else:
        said = problem.as_error()
        # 503: this instance has no room, or is stopping. Another may, or this one later.
        return Unavailable(said) if status == 503 or said.retryable else Refused(said)
    match status:
        case 401:
            return Refused(Unauthorized())
        case 403:
            return Refused(Forbidden("The server does not let this client connect."))
        case 408 | 425 | 429:
            pass
        case _ if 400 <= status < 500:
            return Refused(
                BadRequest(
                    f"There is no penstock server at this URL (HTTP {status}).",
                    hint="Check host, port and path.",
                )
            )
    return InvalidHandshake(f"HTTP {status}")
