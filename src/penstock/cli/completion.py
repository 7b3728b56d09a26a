"""Names for the shell to complete. Says nothing when something is wrong, and makes no file."""

from __future__ import annotations

import typer

from penstock.cli.session import Session
from penstock.errors import PenstockError


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Topics whose names begin so."""
    session = _session(context)
    try:
        file = session.database_file()
        if file is None or not file.is_file():
            return []
        with session.connect() as hub:
            return [t.name for t in hub.topics.list("*") if t.name.startswith(incomplete)]
    except PenstockError:
        return []


def complete_consumer(context: typer.Context, incomplete: str) -> list[str]:
    """Consumers whose names begin so."""
    session = _session(context)
    try:
        file = session.database_file()
        if file is None or not file.is_file():
            return []
        with session.connect() as hub:
            names = {consumer.name for consumer in hub.consumers.list()}
            return sorted(name for name in names if name.startswith(incomplete))
    except PenstockError:
        return []


def complete_queue(context: typer.Context, incomplete: str) -> list[str]:
    """Queues whose names begin so."""
    session = _session(context)
    try:
        file = session.database_file()
        if file is None or not file.is_file():
            return []
        with session.connect() as hub:
            return [q.queue for q in hub.jobs.stats() if q.queue.startswith(incomplete)]
    except PenstockError:
        return []


def complete_schedule(context: typer.Context, incomplete: str) -> list[str]:
    """Schedules whose names begin so."""
    session = _session(context)
    try:
        file = session.database_file()
        if file is None or not file.is_file():
            return []
        with session.connect() as hub:
            return [s.name for s in hub.schedules.list() if s.name.startswith(incomplete)]
    except PenstockError:
        return []


def _session(context: typer.Context) -> Session:
    given = context.params
    before = context.find_object(Session) or Session()
    return Session(given.get("url") or before.url, given.get("config") or before.config)
