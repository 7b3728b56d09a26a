"""The ledger: one winner per key, claims under a lease and a token, late answers refused."""

from __future__ import annotations

import pytest

from penstock.clock import SECOND, micros
from penstock.entry import (
    NEVER,
    Entry,
    EntryKind,
    EntryState,
    NewMark,
    Outcome,
    ScopeStats,
)
from penstock.errors import LedgerConflict
from penstock.model import Instance
from penstock.ports import Store
from penstock.testing import FakeClock
from tests.conformance.places import Place, Scribe

WEEK = 7 * 86_400.0


class Bookkeeper:
    """Writes to the ledger as one process does."""

    def __init__(self, scribe: Scribe, name: str = "me") -> None:
        self.scribe = scribe
        self.store: Store = scribe.store
        self.clock: FakeClock = scribe.clock
        self.instance: Instance = scribe.store.register(name)

    def mark(self, *keys: str, scope: str = "s", ttl: float | None = None) -> list[bool]:
        keep = None if ttl is None else micros(ttl)
        return self.mark_all(*(NewMark(scope, key, keep) for key in keys))

    def mark_all(self, *marks: NewMark) -> list[bool]:
        now = self.clock.now()
        return self.scribe.write(lambda tx: tx.ledger.mark(marks, now=now))

    def claim(
        self,
        key: str = "k",
        *,
        scope: str = "s",
        seconds: float = 10,
        hash: bytes | None = None,
        is_for_another: bool = False,
    ) -> tuple[Entry, bool]:
        return self.scribe.write(
            lambda tx: tx.ledger.claim(
                scope,
                key,
                instance=None if is_for_another else self.instance,
                lease_seconds=seconds,
                hash=hash,
                now=self.clock.now(),
            )
        )

    def take(self, key: str = "k", **options: object) -> Entry:
        entry, is_mine = self.claim(key, **options)  # type: ignore[arg-type]
        assert is_mine
        return entry

    def complete(self, claim: Entry, result: bytes | None = None, **options: object) -> bool:
        outcome = Outcome(result, 1, **options)  # type: ignore[arg-type]
        now = self.clock.now()
        return self.scribe.write(lambda tx: tx.ledger.complete(claim, outcome, now=now))

    def release(self, claim: Entry) -> bool:
        return self.scribe.write(lambda tx: tx.ledger.release(claim, now=self.clock.now()))

    def renew(self, *claims: Entry, seconds: float = 10) -> list[Entry]:
        return self.scribe.write(lambda tx: tx.ledger.renew(claims, lease_seconds=seconds))

    def forget(self, *keys: str, scope: str = "s") -> int:
        now = self.clock.now()
        return self.scribe.write(lambda tx: tx.ledger.forget(scope, keys, now=now))

    def prune(self, limit: int = 1_000) -> int:
        now = self.clock.now()
        return self.scribe.write(lambda tx: tx.ledger.prune(now=now, limit=limit))

    def get(self, key: str = "k", scope: str = "s") -> Entry | None:
        return self.store.ledger.get(scope, key, now=self.clock.now())

    def state(self, key: str = "k") -> EntryState | None:
        found = self.get(key)
        return None if found is None else found.state

    def keys(self, scope: str = "s", after: str = "", limit: int = 100) -> list[str]:
        now = self.clock.now()
        found = self.store.ledger.find(scope, after=after, limit=limit, now=now)
        return [entry.key for entry in found]

    def kinds(self) -> list[EntryKind]:
        return [event.kind for event in self.store.ledger.events(after=0, limit=1_000)]

    def stats(self, scope: str = "s") -> ScopeStats:
        return next((s for s in self.store.ledger.stats() if s.scope == scope), ScopeStats(scope))


@pytest.fixture
def keeper(scribe: Scribe) -> Bookkeeper:
    return Bookkeeper(scribe)


@pytest.fixture
def other(place: Place, keeper: Bookkeeper) -> Bookkeeper:
    """Another process at the same ledger."""
    store = place.open()
    return Bookkeeper(Scribe(store, place.writer(store), place.clock), "other")


# Marks


def test_one_caller_wins_a_key(keeper: Bookkeeper) -> None:
    assert keeper.mark("k") == [True]
    assert keeper.mark("k") == [False]
    assert keeper.state() == EntryState.COMPLETED


