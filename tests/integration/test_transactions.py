"""One transaction across topics and the user's own tables."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.errors import (
    IdempotencyConflict,
    InsideTransaction,
    InvalidPayload,
    PenstockError,
    StatementFailed,
    StatementRefused,
    TransactionClosed,
    TransactionTimeout,
)
from penstock.stores.sqlite.transaction import SqliteWriter
from penstock.testing import memory_hub
from tests.factories import payloads
from tests.waiting import SOON, wait_until

OpenHub = Callable[..., penstock.Hub]


class Undone(Exception):
    """What a test raises to have a transaction rolled back."""


@pytest.fixture
def shop(hub: penstock.Hub) -> penstock.Hub:
    """A hub beside a table of the user's own."""
    with hub.transaction() as tx:
        tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL CHECK (total >= 0))")
    return hub


@pytest.fixture
def patient() -> Iterator[penstock.Hub]:
    """A hub whose conflated messages wait until somebody writes them."""
    with memory_hub(conflate_interval_ms=3_600_000) as hub:
        yield hub


def orders(hub: penstock.Hub) -> list[int]:
    with hub.connection() as connection:
        return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]


def test_rows_and_messages_are_written_together(shop: penstock.Hub) -> None:
    with shop.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (?, ?)", (9, 10.5))
        receipt = tx.publish("orders", {"id": 9}, type="created", key="9")
        assert tx.execute("SELECT * FROM orders WHERE id = :id", {"id": 9}) == [(9, 10.5)]

    (message,) = shop.topics.read("orders")
    assert (message.payload, message.type, message.key) == ({"id": 9}, "created", "9")
    assert message.position == receipt.position
    assert orders(shop) == [9]


def test_nothing_is_visible_before_the_end(shop: penstock.Hub) -> None:
    with shop.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1, 1)")
        receipt = tx.publish("orders", 1)
        assert not receipt.durable
        assert shop.topics.read("orders") == []
        assert orders(shop) == []

    assert (payloads(shop.topics.read("orders")), orders(shop)) == ([1], [1])


def test_an_error_undoes_everything(shop: penstock.Hub) -> None:
    with pytest.raises(Undone), shop.transaction() as tx:
        fail_after_writing(tx)

    assert (shop.topics.read("*"), orders(shop)) == ([], [])
    assert shop.topics.publish("orders", 2).id == 1


def fail_after_writing(tx: object) -> None:
    tx.execute("INSERT INTO orders VALUES (1, 1)")
    tx.publish("orders", 1)
    tx.publish_many("others", range(3))
    raise Undone


def test_a_transaction_that_does_nothing_is_fine(shop: penstock.Hub) -> None:
    with shop.transaction():
        pass


def test_subscribers_here_and_elsewhere_are_woken_by_it(open_hub: OpenHub) -> None:
    hub, other = open_hub(), open_hub()
    with hub.topics.subscribe("t") as here, other.topics.subscribe("t") as there:
        assert (here.get(0), there.get(0)) == (None, None)
        with hub.transaction() as tx:
            tx.publish("t", 1)

        assert here.get(SOON).payload == there.get(SOON).payload == 1


def test_many_are_published_in_order(shop: penstock.Hub) -> None:
    with shop.transaction() as tx:
        receipts = tx.publish_many("t", range(2_500), type="n")

    assert [receipt.id for receipt in receipts] == list(range(1, 2_501))
    assert payloads(shop.topics.read("t", limit=3_000)) == list(range(2_500))


def test_a_bad_payload_writes_nothing_and_the_transaction_can_go_on(shop: penstock.Hub) -> None:
    with shop.transaction() as tx:
        with pytest.raises(InvalidPayload):
            tx.publish_many("t", [1, object()])
        tx.publish("t", "good")

    assert payloads(shop.topics.read("t")) == ["good"]


def test_a_refused_key_writes_nothing_and_the_transaction_can_go_on(shop: penstock.Hub) -> None:
    """The counters, the ids and what subscribers hear stay right."""
    shop.topics.publish("t", 0, idempotency_key="k")
    with shop.topics.subscribe("t") as live, shop.transaction() as tx:
        assert live.get(0) is None
        with pytest.raises(IdempotencyConflict):
            tx.publish_many(
                "t",
                [
                    penstock.Publication(1, idempotency_key="new"),
                    penstock.Publication(2, idempotency_key="k"),
                ],
            )
        assert not tx.publish("t", 4, idempotency_key="new").duplicate

    assert payloads(shop.topics.read("t")) == [0, 4]
    assert shop.topics.get("t").messages == 2
    with shop.topics.subscribe("t", last=9) as live:
        assert payloads(live.take()) == [0, 4]


