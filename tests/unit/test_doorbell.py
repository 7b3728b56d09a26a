"""The doorbell: listeners are called after a ring, and once more when they failed (T2)."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.doorbell import Doorbell
from penstock.errors import StoreUnavailable
from penstock.ports import Store, Wake
from penstock.telemetry import Telemetry
from penstock.testing import FakeClock
from tests.factories import file_url, new_message, settings_for, store_at
from tests.waiting import SOON

HOUR_MS = 3_600_000


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = store_at(file_url(path))
    yield store
    store.close()


Hang = Callable[..., Doorbell]


@pytest.fixture
def hang(store: Store) -> Iterator[Hang]:
    """A doorbell on the store that, unless told, is woken by rings alone."""
    bells: list[Doorbell] = []

    def hang_one(open_wake: Callable[[], Wake] = store.open_wake, **options: float) -> Doorbell:
        asleep = {"poll_active_ms": HOUR_MS, "poll_idle_ms": HOUR_MS}
        settings = settings_for("memory:", **{**asleep, **options})
        bells.append(Doorbell(open_wake, settings, Telemetry()))
        return bells[-1]

    yield hang_one
    for bell in bells:
        bell.stop(SOON)


class Listener:
    """Says what it was told to find, and tells when it was called."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.calls: queue.Queue[int] = queue.Queue()
        self._answers = iter(answers)
        self._count = 0

    def __call__(self) -> bool:
        self._count += 1
        answer = next(self._answers, False)
        self.calls.put(self._count)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def wait(self) -> int:
        """Until the next call; which one it was."""
        return self.calls.get(timeout=SOON)


def commit(store: Store, clock: FakeClock) -> None:
    writer = store.open_writer()
    try:
        writer.begin().topics.append([new_message()], producer="p", now=clock.now())
        writer.commit()
    finally:
        writer.close()


def test_a_listener_is_called_once_at_the_start(hang: Hang) -> None:
    """For what was committed before anybody waited."""
    listener = Listener()
    hang().listen(listener)

    assert listener.wait() == 1


def test_listeners_are_called_after_a_commit(hang: Hang, store: Store, clock: FakeClock) -> None:
    first, second = Listener(), Listener()
    bell = hang()
    for listener in (first, second):
        bell.listen(listener)
    assert first.wait() == 1
    commit(store, clock)

    assert first.wait() == 2
    assert second.wait()


def test_listeners_are_called_after_a_commit_through_another_store(
    hang: Hang, path: Path, clock: FakeClock
) -> None:
    listener = Listener()
    hang().listen(listener)
    assert listener.wait() == 1
    other = store_at(file_url(path))
    try:
        commit(other, clock)
        assert listener.wait() == 2
    finally:
        other.close()


def test_a_commit_that_did_not_ring_is_found_by_the_safety_net(
    hang: Hang, store: Store, path: Path, clock: FakeClock
) -> None:
    """As of a writer that was killed between the two, or that knows no bell."""
    listener = Listener()
    hang(poll_active_ms=5, poll_idle_ms=5).listen(listener)
    listener.wait()
    path.with_name(path.name + "-bell").unlink()
    commit(store, clock)

    assert listener.wait() > 1


def test_listeners_behind_one_that_fails_are_called_when_it_has_recovered(hang: Hang) -> None:
    failing, other = Listener(ValueError("no luck")), Listener()
    bell = hang()
    bell._listeners = (failing,)
    bell.listen(other)

    assert other.wait() == 1


def test_a_look_needs_no_commit(hang: Hang) -> None:
    listener = Listener()
    bell = hang()
    bell.listen(listener)
    listener.wait()
    bell.look()

    assert listener.wait() == 2


def test_a_wake_that_cannot_be_opened_is_tried_again(hang: Hang, store: Store) -> None:
    attempts: list[int] = []

    def open_wake() -> Wake:
        attempts.append(1)
        if len(attempts) < 3:
            raise StoreUnavailable
        return store.open_wake()

    listener = Listener()
    hang(open_wake).listen(listener)

    assert listener.wait() == 1
    assert len(attempts) == 3


def test_stop_does_not_wait_for_the_interval(hang: Hang) -> None:
    """Which is an hour here."""
    listener = Listener()
    bell = hang()
    bell.listen(listener)
    listener.wait()
    bell.stop(SOON)

    assert not bell.is_running


def test_stopping_and_looking_after_the_end_do_no_harm(hang: Hang) -> None:
    """Not even to a file that has got the number of the closed pipe."""
    bell = hang()
    bell.listen(Listener())
    bell.stop(SOON)
    readers = [os.pipe() for _ in range(8)]
    try:
        bell.look()
        bell.stop(SOON)
        for reader, _ in readers:
            os.set_blocking(reader, False)
            with pytest.raises(BlockingIOError):
                os.read(reader, 1)
    finally:
        for pair in readers:
            for descriptor in pair:
                os.close(descriptor)


def test_one_that_nobody_listened_to_can_be_stopped(hang: Hang) -> None:
    bell = hang()
    bell.stop(SOON)

    assert not bell.is_running
