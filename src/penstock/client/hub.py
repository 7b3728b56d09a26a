"""The remote hub: a local hub's names, served by a server somewhere else."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NoReturn

import msgspec

from penstock.client.addresses import SEPARATOR, Address, Addresses, parse_addresses
from penstock.client.aio_topics import AsyncRemoteTopics
from penstock.client.consumers import AsyncRemoteConsumers, RemoteConsumers
from penstock.client.exchange import Exchange
from penstock.client.jobs import AsyncRemoteJobs
from penstock.client.jobs_bridge import RemoteJobs
from penstock.client.ledger import AsyncRemoteLedger
from penstock.client.ledger_bridge import RemoteLedger
from penstock.client.ledger_source import RemoteSource
from penstock.client.mailboxes import AsyncRemoteMailboxes
from penstock.client.mailboxes_bridge import RemoteMailboxes
from penstock.client.portal import Portal
from penstock.client.replies import HealthReply
from penstock.client.schedules import AsyncRemoteSchedules, RemoteSchedules
from penstock.client.tokens import Token, Tokens
from penstock.client.topics import RemoteTopics
from penstock.errors import Forbidden, HubClosed, Unsupported
from penstock.health import Health, Metrics
from penstock.ledger.fallback import Fallback
from penstock.protocol import Members, Presence
from penstock.settings import Settings
from penstock.settings import load as load_settings
from penstock.telemetry import Telemetry

TOKEN_VARIABLE = "PENSTOCK_TOKEN"
LISTENER_THREADS = 4


def _only_local(what: str) -> Callable[..., NoReturn]:
    """A name of the local hub that makes no sense, or would do harm, over a network."""

    def refuse(self: object, *_: object, **__: object) -> NoReturn:
        raise Unsupported(
            f"A remote hub has no {what}.",
            hint="Open the database where it is, with penstock.connect('sqlite:///…').",
        )

    return refuse


class AsyncRemoteHub:
    """The same names as coroutines, on the caller's event loop."""

    def __init__(
        self,
        open_exchange: Callable[[], Exchange],
        close: Callable[[], None],
        ledger: AsyncRemoteLedger,
    ) -> None:
        self._open = open_exchange
        self._close = close
        self.topics = AsyncRemoteTopics(open_exchange)
        self.consumers = AsyncRemoteConsumers(open_exchange)
        self.jobs = AsyncRemoteJobs(open_exchange)
        self.schedules = AsyncRemoteSchedules(open_exchange)
        self.mailboxes = AsyncRemoteMailboxes(open_exchange)
        self.ledger = ledger

    async def presence(self, topic: str) -> Members:
        """Who is present on a topic."""
        return await self._open().call(lambda id: Presence(id=id, topic=topic), Members)

    async def health(self) -> Health:
        """How consumers are doing, judged by the thresholds in the server's settings."""
        body = await self._open().rest.call("GET", "/health", accepts=(503,))
        found = msgspec.json.decode(body, type=HealthReply)
        if found.metrics is None:
            raise Forbidden(
                "This token does not allow to see health in figures.",
                hint="Ask for a token that may read the topic penstock.delivery.",
            )
        return Health(found.status, found.checks, found.lags, found.metrics)

    async def metrics(self) -> Metrics:
        """The queue in figures."""
        return (await self.health()).metrics

    async def close(self) -> None:
        """End the connections. What was acknowledged is on the server's disk."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)


class RemoteHub:
    """Topics, jobs, mailboxes and the ledger of a server. Thread-safe; connects at the first use,
    and again whenever the connection is lost."""

    def __init__(
        self,
        addresses: Sequence[Address],
        settings: Settings,
        *,
        token: Token | None = None,
        client: str | None = None,
    ) -> None:
        self.settings = settings
        self.telemetry = Telemetry()
        self._addresses = tuple(addresses)
        self._tokens = Tokens(token)
        self._client = client
        self._portal: Portal | None = None
        self._exchange: Exchange | None = None
        self._exchanges: dict[asyncio.AbstractEventLoop, Exchange] = {}
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._fallback = Fallback(settings.ledger_memory_max, self.telemetry)
        source = RemoteSource(self._open, self._bridge, settings, self._fallback)
        ledger = AsyncRemoteLedger(self._open, self.telemetry, self._fallback, source)
        self.aio = AsyncRemoteHub(self._open, self.close, ledger)
        """The same names as coroutines."""
        self.topics = RemoteTopics(self._bridge, self.aio.topics, self._threads)
        """Publish, read, follow, subscribe; create, configure, list, delete, trim."""
        self.consumers = RemoteConsumers(self._bridge, self.aio.consumers)
        """Named consumers and their watermarks."""
        self.jobs = RemoteJobs(self._bridge, self.aio.jobs)
        """Enqueue jobs, look at them, cancel, retry, pause, limit."""
        self.schedules = RemoteSchedules(self._bridge, self.aio.schedules)
        """Jobs that are enqueued by the clock."""
        self.mailboxes = RemoteMailboxes(self._bridge, self.aio.mailboxes)
        """A durable queue for each recipient."""
        self.ledger = RemoteLedger(self._bridge, ledger, source, self.telemetry)
        """What has been processed: marks, claims, idempotent functions."""
        _hubs.add(self)

    @property
    def url(self) -> str:
        return SEPARATOR.join(address.http for address in self._addresses)

    def presence(self, topic: str) -> Members:
        """Who is present on a topic."""
        portal, _ = self._bridge()
        return portal.run(self.aio.presence(topic))

    def health(self) -> Health:
        """How consumers are doing, judged by the thresholds in the server's settings."""
        portal, _ = self._bridge()
        return portal.run(self.aio.health())

    def metrics(self) -> Metrics:
        """The queue in figures."""
        portal, _ = self._bridge()
        return portal.run(self.aio.metrics())

    transaction = _only_local("transactions")
    connection = _only_local("your own tables")
    diagnose = _only_local("diagnosis")
    backup = _only_local("backups")
    restore = _only_local("backups")
    new_generation = _only_local("generations")
    job = _only_local("handlers")
    start_workers = _only_local("workers")
    start_feeding = _only_local("feeding")
    lock = _only_local("locks")
    leader = _only_local("leaders")
    handlers = property(_only_local("handlers"))

    def close(self) -> None:
        """End the connections. What was acknowledged is on the server's disk."""
        with self._lock:
            self._is_closed = True
            portal, self._portal = self._portal, None
            exchange, self._exchange = self._exchange, None
            executor, self._executor = self._executor, None
            others = list(self._exchanges.items())
            self._exchanges.clear()
        for loop, other in others:
            if loop is _running_loop():
                # It cannot be waited for here. It is done when the loop gets to it.
                _closing.add(closing := loop.create_task(other.close()))
                closing.add_done_callback(_closing.discard)
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(other.close(), loop).result()
        if portal is not None:
            if exchange is not None:
                portal.run(exchange.close())
            portal.close()
        if executor is not None:
            executor.shutdown()

    def __enter__(self) -> RemoteHub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<penstock.client.RemoteHub {self.url}>"

    def _open(self) -> Exchange:
        """What belongs to the event loop this is called on."""
        loop = asyncio.get_running_loop()
        if self._portal is not None and loop is self._portal.loop:
            assert self._exchange is not None
            return self._exchange
        with self._lock:
            if self._is_closed:
                raise HubClosed
            exchange = self._exchanges.get(loop)
            if exchange is None:
                for ended in [other for other in self._exchanges if other.is_closed()]:
                    del self._exchanges[ended]
                exchange = self._exchanges[loop] = self._make()
            return exchange

    def _bridge(self) -> tuple[Portal, Exchange]:
        """What threads share: one event loop, and its connection."""
        portal, exchange = self._portal, self._exchange
        if portal is not None and exchange is not None:
            return portal, exchange
        with self._lock:
            if self._is_closed:
                raise HubClosed
            if self._portal is None or self._exchange is None:
                portal = Portal()
                self._exchange = portal.run(self._make_there())
                self._portal = portal
            return self._portal, self._exchange

    async def _make_there(self) -> Exchange:
        return self._make()

    def _make(self) -> Exchange:
        return Exchange(
            Addresses(self._addresses),
            self._tokens,
            self.settings,
            self.telemetry,
            client=self._client,
        )

    def _threads(self) -> Executor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(LISTENER_THREADS, "penstock-listener")
            return self._executor

    def _abandon(self) -> None:
        """In a forked child: the parent goes on with its connections; the child makes its own."""
        _abandoned.append((self._portal, self._exchange, self._executor, dict(self._exchanges)))
        self._portal = self._exchange = self._executor = None
        self._exchanges = {}
        self._lock = threading.Lock()
        self.telemetry.renew()
        self._fallback.renew()