# What is refused


@pytest.mark.parametrize(
    "use",
    [
        lambda hub: hub.topics.publish("t", 1),
        lambda hub: hub.topics.publish_many("t", [1]),
        lambda hub: hub.topics.publish("t", 1, key="k", conflate=True),
        lambda hub: hub.topics.create("t"),
        lambda hub: hub.topics.follow("t", consumer="c"),
        lambda hub: hub.topics.subscribe("t"),
        lambda hub: hub.consumers.delete("c"),
        lambda hub: hub.transaction().__enter__(),
        lambda hub: hub.restore("nowhere"),
        lambda hub: hub.new_generation(),
    ],
    ids=[
        "publish",
        "publish_many",
        "conflate",
        "create",
        "follow",
        "subscribe",
        "delete",
        "transaction",
        "restore",
        "generation",
    ],
)
def test_what_would_wait_for_the_transaction_is_refused_inside_it(
    shop: penstock.Hub, use: Callable[[penstock.Hub], object]
) -> None:
    with shop.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1, 1)")
        with pytest.raises(InsideTransaction) as caught:
            use(shop)
        assert caught.value.hint

    assert orders(shop) == [1]


def test_after_it_the_hub_is_free_again(shop: penstock.Hub) -> None:
    with shop.transaction() as tx:
        tx.publish("t", 1)

    assert shop.topics.publish("t", 2).id == 2


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT s",
        "ATTACH ':memory:' AS other",
        "PRAGMA synchronous = OFF",
        "DELETE FROM penstock_messages",
    ],
)
def test_statements_that_are_not_the_users_are_refused(shop: penstock.Hub, statement: str) -> None:
    with pytest.raises(Undone), shop.transaction() as tx:
        refuse(tx, statement)

    assert orders(shop) == []


def refuse(tx: object, statement: str) -> None:
    tx.execute("INSERT INTO orders VALUES (1, 1)")
    with pytest.raises(StatementRefused) as caught:
        tx.execute(statement)
    assert caught.value.hint
    raise Undone


def test_a_constraint_fails_the_statement_and_not_the_transaction(shop: penstock.Hub) -> None:
    with shop.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1, 1)")
        with pytest.raises(StatementFailed):
            tx.execute("INSERT INTO orders VALUES (1, 2)")
        with pytest.raises(StatementFailed):
            tx.execute("INSERT INTO orders VALUES (2, -5)")
        tx.publish("t", 1)

    assert (orders(shop), payloads(shop.topics.read("t"))) == ([1], [1])


def test_a_statement_that_rolls_back_ends_the_transaction(shop: penstock.Hub) -> None:
    with shop.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1, 1)")

    with pytest.raises(PenstockError), shop.transaction() as tx:
        roll_back_by_statement(tx)
    assert (orders(shop), shop.topics.read("t")) == ([1], [])


def roll_back_by_statement(tx: object) -> None:
    tx.execute("INSERT INTO orders VALUES (2, 1)")
    with pytest.raises(StatementFailed):
        tx.execute("INSERT OR ROLLBACK INTO orders VALUES (1, 1)")
    with pytest.raises(PenstockError):
        tx.publish("t", 1)


def test_it_cannot_be_used_after_its_end(shop: penstock.Hub) -> None:
    with shop.transaction() as tx:
        pass

    with pytest.raises(TransactionClosed):
        tx.execute("SELECT 1")
    with pytest.raises(TransactionClosed):
        tx.publish("t", 1)


def test_a_connection_only_reads(shop: penstock.Hub) -> None:
    with shop.connection() as connection, pytest.raises(StatementFailed) as caught:
        connection.execute("INSERT INTO orders VALUES (1, 1)")
    assert "transaction" in caught.value.hint
    assert orders(shop) == []


# Staying too long


def test_one_that_stays_too_long_is_rolled_back(shop: penstock.Hub) -> None:
    """And publishers that waited for it go on."""
    later: list[penstock.Receipt] = []
    publisher = threading.Thread(target=lambda: later.append(shop.topics.publish("t", "later")))

    def stall(tx: object) -> None:
        tx.publish("t", "stalled")
        publisher.start()
        publisher.join()
        tx.publish("t", "too late")

    with pytest.raises(TransactionTimeout) as caught, shop.transaction(limit_seconds=1.0) as tx:
        stall(tx)
    assert caught.value.retryable

    assert [receipt.id for receipt in later] == [1]
    assert payloads(shop.topics.read("t")) == ["later"]


