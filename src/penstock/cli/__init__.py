"""The command line: one file for each group of commands."""

from __future__ import annotations

import gc
import sys

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


def main() -> None:
    """The entry point `penstock`."""
    try:
        from penstock.cli.app import build, module_for

        app = build(module_for(sys.argv[1:]))
        gc.freeze()  # What was loaded stays, and is not looked through, not even at the end.
        app(prog_name="penstock")
    except KeyboardInterrupt:
        # Before a command has begun, which ends quietly by itself.
        sys.exit(INTERRUPTED)
