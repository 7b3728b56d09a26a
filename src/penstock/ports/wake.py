"""Being woken when another process has written."""

from __future__ import annotations

from typing import Protocol


class Wake(Protocol):
    def wait(self, timeout_seconds: float) -> bool:
        """Block until somebody committed something worth a look, or the time is over.

        True means "look". A look may find nothing; a commit is never missed for longer than
        the safety net's interval, whoever made it.
        """

    def interrupt(self) -> None:
        """Wake only this waiter, from any thread."""

    def close(self) -> None: ...
