"""Who is there: over sockets, over instances, and cheaply (T9)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

import penstock
from penstock.delivery import switchboard as switchboards
from penstock.delivery.presence import PRESENCE_TOPIC, PresenceEvent
from penstock.delivery.switchboard import Switchboard
from tests.integration.conftest import Join, OpenBoard
from tests.sockets import Client, eventually


class View:
    """What a watcher knows, by the rules of the protocol page."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def everybody(self) -> dict[str, Any] | None:
        known: dict[str, Any] | None = None
        for push in self._client.pushes("presence"):
            if push.get("members") is not None:
                known = {m["client"]: m.get("info", {}) for m in push["members"]}
            assert known is not None, "first of all, everybody"
            known.update({m["client"]: m.get("info", {}) for m in push.get("joined", [])})
            for name in push.get("left", []):
                known.pop(name, None)
        return known

    async def shows(self, *names: str) -> None:
        await self._client.until(lambda: set(self.everybody or {"?"}) == set(names))


async def watching(join: Join, board: Switchboard, **fields: Any) -> tuple[Client, View]:
    client = await join(board, **fields)
    await client.ask("subscribe", topic="room", presence=True)
    return client, View(client)


async def present(join: Join, board: Switchboard, who: str, **info: Any) -> Client:
    client = await join(board, client=who)
    await client.ask("subscribe", topic="room", join=info)
    return client


class Commits:
    """Transactions of a hub, counted."""

    def __init__(self, board: Switchboard) -> None:
        self.count = 0
        board.runtime.telemetry.attach(self._note)

    def _note(self, event: str, what: Mapping[str, Any]) -> None:
        self.count += event == "commit"


def events(hub: penstock.Hub) -> list[PresenceEvent]:
    return [message.decode(PresenceEvent) for message in hub.topics.read(PRESENCE_TOPIC)]


async def test_first_everybody_then_who_joins_and_leaves(board: Switchboard, join: Join) -> None:
    ann = await present(join, board, "ann", name="Ann")
    watcher, view = await watching(join, board)
    first = await watcher.push("presence")
    assert [m["client"] for m in first["members"]] == ["ann"]
    assert view.everybody == {"ann": {"name": "Ann"}}
    bob = await present(join, board, "bob")
    await view.shows("ann", "bob")
    await ann.ask("unsubscribe", topic="room")
    await view.shows("bob")
    bob.goes()
    await watcher.until(lambda: view.everybody == {})


async def test_one_who_joins_and_watches_sees_itself(board: Switchboard, join: Join) -> None:
    client = await join(board, client="ann")
    await client.ask("subscribe", topic="room", presence=True, join={})
    push = await client.push("presence")
    assert [m["client"] for m in push["members"]] == ["ann"]
    assert push["members"][0]["joined_at"] > 0


async def test_whoever_asks_after_joining_finds_itself(board: Switchboard, join: Join) -> None:
    client = await present(join, board, "ann", name="Ann")
    members = (await client.ask("presence", topic="room"))["members"]
    assert [(m["client"], m["info"]) for m in members] == [("ann", {"name": "Ann"})]


async def test_everybody_is_seen_on_every_instance(open_board: OpenBoard, join: Join) -> None:
    one, two = await open_board(name="one"), await open_board(name="two")
    _, view = await watching(join, one)
    bob = await present(join, two, "bob")
    await view.shows("bob")
    listed = await (await join(one)).ask("presence", topic="room")
    assert [m["client"] for m in listed["members"]] == ["bob"]
    bob.goes()
    await view._client.until(lambda: view.everybody == {})


async def test_an_instance_that_stops_takes_its_clients_along(
    open_board: OpenBoard, join: Join
) -> None:
    one, two = await open_board(name="one"), await open_board(name="two")
    _, view = await watching(join, one)
    await present(join, two, "bob")
    await view.shows("bob")
    await two.drain(0.01)
    await two.close()
    await view._client.until(lambda: view.everybody == {})


