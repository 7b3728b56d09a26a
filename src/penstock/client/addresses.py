"""Where servers are: URLs understood, and several instances tried in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from penstock.errors import InvalidURL
from penstock.protocol import WEBSOCKET_PATH

SCHEMES: Final = {"ws": "http", "http": "http", "wss": "https", "https": "https"}
SEPARATOR: Final = ","
_HINT = "Use http://host:8400 or https://host, or ws:// and wss://."


class Address(msgspec.Struct, frozen=True):
    """One server. `ws://` and `http://` mean the same: it speaks both on one port."""

    http: str
    """Without a slash at the end."""

    @property
    def websocket(self) -> str:
        return "ws" + self.http.removeprefix("http") + WEBSOCKET_PATH

    @classmethod
    def parse(cls, url: str) -> Address:
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError as error:
            raise InvalidURL(f"The server URL {url!r} is not valid: {error}.", hint=_HINT) from None
        if parts.scheme not in SCHEMES or not parts.hostname:
            raise InvalidURL(f"The server URL {url!r} is not understood.", hint=_HINT)
        if parts.username is not None or parts.password is not None:
            # Not shown: a URL ends up in logs, and so would what is in it.
            raise InvalidURL("A server URL carries no user or password.", hint="Pass a token.")
        if parts.query or parts.fragment:
            raise InvalidURL("A server URL carries no query.", hint="Pass a token as token=.")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        place = host if port is None else f"{host}:{port}"
        path = parts.path.rstrip("/").removesuffix(WEBSOCKET_PATH)
        return cls(urlunsplit((SCHEMES[parts.scheme], place, path, "", "")))


class Addresses:
    """Several instances of one server: the one that works is kept, the others come in turn."""

    def __init__(self, all_: Sequence[Address], at: int = 0) -> None:
        self._all = tuple(all_)
        self._at = at

    def __len__(self) -> int:
        return len(self._all)

    def __str__(self) -> str:
        return ", ".join(address.http for address in self._all)

    @property
    def current(self) -> Address:
        return self._all[self._at]

    def copy(self) -> Addresses:
        """For another connection, which has its own luck."""
        return Addresses(self._all, self._at)

    def move_on(self) -> None:
        """This one does not answer."""
        self._at = (self._at + 1) % len(self._all)


def is_remote(url: str) -> bool:
    """Whether a URL names a server, not a store."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme.strip().lower() in SCHEMES


def parse_addresses(urls: str | Sequence[str]) -> list[Address]:
    """One URL, several with commas between them, or a list."""
    given = urls.split(SEPARATOR) if isinstance(urls, str) else list(urls)
    if not given:
        raise InvalidURL("There is no server URL in the list.", hint=_HINT)
    return [Address.parse(url) for url in given]
