"""The file: its schema up and down, its log kept small, its space given back (T7, T13)."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.errors import InvalidInput, SchemaTooOld
from penstock.model import Delivery, Presence, Retention
from penstock.stores.sqlite import migrate
from tests.factories import hub_on, payloads
from tests.waiting import wait_until

LAST = migrate.migrations()[-1].version


@pytest.fixture
def connection(path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(path))
    yield connection
    connection.close()


def tables(connection: apsw.Connection) -> set[str]:
    return {
        row[0]
        for row in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'penstock%'")
    }


def test_migrations_are_numbered_without_gaps_and_go_both_ways() -> None:
    steps = migrate.migrations()

    assert [step.version for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.up.strip() and step.down.strip() for step in steps)
    assert all(1 <= step.readable_from <= step.version for step in steps)


def test_up_and_down_leave_what_was_there(connection: apsw.Connection, path: Path) -> None:
    schemas = []
    for version in range(LAST + 1):
        migrate.upgrade(connection, path, to=version, now=0)
        schemas.append(tables(connection))
    for version in reversed(range(LAST + 1)):
        migrate.downgrade(connection, path, to=version)
        assert tables(connection) == schemas[version]
        assert migrate.current_version(connection) == version
    assert schemas[0] == set()


def test_a_file_taken_down_and_up_again_works(connection: apsw.Connection, path: Path) -> None:
    migrate.upgrade(connection, path, to=None, now=0)
    for version in range(LAST):
        migrate.downgrade(connection, path, to=version)
        migrate.upgrade(connection, path, to=None, now=0)
    connection.close()
    with hub_on(path) as hub:
        hub.topics.publish("t", 1)
        with hub.topics.follow("t", consumer="c", start="earliest") as follower:
            assert payloads(follower.take()) == [1]


def test_messages_survive_the_steps_that_do_not_drop_them(path: Path) -> None:
    with hub_on(path) as hub:
        hub.topics.publish("t", 1)
    connection = apsw.Connection(str(path))
    migrate.downgrade(connection, path, to=1)
    connection.close()
    with hub_on(path) as hub:
        hub.topics.publish("t", 2)
        assert payloads(hub.topics.read("t")) == [1, 2]


def test_a_step_back_loses_how_topics_are_sent_and_nothing_else(path: Path) -> None:
    """D1, D5, T13"""
    keep, send = Retention(messages_max=5), Delivery(batch_max=3)
    with hub_on(path) as hub:
        hub.topics.create("t", keep, delivery=send)
        hub.topics.publish("t", 1)
    connection = apsw.Connection(str(path))
    migrate.downgrade(connection, path, to=2)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(penstock_topics)")]
    connection.close()
    with hub_on(path) as hub:
        topic = hub.topics.get("t")

        assert "delivery" not in columns
        assert (topic.retention, topic.delivery, topic.messages) == (keep, Delivery(), 1)


def test_a_program_of_the_schema_before_can_use_the_file() -> None:
    """During a rolling upgrade processes of two releases run side by side."""
    for step in migrate.migrations()[2:]:
        assert step.readable_from < step.version, step.name


def test_an_older_file_is_upgraded_or_refused_as_told(path: Path) -> None:
    connection = apsw.Connection(str(path))
    migrate.upgrade(connection, path, to=1, now=0)
    connection.close()
    with pytest.raises(SchemaTooOld) as caught:
        hub_on(path, migrate="off").topics.publish("t", 1)
    assert caught.value.hint
    with hub_on(path) as hub:
        hub.topics.publish("t", 1)
    connection = apsw.Connection(str(path))

    assert migrate.current_version(connection) == LAST
    assert [row[0] for row in migrate.history(connection)] == list(range(1, LAST + 1))
    connection.close()


def test_a_new_file_is_made_even_without_migrations(path: Path) -> None:
    with hub_on(path, migrate="off") as hub:
        assert hub.topics.publish("t", 1).id == 1


@pytest.mark.parametrize("version", [-1, LAST + 1])
def test_a_version_that_does_not_exist_is_refused(
    connection: apsw.Connection, path: Path, version: int
) -> None:
    with pytest.raises(InvalidInput):
        migrate.upgrade(connection, path, to=version, now=0)
    with pytest.raises(InvalidInput):
        migrate.downgrade(connection, path, to=version)


def test_hubs_that_open_a_new_file_at_once_agree(path: Path) -> None:
    """Also in a process that knows the stdlib's SQLite, which is looked out for."""
    assert sqlite3.sqlite_version
    hubs = [hub_on(path) for _ in range(6)]
    threads = [threading.Thread(target=lambda h=hub: h.topics.publish("t", 1)) for hub in hubs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [message.id for message in hubs[0].topics.read("t")] == [1, 2, 3, 4, 5, 6]
    for hub in hubs:
        hub.close()


def wal_bytes(path: Path) -> int:
    wal = Path(f"{path}-wal")
    return wal.stat().st_size if wal.exists() else 0


def test_the_write_ahead_log_stays_small_while_readers_loop(path: Path) -> None:
    limit = 1024 * 1024
    stop = threading.Event()
    with hub_on(path, wal_bytes_max=limit, durability="os") as hub:

        def read_on() -> None:
            while not stop.is_set():
                hub.topics.read("t", last=10)

        readers = [threading.Thread(target=read_on) for _ in range(2)]
        for reader in readers:
            reader.start()
        try:
            for _ in range(40):
                hub.topics.publish_many("t", [bytes(20_000)] * 20, format="bytes")
            wait_until(lambda: wal_bytes(path) <= 2 * limit)
        finally:
            stop.set()
            for reader in readers:
                reader.join()


def test_space_that_was_freed_is_given_back(path: Path) -> None:
    with hub_on(path, durability="os", compress_above_bytes=10**9) as hub:
        for _ in range(12):
            hub.topics.publish_many("t", [bytes(100_000)] * 20)
        store = hub._open().store
        store.maintain(force=True)
        large = path.stat().st_size
        hub.topics.delete("t")

        def has_shrunk() -> bool:
            store.maintain(force=True)
            return path.stat().st_size < large * 0.9

        wait_until(has_shrunk)


def test_a_private_store_leaves_nothing_behind() -> None:
    hub = penstock.connect("memory:")
    hub.topics.publish("t", 1)
    folder = Path(hub._open().store._database.path).parent
    assert folder.exists()
    hub.close()

    assert not folder.exists()


def test_a_backup_is_a_file_of_its_own(path: Path, tmp_path: Path) -> None:
    with hub_on(path) as hub:
        hub.topics.publish_many("t", range(3))
        hub.backup(tmp_path / "copy.db")
        hub.topics.publish("t", 3)
    with hub_on(tmp_path / "copy.db") as copy:
        assert payloads(copy.topics.read("t")) == [0, 1, 2]


def test_nobody_is_present_in_a_copy(path: Path, tmp_path: Path) -> None:
    """T9: a backup, and a file copied by hand, have entries of processes that are not theirs."""
    with hub_on(path) as hub:
        store = hub._open().store
        instance = store.register("server")
        with store.open_writer().transaction() as tx:
            tx.presence.join(instance, [Presence("room", "ann")])
        hub.backup(tmp_path / "backup.db")
        for end in ("", "-wal"):
            # By another process: closing the file here would drop SQLite's locks on it.
            subprocess.run(["cp", f"{path}{end}", f"{tmp_path / 'copy.db'}{end}"], check=True)
        for copied in ("backup.db", "copy.db"):
            with hub_on(tmp_path / copied) as copy:
                presence = copy._open().store.presence
                assert copy._open().store.register("other").id != instance.id
                assert (presence.members("room", 10), presence.has_dead()) == ([], True)
        assert store.presence.count("room") == 1


def test_a_restored_hub_refuses_positions_from_before(path: Path, tmp_path: Path) -> None:
    with hub_on(path) as hub, hub_on(path) as other:
        position = hub.topics.publish("t", 1).position
        hub.backup(tmp_path / "copy.db")
        hub.topics.publish("t", 2)
        other.restore(tmp_path / "copy.db")

        assert payloads(hub.topics.read("t")) == [1]
        with pytest.raises(penstock.EpochChanged):
            hub.topics.read("t", after=position)
        hub.topics.publish("t", "new")
        assert payloads(other.topics.read("t")) == [1, "new"]


USED = """
import sys, threading
opened = []
def heard(event, arguments):
    if event == "open" and str(arguments[0]).endswith(("hub.db", "hub.db-shm")):
        opened.append(arguments[0])
sys.addaudithook(heard)
import penstock
done = threading.Event()
with penstock.connect(f"sqlite:///{sys.argv[1]}") as hub:
    @hub.job(queue="q", name="finish")
    def finish(payload):
        done.set()
    with hub.topics.subscribe("orders") as live, hub.lock("l"), hub.start_workers():
        hub.topics.publish("orders", 1)
        live.get(30)
        hub.jobs.enqueue("q", "finish", None)
        assert done.wait(30)
        hub.ledger.mark_processed("scope", "key")
        with hub.transaction() as tx:
            tx.publish("orders", 2)
        hub.health()
        hub.diagnose()
    hub.backup(sys.argv[1] + ".copy")
assert not opened, opened
open(sys.argv[1], "rb").close()
assert opened, "it would have been heard"
"""


def test_nothing_but_sqlite_opens_the_file(path: Path) -> None:
    """Failure mode 11: whoever closes a descriptor of it drops the locks of the whole process."""
    done = subprocess.run(
        [sys.executable, "-c", USED, str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
