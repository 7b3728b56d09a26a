"""Stores behind one URL. Only the stores themselves open a driver."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clock import Clock, SystemClock
from penstock.errors import InvalidURL, PenstockError, Unsupported
from penstock.ports import Store
from penstock.ports.scan import Scanner
from penstock.settings import Settings

if TYPE_CHECKING:
    from penstock.model import Check
    from penstock.stores.sqlite.schema import Schema

SCHEMES = ("sqlite", "memory")
SERVERS = ("http", "https", "ws", "wss")


def check_url(url: str) -> tuple[str, str]:
    """The URL's scheme and the path it names; raises `InvalidURL`. Opens nothing."""
    if not isinstance(url, str):
        raise InvalidURL(f"A store URL is text, not {type(url).__name__}.")
    scheme, separator, rest = url.partition(":")
    if scheme in SERVERS:
        raise InvalidURL(
            f"{url!r} is a server, and this needs the database itself.",
            hint="Run it where the database is, with sqlite:///file.db. A server is reached with "
            "penstock.client.connect().",
        )
    if not separator or scheme not in SCHEMES:
        raise InvalidURL(f"The store URL {url!r} has no scheme that penstock knows.")
    if scheme == "memory":
        if rest:
            raise InvalidURL(f"The store URL {url!r} has something after 'memory:'.")
        return scheme, ""
    if not rest.startswith("///") or "?" in rest or "#" in rest:
        raise InvalidURL(
            f"The store URL {url!r} is not understood.",
            hint="Use sqlite:///relative.db, or four slashes for an absolute path.",
        )
    path = urllib.parse.unquote(rest.removeprefix("///"))
    if not path or "\0" in path:
        raise InvalidURL(f"The store URL {url!r} names no file.")
    return scheme, path


def load_driver(url: str) -> None:
    """Check the URL and import what opening it needs. Opens nothing.

    When the hub is made, and not at its first use, which may be in several threads: a child
    forked amid an import inherits the lock of that import, and waits for it forever.
    """
    check_url(url)
    import penstock.stores.sqlite.store  # noqa: F401


def open_store(settings: Settings, clock: Clock) -> Store:
    from penstock.stores.sqlite.store import SqliteStore

    scheme, path = check_url(settings.url)
    if scheme == "memory":
        return SqliteStore.in_memory(settings, clock)
    return SqliteStore(Path(path).absolute(), settings, clock)


def open_scanner(settings: Settings, clock: Clock) -> Scanner:
    """For reading in bulk. Never makes a store that is not there."""
    from penstock.stores.sqlite.scan import open_file

    scheme, path = check_url(settings.url)
    if scheme == "memory":
        raise Unsupported(
            "A memory: store is its process's own.", hint="Spark needs a file: sqlite:///file.db."
        )
    return open_file(Path(path).absolute(), settings, clock)


def open_migrations(settings: Settings, clock: Clock | None = None) -> Schema:
    """The schema behind the URL, also where a hub would refuse to open it."""
    from penstock.stores.sqlite.schema import Schema

    scheme, path = check_url(settings.url)
    if scheme == "memory":
        raise Unsupported("A memory: store has no schema to migrate.", hint="It is always new.")
    return Schema(Path(path).absolute(), settings, clock or SystemClock())


def check_unopened(settings: Settings, error: PenstockError) -> list[Check]:
    """What can be told of a store that failed to open with this error, for `doctor`."""
    from penstock.stores.sqlite import doctor

    _, path = check_url(settings.url)
    return doctor.check_unopened(Path(path).absolute(), error)