async def test_a_client_on_two_sockets_is_listed_once_and_leaves_with_the_last(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(presence_ms=1.0)
    first = await present(join, board, "ann", tab=1)
    second = await present(join, board, "ann", tab=2)
    watcher, view = await watching(join, board)
    await view.shows("ann")
    assert len((await watcher.ask("presence", topic="room"))["members"]) == 1
    assert view.everybody == {"ann": {"tab": 2}}
    first.goes()
    assert len((await watcher.ask("presence", topic="room"))["members"]) == 1
    second.goes()
    await watcher.until(lambda: view.everybody == {})
    left = [name for event in events(hub) for name in event.left]
    assert left == ["ann"]


async def test_who_comes_back_at_once_was_never_gone(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    """A page that is loaded again: no leave and no join is told."""
    board = await open_board(presence_ms=50.0)
    ann = await present(join, board, "ann")
    watcher, view = await watching(join, board)
    await view.shows("ann")
    told = len(events(hub))
    ann.goes()
    await present(join, board, "ann")
    await watcher.ask("presence", topic="room")
    assert view.everybody == {"ann": {}}
    assert len(events(hub)) == told


async def test_joins_and_leaves_are_written_and_told_together(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    """However many come within `presence_ms`, it is one transaction and one push."""
    board = await open_board(presence_ms=300.0, stats_seconds=0.0)
    watcher, view = await watching(join, board)
    await watcher.until(lambda: view.everybody == {})
    clients = [await join(board, client=f"c{number}") for number in range(100)]
    commits = Commits(board)
    for client in clients:
        client.say("subscribe", topic="room", join={})
    await view.shows(*(f"c{number}" for number in range(100)))
    assert commits.count <= 3
    assert len(events(hub)) <= 3
    for client in clients:
        client.goes()
    await watcher.until(lambda: view.everybody == {})
    assert commits.count <= 6
    assert len(watcher.pushes("presence")) <= 7


async def test_asking_who_is_there_does_not_make_the_writes_come_faster(
    open_board: OpenBoard, join: Join
) -> None:
    """With a minute between writes: the first at once, and then none, however often one asks."""
    board = await open_board(presence_ms=60_000.0, stats_seconds=0.0)
    client = await present(join, board, "ann")
    await client.ask("presence", topic="room")
    commits = Commits(board)
    for number in range(50):
        client.say("unsubscribe", topic="room")
        client.say("subscribe", topic="room", join={"n": number})
        client.say("presence", topic="room")
        await asyncio.sleep(0)
    await client.ask("publish", topic="elsewhere", payload="a commit of its own")
    assert commits.count == 1


async def test_coming_and_going_before_it_is_written_is_nothing(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(presence_ms=60_000.0, stats_seconds=0.0)
    watcher = await present(join, board, "ann")
    await watcher.ask("presence", topic="room")
    fleeting = await present(join, board, "bob")
    fleeting.goes()
    found = await watcher.ask("presence", topic="room")
    assert [m["client"] for m in found["members"]] == ["ann"]
    assert [m.client for event in events(hub) for m in event.joined] == ["ann"]


async def test_a_thousand_idle_clients_write_nothing(
    open_board: OpenBoard, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance alone holds a lease: staying costs nothing, and neither does upkeep."""
    monkeypatch.setattr(switchboards, "TICK_SECONDS", 3600.0)
    board = await open_board()
    for number in range(1000):
        await present(join, board, f"c{number}")
    watcher, view = await watching(join, board)
    await watcher.until(lambda: len(view.everybody or {}) == 1000)
    commits = Commits(board)
    last = board.runtime.store.log().last_id
    for _ in range(30):
        for session in tuple(board.sessions):
            session.check(board.loop.time())
        await board._upkeep()
    assert commits.count == 0
    assert board.runtime.store.log().last_id == last


async def test_a_watcher_that_was_slow_is_told_everybody_again(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(presence_ms=1.0)
    ann = await present(join, board, "ann")
    watcher, view = await watching(join, board)
    await view.shows("ann")
    other, other_view = await watching(join, board)
    # Else its first list might have what the others are told of later.
    await other_view.shows("ann")
    watcher.backs_up()
    sent = len(watcher.socket.frames)
    ann.goes()
    await present(join, board, "bob")
    await other_view.shows("bob")
    assert len(watcher.socket.frames) == sent
    watcher.reads_on()
    await view.shows("bob")
    pushes = watcher.pushes("presence")
    assert [m["client"] for m in pushes[-1]["members"]] == ["bob"]
    assert all(push.get("members") is None for push in other.pushes("presence")[1:])


async def test_a_list_is_cut_and_says_so(open_board: OpenBoard, join: Join) -> None:
    board = await open_board(presence_members_max=2)
    for name in ("a", "b", "c"):
        await present(join, board, name)
    found = await (await join(board)).ask("presence", topic="room")
    assert len(found["members"]) == 2
    assert found["is_complete"] is False


async def test_unwatching_ends_the_pushes(
    open_board: OpenBoard, join: Join, hub: penstock.Hub
) -> None:
    board = await open_board(presence_ms=1.0)
    watcher, view = await watching(join, board)
    await watcher.until(lambda: view.everybody == {})
    await watcher.ask("unsubscribe", topic="room")
    sent = len(watcher.socket.frames)
    await present(join, board, "ann")
    _, other_view = await watching(join, board)
    await other_view.shows("ann")
    assert len(watcher.socket.frames) == sent


async def test_a_database_that_is_away_for_a_moment_leaves_nobody_behind(
    open_board: OpenBoard, join: Join, hub: penstock.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joins and leaves that could not be written are written later, as they are by then."""
    board = await open_board(presence_ms=1.0, stats_seconds=0.0)
    committer = board.runtime.committer
    run_async, refusals = committer.run_async, [3]

    def busy(write: Any) -> Any:
        if refusals[0] > 0:
            refusals[0] -= 1
            future = asyncio.get_running_loop().create_future()
            future.set_exception(penstock.StoreBusy())
            return future
        return run_async(write)

    monkeypatch.setattr(committer, "run_async", busy)
    ann = await present(join, board, "ann")
    await present(join, board, "bob")
    await eventually(lambda: refusals[0] < 3)
    ann.goes()

    def listed() -> list[str]:
        found = board.runtime.store.presence.members("room", 10)
        return [member.client for member in found]

    await eventually(lambda: refusals[0] == 0 and listed() == ["bob"], "only bob is there")


async def test_after_a_restore_those_who_are_there_are_listed_again(
    open_board: OpenBoard, join: Join, hub: penstock.Hub, tmp_path: Any
) -> None:
    board = await open_board()
    await asyncio.to_thread(hub.backup, tmp_path / "copy.db")
    client = await join(board, client="ann")
    await client.ask("subscribe", topic="room", join={})
    await client.ask("presence", topic="room")
    await board.roster.tick()
    await asyncio.to_thread(hub.restore, tmp_path / "copy.db")

    def listed() -> bool:
        return bool(board.runtime.store.presence.members("room", 10))

    await asyncio.to_thread(hub.topics.publish, "room", "news")
    # The restored log ended the subscription, and with it the presence; coming back brings it.
    await client.push("unsubscribed")
    await client.ask("subscribe", topic="room", join={})
    await eventually(listed, "ann is listed")
