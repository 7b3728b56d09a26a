"""penstock.js as a durable consumer: acknowledged once, handed over, resumed (D6, T6)."""

from __future__ import annotations

from collections.abc import Callable

import penstock
from tests.client_js.node import Node
from tests.client_js.servers import Server, free_port
from tests.waiting import wait_until

Run = Callable[..., Node]


def test_a_consumer_starts_where_it_was_acknowledged(run: Run, hub: penstock.Hub) -> None:
    receipts = hub.topics.publish_many("orders", list(range(6)))
    first = run("""
        const hub = connect(url);
        const orders = hub.subscribe("orders", { consumer: "billing", start: "earliest" });
        for await (const message of orders) {
            if (message.payload === 3) {
                say(await orders.ack(message));
                break;
            }
        }
        await hub.close();
        """)
    assert first.told() == str(receipts[3].position)
    assert first.wait() == 0
    second = run("""
        const hub = connect(url);
        const orders = hub.subscribe("orders", { consumer: "billing" });
        for await (const message of orders) say(message.payload);
        """)
    assert [second.told(), second.told()] == [4, 5]
    assert hub.consumers.get("billing", "orders").position == receipts[3].position


def test_acks_that_wait_become_one_and_bad_ones_are_refused(run: Run, hub: penstock.Hub) -> None:
    receipts = hub.topics.publish_many("orders", list(range(200)))
    node = run("""
        let acks = 0;
        class Counting extends WebSocket {
            send(frame) {
                acks += JSON.parse(frame).op === "ack";
                super.send(frame);
            }
        }
        const hub = connect(url, { WebSocket: Counting });
        const orders = hub.subscribe("orders", { consumer: "billing", start: "earliest" });
        const positions = [];
        for await (const message of orders) {
            positions.push(orders.ack());
            if (message.payload === 199) {
                const told = await Promise.all(positions);
                say([told.at(-1), acks < 200]);
                say(await codeOf(orders.ack("nonsense")));
                say(await codeOf(orders.ack(`${message.epoch}:999999`)));
                const plain = hub.subscribe("other");
                say(await codeOf(plain.ack(message)));
            }
        }
        """)
    assert node.told() == [str(receipts[-1].position), True]
    assert [node.told() for _ in range(3)] == ["invalid_input"] * 3


def test_a_consumer_waits_in_line_until_the_other_is_gone(run: Run, hub: penstock.Hub) -> None:
    code = """
        const hub = connect(url, { reconnectMaxMs: 100 });
        const consumer = "billing";
        const orders = hub.subscribe("orders", { consumer }, ({ payload }) => say(payload));
        const isTold = event(orders, "retrying").then(({ error }) => say(error.code));
        await orders.ready;
        say("ready");
        """
    first = run(code)
    assert first.told() == "ready"
    second = run(code)
    assert second.told() == "consumer_busy"
    first.kill()
    assert second.told() == "ready"
    hub.topics.publish("orders", 1)
    assert second.told() == 1


def test_an_ack_that_was_interrupted_reaches_the_next_server(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    """Nothing comes twice to this program, and what it acknowledged counts."""
    port = free_port()
    server = start_server(bind_port=port)
    code = """
        const hub = connect(url, { reconnectMaxMs: 100 });
        const consumer = "billing";
        const orders = hub.subscribe("orders", { consumer }, ({ payload }) => say(payload));
        await orders.ready;
        say("ready");
        await hear();
        say(await orders.ack());
        """
    with Node(code, server.url) as node:
        assert node.told() == "ready"
        receipts = hub.topics.publish_many("orders", [1, 2])
        assert [node.told(), node.told()] == [1, 2]
        server.kill()
        node.tell()
        start_server(bind_port=port)
        assert node.told() == str(receipts[1].position)
        hub.topics.publish("orders", 3)
        assert node.told() == 3
    assert hub.consumers.get("billing", "orders").position == receipts[1].position


def test_a_consumer_that_was_set_back_reads_again(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    port = free_port()
    server = start_server(bind_port=port)
    code = """
        const hub = connect(url, { reconnectMaxMs: 100 });
        const options = { consumer: "billing", start: "earliest" };
        const orders = hub.subscribe("orders", options, async (message) => {
            say([message.payload, await orders.ack(message) === message.position]);
        });
        """
    hub.topics.publish("orders", 1)
    with Node(code, server.url) as node:
        assert node.told() == [1, True]
        server.kill()
        wait_until(lambda: hub.consumers.get("billing", "orders").holder is None, "it is free")
        hub.consumers.seek("billing", "orders", "earliest")
        start_server(bind_port=port)
        assert node.told() == [1, True]
