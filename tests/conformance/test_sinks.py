"""Batches of a sink: entered once, written chunk by chunk, and never by two (S2)."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import SinkReused
from penstock.ports.sinks import SinkBatch
from tests.conformance.places import Scribe


def batch(number: int = 0, *, sink: str = "s", query: str = "q", **fields: Any) -> SinkBatch:
    values = {"rows": 5, "digest": b"d", "chunks": 2, "plan": b"{}"} | fields
    return SinkBatch(sink, number, query, **values)


def enter(scribe: Scribe, entry: SinkBatch) -> SinkBatch:
    return scribe.write(lambda tx: tx.sinks.enter(entry, now=scribe.clock.now()))


def advance(scribe: Scribe, number: int, chunk: int, sink: str = "s") -> None:
    now = scribe.clock.now()
    scribe.write(lambda tx: tx.sinks.advance(sink, number, chunk=chunk, now=now))


def test_a_batch_is_entered_once_and_stays_as_it_was_first(scribe: Scribe) -> None:
    first = enter(scribe, batch(7))
    again = enter(scribe, batch(7, rows=6, digest=b"other", chunks=9, plan=b"[]"))

    assert first == again == scribe.store.sinks.get("s", 7)
    assert (first.rows, first.chunks, first.chunks_done, first.plan) == (5, 2, 0, b"{}")
    assert not first.is_done
    assert scribe.store.sinks.unfinished() == [first]


def test_chunks_are_counted_in_order_and_the_plan_goes_with_the_last(scribe: Scribe) -> None:
    enter(scribe, batch(0))
    with pytest.raises(SinkReused):
        advance(scribe, 0, 1)
    advance(scribe, 0, 0)
    with pytest.raises(SinkReused, match="at the same time"):
        advance(scribe, 0, 0)
    assert [open.chunks_done for open in scribe.store.sinks.unfinished()] == [1]
    advance(scribe, 0, 1)

    done = scribe.store.sinks.last("s")
    assert done is not None
    assert done.is_done
    assert (done.plan, done.finished_at) == (b"", scribe.clock.now())
    assert scribe.store.sinks.unfinished() == []
    with pytest.raises(SinkReused):
        advance(scribe, 0, 2)


def test_what_is_written_with_a_chunk_is_undone_with_it(scribe: Scribe) -> None:
    enter(scribe, batch(0))
    advance(scribe, 0, 0)

    def twice(tx: Any) -> None:
        tx.topics.append([], producer="p", now=scribe.clock.now())
        tx.sinks.advance("s", 0, chunk=1, now=scribe.clock.now())
        tx.sinks.advance("s", 0, chunk=1, now=scribe.clock.now())

    with pytest.raises(SinkReused):
        scribe.write(twice)

    assert [open.chunks_done for open in scribe.store.sinks.unfinished()] == [1]


def test_another_query_may_not_go_on_under_the_name(scribe: Scribe) -> None:
    enter(scribe, batch(3))
    for number in (0, 3, 4):
        with pytest.raises(SinkReused, match="another query"):
            enter(scribe, batch(number, query="other"))

    assert enter(scribe, batch(0, sink="another", query="other")).query == "other"


def test_a_query_that_goes_back_is_refused(scribe: Scribe) -> None:
    """A checkpoint that was set back has batches of the same numbers, and other rows in them."""
    enter(scribe, batch(5, chunks=0))
    with pytest.raises(SinkReused, match="got to batch 5, and now batch 4"):
        enter(scribe, batch(4))
    # One that names its batches itself may bring them in any order.
    enter(scribe, batch(20260102, sink="days", query=""))
    assert enter(scribe, batch(20260101, sink="days", query="")).number == 20260101


def test_old_batches_are_let_go_and_then_refused(scribe: Scribe) -> None:
    for number in (0, 1, 2):
        enter(scribe, batch(number, sink="days", query="", chunks=1 if number == 1 else 0))
    enter(scribe, batch(1001, sink="days", query="", chunks=0))

    # What is still open is kept, and so is what comes after it.
    assert [scribe.store.sinks.get("days", number) is None for number in (0, 1, 2)] == [
        *(True, False, False)
    ]
    with pytest.raises(SinkReused):
        enter(scribe, batch(0, sink="days", query=""))
    advance(scribe, 1, 0, sink="days")
    enter(scribe, batch(1003, sink="days", query="", chunks=0))
    assert scribe.store.sinks.get("days", 2) is None


def test_a_name_that_was_let_go_can_be_used_anew(scribe: Scribe) -> None:
    enter(scribe, batch(0))
    enter(scribe, batch(1))

    assert scribe.write(lambda tx: tx.sinks.forget("s")) == 2
    assert scribe.write(lambda tx: tx.sinks.forget("s")) == 0
    assert enter(scribe, batch(0, query="other")).query == "other"
