"""What goes over HTTP: reading, topics, consumers, health."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx
import msgspec

from penstock.client.addresses import Addresses
from penstock.client.refusals import ErrorReply
from penstock.client.tokens import Tokens
from penstock.errors import Disconnected, Forbidden, PenstockError, Unauthorized
from penstock.settings import Settings

RETRY_SECONDS: Final = 0.1
REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
TRY_AGAIN: Final = frozenset({502, 503, 504})

Value = str | int | float
Parameters = Mapping[str, Value | None] | Sequence[tuple[str, Value]]
"""A list, where a name may come several times."""


class Rest:
    """Belongs to one event loop. Servers that do not answer are tried in turn."""

    def __init__(self, addresses: Addresses, tokens: Tokens, settings: Settings) -> None:
        self._addresses = addresses
        self._tokens = tokens
        self._settings = settings
        self._client: httpx.AsyncClient | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters | None = None,
        body: Any = None,
        accepts: tuple[int, ...] = (),
        is_repeatable: bool = False,
    ) -> bytes:
        """The body of the answer. Statuses in `accepts` are answers as good as any.

        `is_repeatable`: it may be sent again when it is not known whether it was carried out.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.client_timeout_seconds
        pause = RETRY_SECONDS
        while True:
            try:
                response = await self._send(method, path, parameters, body)
            except (httpx.TransportError, OSError) as error:
                # Sent or not: only what may happen twice is tried again.
                is_safe = (
                    is_repeatable or method in REPEATABLE or isinstance(error, httpx.ConnectError)
                )
                wait = random.uniform(0, pause)
                if not is_safe or loop.time() + wait >= deadline:
                    raise Disconnected(
                        f"No server at {self._addresses}: {str(error) or type(error).__name__}."
                    ) from error
            else:
                is_refused = response.status_code in TRY_AGAIN
                if response.status_code in accepts or not is_refused:
                    return self._content(response, accepts)
                wait = random.uniform(0, pause)
                if loop.time() + wait >= deadline:
                    return self._content(response, accepts)
            self._addresses.move_on()
            pause = min(pause * 2, self._settings.reconnect_seconds_max)
            await asyncio.sleep(wait)

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])

    async def _keep(self, client: httpx.AsyncClient) -> None:
        """Closes the connections when the event loop ends, also if nobody calls `close`."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._client = None
            await client.aclose()

    async def _send(
        self, method: str, path: str, parameters: Parameters | None, body: Any
    ) -> httpx.Response:
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._settings.client_timeout_seconds)
            self._keeper = asyncio.ensure_future(self._keep(self._client))
        pairs = parameters.items() if isinstance(parameters, Mapping) else parameters or ()
        given: list[tuple[str, str | int | float | bool | None]] = [
            (name, value) for name, value in pairs if value is not None
        ]
        content = None if body is None else msgspec.json.encode(body)
        is_second = False
        while True:
            headers = {"accept": "application/json"}
            if content is not None:
                headers["content-type"] = "application/json"
            token = await self._tokens.get()
            if token is not None:
                headers["authorization"] = f"Bearer {token}"
            url = self._addresses.current.http + path
            response = await self._client.request(
                method, url, params=given, content=content, headers=headers
            )
            if response.status_code != 401 or is_second or not self._tokens.can_refresh:
                return response
            self._tokens.forget()
            is_second = True

    def _content(self, response: httpx.Response, accepts: tuple[int, ...]) -> bytes:
        if response.is_success or response.status_code in accepts:
            return response.content
        raise _problem(response)


def path(*pieces: str) -> str:
    """A path under /v1 in which names may have any characters."""
    return "/v1/" + "/".join(quote(piece, safe="") for piece in pieces)


def _problem(response: httpx.Response) -> PenstockError:
    try:
        return msgspec.json.decode(response.content, type=ErrorReply).error.as_error()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    status = response.status_code
    if status == 401:
        return Unauthorized()
    if status == 403:
        return Forbidden()
    if status in TRY_AGAIN:
        return Disconnected(f"The server is not available (HTTP {status}).")
    return PenstockError(
        f"The server answered HTTP {status}.", hint="Is it a penstock server, and as new as this?"
    )
