"""Handlers of signals: code of the program's own that runs in the middle of its main thread."""

from __future__ import annotations

import signal
import threading

_NAMES = (
    *("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGCHLD"),
    *("SIGVTALRM", "SIGPROF", "SIGWINCH"),
)
_SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))


def may_run_here() -> bool:
    """Whether one may run between any two steps of this thread. Ctrl-C, which only raises, is
    none."""
    if threading.get_ident() != threading.main_thread().ident:
        return False
    handlers = map(signal.getsignal, _SIGNALS)
    return any(
        callable(handler) and handler is not signal.default_int_handler for handler in handlers
    )
