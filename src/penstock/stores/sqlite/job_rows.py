"""A job's rows in SQLite: where it is, how it moves, and what is told to those who wait for it.

A job is in exactly one of the tables ready, scheduled, waiting, claims and finished. Every change
of state goes through `move`, which knows the ways there are.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import apsw
import msgspec

from penstock.clock import Micros
from penstock.job import TRANSITIONS, Failure, Kind, State
from penstock.stores import queries
from penstock.stores.sqlite.connection import fetch_all, fetch_one, fetch_value
from penstock.stores.sqlite.liveness import Leasing

SQL = queries.load("penstock.stores.sqlite", "jobs.sql")

# A list of ids is the last parameter of a query. Where the ids are a run, which those of a busy
# queue often are, one walk along the table takes the place of a search for each.
_LISTS = {last: f"IN carray(?{last})" for last in range(1, 6)}
RUNS = {
    name: sql.replace(text, f"BETWEEN ?{last} AND ?{last + 1}")
    for name, sql in SQL.items()
    for last, text in _LISTS.items()
    if text in sql
}

COUNTS_MAX = 8
_COUNTS = [
    SQL["count_jobs"].replace("(?, ?, ?)", ", ".join(["(?, ?, ?)"] * rows))
    for rows in range(COUNTS_MAX + 1)
]

_PLACES = {
    State.PENDING: "leave_ready",
    State.SCHEDULED: "leave_scheduled",
    State.WAITING: "leave_waiting",
}


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a job is, with what is needed to move it."""

    queue: str
    state: State
    attempts: int
    run_at: Micros | None
    unique_key: str | None


