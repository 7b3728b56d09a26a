"""penstock.js subscribes, and goes on where it was, whatever happens (D3, D5, D6, T17)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.client_js.node import Node
from tests.client_js.servers import Server, free_port
from tests.factories import hub_on
from tests.waiting import wait_until

Run = Callable[..., Node]

FOLLOW = """
    const hub = connect([url, ...rest], { reconnectMaxMs: 100 });
    hub.on("disconnected", ({ code }) => say({ disconnected: code }));
    const subscription = hub.subscribe("orders", {}, ({ payload }) => say(payload));
    subscription.on("recovered", () => say("recovered"));
    subscription.on("gap", ({ reason }) => say({ gap: reason }));
    await subscription.ready;
    say("ready");
    """


def messages_until(node: Node, last: object) -> list[Any]:
    """What it says up to and including `last`, without what it says about its connection."""
    found: list[Any] = []
    while not found or found[-1] != last:
        said = node.told()
        if not (isinstance(said, dict) and "disconnected" in said):
            found.append(said)
    return found


def test_messages_arrive_as_they_were_published(run: Run, hub: penstock.Hub) -> None:
    node = run("""
        const hub = connect(url);
        const subscription = hub.subscribe("orders*", (m) => {
            const { id, topic, position, at, time, type, key, headers, payload, conflated } = m;
            say([id, topic, position, at, time, type, key, headers, payload, conflated]);
        });
        await subscription.ready;
        say(subscription.position);
        """)
    begin = penstock.Position.parse(node.told())
    receipt = hub.topics.publish(
        "orders-eu", {"ä": [1, None]}, type="made", key="k", headers={"h": "v"}
    )
    *fields, payload, conflated = node.told()
    time = hub.topics.read("orders-eu")[0].time
    shown = time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time.microsecond // 1000:03}Z"
    assert fields == [
        receipt.id,
        "orders-eu",
        str(receipt.position),
        receipt.created_at,
        shown,
        "made",
        "k",
        {"h": "v"},
    ]
    assert (payload, conflated) == ({"ä": [1, None]}, [])
    assert begin.epoch == receipt.position.epoch  # type: ignore[union-attr]


def test_a_subscription_can_be_looped_over_from_an_earlier_point(
    run: Run, hub: penstock.Hub
) -> None:
    receipts = hub.topics.publish_many("orders", list(range(10)))
    node = run(
        """
        const hub = connect(url);
        const [after] = rest;
        const seen = [];
        const subscription = hub.subscribe("orders", { after });
        for await (const message of subscription) {
            seen.push(message.payload);
            if (message.payload === 9) break;
        }
        say([seen, subscription.isClosed]);
        for await (const batch of hub.subscribe("orders", { last: 3 }).batches()) {
            say(batch.map(({ payload }) => payload));
            break;
        }
        for await (const message of hub.subscribe("orders", { start: "earliest" })) {
            say(message.payload);
            break;
        }
        await hub.close();
        """,
        receipts[5].position,
    )
    assert node.told() == [[6, 7, 8, 9], True]
    assert node.told() == [7, 8, 9]
    assert node.told() == 0
    assert node.wait() == 0


def test_a_client_goes_on_after_the_server_restarted(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    port = free_port()
    server = start_server(bind_port=port)
    with Node(FOLLOW, server.url) as node:
        assert node.told() == "ready"
        hub.topics.publish("orders", 1)
        assert node.told() == 1
        server.kill()
        assert node.told() == {"disconnected": 1006}
        hub.topics.publish_many("orders", [2, 3])
        start_server(bind_port=port)
        assert messages_until(node, 3) == ["recovered", 2, 3]
        hub.topics.publish("orders", 4)
        assert node.told() == 4


def test_a_client_goes_elsewhere_at_once_when_its_server_is_stopped(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    """D8: close code 3001."""
    first, second = start_server(), start_server()
    with Node(FOLLOW, first.url, second.url) as node:
        assert node.told() == "ready"
        first.terminate()
        assert node.told() == {"disconnected": 3001}
        hub.topics.publish("orders", 1)
        assert messages_until(node, 1) == ["recovered", 1]


def test_nothing_is_missing_or_double_while_servers_are_killed(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    """T17: two instances on one file, killed in turn under load."""
    ports = [free_port(), free_port()]
    servers = [start_server(bind_port=port) for port in ports]
    with Node(FOLLOW, *(server.url for server in servers)) as node:
        assert node.told() == "ready"
        seen: list[Any] = []
        for round in range(6):
            numbers = list(range(round * 200, round * 200 + 200))
            hub.topics.publish_many("orders", numbers[:100])
            servers[round % 2].kill()
            hub.topics.publish_many("orders", numbers[100:])
            servers[round % 2] = start_server(bind_port=ports[round % 2])
            seen += messages_until(node, numbers[-1])
    assert [said for said in seen if said != "recovered"] == list(range(1200))


def test_a_server_that_no_longer_answers_is_left(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    first = start_server(ping_seconds=0.5, pong_seconds=0.5)
    second = start_server()
    with Node(FOLLOW, first.url, second.url) as node:
        assert node.told() == "ready"
        first.stop()
        try:
            assert node.told() == {"disconnected": 1006}
            hub.topics.publish("orders", 1)
            assert messages_until(node, 1) == ["recovered", 1]
        finally:
            first.go_on()


def test_an_idle_connection_to_a_server_that_answers_stays(
    start_server: Callable[..., Server],
) -> None:
    """The control of the above: pings are answered, and nothing is interrupted."""
    server = start_server(ping_seconds=0.1, pong_seconds=0.1)
    code = """
        const sent = [];
        class Counting extends WebSocket {
            send(frame) {
                sent.push(JSON.parse(frame).op);
                super.send(frame);
                if (sent.filter((op) => op === "ping").length === 5) say([sent, hub.state]);
            }
        }
        const hub = connect(url, { WebSocket: Counting });
        """
    with Node(code, server.url) as node:
        assert node.told() == [["connect", *["ping"] * 5], "connected"]


def test_what_was_trimmed_meanwhile_is_a_gap(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    """By another server, whose memory does not have it either."""
    port = free_port()
    server = start_server(bind_port=port)
    with Node(FOLLOW, server.url) as node:
        assert node.told() == "ready"
        server.kill()
        hub.topics.publish_many("orders", [1, 2, 3])
        hub.topics.trim("orders", keep=1)
        start_server(bind_port=port)
        assert messages_until(node, 3) == [{"gap": "trimmed"}, 3]


def test_another_database_is_a_gap(
    start_server: Callable[..., Server], path: Path, hub: penstock.Hub
) -> None:
    port = free_port()
    server = start_server(bind_port=port)
    with Node(FOLLOW, server.url) as node:
        assert node.told() == "ready"
        hub.topics.publish("orders", "old")
        assert node.told() == "old"
        server.kill()
        other = path.with_name("other.db")
        with hub_on(other) as restored:
            restored.topics.publish_many("orders", list(range(5)))
            start_server(other, bind_port=port)
            assert messages_until(node, {"gap": "epoch_changed"})[-1] == {"gap": "epoch_changed"}
            restored.topics.publish("orders", "new")
            assert node.told() == "new"


def test_a_slow_loop_gets_everything_from_the_log(run: Run, hub: penstock.Hub) -> None:
    """D5, on the client's side: what it cannot hold it asks for again."""
    node = run("""
        const hub = connect(url, { bufferMax: 100 });
        const subscription = hub.subscribe("orders");
        let times = 0;
        subscription.on("subscribed", () => times++);
        await subscription.ready;
        say("ready");
        await hear();
        const seen = [];
        for await (const { payload } of subscription) {
            seen.push(payload);
            if (seen.length % 50 === 0) await new Promise(setImmediate);
            if (payload === 2999) break;
        }
        say([seen, times > 2]);
        """)
    assert node.told() == "ready"
    for start in range(0, 3000, 100):
        hub.topics.publish_many("orders", list(range(start, start + 100)))
    node.tell()
    seen, came_back = node.told()
    assert seen == list(range(3000))
    assert came_back


