"""The store as a whole: transactions, one at a time, generations, copies."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import (
    BackupFailed,
    NotADatabase,
    PenstockError,
    StatementFailed,
    StatementRefused,
    StoreBusy,
    TransactionTimeout,
)
from penstock.ports import Store, Writer
from tests.conformance.places import Place, Scribe
from tests.factories import file_url, new_message, store_at
from tests.waiting import wait_until


@pytest.fixture
def sql(store: Store) -> Store:
    if not store.capabilities.sql:
        pytest.skip("the store runs no SQL")
    return store


@pytest.fixture
def copyable(store: Store) -> Store:
    if not store.capabilities.backup:
        pytest.skip("the store makes no backups")
    return store


# Transactions


def test_a_transaction_that_raises_leaves_nothing(scribe: Scribe) -> None:
    class Undone(Exception):
        pass

    def work(tx: object) -> None:
        now = scribe.clock.now()
        tx.topics.append([new_message("a")], producer="p", now=now)
        tx.consumers.ensure("c", "a", position=0, floor=0, now=now)
        tx.leases.acquire("l", owner="me", seconds=9)
        raise Undone

    with pytest.raises(Undone):
        scribe.write(work)

    assert scribe.store.topics.find() == []
    assert scribe.store.consumers.find() == []
    assert scribe.store.leases.holder("l") is None


def test_a_second_writer_waits_its_turn_and_gives_up_in_time(place: Place, store: Store) -> None:
    first, second = place.writer(store), place.writer(store)
    first.begin()

    with pytest.raises(StoreBusy) as caught:
        second.begin(timeout_seconds=0.05)
    assert caught.value.retryable
    first.rollback()
    second.begin(timeout_seconds=5)
    second.rollback()


def test_a_second_writer_gets_its_turn_after_the_first(place: Place, store: Store) -> None:
    first, second = place.writer(store), place.writer(store)
    began = threading.Event()

    def wait_in_line() -> None:
        with second.transaction():
            began.set()

    first.begin()
    waiter = threading.Thread(target=wait_in_line)
    waiter.start()
    assert not began.is_set()
    first.commit()
    waiter.join()

    assert began.is_set()


def test_rolling_back_without_a_transaction_does_nothing(place: Place, store: Store) -> None:
    place.writer(store).rollback()


def test_a_writer_that_is_closed_undoes_what_it_had_not_committed(
    place: Place, store: Store, scribe: Scribe
) -> None:
    writer = store.open_writer()
    writer.begin().topics.append([new_message("a")], producer="p", now=place.clock.now())
    writer.close()

    assert scribe.publish("a") == [1]


def test_the_log_tells_its_end(scribe: Scribe) -> None:
    before = scribe.store.log()
    scribe.publish("a", 3)
    after = scribe.store.log()

    assert (before.last_id, after.last_id, after.last_at) == (0, 3, scribe.clock.now())
    assert before.epoch == after.epoch


def test_two_places_have_different_epochs(store: Store, tmp_path: Path) -> None:
    other = store_at(file_url(tmp_path / "other.db"))
    assert other.log().epoch != store.log().epoch
    other.close()


def test_maintenance_changes_nothing_that_can_be_read(scribe: Scribe) -> None:
    scribe.publish("a", 50)
    scribe.store.maintain(force=True)

    assert len(scribe.ids()) == 50


def test_a_healthy_store_says_so(store: Store) -> None:
    assert {check.status for check in store.checks()} == {"ok"}


# The user's own statements


def test_own_tables_are_written_with_the_transaction(sql: Store, scribe: Scribe) -> None:
    scribe.write(lambda tx: tx.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY, x TEXT)"))
    scribe.write(lambda tx: tx.execute("INSERT INTO mine (x) VALUES (?), (?)", ("a", "b")))

    assert scribe.write(lambda tx: tx.execute("SELECT id, x FROM mine")) == [(1, "a"), (2, "b")]
    assert sql.query("SELECT x FROM mine WHERE id = :id", {"id": 2}) == [("b",)]


def test_own_rows_and_messages_are_undone_together(sql: Store, scribe: Scribe) -> None:
    scribe.write(lambda tx: tx.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)"))

    class Undone(Exception):
        pass

    def work(tx: object) -> None:
        tx.execute("INSERT INTO mine VALUES (1)")
        tx.topics.append([new_message("a")], producer="p", now=scribe.clock.now())
        raise Undone

    with pytest.raises(Undone):
        scribe.write(work)
    assert sql.query("SELECT * FROM mine") == []
    assert scribe.ids() == []


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "END",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT mine",
        "RELEASE penstock",
        "ROLLBACK TO penstock",
        "ATTACH ':memory:' AS other",
        "DETACH other",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA synchronous = OFF",
        "DELETE FROM penstock_messages",
        "UPDATE penstock_log SET last_id = 0",
        "INSERT INTO Penstock_Topics (name, created_at) VALUES ('x', 0)",
        "DROP TABLE penstock_messages",
        "ALTER TABLE penstock_topics RENAME TO mine",
        "CREATE INDEX mine ON penstock_messages (key)",
        "DROP INDEX penstock_messages_by_topic",
        "CREATE TRIGGER mine AFTER INSERT ON penstock_messages BEGIN SELECT 1; END",
        "CREATE TABLE penstock_mine (id INTEGER)",
    ],
)
def test_a_statement_that_is_not_the_users_to_make_is_refused(
    sql: Store, scribe: Scribe, statement: str
) -> None:
    scribe.publish("a", 2)

    def work(tx: object) -> None:
        tx.topics.append([new_message("a")], producer="p", now=scribe.clock.now())
        with pytest.raises(StatementRefused) as caught:
            tx.execute(statement)
        assert caught.value.hint

    scribe.write(work)

    assert scribe.ids() == [1, 2, 3]


def test_a_statement_of_penstocks_own_is_refused_however_it_is_written(
    sql: Store, scribe: Scribe
) -> None:
    """Also word for word as penstock itself has just run it."""
    scribe.publish("a", 2)
    own = "UPDATE penstock_log SET last_id = ?1, last_at = ?2;"

    def work(tx: object) -> None:
        tx.topics.append([new_message("a")], producer="p", now=scribe.clock.now())
        tx.topics.trim("a", 0)
        with pytest.raises(StatementRefused):
            tx.execute(own, (0, 0))

    scribe.write(work)
    assert scribe.store.log().last_id == 3


@pytest.mark.parametrize(
    ("statement", "parameters"),
    [
        ("SELEKT 1", ()),
        ("SELECT * FROM nowhere", ()),
        ("INSERT INTO mine VALUES (1)", ()),
        ("SELECT ?", ()),
        ("SELECT ?", (1, 2)),
    ],
    ids=["syntax", "no table", "constraint", "too few", "too many"],
)
def test_a_statement_that_fails_leaves_the_transaction_usable(
    sql: Store, scribe: Scribe, statement: str, parameters: tuple[int, ...]
) -> None:
    scribe.write(lambda tx: tx.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)"))

    def work(tx: object) -> None:
        tx.execute("INSERT INTO mine VALUES (1)")
        with pytest.raises(StatementFailed):
            tx.execute(statement, parameters)
        tx.execute("INSERT INTO mine VALUES (2)")

    scribe.write(work)
    assert sql.query("SELECT id FROM mine") == [(1,), (2,)]


def test_a_statement_that_rolls_back_by_itself_ends_the_transaction(
    sql: Store, scribe: Scribe
) -> None:
    """What comes after it must not be written on its own."""
    scribe.write(lambda tx: tx.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)"))
    scribe.write(lambda tx: tx.execute("INSERT INTO mine VALUES (1)"))

    def work(tx: object) -> None:
        tx.execute("INSERT INTO mine VALUES (2)")
        with pytest.raises(PenstockError):
            tx.execute("INSERT OR ROLLBACK INTO mine VALUES (1)")
        with pytest.raises(PenstockError):
            tx.execute("INSERT INTO mine VALUES (3)")
        with pytest.raises(PenstockError):
            tx.topics.append([new_message("a")], producer="p", now=scribe.clock.now())

    with pytest.raises(PenstockError):
        scribe.write(work)
    assert sql.query("SELECT id FROM mine") == [(1,)]
    assert scribe.publish("b") == [1]


def test_a_reading_connection_does_not_write(sql: Store, scribe: Scribe) -> None:
    scribe.write(lambda tx: tx.execute("CREATE TABLE mine (id INTEGER PRIMARY KEY)"))

    with pytest.raises(StatementFailed):
        sql.query("INSERT INTO mine VALUES (1)")
    assert sql.query("SELECT * FROM mine") == []


def test_a_statement_under_way_can_be_interrupted(sql: Store, place: Place) -> None:
    writer: Writer = place.writer(sql)
    transaction = writer.begin()
    ended = threading.Event()

    def interrupt() -> None:
        while not ended.wait(0.01):
            writer.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(TransactionTimeout):
        transaction.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
        )
    ended.set()
    thread.join()
    writer.rollback()


# Generations


def test_a_new_generation_is_a_new_epoch_over_the_same_messages(scribe: Scribe) -> None:
    scribe.publish("a", 3)
    before = scribe.store.log()
    epoch = scribe.store.new_generation()
    after = scribe.store.log()

    assert (epoch, after.epoch != before.epoch) == (after.epoch, True)
    assert {message.epoch for message in scribe.read()} == {epoch}
    # The id that is left out makes a reader look at the epoch.
    assert scribe.publish("a") == [5]


def test_receipts_after_a_new_generation_carry_its_epoch(scribe: Scribe) -> None:
    scribe.publish("a")
    epoch = scribe.store.new_generation()
    (receipt,) = scribe.append(new_message("a"))

    assert receipt.position is not None
    assert receipt.position.epoch == epoch


# Copies


def test_a_restored_backup_is_what_was_backed_up(
    copyable: Store, scribe: Scribe, tmp_path: Path
) -> None:
    scribe.publish("a", 3)
    scribe.write(
        lambda tx: tx.consumers.ensure("c", "a", position=2, floor=0, now=scribe.clock.now())
    )
    copyable.backup(tmp_path / "copy")
    scribe.publish("b", 2)
    copyable.restore(tmp_path / "copy")

    assert scribe.ids() == [1, 2, 3]
    assert [c.position.offset for c in copyable.consumers.find()] == [2]
    assert [topic.name for topic in copyable.topics.find()] == ["a"]


def test_a_restored_log_has_an_epoch_never_seen_before(
    copyable: Store, scribe: Scribe, tmp_path: Path
) -> None:
    scribe.publish("a")
    epochs = {copyable.log().epoch}
    copyable.backup(tmp_path / "copy")
    for _ in range(3):
        copyable.restore(tmp_path / "copy")
        epochs.add(copyable.log().epoch)

    assert len(epochs) == 4


def test_after_a_restore_topics_can_be_written_and_read(
    copyable: Store, scribe: Scribe, tmp_path: Path
) -> None:
    """Numbers learnt about topics before it must not be used after it."""
    copyable.backup(tmp_path / "empty")
    for name in ("a", "b", "c"):
        scribe.publish(name)
    copyable.restore(tmp_path / "empty")
    for name in ("c", "a"):
        scribe.publish(name)

    # Ids go on above those of before: none ever stands for two messages.
    assert [(m.id, m.topic) for m in scribe.read()] == [(5, "c"), (6, "a")]


def test_leases_do_not_survive_a_restore_and_tokens_still_rise(
    copyable: Store, scribe: Scribe, tmp_path: Path
) -> None:
    copyable.register("test")
    copyable.backup(tmp_path / "copy")
    old = scribe.write(lambda tx: tx.leases.acquire("l", owner="me", seconds=99))
    copyable.restore(tmp_path / "copy")

    assert copyable.leases.holder("l") is None
    new = scribe.write(lambda tx: tx.leases.acquire("l", owner="me", seconds=99))
    assert new.token > old.token


def test_a_backup_tells_how_far_it_is(copyable: Store, scribe: Scribe, tmp_path: Path) -> None:
    scribe.publish("a", 100)
    seen: list[tuple[int, int]] = []
    copyable.backup(tmp_path / "copy", lambda done, total: seen.append((done, total)))

    assert seen[-1][0] == seen[-1][1] > 0


def test_a_backup_beside_a_writer_is_of_one_instant(
    copyable: Store, place: Place, scribe: Scribe, tmp_path: Path
) -> None:
    """Every transaction writes to two topics; a copy has both messages of each, or neither."""
    stop = threading.Event()
    wrote = threading.Event()

    def write_on() -> None:
        writer = Scribe(copyable, place.writer(copyable), place.clock)
        while not stop.is_set():
            writer.append(new_message("a", bytes(500)), new_message("b", bytes(500)))
            wrote.set()

    thread = threading.Thread(target=write_on)
    thread.start()
    wait_until(wrote.is_set)
    copyable.backup(tmp_path / "copy")
    stop.set()
    thread.join()
    copyable.restore(tmp_path / "copy")

    counts = {topic.name: topic.messages for topic in copyable.topics.find()}
    assert counts["a"] == counts["b"] > 0
    assert len(scribe.ids("a")) == len(scribe.ids("b")) == counts["a"]


def test_a_backup_to_a_missing_folder_is_refused(copyable: Store, tmp_path: Path) -> None:
    with pytest.raises(BackupFailed):
        copyable.backup(tmp_path / "none" / "copy")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: None, BackupFailed),
        (lambda path: path.write_bytes(b"not a database" * 100), NotADatabase),
    ],
    ids=["missing", "not a backup"],
)
def test_what_is_no_backup_is_not_restored(
    copyable: Store,
    scribe: Scribe,
    tmp_path: Path,
    make: Callable[[Path], object],
    error: type[PenstockError],
) -> None:
    scribe.publish("a", 3)
    epoch = copyable.log().epoch
    make(tmp_path / "copy")

    with pytest.raises(error):
        copyable.restore(tmp_path / "copy")
    assert scribe.ids() == [1, 2, 3]
    assert copyable.log().epoch == epoch
