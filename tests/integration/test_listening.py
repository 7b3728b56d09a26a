"""Callbacks: each message once, in order, from whichever process it comes (T1, T2)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

import penstock
from penstock.errors import EpochChanged, LogTrimmed
from penstock.testing import memory_hub
from tests.waiting import SOON, wait_until

OpenHub = Callable[..., penstock.Hub]


class Ear:
    """A callback that remembers, and can be held up."""

    def __init__(self) -> None:
        self.heard: list[penstock.Message] = []
        self.is_called = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def __call__(self, message: penstock.Message) -> None:
        self.is_called.set()
        assert self.may_go_on.wait(SOON)
        self.heard.append(message)

    @property
    def payloads(self) -> list[object]:
        return [message.payload for message in self.heard]

    def wait(self, count: int) -> list[object]:
        """The payloads, once there are so many."""
        wait_until(lambda: len(self.heard) >= count, f"{count} messages")
        return self.payloads


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def failures(memory: penstock.Hub) -> list[str]:
    """The errors of listeners that were reported."""
    found: list[str] = []

    def note(event: str, measurements: object) -> None:
        if event == "listener_failed":
            found.append(measurements["error"])

    memory.telemetry.attach(note)
    return found


@pytest.fixture
def narrow() -> Iterator[penstock.Hub]:
    """Three messages wait in memory for a subscriber; beyond it, the log has to do."""
    with memory_hub(subscriber_buffer_max=3, follow_batch_max=2) as hub:
        yield hub


def test_a_callback_gets_what_is_published_from_now_on(memory: penstock.Hub, ear: Ear) -> None:
    memory.topics.publish("t", "before")
    with memory.topics.listen("t", ear):
        memory.topics.publish("t", "after")

        assert ear.wait(1) == ["after"]


def test_own_messages_and_those_of_others_come_in_the_order_of_their_ids(
    open_hub: OpenHub, ear: Ear
) -> None:
    """T1: one order, whoever published."""
    hub, other = open_hub(), open_hub()
    with hub.topics.listen("*", ear):
        publishers = [
            threading.Thread(target=lambda h=h: [h.topics.publish("t", n) for n in range(50)])
            for h in (hub, other)
        ]
        for publisher in publishers:
            publisher.start()
        for publisher in publishers:
            publisher.join()
        ear.wait(100)

    assert [message.id for message in ear.heard] == list(range(1, 101))


def test_listening_starts_after_a_position(memory: penstock.Hub, ear: Ear) -> None:
    receipts = memory.topics.publish_many("t", range(5))
    with memory.topics.listen("t", ear, after=receipts[2].position):
        memory.topics.publish("t", 5)

        assert ear.wait(3) == [3, 4, 5]


def test_listening_starts_with_the_last_messages(memory: penstock.Hub, ear: Ear) -> None:
    memory.topics.publish_many("t", range(5))
    with memory.topics.listen("t", ear, last=2):
        memory.topics.publish("t", 5)

        assert ear.wait(3) == [3, 4, 5]


def test_a_callback_that_fails_is_reported_and_called_again(
    memory: penstock.Hub, failures: list[str]
) -> None:
    heard: list[object] = []

    def fail_at_first(message: penstock.Message) -> None:
        heard.append(message.payload)
        if len(heard) == 1:
            raise ValueError("no luck")

    with memory.topics.listen("t", fail_at_first) as listener:
        memory.topics.publish_many("t", range(3))
        wait_until(lambda: heard == [0, 1, 2])

        assert failures == ["ValueError('no luck')"]
        assert listener.error is None


def test_one_that_falls_behind_is_served_from_the_log(narrow: penstock.Hub, ear: Ear) -> None:
    """T4: bounded memory, nothing lost, nothing twice."""
    with narrow.topics.listen("t", ear) as listener:
        wait_until(lambda: listener.is_live, "the listener to have caught up")
        ear.may_go_on.clear()
        narrow.topics.publish("t", 0)
        assert ear.is_called.wait(SOON)
        narrow.topics.publish_many("t", range(1, 50))
        wait_until(lambda: narrow.telemetry.counters().get("behind"))
        ear.may_go_on.set()
        ear.wait(50)
        narrow.topics.publish("t", 50)

        assert ear.wait(51) == list(range(51))


def test_more_than_fits_at_once_is_never_left_lying(narrow: penstock.Hub, ear: Ear) -> None:
    """Each push throws the listener off the tail, also while it is just about to rest."""
    with narrow.topics.listen("t", ear):
        for start in range(0, 400, 4):
            narrow.topics.publish_many("t", range(start, start + 4))

        assert ear.wait(400) == list(range(400))


def test_nothing_is_called_after_close(memory: penstock.Hub, ear: Ear) -> None:
    with memory.topics.listen("t", ear):
        memory.topics.publish("t", 1)
        ear.wait(1)
    other = Ear()
    with memory.topics.listen("t", other):
        memory.topics.publish("t", 2)
        other.wait(1)

    assert ear.payloads == [1]


def test_a_callback_may_close_its_listener_and_position_says_where_it_was(
    memory: penstock.Hub,
) -> None:
    """Listening again after it misses and repeats nothing."""
    heard: list[object] = []
    known = threading.Event()
    listeners: list[object] = []

    def close_at_two(message: penstock.Message) -> None:
        assert known.wait(SOON)
        heard.append(message.payload)
        if message.payload == 2:
            listeners[0].close()

    listeners.append(memory.topics.listen("t", close_at_two))
    known.set()
    memory.topics.publish_many("t", range(5))
    wait_until(lambda: listeners[0].error)
    assert heard == [0, 1, 2]
    rest = Ear()
    with memory.topics.listen("t", rest, after=listeners[0].position):
        assert rest.wait(2) == [3, 4]


def test_a_new_generation_ends_it_with_an_error(
    memory: penstock.Hub, ear: Ear, failures: list[str]
) -> None:
    with memory.topics.listen("t", ear) as listener:
        memory.new_generation()
        memory.topics.publish("t", 1)
        wait_until(lambda: listener.error)
        wait_until(lambda: failures)

    assert isinstance(listener.error, EpochChanged)
    assert ear.payloads == []


def test_a_loss_ends_it_with_an_error(narrow: penstock.Hub, ear: Ear) -> None:
    receipts = narrow.topics.publish_many("t", range(5))
    narrow.topics.trim("t", keep=2)
    with narrow.topics.listen("t", ear, after=receipts[0].position) as listener:
        wait_until(lambda: listener.error)

        assert isinstance(listener.error, LogTrimmed)
        assert listener.error.first == receipts[3].position
    assert ear.payloads == []


def test_a_loss_may_be_skipped(memory: penstock.Hub, ear: Ear) -> None:
    receipts = memory.topics.publish_many("t", range(5))
    memory.topics.trim("t", keep=2)
    with memory.topics.listen("t", ear, after=receipts[0].position, on_trimmed="skip"):
        assert ear.wait(2) == [3, 4]


def test_a_callback_may_publish(memory: penstock.Hub, ear: Ear) -> None:
    """And wait for the disk, wherever the message came from."""

    def pass_on(message: penstock.Message) -> None:
        memory.topics.publish("out", message.payload + 1)

    with memory.topics.listen("in", pass_on), memory.topics.listen("out", ear):
        for number in range(20):
            memory.topics.publish("in", number)

        assert ear.wait(20) == list(range(1, 21))


def test_a_callback_may_subscribe_and_listen(memory: penstock.Hub) -> None:
    inner, done = Ear(), threading.Event()
    seen: list[object] = []

    def look_around(message: penstock.Message) -> None:
        with memory.topics.subscribe("t", last=1) as live:
            seen.append(live.get(SOON).payload)
        with memory.topics.listen("t", inner, last=1):
            inner.wait(1)
        done.set()

    with memory.topics.listen("t", look_around):
        memory.topics.publish("t", 1)
        assert done.wait(SOON)

    assert (seen, inner.payloads) == ([1], [1])


def test_closing_the_hub_ends_a_listener(open_hub: OpenHub, ear: Ear) -> None:
    hub = open_hub()
    listener = hub.topics.listen("t", ear)
    hub.topics.publish("t", 1)
    ear.wait(1)
    hub.close()
    listener.close()

    assert ear.payloads == [1]


# On an event loop


async def heard_all(heard: list[object], count: int) -> None:
    await asyncio.to_thread(wait_until, lambda: len(heard) >= count)


@pytest.mark.parametrize("kind", ["function", "coroutine"])
async def test_a_callback_runs_on_the_event_loop(open_hub: OpenHub, kind: str) -> None:
    hub, other = open_hub(), open_hub()
    heard: list[object] = []
    threads: set[int] = set()

    def note(message: penstock.Message) -> None:
        threads.add(threading.get_ident())
        heard.append(message.payload)

    async def note_later(message: penstock.Message) -> None:
        await asyncio.sleep(0)
        note(message)

    callback = note if kind == "function" else note_later
    async with hub.aio.topics.listen("t", callback):
        for number in range(0, 20, 2):
            await hub.aio.topics.publish("t", number)
            await other.aio.topics.publish("t", number + 1)
        await heard_all(heard, 20)

    assert heard == list(range(20))
    assert threads == {threading.get_ident()}


async def test_a_coroutine_that_fails_is_reported_and_called_again(
    memory: penstock.Hub, failures: list[str]
) -> None:
    heard: list[object] = []

    async def fail_at_first(message: penstock.Message) -> None:
        heard.append(message.payload)
        if len(heard) == 1:
            raise ValueError("no luck")

    async with memory.aio.topics.listen("t", fail_at_first) as listener:
        await memory.aio.topics.publish_many("t", range(3))
        await heard_all(heard, 3)

        assert listener.error is None
    assert failures == ["ValueError('no luck')"]


async def test_a_coroutine_may_publish_and_close_its_listener(memory: penstock.Hub) -> None:
    heard: list[object] = []

    async def answer(message: penstock.Message) -> None:
        heard.append(message.payload)
        await memory.aio.topics.publish("answers", message.payload)
        if message.payload == 2:
            await listener.close()

    listener = memory.aio.topics.listen("t", answer)
    receipts = await memory.aio.topics.publish_many("t", range(5))
    async with asyncio.timeout(SOON):
        await listener._task
    await listener.close()

    assert heard == [0, 1, 2]
    assert listener.position == receipts[2].position


async def test_a_new_generation_ends_it_on_the_loop_too(memory: penstock.Hub) -> None:
    heard: list[object] = []
    async with memory.aio.topics.listen("t", heard.append) as listener:
        await memory.aio.topics.publish("t", 0)
        await heard_all(heard, 1)
        await memory.aio.new_generation()
        async with asyncio.timeout(SOON):
            await listener._task

    assert isinstance(listener.error, EpochChanged)