def test_the_same_topic_twice_is_refused_until_the_first_is_closed(
    run: Run, hub: penstock.Hub
) -> None:
    node = run("""
        const hub = connect(url);
        const first = hub.subscribe("orders", () => say("first"));
        say(await codeOf(() => hub.subscribe("orders")));
        await first.ready;
        first.close();
        const second = hub.subscribe("orders", ({ payload }) => say(payload));
        await second.ready;
        say("ready");
        """)
    assert node.told() == "already_subscribed"
    assert node.told() == "ready"
    hub.topics.publish("orders", "second")
    assert node.told() == "second"


def test_a_mistake_in_the_callback_surfaces_and_does_not_stop_the_rest(
    run: Run, hub: penstock.Hub
) -> None:
    node = run("""
        process.on("uncaughtException", (error) => say(error.message));
        const hub = connect(url);
        const subscription = hub.subscribe("orders", ({ payload }) => {
            if (payload === 1) throw new Error("mine");
            say(payload);
        });
        await subscription.ready;
        say("ready");
        """)
    assert node.told() == "ready"
    hub.topics.publish_many("orders", [1, 2])
    assert sorted(map(str, [node.told(), node.told()])) == ["2", "mine"]


def test_conflated_messages_have_their_entries(run: Run, hub: penstock.Hub) -> None:
    node = run("""
        const hub = connect(url);
        const subscription = hub.subscribe("canvas", ({ conflated }) => say(conflated));
        await subscription.ready;
        await hub.publish("canvas", { x: 1 }, { key: "ann", conflate: true, type: "cursor" });
        """)
    assert node.told() == [{"key": "ann", "payload": {"x": 1}, "type": "cursor"}]
    wait_until(lambda: hub.topics.read("canvas"))


