"""`@hub.job`: which functions can be handlers, and what is known of them (J5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidInput, UnknownJobType


@dataclass
class Thumbnail:
    id: int


def at_the_top(payload: int) -> None: ...


def test_a_coroutine_runs_on_the_loop_and_a_function_on_a_thread(memory: penstock.Hub) -> None:
    @memory.job
    async def first(payload: Thumbnail, job: Any) -> None: ...

    @memory.job(queue="q", name="other", max_attempts=7, timeout=2.5, priority=-1)
    def second(payload: dict[str, int]) -> None: ...

    one, other = memory.handlers.find("first"), memory.handlers.find("other")
    assert (one.isolation, one.payload_type, one.takes_job) == ("async", Thumbnail, True)
    assert (other.isolation, other.payload_type, other.takes_job) == (
        "thread",
        dict[str, int],
        False,
    )
    assert (other.queue, other.max_attempts, other.timeout_seconds) == ("q", 7, 2.5)
    assert memory.handlers.queues == ["default", "q"]


def test_a_decorated_function_can_still_be_called(memory: penstock.Hub) -> None:
    @memory.job
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    assert double(4) == 8
    assert (double.__name__, double.__doc__) == ("double", "Twice.")


def test_an_unknown_type_says_what_to_do(memory: penstock.Hub) -> None:
    with pytest.raises(UnknownJobType, match=r"@hub\.job"):
        memory.handlers.find("nosuch")


def test_one_type_is_one_function(memory: penstock.Hub) -> None:
    memory.job(at_the_top)
    memory.job(at_the_top)  # A module that is imported again.

    with pytest.raises(InvalidInput, match="already"):
        memory.job(name="at_the_top")(lambda payload: None)


async def coroutine(payload: int) -> None: ...


def no_arguments() -> None: ...


def three(payload: int, job: object, more: object) -> None: ...


def unresolved(payload: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (no_arguments, {}),
        (three, {}),
        (unresolved, {}),
        (coroutine, {"isolation": "thread"}),
        (coroutine, {"isolation": "process"}),
        (at_the_top, {"isolation": "async"}),
        (at_the_top, {"isolation": "fiber"}),
        (at_the_top, {"max_attempts": -1}),
        (at_the_top, {"timeout": -1}),
        (at_the_top, {"result_seconds": -1}),
        (at_the_top, {"queue": ""}),
        (at_the_top, {"name": "a\nb"}),
    ],
)
def test_what_cannot_be_a_handler_is_refused_where_it_is_defined(
    memory: penstock.Hub, function: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        memory.job(**options)(function)
    assert list(memory.handlers) == []


def test_a_process_needs_a_function_that_it_can_import(memory: penstock.Hub) -> None:
    def inside(payload: int) -> None: ...

    with pytest.raises(InvalidInput, match="top of a module"):
        memory.job(isolation="process")(inside)
    memory.job(isolation="process")(at_the_top)
