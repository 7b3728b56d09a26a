"""Every error: one code, a sentence, a hint for the person, and it travels between processes."""

from __future__ import annotations

import copy
import inspect
import re
from collections import Counter

import pytest

from penstock import errors
from penstock.errors import LogTrimmed, PenstockError
from penstock.model import Position

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, PenstockError)
]


def test_codes_are_not_used_twice() -> None:
    codes = Counter(cls.code for cls in CLASSES)

    assert [code for code, count in codes.items() if count > 1] == []


@pytest.mark.parametrize("cls", CLASSES)
def test_each_class_states_its_own_code_and_sentence(cls: type[PenstockError]) -> None:
    assert "code" in vars(cls)
    assert re.fullmatch(r"[a-z_]+", cls.code)
    assert inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].endswith(".")


@pytest.mark.parametrize("cls", CLASSES)
def test_the_docstring_is_the_message(cls: type[PenstockError]) -> None:
    error = make(cls)

    assert error.message == inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]
    assert str(error) == f"{error.message} {cls.hint}".rstrip()


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_travels_between_processes(cls: type[PenstockError]) -> None:
    """Through the protocol that copy shares with what executors and worker pools use."""
    error = make(cls, "It broke.", hint="Mend it.")
    arrived = copy.copy(error)

    assert arrived is not error
    assert type(arrived) is cls
    assert (arrived.message, arrived.hint, str(arrived)) == ("It broke.", "Mend it.", str(error))
    assert vars(arrived) == vars(error)


def test_errors_that_time_can_mend_say_so() -> None:
    retryable = {cls.code for cls in CLASSES if cls.retryable}

    assert {"store_busy", "store_full", "queue_full", "outcome_unknown"} <= retryable
    assert not {"invalid_topic", "log_trimmed", "lease_lost", "hub_closed"} & retryable


def make(cls: type[PenstockError], *arguments: str, **options: str) -> PenstockError:
    if issubclass(cls, LogTrimmed):
        return cls(*arguments, first=None, resume=Position("e", 1), **options)
    return cls(*arguments, **options)


def test_a_loss_says_where_to_go_on_also_after_it_travelled() -> None:
    error = LogTrimmed(first=Position("e", 5), resume=Position("e", 4))
    arrived = copy.copy(error)

    assert (arrived.first, arrived.resume) == (Position("e", 5), Position("e", 4))
