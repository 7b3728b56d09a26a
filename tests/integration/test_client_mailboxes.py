"""Mailboxes through a remote hub: the local hub's words, and the same answers (M4, M6, M7, D12)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import penstock
from penstock.client import RemoteHub
from penstock.errors import (
    Forbidden,
    InvalidInput,
    InvalidMailbox,
    PayloadTooLarge,
    QuotaExceeded,
    Unsupported,
    WriteTimeout,
    WrongAck,
)
from penstock.mail import MailKind
from penstock.mailboxes.mailboxes import Parcel
from penstock.server import tokens_file
from penstock.server.tokens_file import Key, TokensFile, hash_key, new_key
from tests.client_js.proxy import Proxy
from tests.factories import hub_on
from tests.serving import HttpServer
from tests.waiting import wait_until

QUOTA = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("remote")
    with HttpServer(folder / "hub.db", mailbox_messages_max=QUOTA) as server:
        yield server


@pytest.fixture
def local(server: HttpServer) -> Iterator[penstock.Hub]:
    with hub_on(server.log.parent / "hub.db", mailbox_messages_max=QUOTA) as hub:
        yield hub


@pytest.fixture
def hub(server: HttpServer) -> Iterator[RemoteHub]:
    with penstock.client.connect(server.url) as hub:
        yield hub


@pytest.mark.parametrize(
    ("payload", "format"),
    [
        ({"a": [1, "ü", None]}, None),
        (b"\x00\xff", None),
        ("text", None),
        (7.5, "json"),
        ({"b": b"\x01", 3: datetime(2027, 1, 1, tzinfo=UTC)}, "msgpack"),
        (b"raw", "bytes"),
    ],
)
def test_mail_is_the_same_from_both_sides(
    hub: RemoteHub, local: penstock.Hub, payload: Any, format: Any
) -> None:
    remote, here = hub.mailboxes.open("same"), local.mailboxes.open("same")
    posted = remote.put(payload, type="t", format=format)
    assert (posted.is_new, posted.was_empty) == (True, True)
    mail = remote.peek()
    assert mail is not None
    assert mail == here.peek()
    assert (mail.id, mail.payload, mail.type, mail.seq) == (posted.id, payload, "t", posted.seq)
    assert remote.ack(mail.id)
    assert (remote.size(), here.size(), remote.peek()) == (0, 0, None)


def test_ids_acks_and_many(hub: RemoteHub, local: penstock.Hub) -> None:
    box = hub.mailboxes.open("many/ü x")
    first = hub.mailboxes.put("many/ü x", 1, message_id="one")
    assert (first.id, box.put(1, id="one").is_new) == ("one", False)
    posted = box.put_many([2, Parcel(b"3", id="three", type="b"), {"n": 4}])
    assert [one.seq for one in posted] == [2, 3, 4]
    assert box.put_many([]) == []
    assert [mail.payload for mail in box.peek_many(10)] == [1, 2, b"3", {"n": 4}]
    with pytest.raises(WrongAck):
        box.ack("three")
    assert box.ack_and_peek("one") == local.mailboxes.open("many/ü x").peek()
    assert box.ack("one") is False
    assert box.ack("three", through=True)
    there, here = box.stats(), local.mailboxes.open("many/ü x").stats()
    assert (there.id, there.messages, there.can_write, there.bytes, there.next_seq) == (
        *(here.id, here.messages, here.can_write, here.bytes, here.next_seq),
    )
    assert (box.size(), there.messages, there.next_seq) == (1, 1, 5)


def test_a_full_box_and_bad_input_are_the_local_errors(hub: RemoteHub) -> None:
    box = hub.mailboxes.open("full")
    with pytest.raises(QuotaExceeded) as caught:
        box.put_many(list(range(QUOTA + 3)))
    assert caught.value.mailbox == "full"
    kinds = [mail.kind for mail in box.peek_many(100)]
    assert kinds == [MailKind.MESSAGE] * QUOTA + [MailKind.QUOTA]
    with pytest.raises(QuotaExceeded):
        box.put("more")
    for bad in ("", "a\nb", "x" * 201):
        with pytest.raises(InvalidMailbox):
            hub.mailboxes.open(bad)
    with pytest.raises(InvalidMailbox):
        box.put(1, id="")
    with pytest.raises(PayloadTooLarge):
        box.put("x" * 2_000_000)
    with pytest.raises(InvalidInput):
        box.peek_many(0)
    with pytest.raises(InvalidInput):
        box.expire(-1)
    with pytest.raises(Unsupported):
        box.put_many([Parcel(1, topic="t")])
    with pytest.raises(Unsupported):
        hub.mailboxes.export_lines()
    with pytest.raises(Unsupported):
        hub.mailboxes.import_lines([])


def test_waiting_and_looping(hub: RemoteHub, local: penstock.Hub) -> None:
    box = hub.mailboxes.open("loop")
    assert box.wait(timeout=0.05) is None
    assert box.wait(timeout=0) is None
    timer = threading.Timer(0.1, lambda: local.mailboxes.put("loop", "first"))
    timer.start()
    mail = box.wait(timeout=60)
    timer.join()
    assert mail is not None
    assert mail.payload == "first"
    local.mailboxes.open("loop").put_many(["second", "third"])
    seen = []
    for mail in box:
        seen.append(mail.payload)
        if len(seen) == 3:
            break
    assert seen == ["first", "second", "third"]
    assert [mail.payload for mail in box.peek_many(5)] == ["third"]


def test_looking_after_mailboxes(hub: RemoteHub, local: penstock.Hub) -> None:
    names = [f"care-{number:02}" for number in range(12)]
    for name in names:
        local.mailboxes.put(name, "x")
    assert [name for name in hub.mailboxes.list() if name.startswith("care")] == names
    assert hub.mailboxes.list(after="care-03", limit=2) == ["care-04", "care-05"]
    assert hub.mailboxes.open("care-00").expire() == 0
    assert hub.mailboxes.open("care-00").expire(0) == 1
    assert hub.mailboxes.open("care-01").delete()
    assert not hub.mailboxes.open("care-01").delete()
    seen: list[tuple[int, int]] = []
    assert hub.mailboxes.expire(0, lambda done, total: seen.append((done, total))) >= 10
    assert seen[-1][0] == seen[-1][1] == len(seen)


def test_subscriptions_and_what_they_bring(hub: RemoteHub, local: penstock.Hub) -> None:
    made = hub.mailboxes.subscribe("sub", "news-*")
    assert hub.mailboxes.subscribe("sub", "news-*") == made
    hub.mailboxes.subscribe("sub", "other", start="earliest")
    receipt = local.topics.publish("news-1", {"n": 1}, key="k", headers={"a": "b"}, type="t")
    box = hub.mailboxes.open("sub")
    mail = box.wait(timeout=60)
    assert mail == local.mailboxes.open("sub").peek()
    assert mail is not None
    assert (mail.id, mail.topic, mail.position) == (
        str(receipt.position),
        "news-1",
        receipt.position,
    )
    assert (mail.key, mail.headers, mail.type) == ("k", {"a": "b"}, "t")
    found = hub.mailboxes.subscriptions("sub")
    assert [one.topic for one in found] == ["news-*", "other"]
    assert hub.mailboxes.subscriptions(after=found[0].id, limit=1)[0] == found[1]
    assert hub.mailboxes.unsubscribe("sub", "news-*") == 1
    assert hub.mailboxes.unsubscribe("sub") == 1
    assert hub.mailboxes.subscriptions("sub") == []


async def test_the_same_as_coroutines(server: HttpServer) -> None:
    with penstock.client.connect(server.url) as hub:
        box = hub.aio.mailboxes.open("aio")
        posted = await asyncio.gather(*(box.put(n, id=f"n-{n}") for n in range(5)))
        assert sorted(one.seq for one in posted) == [1, 2, 3, 4, 5]
        seen = []
        async for mail in box:
            seen.append(mail.id)
            if len(seen) == 5:
                break
        assert sorted(seen) == [f"n-{n}" for n in range(5)]
        await box.delete()
        await hub.aio.close()


def test_a_put_whose_answer_is_lost_is_stored_once(server: HttpServer, local: penstock.Hub) -> None:
    """The connection breaks when it is on disk; it is sent again under the same id."""
    here, posted = local.mailboxes.open("cut"), []
    with Proxy(server.port) as proxy, penstock.client.connect(proxy.url) as hub:
        box = hub.mailboxes.open("cut")
        for number in range(3):
            proxy.mute()
            putting = threading.Thread(target=lambda: posted.append(box.put(number)))  # noqa: B023
            putting.start()
            wait_until(lambda: here.size() == number + 1)  # noqa: B023
            proxy.cut()
            putting.join(60)
        # An acknowledgement, too, counts once: the next message is still there.
        proxy.mute()
        acking = threading.Thread(target=lambda: box.ack(posted[0].id))
        acking.start()
        wait_until(lambda: here.size() == 2)
        proxy.cut()
        acking.join(60)
    assert [(one.seq, one.is_new) for one in posted] == [(1, True), (2, True), (3, True)]
    assert [mail.payload for mail in here.peek_many(10)] == [1, 2]


def test_a_put_that_takes_too_long_says_so(hub: RemoteHub) -> None:
    with pytest.raises(WriteTimeout):
        hub.mailboxes.open("slow").put(1, timeout=0.0)


def test_rights_are_told_as_errors(tmp_path: Any) -> None:
    key = new_key()
    tokens_file.write(
        tmp_path / "tokens.toml",
        TokensFile({"ann": Key(sha256=hash_key(key).hex(), mailboxes_read=("ann",))}),
    )
    with (
        HttpServer(tmp_path / "hub.db", tokens_file=str(tmp_path / "tokens.toml")) as server,
        penstock.client.connect(server.url, token=key) as hub,
    ):
        assert hub.mailboxes.open("ann").peek() is None
        for refused in (
            lambda: hub.mailboxes.open("bob").peek(),
            lambda: hub.mailboxes.put("ann", 1),
            lambda: hub.mailboxes.open("ann").delete(),
            lambda: hub.mailboxes.subscribe("ann", "t"),
        ):
            with pytest.raises(Forbidden):
                refused()
        assert hub.mailboxes.list() == []


def test_the_server_may_restart_meanwhile(tmp_path: Any) -> None:
    """Whoever waits goes on waiting, and finds what was put."""
    path = tmp_path / "hub.db"
    patient = {"client_timeout_seconds": 60}
    with HttpServer(path) as server, penstock.client.connect(server.url, **patient) as hub:
        box = hub.mailboxes.open("ann")
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(box.wait(timeout=150)))
        waiting.start()
        server.kill()
        with HttpServer(path, bind_port=server.port):
            with hub_on(path) as other:
                other.mailboxes.put("ann", "after")
            wait_until(lambda: not waiting.is_alive(), seconds=150)
    assert found[0].payload == "after"
