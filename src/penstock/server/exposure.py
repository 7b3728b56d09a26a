"""Who can reach the server at all: the bind address, the Host header, the Origin header.

Without tokens, everybody who can reach the port has all rights. That is meant for programs of
this machine, and two kinds of stranger can reach a loopback port all the same, because a browser
runs on this machine:

- A web page elsewhere sends requests to `http://127.0.0.1:8400` (cross-site request forgery) or
  opens a WebSocket, which no same-origin policy holds back. Browsers name the page in `Origin`
  for WebSockets and for all that could change something, so an origin that is neither the
  server's own nor listed in `origins` is refused, for every method.
- A web page at `http://evil.example:8400` has its name resolved to 127.0.0.1 after it was loaded
  (DNS rebinding). For the browser that is one origin, so `Origin` looks right, or is left out.
  But the Host header still carries the page's name. So, without tokens, only names that nobody
  else can point here are answered: IP addresses, localhost, this host's name, hosts in `origins`.

With tokens the Host header does not matter: such a page has none, and the server knows no cookies
that the browser could add by itself.
"""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from urllib.parse import urlsplit

from penstock.errors import InvalidSettings
from penstock.settings import Settings

DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def has_tokens(settings: Settings) -> bool:
    return bool(settings.tokens_file or settings.jwt_key_file)


def check_exposure(settings: Settings, insecure: bool) -> None:
    """Refuse to start where strangers could connect without a token, unless told to."""
    for origin in settings.origins:
        _check_origin(origin)
    if has_tokens(settings) or insecure or is_loopback(settings.bind_host):
        return
    raise InvalidSettings(
        f"Without tokens, the server does not listen on {settings.bind_host!r}: "
        "everybody who can reach it could read, publish and delete.",
        hint="Make tokens with 'penstock tokens create' and set tokens_file, "
        "bind to 127.0.0.1, or pass --insecure.",
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_allowed_origin(origin: str | None, host: str | None, settings: Settings) -> bool:
    """Whether a request may come from there: no browser, the server's own pages, or `origins`.

    `origin` and `host` are the headers as they came. The scheme is not compared with the
    server's own, which a proxy that ends TLS hides from it.
    """
    if not is_allowed_host(host, settings):
        return False
    if origin is None:
        return True
    wanted = _split_origin(origin)
    if wanted is None:
        return False
    scheme, name, port = wanted
    if (name, port) == _split_host(host, DEFAULT_PORTS[scheme]):
        return True
    return any(wanted == _split_origin(allowed) for allowed in settings.origins)


def is_allowed_host(host: str | None, settings: Settings) -> bool:
    """Whether a server without tokens answers to this name."""
    if has_tokens(settings):
        return True
    name, _ = _split_host(host, 0)
    if not name:
        return host is None  # HTTP/1.0 without a Host header: no browser sends that.
    if _is_address(name) or name == "localhost" or name.endswith(".localhost"):
        return True
    own = {settings.bind_host.lower(), socket.gethostname().lower()}
    own.update(found[1] for found in map(_split_origin, settings.origins) if found)
    return name in own


@lru_cache(maxsize=1024)
def _split_origin(origin: str) -> tuple[str, str, int] | None:
    """Scheme, name and port. None for `null` and whatever else is no origin."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.username is not None:
        return None
    if parts.path or parts.query or parts.fragment:
        return None
    return parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme]


@lru_cache(maxsize=1024)
def _split_host(host: str | None, default_port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{host or ''}")
        if parts.path or parts.query or parts.fragment or parts.username is not None:
            return "", 0
        return (parts.hostname or "").rstrip("."), parts.port or default_port
    except ValueError:
        return "", 0


@lru_cache(maxsize=1024)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _check_origin(origin: str) -> None:
    if _split_origin(origin) is None:
        raise InvalidSettings(
            f"{origin!r} in origins is not an origin.",
            hint="An origin is scheme://host or scheme://host:port, without a path.",
        )
