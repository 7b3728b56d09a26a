"""To raise an exception in another thread, between two steps of its Python code."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from types import FrameType

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
# An address, because NULL (None here) takes back what was not raised yet.
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


def undo_strike(ident: int) -> None:
    """Take back what was not raised yet."""
    _raise_in(ident, None)


def _is_starting_another(ident: int) -> bool:
    frame: FrameType | None = sys._current_frames().get(ident)
    while frame is not None:
        if frame.f_code is _START:
            return not frame.f_locals["self"]._started.is_set()
        frame = frame.f_back
    return False
