"""When a failed attempt is tried again (J3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidInput
from penstock.jobs.retry import (
    DELAY_SECONDS_MAX,
    decide,
    exponential,
    fixed,
    never,
    only_on,
    squared,
)

ERROR = ValueError("x")


def delays(policy: Callable[..., float | None], attempts: int = 4) -> list[float | None]:
    return [policy(attempt, ERROR) for attempt in range(1, attempts + 1)]


def test_by_default_the_pause_is_the_square_of_the_attempt() -> None:
    assert delays(squared(jitter=0)) == [1, 4, 9, 16]


def test_jitter_only_prolongs_and_spreads() -> None:
    found = {squared(jitter=0.5)(3, ERROR) for _ in range(50)}

    assert len(found) > 10
    assert all(9 <= delay <= 13.5 for delay in found)


def test_fixed_and_exponential() -> None:
    assert delays(fixed(2.5)) == [2.5, 2.5, 2.5, 2.5]
    assert delays(exponential(0.5, factor=3, max_seconds=10, jitter=0)) == [0.5, 1.5, 4.5, 10]


@given(st.integers(1, 10**9))
def test_any_attempt_has_a_pause_that_can_be_used(attempt: int) -> None:
    for policy in (squared(), exponential(), fixed(3)):
        delay = decide(policy, attempt, ERROR)
        assert delay is not None
        assert 0 <= delay <= DELAY_SECONDS_MAX


def test_only_on_gives_up_at_once_after_other_errors() -> None:
    policy = only_on(OSError, fixed(1))

    assert policy(1, ConnectionError()) == 1
    assert policy(1, ERROR) is None
    assert only_on([OSError, ValueError], fixed(1))(1, ERROR) == 1


def test_never() -> None:
    assert delays(never()) == [None] * 4


@pytest.mark.parametrize("answer", [-1, float("nan"), "soon", [1]])
def test_an_answer_that_is_no_delay_is_refused(answer: object) -> None:
    with pytest.raises(InvalidInput):
        decide(lambda attempt, error: answer, 1, ERROR)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    "make", [lambda: fixed(0), lambda: fixed(-1), lambda: exponential(0), lambda: squared(jitter=2)]
)
def test_a_policy_that_makes_no_sense_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        make()
