"""penstock.js and mailboxes: each message, in order, until it is acknowledged (M6, M7)."""

from __future__ import annotations

from collections.abc import Callable

import penstock
from tests.client_js.node import Node
from tests.client_js.proxy import Proxy
from tests.client_js.servers import Server, free_port
from tests.waiting import wait_until

Run = Callable[..., Node]


def test_put_next_and_ack(run: Run, hub: penstock.Hub) -> None:
    node = run("""
        const hub = connect(url);
        const box = hub.mailbox("ann");
        say(await box.put({ n: 1 }, { id: "m-1", type: "t" }));
        say((await box.put({ n: 1 }, { id: "m-1" })).isNew);
        say((await box.put(new Uint8Array([0, 255]))).isNew);
        const first = await box.next();
        say([first.id, first.seq, first.kind, first.payload, first.type, first.mailbox]);
        say(first.time instanceof Date);
        say([await box.ack(first), await box.ack("m-1")]);
        const second = await box.next();
        say([second.payload instanceof Uint8Array, [...second.payload], second.format]);
        say(await codeOf(box.ack("wrong")));
        say(await box.ack(second));
        await hub.close();
        """)
    assert node.told() == {"id": "m-1", "seq": 1, "wasEmpty": True, "isNew": True}
    assert [node.told(), node.told()] == [False, True]
    assert node.told() == ["m-1", 1, "message", {"n": 1}, "t", "ann"]
    assert node.told() is True
    assert node.told() == [True, False]
    assert node.told() == [True, [0, 255], "bytes"]
    assert node.told() == "wrong_ack"
    assert node.told() is True
    assert node.wait() == 0
    assert hub.mailboxes.open("ann").size() == 0


def test_onmail_and_a_window(run: Run, hub: penstock.Hub) -> None:
    node = run("""
        const hub = connect(url);
        const box = hub.mailbox("ann", { window: 3 });
        const seen = [];
        box.onmail = async (mail) => {
            seen.push(mail);
            if (seen.length === 3) say(seen.map((one) => one.payload));
            if (seen.length === 5) say(seen.map((one) => one.payload));
        };
        say(await event(box, "opened"));
        await hear();
        await box.ack(seen[1], { through: true });
        await hear();
        say(hub.mailbox("ann") === box);
        await hub.close();
        """)
    assert node.told() == {"messages": 0, "window": 3}
    hub.mailboxes.open("ann").put_many(range(6))
    assert node.told() == [0, 1, 2]
    node.tell()
    assert node.told() == [0, 1, 2, 3, 4]
    node.tell()
    assert node.told() is True
    assert node.wait() == 0
    assert [mail.payload for mail in hub.mailboxes.open("ann").peek_many(9)] == [2, 3, 4, 5]


def test_a_loop_acknowledges_what_it_has_done_with(run: Run, hub: penstock.Hub) -> None:
    """The message it was left at comes again."""
    hub.mailboxes.open("ann").put_many(range(5))
    code = """
        const hub = connect(url);
        for await (const mail of hub.mailbox("ann")) {
            say(mail.payload);
            if (mail.payload === Number(rest[0])) break;
        }
        await hub.close();
        """
    first = run(code, 2)
    assert [first.told() for _ in range(3)] == [0, 1, 2]
    assert first.wait() == 0
    second = run(code, 4)
    assert [second.told() for _ in range(3)] == [2, 3, 4]
    assert second.wait() == 0


def test_after_a_broken_connection_each_message_is_handed_out_once(
    server: Server, run: Run, hub: penstock.Hub
) -> None:
    """What the program has and did not acknowledge is not handed out again; nothing is missing."""
    hub.mailboxes.open("ann").put_many(range(4))
    with Proxy(server.port) as proxy:
        node = run(
            """
            const hub = connect(url, { reconnectMaxMs: 100 });
            const box = hub.mailbox("ann", { window: 2 });
            const seen = [];
            box.onmail = (mail) => {
                seen.push(mail);
                say(mail.payload);
            };
            await hear();
            await event(box, "opened");
            await box.ack(seen[0]);
            await box.ack(seen[1]);
            await hear();
            say(seen.length);
            """,
            url=proxy.url,
        )
        assert [node.told(), node.told()] == [0, 1]
        node.tell()
        proxy.cut()
        assert [node.told(), node.told()] == [2, 3]
        node.tell()
        assert node.told() == 4


