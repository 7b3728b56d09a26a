"""penstock.js publishes: durable, once, bounded (D3, D6)."""

from __future__ import annotations

from collections.abc import Callable

import penstock
from tests.client_js.node import Node
from tests.client_js.proxy import Proxy
from tests.client_js.servers import Server, free_port
from tests.factories import payloads
from tests.waiting import wait_until

Run = Callable[..., Node]


def test_a_receipt_means_that_the_message_is_in_the_log(run: Run, hub: penstock.Hub) -> None:
    node = run("""
        const hub = connect(url);
        const options = { type: "made", key: "k", headers: { trace: "ä" }, ttl: 60 };
        say(await hub.publish("orders", { id: 7, tags: ["a", null, 1.5] }, options));
        await hub.close();
        """)
    receipt = node.told()
    [message] = hub.topics.read("orders")
    assert (receipt["id"], receipt["position"]) == (message.id, str(message.position))
    assert (receipt["durable"], receipt["duplicate"]) == (True, False)
    assert message.payload == {"id": 7, "tags": ["a", None, 1.5]}
    assert (message.type, message.key, message.headers) == ("made", "k", {"trace": "ä"})
    assert message.expires_at is not None
    assert node.wait() == 0


def test_bytes_go_out_and_come_back_as_bytes(run: Run, hub: penstock.Hub) -> None:
    node = run("""
        const hub = connect(url);
        const bytes = Uint8Array.from({ length: 100_000 }, (_, n) => n % 256);
        await hub.publish("files", bytes);
        await hub.publish("files", bytes.subarray(3, 6));
        await hub.publish("files", new Uint8Array([9, 8]).buffer);
        for await (const { payload } of hub.subscribe("files", { last: 3 })) {
            say([payload instanceof Uint8Array, payload.length, payload.at(-1)]);
        }
        """)
    assert [node.told() for _ in range(3)] == [[True, 100_000, 159], [True, 3, 5], [True, 2, 8]]
    expected = bytes(n % 256 for n in range(100_000))
    assert payloads(hub.topics.read("files")) == [expected, b"\x03\x04\x05", b"\x09\x08"]


def test_publish_many_is_all_or_nothing(run: Run, hub: penstock.Hub) -> None:
    node = run("""
        const hub = connect(url);
        const bad = [{ payload: 1 }, { payload: 2, type: "" }];
        say(await codeOf(hub.publishMany("orders", bad)));
        const good = [{ payload: 3 }, { payload: 4, key: "k" }];
        const receipts = await hub.publishMany("orders", good);
        say(receipts.map(({ id }) => id));
        """)
    assert node.told() == "invalid_input"
    ids = node.told()
    found = hub.topics.read("orders")
    assert [message.id for message in found] == ids
    assert payloads(found) == [3, 4]


def test_a_publish_whose_answer_was_lost_is_repeated_and_stored_once(
    server: Server, run: Run, hub: penstock.Hub
) -> None:
    with Proxy(server.port) as proxy:
        node = run(
            """
            const hub = connect(url, { reconnectMaxMs: 50 });
            await hub.publish("orders", "first");
            say("ready");
            await hear();
            const numbers = Array.from({ length: 50 }, (_, n) => n);
            const receipts = await Promise.all(numbers.map((n) => hub.publish("orders", n)));
            say(receipts.map(({ duplicate }) => duplicate));
            await hub.publish("orders", "last");
            say("done");
            """,
            url=proxy.url,
        )
        assert node.told() == "ready"
        proxy.mute()
        node.tell()
        wait_until(lambda: len(hub.topics.read("orders")) == 51, "they are in the log")
        proxy.cut()
        assert node.told() == [True] * 50
        assert node.told() == "done"
    assert payloads(hub.topics.read("orders")) == ["first", *range(50), "last"]


def test_without_a_key_an_interrupted_publish_says_that_it_does_not_know(
    server: Server, run: Run, hub: penstock.Hub
) -> None:
    with Proxy(server.port) as proxy:
        node = run(
            """
            const hub = connect(url, { reconnectMaxMs: 50 });
            await hub.ready();
            say("ready");
            await hear();
            say(await codeOf(hub.publish("orders", 1, { idempotencyKey: false })));
            """,
            url=proxy.url,
        )
        assert node.told() == "ready"
        proxy.mute()
        node.tell()
        wait_until(lambda: hub.topics.read("orders"), "it is in the log")
        proxy.cut()
        assert node.told() == "outcome_unknown"
    assert payloads(hub.topics.read("orders")) == [1]


