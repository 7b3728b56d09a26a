"""What people do to jobs and queues: cancel, retry, limit, prune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.clock import Micros
from penstock.job import Kind, QueueLimits, State
from penstock.ports.jobs import PRUNE_STRETCH
from penstock.stores.sqlite.connection import fetch_all, fetch_one
from penstock.stores.sqlite.job_rows import SQL, JobRows


class JobOperations(JobRows):
    def cancel(
        self, ids: Sequence[int], *, reason: str, now: Micros, states: Sequence[State] = ()
    ) -> list[int]:
        return [number for number in ids if self._cancel(number, reason, now, states)]

    def _cancel(self, number: int, reason: str, now: Micros, states: Sequence[State]) -> bool:
        place = self._place(number)
        if place is None or place.state.is_final or (states and place.state not in states):
            return False
        if place.state == State.PROCESSING:
            row = fetch_one(self._connection, SQL["ask_to_stop"], (number, reason))
            # So that its worker looks.
            self.made_ready = True
            if row[0] is None:
                # Not started: its worker finds that it may not.
                row = fetch_one(self._connection, SQL["take_claim"], (number,))
                self._hand_back(number, row, now)
            return True
        self._leave(number, place.state)
        self._event(number, Kind.CANCELLED, now, place.attempts, {"reason": reason})
        self._finish(number, place.queue, place.state, State.CANCELLED, place.attempts, now)
        return True

    def retry(self, ids: Sequence[int], *, now: Micros, states: Sequence[State] = ()) -> list[int]:
        return [number for number in ids if self._retry(number, now, states)]

    def _retry(self, number: int, now: Micros, states: Sequence[State]) -> bool:
        place = self._place(number)
        if place is None or (states and place.state not in states):
            return False
        if place.state.is_final:
            if place.unique_key is not None and not self._regain(number, place.unique_key, now):
                return False
            self._connection.execute(SQL["unfinish"], (number,))
        elif place.state == State.SCHEDULED:
            self._leave(number, place.state)
        else:
            return False
        self._connection.execute(SQL["reset_attempts"], (number, now))
        self._event(number, Kind.RETRIED, now)
        self._admit(number, place.queue, place.state, None, now)
        return True

    def _regain(self, number: int, key: str, now: Micros) -> bool:
        """Take the key again; False if another job has it."""
        row = fetch_one(self._connection, SQL["key_holder"], (key,))
        if row is not None and row[0] != number and (row[1] is None or row[1] > now):
            return False
        if row is None or row[0] != number or row[1] is None or row[1] <= now:
            self._connection.execute(SQL["take_key"], (key, number, None))
        return True

    def set_priority(self, id: int, priority: int) -> bool:
        place = self._place(id)
        if place is None or place.state not in (State.PENDING, State.SCHEDULED, State.WAITING):
            return False
        if place.state == State.PENDING:
            self._connection.execute(SQL["leave_ready"], (id,))
        self._connection.execute(SQL["set_priority"], (id, priority))
        if place.state == State.PENDING:
            self._connection.execute(SQL["make_ready"], (id,))
        return True

    def set_limits(self, queue: str, limits: QueueLimits, *, now: Micros) -> None:
        paused_at = now if limits.is_paused else None
        values = (queue, paused_at, limits.concurrency_max, limits.rate_max, limits.rate_seconds)
        self._connection.execute(SQL["put_queue"], values)
        self.made_ready = True

    def prune(
        self,
        *,
        before: Mapping[int, Micros],
        now: Micros,
        limit: int,
        after: int | None = None,
    ) -> int:
        """Goes round by id, a stretch at a time: no index by time is needed, which every
        completed job would pay for."""
        first, stretch = self.pruned_to if after is None else after, PRUNE_STRETCH * limit
        last, seen = fetch_one(self._connection, SQL["stretch"], (first, stretch))
        self._connection.execute(SQL["forget_results"], (first, last, now))
        times = [before.get(state, 0) for state in State if state.is_final]
        rows = fetch_all(self._connection, SQL["prunable"], (first, last, now, limit, *times))
        # Where there was more to remove than may be, the rest of the stretch is for the next call.
        self.pruned_to = last if seen == stretch else 0
        if len(rows) == limit:
            self.pruned_to = rows[-1][0]
        if not rows:
            return 0
        ids = [row[0] for row in rows]
        for name in ("note_events", "remove_events", "remove_jobs", "remove_finished"):
            self._for(ids, name)
        self._for(ids, "remove_keys")
        for _, state, queue in rows:
            self._move(queue, State(state), None)
        return len(ids)
