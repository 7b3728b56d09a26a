"""Other processes that stop, die or linger at the worst place; and copies made under load."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import EpochChanged, StoreBusy
from penstock.topics.publishing import encode_message
from tests.crash import actors, checker
from tests.crash.processes import PATIENCE_SECONDS, company, until, wal_bytes

pytestmark = pytest.mark.crash

WAL_BYTES_MAX = 512 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hub.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def hub(url: str) -> Iterator[penstock.Hub]:
    with penstock.connect(url) as hub:
        yield hub


def test_a_backup_under_load_is_a_prefix_with_all_acknowledged_before_it(
    url: str, tmp_path: Path, hub: penstock.Hub
) -> None:
    """T13: the copy is the log up to one instant after the backup began; it can be restored."""
    with company() as start:
        writers = [
            start("publish_one_by_one", url, name="one", run=0),
            start("publish_in_flight", url, name="flight", run=0),
        ]
        for writer in writers:
            writer.expect("acked", 200)
        acked = [checker.acknowledged(writer) for writer in writers]
        hub.backup(tmp_path / "copy.db")
        for writer in writers:
            writer.expect("acked", len(writer.heard("acked")) + 100)
            writer.kill()
    whole = checker.whole_log(hub)
    checker.check_publisher(whole, "flight", [writers[1]], actors.IN_FLIGHT)

    with penstock.connect(f"sqlite:///{tmp_path / 'elsewhere.db'}") as elsewhere:
        old = elsewhere.topics.publish("before", "the restore").position
        elsewhere.restore(tmp_path / "copy.db")
        checker.check_file(elsewhere)
        copied = checker.whole_log(elsewhere)
        checker.check_ids(copied, len(copied))
        # The new generation leaves one id out.
        assert elsewhere.topics.position().offset == len(copied) + 1
        identify = [(m.id, m.topic, m.payload) for m in copied]
        assert identify == [(m.id, m.topic, m.payload) for m in whole[: len(copied)]]
        assert len(copied) < len(whole), "the load went on after the backup"
        for known in acked:
            assert max(known.values()) <= len(copied)
        for position in (old, whole[0].position):
            with pytest.raises(EpochChanged):
                elsewhere.topics.read("*", after=position)
        assert elsewhere.topics.publish("after", "the restore").id == len(copied) + 2


def test_the_write_ahead_log_shrinks_after_a_reader_that_held_it(url: str, path: Path) -> None:
    """T7: a reader can make it grow, for as long as it stays."""
    with company() as start, penstock.connect(url, wal_bytes_max=WAL_BYTES_MAX) as hub:
        hub.topics.publish("load", "first")
        reader = start("hold_reader", url, path=str(path))
        reader.expect("inside")
        while wal_bytes(path) < 4 * WAL_BYTES_MAX:
            hub.topics.publish_many("load", ["x" * 1000] * 200)
        hub._open().store.maintain(force=True)
        assert wal_bytes(path) >= 4 * WAL_BYTES_MAX, "the reader holds it"
        reader.tell("end")
        reader.expect("ended")
        until(lambda: wal_bytes(path) <= WAL_BYTES_MAX, "the log was cut back by itself")
        checker.check_file(hub)


def test_the_write_ahead_log_stays_small_beside_readers_that_come_and_go(
    url: str, path: Path
) -> None:
    """T7: constant readers, constant writers: checkpoints get through between them."""
    stop = threading.Event()
    with penstock.connect(url, wal_bytes_max=WAL_BYTES_MAX) as hub:
        hub.topics.publish("load", "first")

        def keep_reading() -> None:
            while not stop.is_set():
                hub.topics.read("load", last=200)

        readers = [threading.Thread(target=keep_reading) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            for _ in range(60):
                hub.topics.publish_many("load", ["x" * 1000] * 200)
            until(lambda: wal_bytes(path) <= 4 * WAL_BYTES_MAX, "the log was cut back")
        finally:
            stop.set()
            for reader in readers:
                reader.join()


@pytest.mark.parametrize("which", ["turn", "next"])
def test_writers_go_past_one_that_was_suspended_at_the_turnstile(
    which: str, url: str, path: Path, hub: penstock.Hub
) -> None:
    """T4: the turnstile is fairness only; a suspended process does not stop the others."""
    hub.topics.publish("load", "before")
    with company() as start:
        suspended = start("hold_turnstile", url, path=str(path), which=which)
        suspended.expect("inside")
        suspended.suspend()
        for n in range(20):
            hub.topics.publish("load", n)
        with penstock.connect(url) as another:
            another.topics.publish("load", "another")
        suspended.resume()
    assert [m.payload for m in hub.topics.read("load")] == ["before", *range(20), "another"]


def test_a_suspended_transaction_is_a_typed_error_and_writers_recover(url: str) -> None:
    """T4: it holds SQLite's lock, so others fail in time, with nothing written, and then go on."""
    with company() as start, penstock.connect(url, lock_timeout_seconds=0.2) as hub:
        hub.topics.publish("load", "before")
        suspended = start("hold_transaction", url)
        suspended.expect("inside")
        suspended.suspend()
        with pytest.raises(StoreBusy):
            hub.topics.publish("load", "refused")
        suspended.kill()
        hub.topics.publish("load", "after")
        assert [m.payload for m in hub.topics.read("*")] == ["before", "after"]


def test_a_waiting_writer_goes_on_when_the_holder_of_the_lock_is_killed(url: str) -> None:
    """T4: the kernel frees the lock with the process; the writer had not given up."""
    with (
        company() as start,
        penstock.connect(url, lock_timeout_seconds=PATIENCE_SECONDS) as hub,
    ):
        holder = start("hold_transaction", url)
        holder.expect("inside")
        committer = hub._open().committer
        waiting = committer.append([encode_message(hub.settings, "load", "waited")])
        until(lambda: not committer.waiting, "the committer has taken it up")
        assert not waiting.is_done
        holder.kill()
        assert waiting.wait(PATIENCE_SECONDS)[0].id == 1


def test_followers_get_what_was_committed_without_a_bell(url: str, hub: penstock.Hub) -> None:
    """T5: a writer killed between commit and bell; the safety net finds its message."""
    live = hub.topics.subscribe("load")
    follower = hub.topics.follow("loa?", consumer="net", start="earliest")
    assert follower.take(timeout=0) == []
    with company() as start:
        writer = start("die_before_ringing", url, topic="load")
        writer.expect("ready")
        writer.tell()
        assert writer.wait() == -9
        assert not writer.heard("survived")
    for message in (live.get(timeout=60), follower.get(timeout=60)):
        assert message is not None
        assert message.payload == "unheard"
    follower.close()
    live.close()