def test_one_that_stays_too_long_cannot_be_committed(shop: penstock.Hub) -> None:
    with pytest.raises(TransactionTimeout), shop.transaction(limit_seconds=0.05) as tx:
        stay_too_long(tx)

    assert orders(shop) == []


def stay_too_long(tx: object) -> None:
    tx.execute("INSERT OR REPLACE INTO orders VALUES (1, 1)")
    wait_until(lambda: tx._state == "expired")


def test_a_long_statement_is_interrupted(shop: penstock.Hub) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"

    with pytest.raises(TransactionTimeout), shop.transaction(limit_seconds=0.1) as tx:
        tx.execute(endless)


def test_a_thread_that_is_stopped_at_the_beginning_of_one_leaves_no_lock(
    shop: penstock.Hub, open_hub: OpenHub, path: Path
) -> None:
    """Failure mode 9: as Ctrl-C, or the end of a job's time, while it waits for its turn."""
    stopped = threading.Event()

    def work() -> None:
        try:
            with shop.transaction() as tx:
                tx.publish("t", "never")
        except Undone:
            stopped.set()

    def is_waiting() -> bool:
        return sys._current_frames()[ident].f_code is SqliteWriter.begin.__code__

    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    worker = threading.Thread(target=work)
    worker.start()
    ident = worker.ident
    assert ident is not None
    wait_until(is_waiting, "it is inside SQLite")
    strike = ctypes.PyDLL(None).PyThreadState_SetAsyncExc
    assert strike(ctypes.c_ulong(ident), ctypes.py_object(Undone)) == 1
    # It gets what it waited for, and hears of its end only then.
    other.execute("ROLLBACK")
    other.close()
    worker.join()
    assert stopped.is_set()
    open_hub(lock_timeout_seconds=1.0).topics.publish("t", "another")
    assert payloads(shop.topics.read("t")) == ["another"]


def test_the_limit_is_a_setting(open_hub: OpenHub) -> None:
    hub = open_hub(transaction_limit_seconds=0.05)

    with pytest.raises(TransactionTimeout), hub.transaction() as tx:
        publish_and_stay(tx)


def publish_and_stay(tx: object) -> None:
    tx.publish("t", 1)
    wait_until(lambda: tx._state == "expired")


def test_transactions_of_many_threads_take_turns(shop: penstock.Hub) -> None:
    def work(name: int) -> None:
        for n in range(5):
            with shop.transaction() as tx:
                tx.execute("INSERT INTO orders VALUES (?, 1)", (100 * name + n,))
                tx.publish("t", 100 * name + n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(orders(shop)) == 30
    assert sorted(payloads(shop.topics.read("t"))) == orders(shop)


# Beside conflated messages


def test_conflated_messages_go_before_the_transactions_own(patient: penstock.Hub) -> None:
    patient.topics.publish("t", 1, key="k", conflate=True)
    with patient.transaction() as tx:
        receipt = tx.publish("t", "normal")
        receipts = tx.publish_many("t", ["a", "b"])

    messages = patient.topics.read("t")
    assert [m.type for m in messages] == ["batch", None, None, None]
    assert [receipt.id] + [r.id for r in receipts] == [2, 3, 4]


@pytest.mark.parametrize("many", [False, True])
def test_conflated_messages_survive_a_rollback(patient: penstock.Hub, many: bool) -> None:
    patient.topics.publish("t", 1, key="k", conflate=True)
    with pytest.raises(Undone), patient.transaction() as tx:
        publish_and_fail(tx, many)
    assert patient.topics.read("t") == []
    patient.topics.publish("t", "normal")

    assert [m.type for m in patient.topics.read("t")] == ["batch", None]


def publish_and_fail(tx: object, many: bool) -> None:
    if many:
        tx.publish_many("t", [1, 2])
    else:
        tx.publish("t", 1)
    raise Undone


def test_conflated_messages_survive_a_refused_publish(patient: penstock.Hub) -> None:
    patient.topics.publish("t", 0, idempotency_key="k")
    patient.topics.publish("t", 1, key="k", conflate=True)
    with patient.transaction() as tx, pytest.raises(IdempotencyConflict):
        tx.publish("t", 1, idempotency_key="k")
    patient.topics.publish("t", "normal")

    assert [m.type for m in patient.topics.read("t")] == [None, "batch", None]