_hubs: weakref.WeakSet[RemoteHub] = weakref.WeakSet()
_abandoned: list[Any] = []
_closing: set[asyncio.Task[None]] = set()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@atexit.register
def _close_all() -> None:
    for hub in list(_hubs):
        hub.close()


def _after_fork_in_child() -> None:
    for hub in list(_hubs):
        hub._abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def connect(
    url: str | Sequence[str] | None = None,
    *,
    token: Token | None = None,
    client: str | None = None,
    config: str | os.PathLike[str] | None = None,
    **arguments: Any,
) -> RemoteHub:
    """A remote hub. Checks the URL and the settings, and connects at the first use.

    `url` is a server's, `http://`, `https://`, `ws://` or `wss://`, or a list of several
    instances' (default: `$PENSTOCK_URL`). `token` is text or a function that returns it
    (default: `$PENSTOCK_TOKEN`). `client` is this client's name in presence lists. Any setting
    can be passed by name.
    """
    if url is not None and not isinstance(url, str):
        url = SEPARATOR.join(url)
    settings = load_settings(url, file=config, **arguments)
    addresses = parse_addresses(settings.url)
    if token is None:
        token = os.environ.get(TOKEN_VARIABLE) or None
    return RemoteHub(addresses, settings, token=token, client=client)
