"""A thread that is struck once, at a step that is chosen: by Ctrl-C, or the end of a job's time.

Python looks for what strikes a thread when a function begins, behind a call, and where a loop
begins again. These are the steps here, of penstock's own code and of `with` blocks that are
written as generators. What other threads do for this one goes on.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import penstock
from tests.crash.strikes import PATIENCE_SECONDS, Struck

OURS = (os.path.dirname(penstock.__file__), contextlib.__file__, threading.__file__)


class Striker:
    """Counts the steps of the thread that it runs on, and strikes at one of them."""

    def __init__(self, step: int) -> None:
        self._left = step
        self.has_struck = False
        self.where = ""

    def begin(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.has_struck or not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._go_on

    def _go_on(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and frame.f_lasti in _places(frame.f_code):
            self._left -= 1
            if self._left < 0:
                self.has_struck = True
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise Struck
        return self._go_on


@functools.cache
def _places(code: CodeType) -> frozenset[int]:
    """Where in this code a thread can be struck: in front of these instructions."""
    found: set[int] = set()
    blocks = dis._parse_exception_table(code)  # type: ignore[attr-defined]

    def handler_of(offset: int) -> int | None:
        return next((b.target for b in reversed(blocks) if b.start <= offset < b.end), None)

    struck: int | None = None
    for instruction in dis.get_instructions(code):
        offset, name = instruction.offset, instruction.opname
        # Behind the last call of a block, it is the block's end that would be missed: there, it
        # is struck inside it.
        if struck is not None and handler_of(struck) == handler_of(offset):
            found.add(offset)
        is_place = name in ("RESUME", "JUMP_BACKWARD") or name.startswith("CALL")
        struck = offset if is_place else None
    return frozenset(found)


def strike_at(step: int, work: Callable[[], object]) -> bool:
    """Do it on a thread that is struck at this step. False if it was done before that."""
    striker = Striker(step)
    errors: list[BaseException] = []

    def run() -> None:
        sys.settrace(striker.begin)
        try:
            work()
        except Struck:
            pass
        except BaseException as error:  # noqa: BLE001 - it is the test's thread that fails
            errors.append(error)
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    print(f"struck at step {step}: {striker.where}")
    assert not thread.is_alive(), f"it waits for good:\n{_stack_of(thread)}"
    if errors:
        raise AssertionError("it failed") from errors[0]
    return striker.has_struck


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else "it has ended"


def strike_at_each(work: Callable[[int], object], *, stride: int = 1) -> Iterator[int]:
    """Over and over, one step further each time, until it is done before it is struck. With a
    `stride`, so many steps further: where there are a great many.

    Gives the step's number each time, for a check.
    """
    step = 0
    while strike_at(step, functools.partial(work, step)):
        yield step
        step += stride
