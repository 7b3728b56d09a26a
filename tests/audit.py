"""What must be true of the jobs in a store at any instant, counted anew from its tables."""

from __future__ import annotations

from collections import Counter, defaultdict

from penstock.job import TRANSITIONS, JobEvent, Kind, State
from penstock.ports import Store

EVENTS_MAX = 10_000

PLACES = """
    SELECT job_id, 1 FROM penstock_job_ready
    UNION ALL SELECT job_id, 2 FROM penstock_job_scheduled
    UNION ALL SELECT job_id, 3 FROM penstock_job_waiting
    UNION ALL SELECT job_id, 4 FROM penstock_job_claims
    UNION ALL SELECT job_id, state FROM penstock_job_finished"""

UNTOLD = {(a, b) for (a, b), kinds in TRANSITIONS.items() if not kinds} | {
    # Its time has come, and a claim that was never started and went back.
    (State.SCHEDULED, State.PENDING),
    (State.PROCESSING, State.PENDING),
}
"""Ways that leave no line in the history."""


def audit_jobs(store: Store) -> dict[int, State]:
    """Raises for whatever is wrong; returns where each job is."""
    where = _places(store)
    _check_counts(store, where)
    _check_claims(store)
    _check_edges(store, where)
    _check_keys(store, where)
    _check_attempts(store)
    _check_histories(store, where)
    return where


def _places(store: Store) -> dict[int, State]:
    found: defaultdict[int, list[State]] = defaultdict(list)
    for number, state in store.query(PLACES):
        found[number].append(State(state))
    jobs = {row[0] for row in store.query("SELECT id FROM penstock_jobs")}
    assert set(found) == jobs, "a job is in no table, or a table has no job"
    twice = {number: states for number, states in found.items() if len(states) != 1}
    assert not twice, f"jobs in several tables: {twice}"
    return {number: states[0] for number, states in found.items()}


def _check_counts(store: Store, where: dict[int, State]) -> None:
    queues = dict(store.query("SELECT id, queue FROM penstock_jobs"))
    recount = Counter((queues[number], state) for number, state in where.items())
    kept = {
        (queue, State(state)): jobs
        for queue, state, jobs in store.query("SELECT queue, state, jobs FROM penstock_job_counts")
        if jobs
    }
    assert kept == dict(recount)
    for stats in store.jobs.stats(now=0):
        for state in State:
            assert getattr(stats, state.name.lower()) == recount[stats.queue, state]


def _check_claims(store: Store) -> None:
    rows = store.query("SELECT token, instance FROM penstock_job_claims")
    holders: defaultdict[int, set[int]] = defaultdict(set)
    for token, instance in rows:
        holders[token].add(instance)
    assert all(len(found) == 1 for found in holders.values()), "one token for two processes"


def _check_edges(store: Store, where: dict[int, State]) -> None:
    left = Counter()
    for parent, child in store.query("SELECT parent_id, child_id FROM penstock_job_edges"):
        assert not where[parent].is_final, f"{child} still waits for {parent}, which is over"
        assert parent < child, "a job can only wait for an earlier one"
        left[child] += 1
    waiting = dict(store.query("SELECT job_id, parents_left FROM penstock_job_waiting"))
    assert waiting == dict(left)


def _check_keys(store: Store, where: dict[int, State]) -> None:
    rows = store.query(
        """SELECT u.job_id, u.until, j.unique_key = u.key
           FROM penstock_job_unique u LEFT JOIN penstock_jobs j ON j.id = u.job_id"""
    )
    for number, until, is_same in rows:
        assert is_same == 1, f"a key is taken for job {number}, which has another one, or is gone"
        assert until is not None or not where[number].is_final, f"{number} is over, its key not"


def _check_attempts(store: Store) -> None:
    wrong = store.query(
        """SELECT j.id FROM penstock_jobs j
           LEFT JOIN penstock_job_claims c ON c.job_id = j.id
           LEFT JOIN penstock_job_finished f ON f.job_id = j.id
           WHERE max(j.attempts, coalesce(c.attempt, 0), coalesce(f.attempt, 0)) > j.max_attempts
               OR j.crashes > j.attempts"""
    )
    assert not wrong, f"more attempts than allowed, or more crashes than attempts: {wrong}"


def _check_histories(store: Store, where: dict[int, State]) -> None:
    histories: defaultdict[int, list[JobEvent]] = defaultdict(list)
    after = 0
    while events := store.jobs.events(after=after, limit=EVENTS_MAX):
        for event in events:
            histories[event.job_id].append(event)
        after = events[-1].id
    assert set(histories) == set(where), "a history without a job, or a job without one"
    started = {
        row[0]
        for row in store.query(
            "SELECT job_id FROM penstock_job_claims WHERE started_at IS NOT NULL"
        )
    }
    for number, events in histories.items():
        _check_history(number, events, where[number], is_started=number in started)


def _check_history(number: int, events: list[JobEvent], state: State, *, is_started: bool) -> None:
    """Follow the events along the table of transitions; the job must be where they lead."""
    kinds = [event.kind for event in events]
    told = f"job {number} is {state.name}, told {[kind.name for kind in kinds]}"
    assert kinds[0] == Kind.ENQUEUED, told
    assert kinds.count(Kind.ENQUEUED) == 1, told
    running = False
    possible: set[State | None] = {None}
    for kind in kinds:
        if kind in (Kind.COMPLETED, Kind.RELEASED, Kind.RESCUED):
            assert running, told
        if kind == Kind.STARTED:
            assert not running, told
        running = kind in (Kind.STARTED, Kind.PROGRESS)
        targets = {
            target
            for (source, target), by in TRANSITIONS.items()
            if kind in by and source in possible
        }
        if kind == Kind.ENQUEUED:
            targets |= {None}  # Cancelled at once: the next event tells.
        assert targets, told
        possible = _untold(targets)
    assert state in possible, told
    assert is_started == running, told


def _untold(states: set[State | None]) -> set[State | None]:
    """These, and all that are reached from them without a line in the history."""
    while True:
        more = {b for a, b in UNTOLD if a in states and b is not None} - states
        if not more:
            return states
        states |= more
