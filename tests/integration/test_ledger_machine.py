"""The ledger against a model, over two hubs on one file, with every step in any order (L2, L3).

The clock is the test's. Leases are so long that nothing is renewed by itself while a test runs;
a holder that is late, or whose process has ended, comes about by steps of the machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

import penstock
from penstock.clock import SECOND
from penstock.entry import EntryKind, EntryState
from penstock.errors import (
    AlreadyProcessed,
    InProgress,
    LeaseLost,
    LedgerConflict,
    WorkFailed,
)
from penstock.ledger.claim import Claim
from penstock.testing import FakeClock
from tests.factories import hub_on

LEASE = 1_000
KEEP = 10_000

Key = tuple[str, str]
keys = st.tuples(st.sampled_from(["s", "t"]), st.sampled_from(["a", "b", "b\0", "c"]))
hubs = st.sampled_from([0, 1])
payloads = st.sampled_from([None, None, "x", "y"])


class Known:
    """What the model knows of a key."""

    def __init__(
        self, state: EntryState, expires_at: int, payload: Any, result: Any = None
    ) -> None:
        self.state = state
        self.expires_at = expires_at
        self.payload = payload
        self.result = result
        self.token = 0
        self.until = 0
        self.hub: penstock.Hub | None = None
        self.attempts = 1


class LedgerMachine(RuleBasedStateMachine):
    claims: Bundle[tuple[Claim, Key, int]] = Bundle("claims")

    @initialize()
    def open(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "hub.db"
        self.clock = FakeClock()
        self.hubs = [self._hub(), self._hub()]
        self.closed: list[penstock.Hub] = []
        self.model: dict[Key, Known] = {}
        self.tokens: set[int] = set()
        self.events: list[tuple[Key, EntryKind]] = []

    def _hub(self) -> penstock.Hub:
        return hub_on(self._path, clock=self.clock, durability="os", ledger_seconds=KEEP)

    # The model

    def is_held(self, known: Known) -> bool:
        return (
            known.state == EntryState.IN_PROGRESS
            and known.until > self.clock.monotonic()
            and known.hub in self.hubs
        )

    def found(self, key: Key) -> Known | None:
        known = self.model.get(key)
        if known is None:
            return None
        if known.expires_at <= self.clock.now() and not self.is_held(known):
            return None
        return known

    def expires(self, seconds: float = KEEP) -> int:
        return self.clock.now() + round(seconds * SECOND)

    def conflicts(self, known: Known | None, payload: Any) -> bool:
        if known is None or payload is None or known.payload is None:
            return False
        return bool(payload != known.payload)

    # Steps

    @rule(hub=hubs, key=keys, payload=payloads, ttl=st.sampled_from([None, 50.0]))
    def mark(self, hub: int, key: Key, payload: Any, ttl: float | None) -> None:
        known = self.found(key)
        try:
            won = self.hubs[hub].ledger.mark_processed(*key, payload=payload, ttl=ttl)
        except LedgerConflict:
            assert self.conflicts(known, payload)
            return
        assert not self.conflicts(known, payload)
        is_free = known is None or (not known.state.is_final and not self.is_held(known))
        assert won == is_free
        if won:
            expires = self.expires(KEEP if ttl is None else ttl)
            self.model[key] = Known(EntryState.COMPLETED, expires, payload)
            self.events.append((key, EntryKind.MARKED))

    @rule(hub=hubs, scope=st.sampled_from(["s", "t"]), names=st.lists(st.sampled_from("abcd")))
    def mark_many(self, hub: int, scope: str, names: list[str]) -> None:
        expected = []
        for name in names:
            known = self.found((scope, name))
            is_free = known is None or (not known.state.is_final and not self.is_held(known))
            expected.append(is_free)
            if is_free:
                self.model[scope, name] = Known(EntryState.COMPLETED, self.expires(), None)
        assert self.hubs[hub].ledger.mark_many(scope, names) == expected
        for name, won in zip(names, expected, strict=True):
            if won:
                self.events.append(((scope, name), EntryKind.MARKED))

    @rule(target=claims, hub=hubs, key=keys, payload=payloads)
    def claim(self, hub: int, key: Key, payload: Any) -> Any:
        known = self.found(key)
        claim = self.hubs[hub].ledger.claim(
            *key, lease_seconds=LEASE, payload=payload, on_done="raise"
        )
        try:
            claim.__enter__()
        except LedgerConflict:
            assert self.conflicts(known, payload)
            return multiple()
        except AlreadyProcessed:
            assert known is not None
            assert known.state.is_final
            return multiple()
        except InProgress:
            assert known is not None
            assert self.is_held(known)
            return multiple()
        assert not self.conflicts(known, payload)
        assert known is None or (not known.state.is_final and not self.is_held(known))
        assert claim.token not in self.tokens
        assert claim.token > max(self.tokens, default=0)
        self.tokens.add(claim.token)
        new = Known(EntryState.IN_PROGRESS, self.expires(), payload)
        new.token, new.hub = claim.token, self.hubs[hub]
        new.until = self.clock.monotonic() + LEASE * SECOND
        new.attempts = 1 if known is None else known.attempts + 1
        assert claim.attempt == new.attempts
        self.model[key] = new
        kind = EntryKind.CLAIMED if known is None else EntryKind.TAKEN_OVER
        self.events.append((key, kind))
        return claim, key, claim.token

    def _end(self, held: tuple[Claim, Key, int], *, is_release: bool) -> None:
        claim, key, token = held
        known = self.model.get(key)
        is_valid = known is not None and known.token == token
        error = ValueError("boom") if is_release else None
        try:
            if not is_release:
                claim.result = token
            claim.__exit__(type(error) if error else None, error, None)
        except LeaseLost:
            assert not is_valid
            return
        if not is_valid:
            assert is_release
            return
        assert known is not None
        if is_release:
            del self.model[key]
            self.events.append((key, EntryKind.RELEASED))
        else:
            done = Known(EntryState.COMPLETED, self.expires(), known.payload, token)
            done.attempts = known.attempts
            self.model[key] = done
            self.events.append((key, EntryKind.COMPLETED))

    @rule(held=consumes(claims))
    def complete(self, held: tuple[Claim, Key, int]) -> None:
        if not self._is_closed(held[0]):
            self._end(held, is_release=False)

    @rule(held=consumes(claims))
    def release(self, held: tuple[Claim, Key, int]) -> None:
        if not self._is_closed(held[0]):
            self._end(held, is_release=True)

    def _is_closed(self, claim: Claim) -> bool:
        try:
            return not any(claim._open() is hub._open() for hub in self.hubs)
        except penstock.HubClosed:
            return True

    @rule(key=keys, hub=hubs)
    def ask_for_the_result(self, key: Key, hub: int) -> None:
        known = self.found(key)
        if known is None or not known.state.is_final:
            return
        try:
            with self.hubs[hub].ledger.claim(*key, on_done="result") as claim:
                assert claim.is_done
                assert claim.result == known.result
        except WorkFailed:
            raise AssertionError("no failure is kept here") from None

    @rule(key=keys, hub=hubs)
    def forget(self, key: Key, hub: int) -> None:
        removed = self.hubs[hub].ledger.forget(*key)
        assert removed == (1 if key in self.model else 0)
        if removed:
            del self.model[key]
            self.events.append((key, EntryKind.FORGOTTEN))

    @rule(seconds=st.sampled_from([1, LEASE - 1, LEASE, KEEP]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def the_wall_clock_is_set_back(self) -> None:
        self.clock.set_back(30)

    @rule(hub=hubs)
    def prune(self, hub: int) -> None:
        gone = [key for key in self.model if self.found(key) is None]
        assert self.hubs[hub].ledger.prune() == len(gone)
        for key in gone:
            del self.model[key]
        for known in self.model.values():
            if known.expires_at <= self.clock.now():
                known.expires_at = self.clock.now() + 3_600 * SECOND

    @precondition(lambda self: len(self.closed) < 3)
    @rule(hub=hubs)
    def a_process_ends(self, hub: int) -> None:
        self.closed.append(self.hubs[hub])
        self.hubs[hub].close()
        self.hubs[hub] = self._hub()

    # What always holds

    @invariant()
    def both_say_what_the_model_says(self) -> None:
        for hub in getattr(self, "hubs", ()):
            for scope in ("s", "t"):
                expected = sorted(
                    (key, known.state, self.is_held(known), known.attempts)
                    for (in_scope, key) in self.model
                    if in_scope == scope and (known := self.found((in_scope, key))) is not None
                )
                entries = hub.ledger.list(scope)
                assert sorted((e.key, e.state, e.is_held, e.attempts) for e in entries) == expected
                counted = [k for (s, _), k in self.model.items() if s == scope]
                assert hub.ledger.count(scope) == sum(k.state.is_final for k in counted)

    def teardown(self) -> None:
        if hasattr(self, "hubs"):
            found = self.hubs[0].ledger.events(limit=10_000)
            told = [((event.scope, event.key), event.kind) for event in found]
            for key in {key for key, _ in told}:
                # In the order in which they happened to the key; the oldest may be pruned.
                kinds = [kind for k, kind in told if k == key]
                expected = [kind for k, kind in self.events if k == key]
                assert kinds == expected[-len(kinds) :]
            for hub in self.hubs:
                hub.close()
            self._folder.cleanup()


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
