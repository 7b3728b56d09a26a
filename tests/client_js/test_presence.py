"""penstock.js and presence: who joins and leaves, on whichever instance (T9)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from tests.client_js.node import Node
from tests.client_js.servers import Server

WATCH = """
    const hub = connect(url, { client: "watcher" });
    const canvas = hub.subscribe("canvas", { presence: true }, () => {});
    canvas.on("presence", ({ joined, left, members }) => {
        if (joined.length + left.length === 0) return;
        say({
            joined: joined.map(({ client, info }) => [client, info]),
            left,
            members: members.map(({ client }) => client).sort(),
        });
    });
    await canvas.ready;
    say("ready");
    """
JOIN = """
    const [client] = rest;
    const hub = connect(url, { client });
    const canvas = hub.subscribe("canvas", { join: { name: client } }, () => {});
    await canvas.ready;
    await hear();
    canvas.close();
    await hub.close();
    """


def test_members_of_all_instances_are_told_and_gone_when_theirs_dies(
    start_server: Callable[..., Server],
) -> None:
    here, there = start_server(), start_server()
    with Node(WATCH, here.url) as watcher, ExitStack() as later:
        assert watcher.told() == "ready"
        ann = later.enter_context(Node(JOIN, there.url, "ann"))
        assert watcher.told() == {
            "joined": [["ann", {"name": "ann"}]],
            "left": [],
            "members": ["ann"],
        }
        with Node(JOIN, here.url, "bob") as bob:
            assert watcher.told()["members"] == ["ann", "bob"]
            bob.tell()
            assert bob.wait() == 0
            assert watcher.told() == {"joined": [], "left": ["bob"], "members": ["ann"]}
        there.kill()
        assert watcher.told() == {"joined": [], "left": ["ann"], "members": []}
        assert ann.pid


def test_presence_can_be_asked_for(start_server: Callable[..., Server]) -> None:
    server = start_server()
    code = """
        const hub = connect(url, { client: "ann" });
        const canvas = hub.subscribe("canvas", { join: { colour: "red" } }, () => {});
        await canvas.ready;
        const { topic, members, isComplete } = await hub.presence("canvas");
        say([topic, members.map(({ client, info }) => [client, info]), isComplete]);
        say(members[0].joinedAt instanceof Date);
        """
    with Node(code, server.url) as node:
        assert node.told() == ["canvas", [["ann", {"colour": "red"}]], True]
        assert node.told() is True