class JobRows:
    """Counts are collected per transaction and written at its end."""

    def __init__(self, connection: apsw.Connection, leasing: Leasing) -> None:
        self._connection = connection
        self._leasing = leasing
        self.pruned_to = 0
        self.begin()

    # The transaction's own life, called by its owner

    def begin(self) -> None:
        self._counted: defaultdict[tuple[str, State], int] = defaultdict(int)
        self.made_ready = False

    def flush(self) -> None:
        values: list[Any] = []
        for (queue, state), jobs in self._counted.items():
            if jobs:
                values += (queue, state, jobs)
            if jobs < 0 and state is State.PROCESSING and not self.made_ready:
                # Where a limit held others back, there is room now.
                limits = fetch_one(self._connection, SQL["queue"], (queue,))
                self.made_ready = limits is not None and limits[1] is not None
        # Few of them, so one statement does.
        for start in range(0, len(values), 3 * COUNTS_MAX):
            some = values[start : start + 3 * COUNTS_MAX]
            self._connection.execute(_COUNTS[len(some) // 3], some)

    def mark(self) -> tuple[Any, ...]:
        return self._counted.copy(), self.made_ready

    def return_to(self, mark: tuple[Any, ...]) -> None:
        self._counted, self.made_ready = mark

    # From state to state

    def _move(self, queue: str, source: State | None, target: State | None, jobs: int = 1) -> None:
        assert (source, target) in TRANSITIONS, f"no way leads from {source!r} to {target!r}"
        if source is not None:
            self._counted[queue, source] -= jobs
        if target is not None:
            self._counted[queue, target] += jobs

    def _place(self, number: int) -> Place | None:
        row = fetch_one(self._connection, SQL["place"], (number,))
        if row is None:
            return None
        queue, attempts, run_at, unique_key = row[:4]
        return Place(queue, state_of(*row[4:]), attempts, run_at, unique_key)

    def _admit(
        self, number: int, queue: str, source: State | None, run_at: Micros | None, now: Micros
    ) -> State:
        """Ready, or scheduled if its time, which stands in its row, is still to come."""
        # A worker waits for the next time it knows of, so an earlier one is news, too.
        self.made_ready = True
        if run_at is not None and run_at > now:
            self._connection.execute(SQL["make_scheduled"], (number, run_at))
            self._move(queue, source, State.SCHEDULED)
            return State.SCHEDULED
        self._connection.execute(SQL["make_ready"], (number,))
        self._move(queue, source, State.PENDING)
        return State.PENDING

    def _leave(self, number: int, state: State) -> None:
        """Out of where it waits."""
        row = fetch_one(self._connection, SQL[_PLACES[state]], (number,))
        assert row is not None
        if state == State.WAITING:
            self._connection.execute(SQL["forget_edges"], (number,))

    def _finish(
        self,
        number: int,
        queue: str,
        source: State | None,
        state: State,
        attempt: int,
        now: Micros,
        started_at: Micros | None = None,
    ) -> None:
        """Without success. Those who waited for it are told."""
        self._end(number, queue, source, state, attempt, now, started_at)
        self._finished([number], now, succeeded=False)

    def _end(
        self,
        number: int,
        queue: str,
        source: State | None,
        state: State,
        attempt: int,
        now: Micros,
        started_at: Micros | None = None,
    ) -> None:
        self._connection.execute(SQL["finish"], (number, state, now, attempt, started_at))
        self._move(queue, source, state)

    def _finished(self, ids: list[int], now: Micros, *, succeeded: bool) -> None:
        """Free their keys, and tell those who waited for them.

        Those who are cancelled for it have finished in turn. They are told level by level: a
        chain may be longer than a stack is deep.
        """
        while ids:
            self._for(ids, "free_keys", now)
            cancelled: list[int] = []
            for parent, child, policy in self._for(ids, "children"):
                self._connection.execute(SQL["cut_edge"], (parent, child))
                place = self._place(child)
                if place is None or place.state != State.WAITING:
                    continue  # Cancelled a moment ago, for another of its parents.
                if not succeeded and policy == "cancel":
                    self._leave(child, State.WAITING)
                    reason = {"reason": f"job {parent} did not complete"}
                    self._event(child, Kind.CANCELLED, now, place.attempts, reason)
                    self._end(
                        child, place.queue, State.WAITING, State.CANCELLED, place.attempts, now
                    )
                    cancelled.append(child)
                elif fetch_value(self._connection, SQL["count_parent"], (child,)) == 0:
                    self._leave(child, State.WAITING)
                    self._admit(child, place.queue, State.WAITING, place.run_at, now)
            ids, succeeded = cancelled, False

    def _hand_back(self, number: int, claim: Sequence[Any], now: Micros) -> None:
        """Out of a worker's hands, without an attempt. `claim` is its row, which is gone."""
        queue, attempt, started_at, is_cancelling, reason = claim[:5]
        if is_cancelling:
            if started_at is None:
                attempt -= 1  # It never began.
            self._event(number, Kind.CANCELLED, now, attempt, {"reason": reason or ""})
            self._finish(number, queue, State.PROCESSING, State.CANCELLED, attempt, now, started_at)
            return
        if started_at is not None:
            self._event(number, Kind.RELEASED, now, attempt)
        self._admit(number, queue, State.PROCESSING, None, now)

    def _set_attempts(
        self, number: int, attempts: int, crashes: int, failure: Failure | None
    ) -> None:
        data = None if failure is None else msgspec.json.encode(failure)
        self._connection.execute(SQL["set_attempts"], (number, attempts, crashes, data))

    def _event(
        self,
        number: int,
        kind: Kind,
        now: Micros,
        attempt: int = 0,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        encoded = msgspec.json.encode(data) if data else None
        self._connection.execute(SQL["add_event"], (number, kind, now, attempt, encoded))

    def _for(self, ids: list[int], name: str, *values: Any) -> list[Any]:
        """Run a query for many jobs. Its rows."""
        low, high = min(ids), max(ids)
        if high - low + 1 == len(ids):
            return fetch_all(self._connection, RUNS[name], (*values, low, high))
        return fetch_all(self._connection, SQL[name], (*values, as_array(ids)))


def state_of(ready: int, scheduled: int, waiting: int, claimed: int, finished: int | None) -> State:
    """By the one table that has it."""
    if finished is not None:
        return State(finished)
    if claimed:
        return State.PROCESSING
    if ready:
        return State.PENDING
    if scheduled:
        return State.SCHEDULED
    assert waiting, "a job is in one of the tables"
    return State.WAITING


def as_array(ids: Sequence[int]) -> Any:
    """For `IN carray(?)`: a third faster than JSON."""
    return apsw.carray(array("q", ids))