def test_of_several_marks_of_a_key_in_one_call_the_first_wins(keeper: Bookkeeper) -> None:
    assert keeper.mark("a", "b", "a", "b", "c") == [True, True, False, False, True]
    assert keeper.mark("c", "d", "d", "a") == [False, True, False, False]
    assert keeper.stats().completed == 4
    assert keeper.kinds() == [EntryKind.MARKED] * 4


def test_scopes_do_not_meet(keeper: Bookkeeper) -> None:
    first, second = NewMark("s", "k"), NewMark("t", "k")

    assert keeper.mark_all(first, second, first, second) == [True, True, False, False]


def test_keys_are_told_apart_to_the_last_byte(keeper: Bookkeeper) -> None:
    """No truncation at NUL, no case folding, no normal forms, no trailing blanks."""
    keys = ["a", "A", "a ", "a\0", "a\0b", "a\0c", "é", "e\u0301", "😀", "1", "01", "1.0"]

    assert keeper.mark(*keys) == [True] * len(keys)
    assert keeper.mark(*keys) == [False] * len(keys)
    now = keeper.clock.now()
    assert keeper.store.ledger.processed("s", [*keys, "b", "a\0d"], now=now) == set(keys)


def test_a_mark_lives_as_long_as_it_says(keeper: Bookkeeper) -> None:
    keeper.mark("k", ttl=10)
    keeper.clock.advance(9.999)
    assert keeper.mark("k") == [False]
    keeper.clock.advance(0.001)

    assert keeper.get() is None
    assert keeper.store.ledger.processed("s", ["k"], now=keeper.clock.now()) == set()
    assert keeper.mark("k", "k") == [True, False]
    assert keeper.stats().completed == 1


def test_a_mark_lives_as_long_as_the_settings_say_if_nothing_else_does(keeper: Bookkeeper) -> None:
    keeper.mark("k")
    keeper.clock.advance(WEEK - 1)
    assert keeper.state() == EntryState.COMPLETED
    keeper.clock.advance(1)
    assert keeper.state() is None


def test_a_mark_lives_as_long_as_its_scope_says(keeper: Bookkeeper) -> None:
    keeper.mark("before")
    keeper.scribe.write(lambda tx: tx.ledger.configure("s", keep=100 * SECOND))
    keeper.mark("k")
    keeper.mark("other", scope="t")
    assert keeper.stats().keep_seconds == 100
    keeper.clock.advance(100)

    assert keeper.state("k") is None
    assert keeper.state("before") == EntryState.COMPLETED
    assert keeper.get("other", "t") is not None
    keeper.scribe.write(lambda tx: tx.ledger.configure("s", keep=None))
    assert keeper.stats().keep_seconds is None
    keeper.mark("k")
    keeper.clock.advance(100)
    assert keeper.state("k") == EntryState.COMPLETED


def test_a_mark_can_be_kept_for_ever(keeper: Bookkeeper) -> None:
    keeper.mark_all(NewMark("s", "a", NEVER))
    keeper.scribe.write(lambda tx: tx.ledger.configure("t", keep=NEVER))
    keeper.mark("b", scope="t")
    keeper.clock.advance(1_000 * WEEK)

    assert keeper.prune() == 0
    assert keeper.state("a") == EntryState.COMPLETED
    assert keeper.get("b", "t") is not None
    assert keeper.stats("t").keep_seconds == float("inf")


def test_what_was_claimed_and_is_in_living_hands_is_not_marked(keeper: Bookkeeper) -> None:
    keeper.take()

    assert keeper.mark("j", "k", "l") == [True, False, True]
    assert keeper.state() == EntryState.IN_PROGRESS


def test_what_was_claimed_by_one_who_is_late_is_marked_and_their_token_void(
    keeper: Bookkeeper,
) -> None:
    claim = keeper.take(seconds=10)
    keeper.clock.advance(10)

    assert keeper.mark("k") == [True]
    assert keeper.complete(claim) is False
    assert keeper.state() == EntryState.COMPLETED
    assert (keeper.stats().completed, keeper.stats().in_progress) == (1, 0)


