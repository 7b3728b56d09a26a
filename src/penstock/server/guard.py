"""What every HTTP request passes before its route, and every answer on its way out.

In: the Host and Origin headers, tokens in URLs, the size of the body. Out: headers that tell
browsers what not to do with an answer, and CORS headers for the pages in `origins`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from penstock import errors
from penstock.errors import BadRequest, Forbidden, PayloadTooLarge, PenstockError
from penstock.protocol import Problem
from penstock.server.auth import is_allowed_origin, refuse_token_in_url
from penstock.settings import Settings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

API_PREFIX = "/v1/"

SECURITY_HEADERS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
API_POLICY = b"default-src 'none'; frame-ancestors 'none'"
PAGE_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'%s; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGES = ("/", "/docs")

CORS_METHODS = b"GET, POST, PUT, DELETE"
CORS_HEADERS = b"authorization, content-type, last-event-id"
CORS_SECONDS = b"600"

STATUS: tuple[tuple[type[PenstockError], int], ...] = (
    (errors.Unauthorized, 401),
    (errors.Forbidden, 403),
    (errors.TopicNotFound, 404),
    (errors.ConsumerNotFound, 404),
    (errors.JobNotFound, 404),
    (errors.ScheduleNotFound, 404),
    (errors.JobExists, 409),
    (errors.QuotaExceeded, 409),
    (errors.WrongAck, 409),
    (errors.MailboxError, 503),
    (errors.LogTrimmed, 410),
    (errors.TopicExists, 409),
    (errors.EpochChanged, 409),
    (errors.IdempotencyConflict, 409),
    (errors.ConsumerBusy, 409),
    (errors.LeaseLost, 409),
    (errors.LedgerError, 409),
    (errors.PayloadTooLarge, 413),
    (errors.InvalidInput, 400),
    (errors.RateLimited, 429),
    (errors.LimitReached, 429),
    (errors.StoreError, 503),
    (errors.HubClosed, 503),
)


class Guard:
    """ASGI middleware, the outermost."""

    def __init__(self, app: Application, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        # The built-in page shows other instances too, if they are listed.
        sources = "".join(f" {o} {o.replace('http', 'ws', 1)}" for o in settings.origins)
        self._page_policy = PAGE_POLICY % sources.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        found: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            found.setdefault(name, value)
        origin = _text(found.get(b"origin"))
        allowed = is_allowed_origin(origin, _text(found.get(b"host")), self._settings)
        out = self._headers_out(scope["path"], origin if allowed else None)
        try:
            if not allowed:
                raise Forbidden(
                    "Requests of this page, or under this host name, are not answered.",
                    hint="List the page's origin in the setting origins.",
                )
            refuse_token_in_url(scope["query_string"].decode("latin-1"))
            length = self._check_length(found.get(b"content-length"))
        except PenstockError as error:
            await _answer(send, error, out)
            return
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in found and origin:
            await _send(send, 204, [*out, *_preflight()], b"")
            return
        if scope["path"].startswith(API_PREFIX):
            # Routes take names apart from each other before they are decoded: a topic may have
            # a slash, which is %2F in its URL.
            scope["path"] = scope["raw_path"].decode("ascii", "surrogateescape")
        if length is None and scope["method"] not in ("GET", "HEAD"):
            receive = _limited(receive, self._settings.frame_bytes_max)
        await self._app(scope, receive, _with_headers(send, out))

    def _check_length(self, value: bytes | None) -> int | None:
        """Before anything is read. The parser holds the client to what it declares."""
        if value is None:
            return None
        if not value.isdigit():
            raise BadRequest("Content-Length is not a number.", hint="Leave it to your library.")
        if len(value) > 18 or int(value) > self._settings.frame_bytes_max:
            raise _too_large(self._settings.frame_bytes_max)
        return int(value)

    def _headers_out(self, path: str, origin: str | None) -> Headers:
        is_page = path in PAGES or path.startswith("/static/")
        headers = [
            *SECURITY_HEADERS,
            (b"content-security-policy", self._page_policy if is_page else API_POLICY),
            (b"cache-control", b"no-cache" if is_page else b"no-store"),
        ]
        if self._settings.origins:
            headers.append((b"vary", b"Origin"))
            if origin is not None and origin in self._settings.origins:
                headers.append((b"access-control-allow-origin", origin.encode("latin-1")))
                headers.append((b"access-control-expose-headers", b"retry-after"))
        if not is_page:
            headers.append((b"cross-origin-resource-policy", b"same-origin"))
        return headers


def status_of(error: PenstockError) -> int:
    """The HTTP status that says the same."""
    for kind, status in STATUS:
        if isinstance(error, kind):
            return status
    return 503 if error.retryable else 500


def encode_error(error: PenstockError) -> tuple[int, Headers, bytes]:
    """Status, headers and body of an error."""
    status = status_of(error)
    headers: Headers = [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (429, 503):
        headers.append((b"retry-after", b"1"))
    if status == 413:
        # The rest of the body is still on its way, and nobody is going to read it.
        headers.append((b"connection", b"close"))
    return status, headers, msgspec.json.encode({"error": Problem.of(error)})


def _limited(receive: Receive, bytes_max: int) -> Receive:
    """For bodies that do not say how long they are."""
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > bytes_max:
            raise _too_large(bytes_max)
        return message

    return limited


def _with_headers(send: Send, headers: Headers) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            added = [header for header in headers if header[0] not in given or header[0] == b"vary"]
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return sending


def _preflight() -> Headers:
    return [
        (b"access-control-allow-methods", CORS_METHODS),
        (b"access-control-allow-headers", CORS_HEADERS),
        (b"access-control-max-age", CORS_SECONDS),
    ]


async def _answer(send: Send, error: PenstockError, out: Headers) -> None:
    status, headers, body = encode_error(error)
    await _send(send, status, [*headers, *out], body)


async def _send(send: Send, status: int, headers: Headers, body: bytes) -> None:
    headers = headers if status == 204 else [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _too_large(bytes_max: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The body has more than {bytes_max:,} bytes.",
        hint="Publish in several requests, or raise frame_bytes_max.",
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
