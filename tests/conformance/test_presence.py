"""Who is present on a topic: entered by live processes, gone with them (T9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.model import Instance, Presence
from penstock.ports import Store
from tests.conformance.places import Place, Scribe
from tests.processes import Child


class Server:
    """A process that enters its clients."""

    def __init__(self, scribe: Scribe, name: str) -> None:
        self.scribe = scribe
        self.store = scribe.store
        self.instance: Instance = self.store.register(name)

    def join(self, topic: str, *clients: str, **info: Any) -> list[str]:
        at = self.scribe.clock.now()
        members = [Presence(topic, client, info, at) for client in clients]
        return names(self.scribe.write(lambda tx: tx.presence.join(self.instance, members)))

    def leave(self, topic: str, *clients: str) -> list[str]:
        pairs = [(topic, client) for client in clients]
        return names(self.scribe.write(lambda tx: tx.presence.leave(self.instance, pairs)))

    def leave_all(self) -> list[str]:
        return names(self.scribe.write(lambda tx: tx.presence.leave_all(self.instance)))

    def forget_dead(self, **limit: int) -> list[str]:
        return names(self.scribe.write(lambda tx: tx.presence.forget_dead(**limit)))

    def members(self, topic: str = "room", limit: int = 100) -> list[str]:
        return names(self.store.presence.members(topic, limit))


def names(members: list[Presence]) -> list[str]:
    return [member.client for member in members]


@pytest.fixture
def server(scribe: Scribe) -> Server:
    return Server(scribe, "first")


@pytest.fixture
def other(place: Place, server: Server) -> Server:
    """A second process, where the store is shared."""
    store = place.open()
    return Server(Scribe(store, place.writer(store), place.clock), "other")


def test_nobody_is_on_a_topic_that_nobody_joined(store: Store) -> None:
    assert store.presence.members("room", 10) == []
    assert store.presence.count("room") == 0
    assert not store.presence.has_dead()


def test_one_who_joined_is_listed_as_it_joined(server: Server) -> None:
    at = server.scribe.clock.now()
    info = {"name": "Ann", "tags": ["é", 1, None]}
    assert server.join("room", "ann", **info) == ["ann"]

    assert server.store.presence.members("room", 10) == [
        Presence("room", "ann", info, at, server.instance.id)
    ]
    assert server.members("hall") == []


def test_the_answer_to_a_join_is_the_entry_as_it_is_listed(server: Server) -> None:
    member = Presence("room", "ann", {"x": 1}, 7)
    joined = server.scribe.write(lambda tx: tx.presence.join(server.instance, [member]))

    assert joined == server.store.presence.members("room", 10)


def test_members_are_listed_by_name_up_to_a_limit_and_counted_all(server: Server) -> None:
    server.join("room", "cy", "ann", "bob")
    server.join("hall", "dan")

    assert server.members() == ["ann", "bob", "cy"]
    assert server.members(limit=2) == ["ann", "bob"]
    assert server.store.presence.count("room") == 3


def test_joining_again_is_no_news_unless_the_information_changed(server: Server) -> None:
    server.join("room", "ann", mood="good")

    assert server.join("room", "ann", mood="good") == []
    assert server.join("room", "ann", mood="bad") == ["ann"]
    assert [m.info for m in server.store.presence.members("room", 10)] == [{"mood": "bad"}]


def test_one_who_left_is_not_listed(server: Server) -> None:
    server.join("room", "ann", "bob")
    server.join("hall", "ann")

    assert server.leave("room", "ann") == ["ann"]
    assert (server.members(), server.members("hall")) == (["bob"], ["ann"])


def test_one_who_leaves_without_having_joined_is_no_news(server: Server) -> None:
    server.join("room", "ann")

    assert server.leave("room", "bob", "ann", "ann") == ["ann"]
    assert server.leave("room", "ann") == []


def test_a_leave_says_who_it_was(server: Server) -> None:
    server.join("room", "ann", mood="good")
    [entry] = server.store.presence.members("room", 10)
    pairs = [("room", "ann")]

    assert server.scribe.write(lambda tx: tx.presence.leave(server.instance, pairs)) == [entry]


def test_all_of_a_process_leave_at_once(server: Server) -> None:
    server.join("room", "ann", "bob")
    server.join("hall", "ann")

    assert sorted(server.leave_all()) == ["ann", "ann", "bob"]
    assert (server.members(), server.members("hall")) == ([], [])
    assert server.join("room", "ann") == ["ann"]


def test_what_is_rolled_back_was_not_joined(server: Server) -> None:
    def work(tx: Any) -> None:
        tx.presence.join(server.instance, [Presence("room", "ann")])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        server.scribe.write(work)
    assert server.members() == []


def test_the_living_are_not_forgotten(server: Server) -> None:
    server.join("room", "ann")

    assert not server.store.presence.has_dead()
    assert server.forget_dead() == []
    assert server.members() == ["ann"]


# Several processes


def test_a_client_of_two_processes_is_listed_once_as_joined_last(
    server: Server, other: Server
) -> None:
    server.join("room", "ann", on="first")
    server.scribe.clock.advance(1)

    assert other.join("room", "ann", on="other") == ["ann"]
    [entry] = server.store.presence.members("room", 10)
    assert (entry.info, entry.instance) == ({"on": "other"}, other.instance.id)
    assert server.store.presence.count("room") == 1


def test_a_client_of_two_processes_joins_and_leaves_once(server: Server, other: Server) -> None:
    assert server.join("room", "ann") == ["ann"]
    assert other.join("room", "ann") == []
    assert server.leave("room", "ann") == []
    assert server.members() == ["ann"]
    assert other.leave("room", "ann") == ["ann"]
    assert server.members() == []


def test_a_process_that_leaves_takes_only_its_own(server: Server, other: Server) -> None:
    server.join("room", "ann", "bob")
    other.join("room", "bob", "cy")

    assert server.leave_all() == ["ann"]
    assert server.members() == ["bob", "cy"]


def test_clients_of_a_process_that_ended_are_not_listed_though_nobody_cleaned_up(
    place: Place, server: Server, other: Server
) -> None:
    server.join("room", "ann", "bob")
    other.join("room", "bob", "cy")
    place.end(other.store)

    assert server.members() == ["ann", "bob"]
    assert server.store.presence.count("room") == 2
    assert server.store.presence.has_dead()


def test_each_client_of_a_process_that_ended_is_told_of_once(
    place: Place, server: Server, other: Server
) -> None:
    third_store = place.open()
    third = Server(Scribe(third_store, place.writer(third_store), place.clock), "third")
    server.join("room", "ann", "bob")
    other.join("room", "bob", "cy", "dan")
    place.end(other.store)

    assert third.forget_dead() == ["cy", "dan"]
    assert server.forget_dead() == []
    assert not server.store.presence.has_dead()


def test_a_client_of_two_processes_that_ended_is_told_of_once(
    place: Place, server: Server, other: Server
) -> None:
    third_store = place.open()
    third = Server(Scribe(third_store, place.writer(third_store), place.clock), "third")
    for dead in (other, third):
        dead.join("room", "ann")
        place.end(dead.store)

    told = []
    while server.store.presence.has_dead():
        told += server.forget_dead(limit=1)
    assert told == ["ann"]


def test_forgetting_goes_in_steps(place: Place, server: Server, other: Server) -> None:
    clients = [f"c{number}" for number in range(5)]
    other.join("room", *clients)
    place.end(other.store)

    steps = []
    while server.store.presence.has_dead():
        steps.append(server.forget_dead(limit=2))
    assert [len(step) for step in steps] == [2, 2, 1]
    assert sorted(client for step in steps for client in step) == clients


def test_a_client_that_comes_back_by_another_process_has_not_left(
    place: Place, server: Server, other: Server
) -> None:
    other.join("room", "ann")
    place.end(other.store)

    # It was not listed any more: whoever asked in between has to hear of it.
    assert server.join("room", "ann") == ["ann"]
    assert server.forget_dead() == []
    assert server.members() == ["ann"]


def test_a_leave_that_was_told_is_not_told_again_for_a_process_that_ended(
    place: Place, server: Server, other: Server
) -> None:
    for process in (server, other):
        process.join("room", "ann")
    place.end(other.store)

    assert server.leave("room", "ann") == ["ann"]
    assert server.forget_dead() == []


KILLED = """
import sys
from penstock.clock import SystemClock
from penstock.model import Presence
from penstock.settings import load
from penstock.stores import open_store

