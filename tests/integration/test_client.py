"""The remote client does what a local hub does, against a real server (T4, T5, D6, D7)."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
import penstock.client
from penstock.client import RemoteHub, follower
from penstock.client.addresses import Address, is_remote, parse_addresses
from penstock.client.aio_topics import AsyncRemoteLive
from penstock.client.ledger_claims import AsyncRemoteClaim, RemoteClaim
from penstock.client.mailboxes import AsyncRemoteMailbox
from penstock.client.mailboxes_bridge import RemoteMailbox
from penstock.errors import (
    BadRequest,
    ConsumerBusy,
    ConsumerNotFound,
    Disconnected,
    EpochChanged,
    HubClosed,
    IdempotencyConflict,
    InvalidPayload,
    InvalidTopic,
    InvalidURL,
    LogTrimmed,
    TopicExists,
    TopicNotFound,
    Unsupported,
)
from penstock.ledger import claim
from penstock.mailboxes import coroutines, mailboxes
from penstock.model import Delivery, Position, Publication, Retention
from penstock.topics import followers, subscription
from tests.factories import hub_on, ids, payloads
from tests.processes import Child, in_fork
from tests.servers import Server
from tests.waiting import SOON, wait_until

NOTHING = 0.05


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "hub.db") as server:
        yield server


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., RemoteHub]]:
    hubs: list[RemoteHub] = []

    def one(url: Any = None, **arguments: Any) -> RemoteHub:
        hubs.append(penstock.client.connect(url or server.url, **arguments))
        return hubs[-1]

    yield one
    for hub in hubs:
        hub.close()


@pytest.fixture
def hub(connect: Callable[..., RemoteHub]) -> RemoteHub:
    return connect()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Each test has its own: they share a server."""
    return re.sub(r"\W", "-", request.node.name)


# Signatures

FOR_FILES = {"export_lines", "import_lines", "verify", "repair"}
"""What operators do with the files of mailboxes, where those are."""

ROOMS = ("topics", "consumers", "jobs", "schedules", "mailboxes", "ledger")


def _names(cls: type) -> set[str]:
    return {
        name
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and inspect.isfunction(value)
    }


def _plain(annotation: object) -> str:
    """An annotation without what differs between here and there, threads and coroutines."""
    text = re.sub(r"\bbus\.|\bmailboxes\.|\b(Async)?(Remote)?(?=[A-Z])", "", str(annotation))
    text = re.sub(r"^Callback$", "Callable[[Message], object]", text)
    return re.sub(r"^(Coroutine|Awaitable)\[Any, Any, (.*)\]$", r"\2", text)


def _shape(function: Callable[..., object]) -> list[tuple[object, ...]]:
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    shape = [(p.name, p.kind, repr(p.default), _plain(p.annotation)) for p in parameters]
    return [*shape, ("->", _plain(signature.return_annotation))]


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("world", ["sync", "aio"])
def test_a_room_has_the_names_and_signatures_of_the_local_one(
    hub: RemoteHub, memory: penstock.Hub, room: str, world: str
) -> None:
    local = type(getattr(memory if world == "sync" else memory.aio, room))
    remote = type(getattr(hub if world == "sync" else hub.aio, room))

    assert _names(local) == _names(remote)
    for name in _names(local):
        if room == "mailboxes" and name in FOR_FILES:
            with pytest.raises(Unsupported):
                getattr(getattr(hub if world == "sync" else hub.aio, room), name)()
            continue
        assert _shape(getattr(local, name)) == _shape(getattr(remote, name)), name


@pytest.mark.parametrize(
    ("local", "remote"),
    [
        (followers.Follower, follower.RemoteFollower),
        (followers.AsyncFollower, follower.AsyncRemoteFollower),
        (subscription.AsyncLive, AsyncRemoteLive),
        (mailboxes.Mailbox, RemoteMailbox),
        (coroutines.AsyncMailbox, AsyncRemoteMailbox),
        (claim.Claim, RemoteClaim),
        (claim.AsyncClaim, AsyncRemoteClaim),
    ],
)
def test_readers_have_the_names_and_signatures_of_the_local_ones(local: type, remote: type) -> None:
    for_transactions = {"belongs_to", "ack_in", "acked", "complete_in", "completed"}
    names = _names(local) - for_transactions
    assert names == _names(remote)
    for name in names:
        assert _shape(getattr(local, name)) == _shape(getattr(remote, name)), name