def test_another_payload_under_a_key_is_a_conflict(keeper: Bookkeeper) -> None:
    assert keeper.mark_all(NewMark("s", "k", None, b"one")) == [True]
    assert keeper.mark_all(NewMark("s", "k", None, b"one")) == [False]
    assert keeper.mark("k") == [False]

    with pytest.raises(LedgerConflict):
        keeper.mark_all(NewMark("s", "new"), NewMark("s", "k", None, b"two"))
    assert keeper.state("new") is None
    with pytest.raises(LedgerConflict):
        keeper.claim(hash=b"two")


def test_an_expired_payload_does_not_bind(keeper: Bookkeeper) -> None:
    keeper.mark_all(NewMark("s", "k", SECOND, b"one"))
    keeper.clock.advance(1)

    assert keeper.mark_all(NewMark("s", "k", None, b"two")) == [True]


def test_marks_that_are_rolled_back_were_never_made(keeper: Bookkeeper) -> None:
    with pytest.raises(ZeroDivisionError):
        keeper.scribe.write(lambda tx: (tx.ledger.mark([NewMark("s", "k")], now=1), 1 // 0))

    assert keeper.stats().completed == 0
    assert keeper.kinds() == []
    assert keeper.mark("k") == [True]


def test_a_savepoint_takes_its_marks_and_their_counts_back(keeper: Bookkeeper) -> None:
    def write(tx: object) -> None:
        tx.ledger.mark([NewMark("s", "a")], now=1)  # type: ignore[attr-defined]
        try:
            with tx.savepoint():  # type: ignore[attr-defined]
                tx.ledger.configure("s", keep=NEVER)  # type: ignore[attr-defined]
                tx.ledger.mark([NewMark("s", "b")], now=1)  # type: ignore[attr-defined]
                raise LedgerConflict
        except LedgerConflict:
            tx.ledger.mark([NewMark("s", "c")], now=1)  # type: ignore[attr-defined]

    keeper.scribe.write(write)

    assert keeper.stats() == ScopeStats("s", completed=2)
    found = keeper.store.ledger.get("s", "c", now=1)
    assert found is not None
    assert found.expires_at is not None


# Claims


def test_a_free_key_is_claimed(keeper: Bookkeeper) -> None:
    claim = keeper.take()

    assert (claim.state, claim.attempts, claim.is_held) == (EntryState.IN_PROGRESS, 1, True)
    assert keeper.get() == claim
    assert keeper.stats() == ScopeStats("s", in_progress=1)


def test_a_claimed_key_is_given_to_nobody_else(keeper: Bookkeeper, other: Bookkeeper) -> None:
    claim = keeper.take()

    assert other.claim() == (claim, False)
    assert keeper.claim() == (claim, False)


def test_a_completed_key_is_given_to_nobody(keeper: Bookkeeper) -> None:
    claim = keeper.take()
    assert keeper.complete(claim, b"[1]") is True

    found, is_mine = keeper.claim()
    assert not is_mine
    assert (found.state, found.result, found.token) == (EntryState.COMPLETED, [1], None)
    assert keeper.stats() == ScopeStats("s", completed=1)


def test_a_failure_can_be_kept_as_the_answer(keeper: Bookkeeper) -> None:
    assert keeper.complete(keeper.take(), b'"no"', is_failure=True) is True

    found, is_mine = keeper.claim()
    assert not is_mine
    assert (found.state, found.result) == (EntryState.FAILED, "no")
    assert keeper.mark("k") == [False]
    assert keeper.store.ledger.processed("s", ["k"], now=keeper.clock.now()) == {"k"}
    assert keeper.stats() == ScopeStats("s", failed=1)


def test_a_released_key_is_free(keeper: Bookkeeper) -> None:
    claim = keeper.take()
    assert keeper.release(claim) is True
    assert keeper.release(claim) is False

    assert keeper.get() is None
    assert keeper.take().token != claim.token


def test_a_claim_runs_out_and_is_taken_over(keeper: Bookkeeper, other: Bookkeeper) -> None:
    """L3: a crash hands it on; here the process lives, and has stopped renewing."""
    keeper.take(seconds=10)
    keeper.clock.advance(9.999)
    assert other.claim()[1] is False
    keeper.clock.advance(0.001)

    taken = other.take()
    assert taken.attempts == 2
    assert keeper.kinds() == [EntryKind.CLAIMED, EntryKind.TAKEN_OVER]


def test_the_claim_of_a_process_that_ended_is_taken_over_at_once(
    place: Place, keeper: Bookkeeper, other: Bookkeeper
) -> None:
    """L3: without waiting for the lease."""
    claim = other.take(seconds=3_600)
    assert keeper.claim()[1] is False
    place.end(other.store)

    found = keeper.get()
    assert found is not None
    assert not found.is_held
    taken = keeper.take()
    assert taken.token is not None
    assert claim.token is not None
    assert taken.token > claim.token


def test_a_claim_for_another_lives_by_its_lease_alone(
    place: Place, keeper: Bookkeeper, other: Bookkeeper
) -> None:
    """L3, L5: he is no process here, and whoever wrote it down may end."""
    claim = other.take(seconds=10, is_for_another=True)
    place.end(other.store)
    keeper.clock.advance(9.999)
    assert keeper.claim()[1] is False
    assert keeper.renew(claim) == [claim]
    keeper.clock.advance(9.999)
    assert keeper.claim()[1] is False
    keeper.clock.advance(0.001)

    taken = keeper.take()
    assert taken.attempts == 2
    assert keeper.complete(claim) is False


def test_the_answer_of_one_who_was_replaced_is_refused(
    keeper: Bookkeeper, other: Bookkeeper
) -> None:
    """Completion, release and renewal, before the new one's own and after it."""
    late = keeper.take(seconds=10)
    keeper.clock.advance(10)
    taken = other.take()

    for _ in range(2):
        assert keeper.complete(late, b"1") is False
        assert keeper.release(late) is False
        assert keeper.renew(late) == []
        assert keeper.renew(taken) == [taken] or keeper.state() == EntryState.COMPLETED
        other.complete(taken, b"2")
    found = keeper.get()
    assert found is not None
    assert found.result == 2
    assert keeper.stats() == ScopeStats("s", completed=1)
    assert keeper.kinds()[-1] == EntryKind.COMPLETED


def test_an_answer_that_is_late_but_first_is_taken(keeper: Bookkeeper) -> None:
    claim = keeper.take(seconds=10)
    keeper.clock.advance(60)

    assert keeper.renew(claim) == [claim]
    keeper.clock.advance(60)
    assert keeper.complete(claim) is True


def test_a_token_is_never_given_twice(keeper: Bookkeeper) -> None:
    tokens = []
    for _ in range(4):
        claim = keeper.take()
        tokens.append(claim.token)
        keeper.release(claim)

    assert tokens == sorted(set(tokens))  # type: ignore[type-var]


def test_a_renewed_claim_lasts_longer(keeper: Bookkeeper, other: Bookkeeper) -> None:
    claim, gone = keeper.take("k", seconds=10), keeper.take("gone", seconds=10)
    keeper.release(gone)
    keeper.clock.advance(9)

    assert keeper.renew(claim, gone, seconds=10) == [claim]
    keeper.clock.advance(9)
    assert other.claim()[1] is False


def test_a_wall_clock_set_back_neither_ends_a_claim_nor_prolongs_it(
    keeper: Bookkeeper, other: Bookkeeper
) -> None:
    keeper.take(seconds=10)
    keeper.clock.set_back(3_600)
    keeper.clock.advance(9)
    assert other.claim()[1] is False
    keeper.clock.advance(1)

    assert other.claim()[1] is True


def test_a_payload_binds_while_it_is_in_progress_and_after(keeper: Bookkeeper) -> None:
    claim = keeper.take(hash=b"one")
    with pytest.raises(LedgerConflict):
        keeper.claim(hash=b"two")
    keeper.complete(claim)
    with pytest.raises(LedgerConflict):
        keeper.claim(hash=b"two")

    assert keeper.claim(hash=b"one")[1] is False
    assert keeper.claim()[1] is False


def test_a_result_lives_as_long_as_it_says(keeper: Bookkeeper) -> None:
    keeper.complete(keeper.take(), b"1", ttl=10 * SECOND)
    keeper.clock.advance(10)

    assert keeper.get() is None
    assert keeper.take().attempts == 1
    assert keeper.kinds()[-1] == EntryKind.CLAIMED


# By hand, and by time


def test_what_is_forgotten_can_be_processed_again(keeper: Bookkeeper) -> None:
    keeper.mark("a", "b")
    claim = keeper.take("c")

    assert keeper.forget("a", "c", "nothing") == 2
    assert keeper.complete(claim) is False
    assert keeper.keys() == ["b"]
    assert keeper.stats() == ScopeStats("s", completed=1)
    assert keeper.kinds()[-2:] == [EntryKind.FORGOTTEN] * 2
    assert keeper.mark("a") == [True]


def test_expired_entries_are_pruned_a_few_at_a_time(keeper: Bookkeeper) -> None:
    keeper.mark("a", "b", "c", "d\0", ttl=10)
    keeper.mark("t", scope="t", ttl=10)
    keeper.mark("kept", ttl=11)
    now = keeper.clock.now()
    assert keeper.store.ledger.expired(now=now) is False
    keeper.clock.advance(10)
    assert keeper.stats().completed == 5

    assert keeper.store.ledger.expired(now=keeper.clock.now()) is True
    assert [keeper.prune(limit=2) for _ in range(4)] == [2, 2, 1, 0]
    assert keeper.stats() == ScopeStats("s", completed=1)
    assert keeper.stats("t") == ScopeStats("t")
    assert keeper.keys() == ["kept"]


def test_an_old_claim_is_pruned_only_if_nobody_is_at_it(keeper: Bookkeeper) -> None:
    living = keeper.take("living", seconds=2 * WEEK)
    keeper.take("abandoned", seconds=10)
    keeper.clock.advance(WEEK)

    assert keeper.keys() == ["living"]
    assert keeper.prune() == 1
    assert keeper.prune() == 0
    assert keeper.store.ledger.expired(now=keeper.clock.now()) is False
    assert keeper.claim("living")[1] is False
    assert keeper.complete(living) is True
    assert keeper.stats() == ScopeStats("s", completed=1)


# Reading


def test_entries_are_listed_by_key_and_in_pages(keeper: Bookkeeper) -> None:
    keeper.mark("b", "d", "a")
    keeper.mark("c", "e", ttl=1)
    keeper.take("f")
    keeper.clock.advance(1)

    assert keeper.keys() == ["a", "b", "d", "f"]
    assert keeper.keys(limit=2) == ["a", "b"]
    assert keeper.keys(after="b", limit=2) == ["d", "f"]
    assert keeper.keys("nothing") == []


def test_counts_are_exact_by_scope(keeper: Bookkeeper) -> None:
    keeper.mark("a", "b", scope="one")
    keeper.complete(keeper.take("c", scope="two"))
    keeper.take("d", scope="two")

    assert keeper.store.ledger.stats() == [
        ScopeStats("one", completed=2),
        ScopeStats("two", completed=1, in_progress=1),
    ]


def test_the_history_has_no_gaps_and_loses_only_its_beginning(keeper: Bookkeeper) -> None:
    for number in range(6):
        keeper.mark(f"k{number}")
        keeper.clock.advance(10)
    start = keeper.store.ledger.events(after=0, limit=1)[0].at
    ids = [event.id for event in keeper.store.ledger.events(after=0, limit=100)]
    assert ids == list(range(ids[0], ids[0] + 6))
    assert [e.key for e in keeper.store.ledger.events(after=ids[1], limit=2)] == ["k2", "k3"]

    def prune(before: int, limit: int) -> int:
        return keeper.scribe.write(lambda tx: tx.ledger.prune_events(before=before, limit=limit))

    assert prune(start, 100) == 0
    assert prune(start + 30 * SECOND, 2) == 2
    assert prune(start + 30 * SECOND, 100) == 1
    assert [e.key for e in keeper.store.ledger.events(after=0, limit=9)] == ["k3", "k4", "k5"]
    assert prune(start + 100 * SECOND, 100) == 3
    keeper.mark("next")
    assert keeper.store.ledger.events(after=0, limit=9)[0].id == ids[-1] + 1


def test_a_clock_set_back_keeps_the_history_in_order(keeper: Bookkeeper) -> None:
    keeper.mark("a")
    keeper.clock.set_back(60)
    keeper.mark("b")
    before = keeper.clock.now() + 30 * SECOND

    removed = keeper.scribe.write(lambda tx: tx.ledger.prune_events(before=before, limit=9))

    assert removed == 0
    assert [e.key for e in keeper.store.ledger.events(after=0, limit=9)] == ["a", "b"]
