"""For the tests of programs that use penstock, and for our own.

    from penstock.testing import FakeClock, assert_enqueued, drain, inline, memory_hub, override

`memory_hub()` is a hub of its own that leaves nothing behind; `override(hub)` puts a program's hub
on such a store for a while; `FakeClock` moves only when it is told to. `drain(hub)` runs jobs here
and now, `inline(hub)` runs them as they are enqueued, and `assert_enqueued` says that they wait.
`run_pipeline(function, rows)` gives what a pipeline's function makes of a few rows.
"""

from penstock.testing.asserting import assert_enqueued, refute_enqueued
from penstock.testing.clock import FakeClock
from penstock.testing.hubs import memory_hub, override
from penstock.testing.inline import inline
from penstock.testing.jobs import Drained, drain
from penstock.testing.pipelines import message, run_pipeline

__all__ = [
    "Drained",
    "FakeClock",
    "assert_enqueued",
    "drain",
    "inline",
    "memory_hub",
    "message",
    "override",
    "refute_enqueued",
    "run_pipeline",
]