COUNT = """
    const hub = connect(url, { reconnectMaxMs: 100 });
    let [seen, dropped, codes] = [0, 0, []];
    // The last one may be among those that were left out.
    const finish = () => seen + dropped === 400 && say([seen, dropped, codes]);
    const orders = hub.subscribe("orders", () => {
        seen++;
        finish();
    });
    orders.on("dropped", (event) => {
        dropped += event.messages;
        finish();
    });
    orders.on("gap", (gap) => say(gap));
    hub.on("disconnected", ({ code }) => codes.push(code));
    await orders.ready;
    say("ready");
    """


@pytest.mark.parametrize("policy", ["catch_up", "disconnect", "drop_oldest"])
def test_a_program_that_stood_still_is_treated_by_the_topics_policy(
    run: Run, hub: penstock.Hub, policy: Any
) -> None:
    """D5: served from the log, sent away and back, or told what it missed."""
    hub.topics.create("orders", delivery=penstock.Delivery(slow_policy=policy))
    node = run(COUNT)
    assert node.told() == "ready"
    node.stop()
    for number in range(1, 401):
        hub.topics.publish("orders", {"number": number, "ballast": "x" * 50_000})
    node.go_on()
    seen, dropped, codes = node.told()
    assert seen + dropped == 400
    assert (dropped > 0) == (policy == "drop_oldest")
    assert codes == ([3008] if policy == "disconnect" else [])


def test_a_loop_holds_no_more_bytes_than_it_may(run: Run, hub: penstock.Hub) -> None:
    node = run("""
        const hub = connect(url, { bufferBytesMax: 100_000 });
        const orders = hub.subscribe("orders");
        let times = 0;
        orders.on("subscribed", () => times++);
        await orders.ready;
        say("ready");
        await hear();
        const seen = [];
        for await (const { payload } of orders) {
            seen.push(payload.length);
            if (seen.length === 40) break;
        }
        say([seen.every((length) => length === 20_000), times > 1]);
        """)
    assert node.told() == "ready"
    for _ in range(40):
        hub.topics.publish("orders", "x" * 20_000)
    node.tell()
    assert node.told() == [True, True]
