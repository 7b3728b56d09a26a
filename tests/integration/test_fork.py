"""After a fork the child opens its own connections, and the parent goes on."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.errors import ConsumerBusy
from tests.factories import file_url, payloads
from tests.processes import Child, in_fork
from tests.waiting import SOON

OpenHub = Callable[..., penstock.Hub]

READ = """
    import sys, penstock
    with penstock.connect(sys.argv[1]) as hub:
        print([m.payload for m in hub.topics.read("t")], flush=True)
"""


def test_a_forked_child_publishes_and_the_parent_goes_on(hub: penstock.Hub) -> None:
    hub.topics.publish("t", "before")

    def work() -> None:
        assert hub.topics.publish("t", "child").id == 2
        assert payloads(hub.topics.read("t")) == ["before", "child"]

    assert in_fork(work) == 0
    assert hub.topics.publish("t", "after").id == 3
    assert payloads(hub.topics.read("t")) == ["before", "child", "after"]


def test_a_hub_connected_but_not_used_before_the_fork_works_in_both(hub: penstock.Hub) -> None:
    assert in_fork(lambda: hub.topics.publish("t", "child")) == 0
    assert hub.topics.publish("t", "parent").id == 2


def test_a_child_follows_on_its_own(hub: penstock.Hub) -> None:
    hub.topics.publish_many("t", range(3))

    def work() -> None:
        with hub.topics.follow("t", consumer="child", start="earliest") as follower:
            assert payloads(follower.take()) == [0, 1, 2]
            follower.commit()

    assert in_fork(work) == 0
    assert hub.consumers.get("child", "t").position.offset == 3


def test_a_child_does_not_take_the_parents_consumer(hub: penstock.Hub) -> None:
    hub.topics.publish_many("t", range(3))
    with hub.topics.follow("t", consumer="c", start="earliest") as follower:

        def work() -> None:
            with pytest.raises(ConsumerBusy):
                hub.topics.follow("t", consumer="c")

        assert in_fork(work) == 0
        assert payloads(follower.take()) == [0, 1, 2]
        follower.commit()
    assert hub.consumers.get("c", "t").position.offset == 3


def test_the_parents_subscriber_hears_the_child(hub: penstock.Hub) -> None:
    with hub.topics.subscribe("t") as live:
        assert live.get(0) is None
        assert in_fork(lambda: hub.topics.publish("t", "child")) == 0

        assert live.get(SOON).payload == "child"


def test_a_child_uses_transactions(hub: penstock.Hub) -> None:
    with hub.transaction() as tx:
        tx.execute("CREATE TABLE mine (id INTEGER)")

    def work() -> None:
        with hub.transaction() as tx:
            tx.execute("INSERT INTO mine VALUES (1)")
            tx.publish("t", 1)

    assert in_fork(work) == 0
    with hub.connection() as connection:
        assert connection.execute("SELECT id FROM mine") == [(1,)]


def test_children_forked_while_others_publish_work(hub: penstock.Hub) -> None:
    """Whatever the other threads were doing at that moment: no lock of theirs is inherited."""
    stop = threading.Event()

    def publish_on() -> None:
        while not stop.is_set():
            hub.topics.publish("busy", "x" * 100)
            hub.topics.read("busy", last=1)

    threads = [threading.Thread(target=publish_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        results = [in_fork(lambda: hub.topics.publish("t", "child")) for _ in range(15)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    assert results == [0] * 15
    assert len(hub.topics.read("t")) == 15


def test_what_a_child_publishes_after_the_parent_closed_is_kept(
    open_hub: OpenHub, path: Path
) -> None:
    """The child holds locks of its own: nobody removes the log it is writing to."""
    hub = open_hub()
    hub.topics.publish("t", "parent")
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            hub.topics.publish("t", "first")
            os.write(from_child, b"1")
            os.read(to_child, 1)
            hub.topics.publish("t", "second")
            os.write(from_child, b"2")
            os.read(to_child, 1)
            os._exit(0)
        finally:
            os._exit(1)
    os.read(to_parent, 1)
    hub.close()
    with Child(READ, file_url(path)) as reader:
        assert reader.hear() == "['parent', 'first']"
        reader.wait()
    os.write(from_parent, b"x")
    assert os.read(to_parent, 1) == b"2"
    with Child(READ, file_url(path)) as reader:
        assert reader.hear() == "['parent', 'first', 'second']"
        reader.wait()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for descriptor in (to_child, from_parent, to_parent, from_child):
        os.close(descriptor)
    with Child(READ, file_url(path)) as reader:
        assert reader.hear() == "['parent', 'first', 'second']"