store = open_store(load(sys.argv[1], environ={}), SystemClock())
instance = store.register("killed")
with store.open_writer().transaction() as tx:
    tx.presence.join(instance, [Presence("room", "bob"), Presence("room", "cy")])
print("joined", flush=True)
sys.stdin.readline()
"""


def test_a_killed_processs_clients_are_gone_at_once(place: Place, server: Server) -> None:
    """T9: right after kill -9, before and after somebody has cleaned up."""
    if not server.store.capabilities.shared:
        pytest.skip("the store is not shared between processes")
    server.join("room", "ann", "bob")
    with Child(KILLED, place.url) as child:
        assert child.hear() == "joined"
        before = server.members(), server.store.presence.has_dead(), server.forget_dead()
        child.kill()
        after = server.members(), server.store.presence.has_dead(), server.forget_dead()

    assert before == (["ann", "bob", "cy"], False, [])
    assert after == (["ann", "bob"], True, ["cy"])
    assert (server.members(), server.store.presence.has_dead()) == (["ann", "bob"], False)


def test_a_stopped_process_is_alive(place: Place, server: Server) -> None:
    if not server.store.capabilities.shared:
        pytest.skip("the store is not shared between processes")
    with Child(KILLED, place.url) as child:
        assert child.hear() == "joined"
        child.stop()

        assert server.members() == ["bob", "cy"]
        assert not server.store.presence.has_dead()


# Copies


def test_nobody_is_present_after_a_restore_until_they_join_again(
    server: Server, tmp_path: Path
) -> None:
    if not server.store.capabilities.backup:
        pytest.skip("the store makes no backups")
    server.join("room", "ann", "bob")
    server.store.backup(tmp_path / "copy")
    server.leave("room", "bob")
    server.store.restore(tmp_path / "copy")

    assert (server.members(), server.store.presence.count("room")) == ([], 0)
    assert server.forget_dead() == []
    assert server.join("room", "ann") == ["ann"]
    assert server.members() == ["ann"]


def test_a_new_generation_changes_nothing_about_who_is_present(server: Server) -> None:
    server.join("room", "ann")
    server.store.new_generation()

    assert server.members() == ["ann"]
    assert not server.store.presence.has_dead()