def test_the_hub_has_the_local_ones_names(hub: RemoteHub, memory: penstock.Hub) -> None:
    public = {name for name in dir(memory) if not name.startswith("_")} - {"open_delivery"}
    assert public <= {name for name in dir(hub) if not name.startswith("_")}
    for name in ("health", "metrics", "close"):
        assert _shape(getattr(penstock.Hub, name)) == _shape(getattr(RemoteHub, name))
    for name in (
        *("transaction", "connection", "diagnose", "backup", "restore", "new_generation"),
        *("job", "start_workers", "start_feeding", "lock", "leader"),
    ):
        with pytest.raises(Unsupported):
            getattr(hub, name)()
    with pytest.raises(Unsupported):
        _ = hub.handlers
    with pytest.raises(Unsupported):
        hub.ledger.atomic("s", "k")


# Addresses


@pytest.mark.parametrize(
    ("url", "http", "websocket"),
    [
        ("ws://h:1", "http://h:1", "ws://h:1/ws"),
        ("wss://h", "https://h", "wss://h/ws"),
        ("http://h:1/", "http://h:1", "ws://h:1/ws"),
        ("https://h/penstock", "https://h/penstock", "wss://h/penstock/ws"),
        ("ws://h:1/ws", "http://h:1", "ws://h:1/ws"),
        ("http://[::1]:8400", "http://[::1]:8400", "ws://[::1]:8400/ws"),
    ],
)
def test_all_four_schemes_name_the_same_server(url: str, http: str, websocket: str) -> None:
    address = Address.parse(url)
    assert (address.http, address.websocket) == (http, websocket)
    assert is_remote(url)


@pytest.mark.parametrize(
    "url",
    ["http://", "ftp://h", "sqlite:///x.db", "http://h:x", "http://u:p@h", "http://h/?token=x"],
)
def test_what_is_no_server_is_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(InvalidURL) as refused:
        penstock.client.connect(url)
    assert "u:p" not in str(refused.value)
    assert "token=x" not in str(refused.value)


def test_several_urls_come_as_a_list_or_with_commas() -> None:
    assert [a.http for a in parse_addresses("http://a,ws://b:1")] == ["http://a", "http://b:1"]
    with penstock.client.connect(["http://a", "http://b"]) as hub:
        assert hub.url == "http://a,http://b"


def test_a_program_moves_to_a_server_by_its_url(server: Server, topic: str) -> None:
    with penstock.connect(server.url) as hub:
        assert isinstance(hub, RemoteHub)
        hub.topics.publish(topic, 1)
        assert payloads(hub.topics.read(topic)) == [1]


WITHOUT_THE_EXTRA = """
import sys
sys.modules["websockets"] = None
import penstock
penstock.connect("memory:").close()
assert "httpx" not in sys.modules
try:
    penstock.connect("http://127.0.0.1:1")
except penstock.PenstockError as error:
    print(error.code, error.hint)
"""


def test_a_local_hub_needs_nothing_of_the_client_and_its_absence_is_explained() -> None:
    with Child(WITHOUT_THE_EXTRA) as child:
        assert child.hear() == "unsupported pip install 'penstock[client]'"


# Publishing and reading


class Point(msgspec.Struct):
    x: int
    at: datetime


def test_a_message_arrives_as_it_was_published(hub: RemoteHub, topic: str) -> None:
    with hub.topics.subscribe(topic) as live:
        receipt = hub.topics.publish(
            topic, {"id": 1}, type="created", key="k", headers={"trace": "7"}, ttl=600
        )
        message = live.get(SOON)
    assert message is not None
    assert (message.payload, message.type, message.key) == ({"id": 1}, "created", "k")
    assert message.headers == {"trace": "7"}
    assert (message.topic, message.position, message.id) == (topic, receipt.position, receipt.id)
    assert message.created_at == receipt.created_at
    assert message.expires_at == receipt.created_at + 600_000_000
    assert receipt.durable
    assert not receipt.duplicate


