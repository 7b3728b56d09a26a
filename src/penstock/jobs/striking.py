"""To raise an exception in another thread, between two steps of its Python code."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from types import FrameType

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
# An address, which says nothing about who owns it: the class is there as long as its module.
_raise_in.argtypes = [ctypes.c_ulong, ctypes.c_void_p]

_START = threading.Thread.start.__code__


def strike(ident: int, error: type[BaseException]) -> bool:
    """False if this is not the moment, because it is starting another thread: try again soon.

    In Python 3.11, a thread that has not run yet bears the number of the one that starts it, and
    would be struck instead. It would end there and then, and whoever started it wait for ever.
    """
    # Has the interpreter's lock anew: nobody else wants it before the next steps are done.
    time.sleep(0)
    if _is_starting_another(ident):
        return False
    _raise_in(ident, id(error))
    return True


class _Undone(BaseException):
    """Raised in the place of another."""


def undo_strike() -> None:
    """Take back what was not raised yet in this thread.

    To replace it by nothing would leave the interpreter looking for it ever after, in all threads;
    those that are traced, by a debugger or for coverage, would not get out of that.
    """
    try:
        _raise_in(threading.get_ident(), id(_Undone))
        while True:
            time.sleep(0)
    except _Undone:
        return


def _is_starting_another(ident: int) -> bool:
    frame: FrameType | None = sys._current_frames().get(ident)
    while frame is not None:
        if frame.f_code is _START:
            return not frame.f_locals["self"]._started.is_set()
        frame = frame.f_back
    return False
