"""For the tests of programs that use penstock, and for our own.

    from penstock.testing import FakeClock, memory_hub, override

`memory_hub()` is a hub of its own that leaves nothing behind; `override(hub)` puts a program's hub
on such a store for a while; `FakeClock` moves only when it is told to.
"""

from penstock.testing.clock import FakeClock
from penstock.testing.hubs import memory_hub, override

__all__ = ["FakeClock", "memory_hub", "override"]