AT = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("payload", "format"),
    [
        ({"a": [1, 2.5, None, True, "ü"]}, None),
        (None, None),
        ("text", None),
        (b"\x00\xff", None),
        (bytearray(b"x"), None),
        (b"", None),
        (Point(1, AT), None),
        ({1: "one"}, None),
        ({"raw": b"\x00", 1: 2}, "msgpack"),
        (b"in msgpack", "msgpack"),
        ([1, 2], "msgpack"),
        ({"large": "x" * 100_000}, None),
        (2**63, None),
    ],
)
def test_payloads_are_what_a_local_hub_reads(
    hub: RemoteHub, memory: penstock.Hub, topic: str, payload: Any, format: Any
) -> None:
    memory.topics.publish("t", payload, format=format)
    [local] = memory.topics.read("t")
    with hub.topics.subscribe(topic) as live:
        hub.topics.publish(topic, payload, format=format)
        remote = live.get(SOON)
    assert remote is not None
    assert remote.payload == local.payload
    assert remote.content_type == local.content_type
    assert remote.data == local.data


def test_payloads_that_the_wire_has_no_words_for(
    server: Server, hub: RemoteHub, topic: str
) -> None:
    """Published beside the server. Only publishing the first over the wire is not possible."""
    path: Path = server._file
    with hub_on(path) as local, hub.topics.subscribe(topic) as live:
        local.topics.publish(topic, {"n": 2**70})
        local.topics.publish(topic, {(1, 2): "a tuple as key"}, format="msgpack")
        for read, same in zip(hub.topics.read(topic), local.topics.read(topic), strict=True):
            message = live.get(SOON)
            assert message is not None
            assert (message.body, message.encoding) == (same.body, same.encoding)
            assert (read.body, read.encoding) == (same.body, same.encoding)
        with pytest.raises(InvalidPayload):
            hub.topics.publish(topic, 2**70)
        assert hub.topics.publish(topic, 1).durable


def test_a_payload_becomes_a_type(hub: RemoteHub, topic: str) -> None:
    with hub.topics.subscribe(topic) as live:
        hub.topics.publish(topic, Point(1, AT))
        message = live.get(SOON)
        assert message is not None
        assert message.decode(Point) == Point(1, AT)


def test_conflated_messages_are_those_of_a_local_hub(hub: RemoteHub, topic: str) -> None:
    """T13"""
    with hub.topics.subscribe(topic) as live:
        for n in range(5):
            receipt = hub.topics.publish(topic, {"n": n}, key="ann", type="moved", conflate=True)
        assert (receipt.position, receipt.durable) == (None, False)
        last = None
        while last is None or last.payload != {"n": 4}:
            message = live.get(SOON)
            assert message is not None
            [last] = message.conflated
    assert (last.key, last.type) == ("ann", "moved")


def test_an_idempotency_key_of_the_users_is_told_about(hub: RemoteHub, topic: str) -> None:
    first = hub.topics.publish(topic, 1, idempotency_key="a")
    again = hub.topics.publish(topic, 1, idempotency_key="a")

    assert (again.duplicate, again.position) == (True, first.position)
    with pytest.raises(IdempotencyConflict):
        hub.topics.publish(topic, 2, idempotency_key="a")


def test_the_same_payload_twice_is_two_messages(hub: RemoteHub, topic: str) -> None:
    hub.topics.publish(topic, 1)
    hub.topics.publish(topic, 1)
    hub.topics.publish_many(topic, [1, 1])

    assert payloads(hub.topics.read(topic)) == [1, 1, 1, 1]


def test_many_are_published_in_order_over_several_frames(hub: RemoteHub, topic: str) -> None:
    items = [*range(1_300), Publication({"n": 1}, key="k", type="y"), b"raw"]
    receipts = hub.topics.publish_many(topic, items, type="x")
    more = hub.topics.publish_many(topic, (str(n) for n in range(3)))

    assert [r.id for r in receipts] == sorted({r.id for r in receipts})
    messages = hub.topics.read(topic, limit=5_000)
    assert ids(messages) == [r.id for r in receipts + more]
    assert payloads(messages) == [*range(1_300), {"n": 1}, b"raw", "0", "1", "2"]
    assert [(m.type, m.key) for m in messages[1_299:1_302]] == [
        ("x", None),
        ("y", "k"),
        ("x", None),
    ]


