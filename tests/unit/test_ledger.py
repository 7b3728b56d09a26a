"""Parts of the ledger by themselves: what is asked for, what is remembered, who is renewed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from penstock.entry import NEVER, Entry, EntryState, Outcome
from penstock.errors import InProgress, InvalidInput, InvalidPayload, StoreBusy
from penstock.ledger.fallback import Done, Fallback
from penstock.ledger.keeper import ClaimKeeper
from penstock.ledger.shadow import EXAMPLES_MAX, Comparison
from penstock.ledger.terms import duration, hash_of, make_marks
from penstock.telemetry import Telemetry
from penstock.topics.sieve import key_of

# What is asked for


def test_payloads_are_compared_by_what_they_say() -> None:
    assert hash_of({"a": 1, "b": [2]}) == hash_of({"b": [2], "a": 1})
    assert hash_of(b"x") == hash_of(bytearray(b"x")) == hash_of(memoryview(b"x"))
    different = [{"a": 1}, {"a": "1"}, [1], 1, "1", b"1", b'"1"', "", b"", [], {}]
    assert len({hash_of(payload) for payload in different}) == len(different)
    assert hash_of(None) is None
    with pytest.raises(InvalidPayload):
        hash_of(lambda: None)


@pytest.mark.parametrize("seconds", [0, -1, -math.inf, math.nan, True, "1", 1e10])
def test_a_duration_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidInput):
        duration(seconds, "ttl")


def test_durations_are_microseconds_and_infinity_is_never() -> None:
    assert duration(1.5, "ttl") == 1_500_000
    assert duration(math.inf, "ttl") == NEVER
    assert duration(None, "ttl") is None


def test_one_bad_key_refuses_the_whole_call() -> None:
    with pytest.raises(InvalidInput):
        make_marks("s", ["good", ""], None)


def test_a_message_is_known_by_its_publishers_key_or_its_place(memory: Any) -> None:
    memory.topics.publish("a.b", 1, idempotency_key="17")
    memory.topics.publish("a.b", 1)
    first, second = memory.topics.read("a.b")

    assert key_of(first) == "a.b?key=17"
    assert key_of(second) == f"a.b?id={second.id}"


# Memory while the ledger is away


@pytest.fixture
def fallback() -> Fallback:
    return Fallback(3, Telemetry())


def test_a_key_is_begun_once_and_answered_from_then_on(fallback: Fallback) -> None:
    done = Done(Outcome(b"1", 1))
    assert fallback.begin("s", "k") is None
    with pytest.raises(InProgress):
        fallback.begin("s", "k")
    fallback.finish("s", "k", done)

    assert fallback.begin("s", "k") is done
    assert fallback.find("s", "k") is done
    assert fallback.find("t", "k") is None
    fallback.drop("s", "k")
    assert fallback.begin("s", "k") is None


def test_the_oldest_keys_are_forgotten_first(fallback: Fallback) -> None:
    fallback.remember("s", ["a", "b", "c"])
    fallback.remember("s", ["a", "d"])

    assert fallback.among("s", "abcd") == {"a", "c", "d"}
    assert fallback.among("t", "abcd") == set()


def test_what_is_being_done_is_not_entered(fallback: Fallback) -> None:
    fallback.begin("s", "running")
    fallback.remember("s", ["done"])
    pending = fallback.pending()

    assert [place for place, _ in pending] == [("s", "done")]
    fallback.remember("s", ["done"])  # Done anew meanwhile: that is still to be entered.
    fallback.entered(pending)
    assert len(fallback.pending()) == 1
    fallback.entered(fallback.pending())
    assert fallback.size == 1


def test_health_is_a_warning_until_it_answers_again(fallback: Fallback) -> None:
    assert fallback.check() is None
    fallback.unreachable("s", StoreBusy(), 2)
    check = fallback.check()
    assert check is not None
    assert (check.name, check.status) == ("ledger", "warning")
    assert "2 keys" in check.found
    fallback.reached()
    assert fallback.check() is None


# Renewals


def entry(token: int) -> Entry:
    return Entry("s", f"k{token}", EntryState.IN_PROGRESS, 0, 1, token=token, is_held=True)


class Renewals:
    """Answers renewals: all but those of `lost`."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int | None], float]] = []
        self.lost: set[int] = set()
        self.ledger = self

    def __call__(self, write: Callable[[Any], Any], /) -> Any:
        return write(self)

    def renew(self, claims: list[Entry], *, lease_seconds: float) -> list[Entry]:
        self.asked.append(([claim.token for claim in claims], lease_seconds))
        return [claim for claim in claims if claim.token not in self.lost]


class StillKeeper(ClaimKeeper):
    """Runs when the test says so."""

    def start(self) -> None:
        pass


def test_claims_are_renewed_together_by_lease_when_they_are_due() -> None:
    renewals = Renewals()
    keeper = StillKeeper(renewals, Telemetry())
    lost: list[int] = []
    for token in (1, 2):
        keeper.keep(entry(token), 1e-9, lambda token=token: lost.append(token))  # type: ignore[misc]
    keeper.keep(entry(3), 3_600, lambda: lost.append(3))
    renewals.lost = {2}

    assert keeper.run_once() <= 1
    assert renewals.asked == [([1, 2], 1e-9)]
    assert lost == [2]
    assert keeper.held == 2
    keeper.drop(entry(1))
    assert keeper.run_once() > 1_000
    assert len(renewals.asked) == 1


def test_a_claim_that_ended_while_it_was_renewed_is_not_lost() -> None:
    renewals = Renewals()
    keeper = StillKeeper(renewals, Telemetry())
    claim = entry(1)
    renewals.lost = {1}

    class Ending(Renewals):
        def renew(self, claims: list[Entry], *, lease_seconds: float) -> list[Entry]:
            keeper.drop(claim)
            return []

    keeper._write = Ending()
    keeper.keep(claim, 1e-9, lambda: pytest.fail("it was completed"))
    keeper.run_once()


# Shadows


def test_a_comparison_keeps_the_latest_examples_only() -> None:
    comparison = Comparison(Telemetry())
    for number in range(EXAMPLES_MAX + 5):
        comparison.compare("is_processed", "s", str(number), True, False)

    report = comparison.report()
    assert report.differed == EXAMPLES_MAX + 5
    assert [example.key for example in report.examples[:1]] == ["5"]