def test_a_publish_is_not_repeated_when_its_key_may_be_forgotten(
    server: Server, run: Run, hub: penstock.Hub
) -> None:
    """A server knows keys for idempotency_seconds; a longer outage leaves the outcome unknown."""
    with Proxy(server.port) as proxy:
        node = run(
            """
            const hub = connect(url, { reconnectMaxMs: 50, repeatMaxMs: -1 });
            await hub.ready();
            say("ready");
            await hear();
            say(await codeOf(hub.publish("orders", 1)));
            await hub.publish("orders", 2);
            say("done");
            """,
            url=proxy.url,
        )
        assert node.told() == "ready"
        proxy.mute()
        node.tell()
        wait_until(lambda: hub.topics.read("orders"), "it is in the log")
        proxy.cut()
        assert node.told() == "outcome_unknown"
        assert node.told() == "done"
    assert payloads(hub.topics.read("orders")) == [1, 2]


def test_publishes_wait_for_a_server_in_order_and_not_without_limit(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    port = free_port()
    code = """
        const hub = connect(url, { reconnectMaxMs: 100, queueMax: 3 });
        const waiting = [1, 2, 3].map((n) => hub.publish("orders", n));
        say(await codeOf(hub.publish("orders", 4)));
        say(hub.state === "connected");
        say((await Promise.all(waiting)).map(({ durable }) => durable));
        await hub.close();
        """
    with Node(code, f"ws://127.0.0.1:{port}/ws") as node:
        assert node.told() == "queue_full"
        assert node.told() is False
        start_server(bind_port=port)
        assert node.told() == [True] * 3
        assert node.wait() == 0
    assert payloads(hub.topics.read("orders")) == [1, 2, 3]


def test_of_conflated_messages_only_the_latest_waits(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    port = free_port()
    code = """
        const hub = connect(url, { reconnectMaxMs: 100, queueMax: 2 });
        const moves = Array.from({ length: 100 }, (_, x) =>
            ["ann", "bob"].map((key) => hub.publish("canvas", { x }, { key, conflate: true })));
        say(hub.pending);
        const receipts = await Promise.all(moves.flat());
        say(receipts.every(({ durable, position }) => !durable && position === null));
        """
    with Node(code, f"ws://127.0.0.1:{port}/ws") as node:
        assert node.told() == 2
        start_server(bind_port=port)
        assert node.told() is True
        wait_until(lambda: hub.topics.read("canvas"), "the conflated message is written")
        [message] = hub.topics.read("canvas")
        assert {e.key: e.payload for e in message.conflated} == {"ann": {"x": 99}, "bob": {"x": 99}}


def test_a_message_that_is_too_big_fails_alone(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    server = start_server(frame_bytes_max=64 * 1024)
    code = """
        const hub = connect(url, { reconnectMaxMs: 50 });
        await hub.ready();
        const others = [1, 2].map((n) => hub.publish("orders", n));
        const big = codeOf(hub.publish("orders", "x".repeat(100_000)));
        others.push(hub.publish("orders", 3));
        say(await big);
        await Promise.all(others);
        say("done");
        """
    with Node(code, server.url) as node:
        assert node.told() == "payload_too_large"
        assert node.told() == "done"
    assert payloads(hub.topics.read("orders")) == [1, 2, 3]


def test_what_cannot_be_published_is_refused_at_once(run: Run) -> None:
    node = run("""
        const hub = connect(url);
        say(await codeOf(hub.publish("orders", undefined)));
        say(await codeOf(hub.publish("orders", 10n)));
        say(await codeOf(hub.publish("a*", 1)));
        say(await codeOf(hub.publish("orders", 1, { conflate: true })));
        say(await codeOf(() => connect(url, { tokn: "x" })));
        say(await codeOf(() => connect("not a url")));
        """)
    codes = [node.told() for _ in range(6)]
    assert codes == [
        "invalid_payload",
        "invalid_payload",
        "invalid_topic",
        "invalid_input",
        "invalid_input",
        "invalid_input",
    ]


def test_a_timeout_ends_the_waiting_and_names_the_key_to_try_again_with() -> None:
    code = """
        const hub = connect(url);
        try {
            await hub.publish("orders", 1, { timeout: 0.05 });
        } catch (error) {
            say([error.code, error.retryable, typeof error.idempotencyKey, hub.pending]);
        }
        await hub.close();
        say(await codeOf(hub.publish("orders", 2)));
        """
    with Node(code, f"ws://127.0.0.1:{free_port()}/ws") as node:
        assert node.told() == ["write_timeout", True, "string", 0]
        assert node.told() == "hub_closed"
        assert node.wait() == 0


def test_closing_waits_for_receipts(run: Run, hub: penstock.Hub) -> None:
    node = run("""
        const hub = connect(url);
        await hub.ready();
        const receipts = [1, 2, 3].map((n) => hub.publish("orders", n));
        await hub.close();
        say(hub.state);
        say((await Promise.all(receipts)).length);
        """)
    assert node.told() == "closed"
    assert node.told() == 3
    assert node.wait() == 0
    assert payloads(hub.topics.read("orders")) == [1, 2, 3]