def test_puts_and_acks_outlive_a_server(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    """What is said while nobody answers is done when somebody does, once."""
    port = free_port()
    server = start_server(bind_port=port)
    hub.mailboxes.put("ann", "first")
    code = """
        const hub = connect(url, { reconnectMaxMs: 100 });
        const box = hub.mailbox("ann");
        const mail = await box.next();
        say(mail.payload);
        await hear();
        const gone = event(hub, "disconnected");
        say("listening");
        await gone;
        const both = Promise.all([box.put("second"), box.ack(mail)]);
        say("said");
        const [posted, acked] = await both;
        say([posted.isNew, acked, (await box.next()).payload]);
        await hub.close();
        """
    with Node(code, server.url) as node:
        assert node.told() == "first"
        node.tell()
        assert node.told() == "listening"
        server.kill()
        assert node.told() == "said"
        start_server(bind_port=port)
        assert node.told() == [True, True, "second"]
        assert node.wait() == 0


def test_the_newer_connection_has_the_mailbox(run: Run, hub: penstock.Hub) -> None:
    """The older is told, and does not take it back by itself."""
    code = """
        const hub = connect(url);
        const box = hub.mailbox("ann");
        box.on("closed", ({ error }) => say(error.code));
        say((await box.next().catch((error) => ({ payload: error.code }))).payload);
        await hear();
        const again = await hub.mailbox("ann").next();
        say([box.isClosed, await codeOf(() => box.next()), again.payload]);
        """
    hub.mailboxes.put("ann", "here")
    first = run(code)
    assert first.told() == "here"
    second = run(code)
    assert second.told() == "here"
    assert first.told() == "mailbox_taken"
    first.tell()
    assert first.told() == [True, "mailbox_taken", "here"]
    assert second.told() == "mailbox_taken"


def test_the_newer_connection_has_it_whichever_server_it_came_to(
    start_server: Callable[..., Server], hub: penstock.Hub
) -> None:
    """Two server processes on the same boxes."""
    code = """
        const hub = connect(url);
        const box = hub.mailbox("ann");
        box.on("closed", ({ error }) => say(error.code));
        box.onmail = async (mail) => {
            say(mail.payload);
            await box.ack(mail);
        };
        await event(box, "opened");
        say("opened");
        """
    with Node(code, start_server().url) as first:
        assert first.told() == "opened"
        with Node(code, start_server().url) as second:
            assert second.told() == "opened"
            assert first.told() == "mailbox_taken"
            hub.mailboxes.put("ann", "news")
            assert second.told() == "news"


def test_a_full_mailbox_and_bad_names(run: Run, hub: penstock.Hub) -> None:
    node = run("""
        const hub = connect(url);
        for (let n = 0; n < 128; n++) await hub.mailbox("full").put(n);
        say(await codeOf(hub.mailbox("full").put("more")));
        say(await codeOf(hub.mailbox("").put(1)));
        say(await codeOf(hub.mailbox("x\\n").next()));
        say(await codeOf(hub.mailbox("full").put(undefined)));
        const reader = hub.mailbox("full", { window: 1000 });
        const kinds = [];
        reader.onmail = (mail) => kinds.push(mail.kind);
        await event(reader, "opened");
        while (kinds.length < 100) await new Promise((resolve) => setTimeout(resolve, 5));
        say(kinds.length);
        say(await codeOf(() => hub.mailbox("full", { window: 2 })));
        await hub.close();
        say(await codeOf(() => hub.mailbox("other")));
        """)
    assert node.told() == "quota_exceeded"
    assert [node.told(), node.told(), node.told()] == [
        "invalid_mailbox",
        "invalid_mailbox",
        "invalid_payload",
    ]
    assert [node.told(), node.told()] == [100, "invalid_input"]
    assert node.told() == "hub_closed"
    assert hub.mailboxes.open("full").size() == 129


def test_a_topic_comes_by_way_of_a_mailbox(run: Run, hub: penstock.Hub) -> None:
    """D12: published while nobody is there; the server feeds."""
    hub.mailboxes.subscribe("ann", "news-*")
    receipt = hub.topics.publish("news-1", {"n": 1}, key="k", headers={"h": "v"})
    wait_until(lambda: hub.mailboxes.open("ann").size() == 1)
    node = run("""
        const hub = connect(url);
        const { topic, position, id, key, headers, payload } = await hub.mailbox("ann").next();
        say({ topic, position, id, key, headers, payload });
        await hub.close();
        """)
    assert node.told() == {
        "topic": "news-1",
        "position": str(receipt.position),
        "id": str(receipt.position),
        "key": "k",
        "headers": {"h": "v"},
        "payload": {"n": 1},
    }