def test_large_messages_are_split_so_that_a_server_takes_them(hub: RemoteHub, topic: str) -> None:
    hub.topics.publish_many(topic, ["x" * 300_000] * 8)

    assert [len(p) for p in payloads(hub.topics.read(topic))] == [300_000] * 8


@pytest.mark.parametrize(
    ("name", "payload", "options", "error"),
    [
        ("a*", 1, {}, InvalidTopic),
        ("penstock.x", 1, {}, InvalidTopic),
        ("t", object(), {}, InvalidPayload),
        ("t", 1, {"ttl": -1}, penstock.InvalidInput),
        ("t", 1, {"key": 5}, penstock.InvalidInput),
        ("t", 1, {"conflate": True, "ttl": 1}, penstock.InvalidInput),
        ("t", 1, {"conflate": True}, penstock.InvalidInput),
        ("t", "x" * (1024 * 1024), {}, penstock.PayloadTooLarge),
    ],
)
def test_what_a_local_hub_refuses_is_refused(
    hub: RemoteHub, name: str, payload: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        hub.topics.publish(name, payload, **options)


def test_a_list_with_a_bad_item_is_refused_as_a_whole(hub: RemoteHub, topic: str) -> None:
    with pytest.raises(InvalidPayload):
        hub.topics.publish_many(topic, [1, object()])
    assert hub.topics.list(topic) == []


def test_threads_share_one_socket_and_each_gets_its_own_answers(hub: RemoteHub, topic: str) -> None:
    with ThreadPoolExecutor(16) as threads:
        receipts = list(threads.map(lambda n: (n, hub.topics.publish(topic, n)), range(400)))

    stored = {m.id: m.payload for m in hub.topics.read(topic)}
    assert stored == {receipt.id: n for n, receipt in receipts}
    assert hub.telemetry.counters()["connected"] == 1


def test_reading_from_everywhere(hub: RemoteHub, topic: str) -> None:
    receipts = hub.topics.publish_many(topic, range(5))

    assert payloads(hub.topics.read(topic, after=receipts[2].position)) == [3, 4]
    assert payloads(hub.topics.read(topic, last=2)) == [3, 4]
    assert payloads(hub.topics.read(topic, since=receipts[0].created_at / 1e6 - 1)) == [*range(5)]
    assert payloads(hub.topics.read(topic, limit=2)) == [0, 1]
    assert payloads(hub.topics.read(f"{topic[:-1]}?")) == [*range(5)]
    assert hub.topics.read(topic)[0].topic == hub.topics.read(f"{topic}*")[0].topic == topic
    assert hub.topics.position().offset >= receipts[-1].id
    with pytest.raises(penstock.InvalidInput):
        hub.topics.read(topic, last=1, since=1)
    with pytest.raises(EpochChanged):
        hub.topics.read(topic, after=Position("other", 1))


# Subscribing


def test_live_messages_come_from_other_processes(
    hub: RemoteHub, server: Server, topic: str, connect: Callable[..., RemoteHub]
) -> None:
    with hub.topics.subscribe(topic) as live:
        connect().topics.publish(topic, "from elsewhere")
        message = live.get(SOON)
    assert message is not None
    assert message.payload == "from elsewhere"


def test_subscribing_from_a_place(hub: RemoteHub, topic: str) -> None:
    receipts = hub.topics.publish_many(topic, range(5))
    with hub.topics.subscribe(topic, after=receipts[1].position) as live:
        assert live.position == receipts[1].position
        assert [live.get(SOON).payload for _ in range(3)] == [2, 3, 4]
        assert live.position == receipts[4].position
        assert live.get(NOTHING) is None
    with hub.topics.subscribe(topic, last=2) as live:
        assert [live.get(SOON).payload for _ in range(2)] == [3, 4]
    with pytest.raises(EpochChanged):
        hub.topics.subscribe(topic, after=Position("other-1", 3))


def test_one_program_has_several_subscriptions_of_a_topic(hub: RemoteHub, topic: str) -> None:
    hub.topics.publish_many(topic, range(3))
    with (
        hub.topics.subscribe(topic, last=3) as all_of_it,
        hub.topics.subscribe(topic, last=1) as last,
        hub.topics.subscribe(f"{topic}*") as glob,
        hub.topics.follow(topic, consumer="c", start="earliest") as durable,
    ):
        hub.topics.publish(topic, 3)
        assert [all_of_it.get(SOON).payload for _ in range(4)] == [0, 1, 2, 3]
        assert [last.get(SOON).payload for _ in range(2)] == [2, 3]
        assert glob.get(SOON).payload == 3
        assert [durable.get(SOON).payload for _ in range(4)] == [0, 1, 2, 3]


def test_a_closed_subscription_ends_its_loop(hub: RemoteHub, topic: str) -> None:
    live = hub.topics.subscribe(topic)
    seen: list[object] = []
    reader = threading.Thread(target=lambda: seen.extend(m.payload for m in live))
    reader.start()
    hub.topics.publish(topic, 1)
    wait_until(lambda: seen == [1])
    hub.close()
    reader.join(SOON)
    assert not reader.is_alive()
    with pytest.raises(HubClosed):
        hub.topics.publish(topic, 2)


def test_a_reader_that_is_slow_holds_up_nobody_and_misses_nothing(
    connect: Callable[..., RemoteHub], topic: str
) -> None:
    """D5: bounded memory here, and the server goes on from the log."""
    hub = connect(subscriber_buffer_max=20)
    with hub.topics.subscribe(topic) as slow, hub.topics.subscribe(f"{topic}*") as quick:
        for start in range(0, 2_000, 100):
            hub.topics.publish_many(topic, range(start, start + 100))
            assert [quick.get(SOON).payload for _ in range(100)] == [*range(start, start + 100)]
        assert hub.telemetry.counters()["behind"] > 0
        assert slow._subscription.waiting < 1_500
        assert [slow.get(SOON).payload for _ in range(2_000)] == [*range(2_000)]
        hub.topics.publish(topic, "live again")
        assert slow.get(SOON).payload == "live again"


def test_few_large_messages_fill_the_memory_too(
    connect: Callable[..., RemoteHub], topic: str
) -> None:
    hub = connect(client_buffer_bytes_max=1_000_000)
    with hub.topics.subscribe(topic) as slow:
        for _ in range(4):
            hub.topics.publish_many(topic, ["x" * 250_000] * 5)
        wait_until(lambda: hub.telemetry.counters().get("behind"))
        assert [len(slow.get(SOON).payload) for _ in range(20)] == [250_000] * 20


def test_a_trimmed_gap_is_told_or_skipped(hub: RemoteHub, topic: str) -> None:
    """D6"""
    receipts = hub.topics.publish_many(topic, range(5))
    assert hub.topics.trim(topic, keep=1) == 4
    live = hub.topics.subscribe(topic, after=receipts[0].position)
    with live, pytest.raises(LogTrimmed) as trimmed:
        live.get(SOON)
    assert trimmed.value.resume == receipts[3].position
    with hub.topics.subscribe(topic, after=receipts[0].position, on_trimmed="skip") as live:
        assert live.get(SOON).payload == 4
    with pytest.raises(LogTrimmed):
        hub.topics.read(topic, after=receipts[0].position)


def test_a_listener_is_called_back(hub: RemoteHub, topic: str) -> None:
    seen: list[object] = []
    with hub.topics.listen(topic, lambda message: seen.append(message.payload)):
        hub.topics.publish_many(topic, range(50))
        wait_until(lambda: len(seen) == 50)
    assert seen == [*range(50)]


# Following


def test_a_follower_resumes_where_it_was(
    hub: RemoteHub, connect: Callable[..., RemoteHub], topic: str
) -> None:
    """T5"""
    hub.topics.publish_many(topic, range(6))
    with hub.topics.follow(topic, consumer="c", start="earliest") as follower:
        assert [follower.get(SOON).payload for _ in range(3)] == [0, 1, 2]
        follower.commit()
        assert follower.get(SOON).payload == 3
        assert follower.position.offset == hub.topics.read(topic)[3].id
    with connect().topics.follow(topic, consumer="c") as follower:
        assert payloads(follower.take(timeout=SOON)) == [3, 4, 5]
        assert follower.take(timeout=NOTHING) == []
    assert hub.consumers.lag("c", topic).messages == 0


def test_a_follower_commits_when_it_asks_for_more(hub: RemoteHub, topic: str) -> None:
    hub.topics.publish_many(topic, range(4))
    with hub.topics.follow(topic, consumer="c", start="earliest") as follower:
        assert payloads(follower.take(timeout=SOON)) == [0, 1, 2, 3]
        assert hub.consumers.lag("c", topic).messages == 4
        assert follower.take(timeout=NOTHING) == []
        assert hub.consumers.lag("c", topic).messages == 0


def test_one_follower_at_a_time_and_the_next_in_line(hub: RemoteHub, topic: str) -> None:
    hub.topics.publish(topic, 1)
    first = hub.topics.follow(topic, consumer="c", start="earliest")
    assert first.get(SOON).payload == 1
    with pytest.raises(ConsumerBusy):
        hub.topics.follow(topic, consumer="c")
    with ThreadPoolExecutor(1) as threads:
        standby = threads.submit(hub.topics.follow, topic, consumer="c", standby=True)
        hub.topics.publish(topic, 2)
        assert not standby.done()
        first.close()
        with standby.result(SOON) as second:
            assert [second.get(SOON).payload for _ in range(2)] == [1, 2]


def test_a_new_consumer_begins_at_a_position(hub: RemoteHub, topic: str) -> None:
    receipts = hub.topics.publish_many(topic, range(5))
    for start, expected in ((receipts[2].position, [3, 4]), (receipts[0].position, [3, 4])):
        assert start is not None
        with hub.topics.follow(topic, consumer="c", start=start) as follower:
            assert [follower.get(SOON).payload for _ in expected] == expected
    with pytest.raises(EpochChanged):
        hub.topics.follow(topic, consumer="d", start=Position("other-1", 1))


def test_a_slow_follower_keeps_its_consumer_and_misses_nothing(
    connect: Callable[..., RemoteHub], topic: str
) -> None:
    hub = connect(subscriber_buffer_max=10, follow_batch_max=50)
    hub.topics.publish_many(topic, range(5_000))
    seen: list[object] = []
    with hub.topics.follow(topic, consumer="c", start="earliest") as follower:
        wait_until(lambda: hub.telemetry.counters().get("behind"))
        with pytest.raises(ConsumerBusy):
            connect().topics.follow(topic, consumer="c")
        while len(seen) < 5_000:
            batch = follower.take(timeout=SOON)
            assert batch
            seen += payloads(batch)
    assert seen == [*range(5_000)]


def test_a_follower_learns_of_a_loss_or_skips_it(hub: RemoteHub, topic: str) -> None:
    hub.topics.publish_many(topic, range(5))
    with hub.topics.follow(topic, consumer="c", start="earliest"):
        pass
    hub.topics.trim(topic, keep=1)
    with hub.topics.follow(topic, consumer="c") as follower, pytest.raises(LogTrimmed):
        follower.get(SOON)
    with hub.topics.follow(topic, consumer="c", on_trimmed="skip") as follower:
        assert follower.get(SOON).payload == 4


# Topics, consumers, health


def test_topics_are_looked_after(server: Server, hub: RemoteHub, topic: str) -> None:
    """D7"""
    made = hub.topics.create(topic, Retention(messages_max=3), delivery=Delivery(batch_max=5))
    assert (made.name, made.retention.messages_max, made.delivery.batch_max) == (topic, 3, 5)
    with pytest.raises(TopicExists):
        hub.topics.create(topic)
    changed = hub.topics.configure(topic, Retention(age_seconds=60, hold_for=("c",)))
    assert changed.retention == Retention(age_seconds=60, hold_for=("c",))
    assert hub.topics.get(topic) == changed
    hub.topics.publish_many(topic, range(4))
    assert [t.name for t in hub.topics.list(f"{topic}*")] == [topic]
    stats = hub.topics.stats(topic)
    assert (stats.messages, stats.published, stats.consumers) == (4, 4, 0)
    assert stats.last == hub.topics.read(topic)[-1].position
    assert hub.topics.trim(topic, through=hub.topics.read(topic)[0].position) == 1
    with hub_on(server._file) as local:
        assert hub.topics.get(topic) == local.topics.get(topic)
        assert hub.topics.stats(topic).first == local.topics.stats(topic).first
    told: list[int] = []
    assert hub.topics.delete(topic, told.append) == 3
    assert told == [3]
    for call in (hub.topics.get, hub.topics.delete, hub.topics.stats):
        with pytest.raises(TopicNotFound):
            call(topic)
    with pytest.raises(TopicNotFound):
        hub.topics.configure(topic, Retention(messages_max=1))


@pytest.mark.parametrize("name", ["a/b", "ä ö", "a%2Fb", "a.b?".replace("?", "!"), "x" * 255])
def test_any_topic_name_finds_its_way(hub: RemoteHub, name: str) -> None:
    hub.topics.publish(name, 1)
    assert payloads(hub.topics.read(name)) == [1]
    assert hub.topics.get(name).name == name
    hub.topics.delete(name)


def test_consumers_are_looked_after(hub: RemoteHub, topic: str) -> None:
    receipts = hub.topics.publish_many(topic, range(5))
    with hub.topics.follow(topic, consumer=topic, start="earliest"):
        with pytest.raises(ConsumerBusy):
            hub.consumers.seek(topic, topic, "latest")
        assert hub.consumers.get(topic, topic).holder is not None
    assert hub.consumers.lag(topic, topic).messages == 5
    moved = hub.consumers.seek(topic, topic, receipts[2].position)
    assert moved.position == receipts[2].position
    assert [c.position for c in hub.consumers.list(topic)] == [receipts[2].position]
    assert hub.consumers.delete(topic) == 1
    for call in (hub.consumers.get, hub.consumers.lag):
        with pytest.raises(ConsumerNotFound):
            call(topic, topic)
    with pytest.raises(ConsumerNotFound):
        hub.consumers.delete(topic)


def test_health_metrics_and_presence(hub: RemoteHub, topic: str) -> None:
    """T9, T12"""
    hub.topics.publish(topic, 1)
    assert hub.health().metrics.queue_size >= 1
    assert hub.metrics().topics >= 1
    assert hub.presence(topic).members == []


# Where there is no server


def test_without_a_server_a_publish_waits_and_then_says_why(
    connect: Callable[..., RemoteHub],
) -> None:
    hub = connect("http://127.0.0.1:1", client_timeout_seconds=0.3)
    for call in (
        lambda: hub.topics.publish("t", 1),
        lambda: hub.topics.publish("t", 1, timeout=0.1),
        lambda: hub.topics.subscribe("t"),
        lambda: hub.topics.follow("t", consumer="c"),
        lambda: hub.topics.read("t"),
    ):
        with pytest.raises(Disconnected) as lost:
            call()
        assert lost.value.retryable


class Elsewhere(BaseHTTPRequestHandler):
    """Some other web server."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


def test_what_is_no_penstock_server_is_said(connect: Callable[..., RemoteHub]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        hub = connect(f"http://127.0.0.1:{other.server_port}")
        try:
            with pytest.raises(BadRequest):
                hub.topics.publish("t", 1)
            with pytest.raises(penstock.PenstockError, match="HTTP 404"):
                hub.topics.list()
        finally:
            other.shutdown()


def test_an_instance_that_is_not_there_is_passed_over(
    server: Server, connect: Callable[..., RemoteHub], topic: str
) -> None:
    hub = connect(["ws://127.0.0.1:1", server.url])
    hub.topics.publish(topic, 1)
    assert payloads(hub.topics.read(topic)) == [1]


def test_a_forked_child_makes_its_own_connection(hub: RemoteHub, topic: str) -> None:
    hub.topics.publish(topic, "before")

    assert in_fork(lambda: hub.topics.publish(topic, "child")) == 0

    hub.topics.publish(topic, "parent")
    assert payloads(hub.topics.read(topic)) == ["before", "child", "parent"]


# Coroutines


@pytest.fixture
async def aio(server: Server) -> AsyncIterator[Any]:
    hub = penstock.client.connect(server.url)
    yield hub.aio
    await hub.aio.close()


async def test_a_thousand_publishes_are_in_flight_at_once(aio: Any, topic: str) -> None:
    receipts = await asyncio.gather(*(aio.topics.publish(topic, n) for n in range(1_000)))

    assert [r.id for r in receipts] == sorted(r.id for r in receipts)
    assert payloads(await aio.topics.read(topic, limit=2_000)) == [*range(1_000)]


async def test_what_is_published_after_subscribing_is_seen(aio: Any, topic: str) -> None:
    live = aio.topics.subscribe(topic)
    await aio.topics.publish(topic, 1)
    assert (await live.get(SOON)).payload == 1
    async with aio.topics.subscribe(topic, last=1) as again:
        assert again.position.offset < live.position.offset
        async for message in again:
            assert message.payload == 1
            break
    await live.close()


async def test_a_subscription_that_is_refused_says_so(aio: Any, topic: str) -> None:
    live = aio.topics.subscribe(topic, after=Position("other-1", 1))
    with pytest.raises(EpochChanged):
        await live.get(SOON)
    with pytest.raises(EpochChanged):
        async with aio.topics.subscribe(topic, after=Position("other-1", 1)):
            pass


async def test_a_coroutine_follows(aio: Any, topic: str) -> None:
    await aio.topics.publish_many(topic, range(4))
    async with aio.topics.follow(topic, consumer="c", start="earliest") as follower:
        assert [(await follower.get(SOON)).payload for _ in range(2)] == [0, 1]
        await follower.commit()
        with pytest.raises(ConsumerBusy):
            await aio.topics.follow(topic, consumer="c").get(SOON)
    async with aio.topics.follow(topic, consumer="c") as follower:
        assert payloads(await follower.take(timeout=SOON)) == [2, 3]
        assert await follower.take(timeout=NOTHING) == []
    assert (await aio.consumers.lag("c", topic)).messages == 0


async def test_a_follower_cancelled_at_any_moment_skips_nothing(server: Server, topic: str) -> None:
    hub = penstock.client.connect(server.url, follow_batch_max=1)
    await hub.aio.topics.publish_many(topic, range(60))
    seen: list[object] = []
    async with hub.aio.topics.follow(topic, consumer="c", start="earliest") as follower:
        for attempt in range(4_000):
            task = asyncio.ensure_future(follower.get())
            for _ in range(attempt % 6):
                await asyncio.sleep(0)
            if attempt % 3:
                task.cancel()
            try:
                seen.append((await task).payload)
            except asyncio.CancelledError:
                pass
            if seen[-1:] == [59]:
                break
    await hub.aio.close()

    assert seen == list(range(60))


async def test_a_callback_may_be_a_coroutine(aio: Any, topic: str) -> None:
    seen: list[object] = []
    done = asyncio.Event()

    async def callback(message: penstock.Message) -> None:
        seen.append(message.payload)
        if len(seen) == 10:
            done.set()

    async with aio.topics.listen(topic, callback):
        await aio.topics.publish_many(topic, range(10))
        await asyncio.wait_for(done.wait(), SOON)
    assert seen == [*range(10)]


async def test_the_rest_is_there_as_coroutines(aio: Any, topic: str) -> None:
    await aio.topics.create(topic)
    await aio.topics.configure(topic, Retention(messages_max=5))
    assert (await aio.topics.get(topic)).retention.messages_max == 5
    assert (await aio.topics.position()).offset >= 0
    assert (await aio.topics.stats(topic)).messages == 0
    assert (await aio.presence(topic)).members == []
    assert (await aio.health()).status in ("ok", "warning", "critical")
    assert await aio.topics.delete(topic) == 0


def test_event_loops_come_and_go(hub: RemoteHub, topic: str) -> None:
    for n in range(3):
        asyncio.run(hub.aio.topics.publish(topic, n))
        assert len(asyncio.run(hub.aio.topics.read(topic))) == n + 1
    assert payloads(hub.topics.read(topic)) == [0, 1, 2]


async def test_a_hub_may_be_closed_from_the_loop_it_runs_on(server: Server, topic: str) -> None:
    with penstock.client.connect(server.url) as hub:
        await hub.aio.topics.publish(topic, 1)
        live = hub.aio.topics.subscribe(topic)
    with pytest.raises(HubClosed):
        await live.get(SOON)


def test_a_hub_beside_the_server_and_a_remote_one_see_the_same(
    server: Server, hub: RemoteHub, topic: str
) -> None:
    path: Path = server._file
    with hub_on(path) as local, hub.topics.subscribe(topic) as live:
        local.topics.publish(topic, "written beside it")
        message = live.get(SOON)
        assert message is not None
        [same] = local.topics.read(topic)
        assert (message.position, message.body) == (same.position, same.body)
