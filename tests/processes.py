"""Other processes, for what only a second process can show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from types import TracebackType

from penstock.errors import StoreBusy
from tests.waiting import is_readable

DEADLINE_SECONDS = 60.0
A_WHILE_SECONDS = 0.05


class Child:
    """A Python process that runs `code`, says lines on its standard output and hears them."""

    def __init__(self, code: str, *arguments: object, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **environment},
        )
        self._heard = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def first_word(self) -> str:
        """The first line it says. Without it there is no child: then it is not left behind."""
        try:
            return self.hear()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def hear(self) -> str:
        """The next line it says."""
        out = self._process.stdout
        assert out is not None
        deadline = time.monotonic() + DEADLINE_SECONDS
        while "\n" not in self._heard:
            assert is_readable(out, deadline - time.monotonic()), "the child said nothing in time"
            piece = os.read(out.fileno(), 65536).decode()
            assert piece, f"the child ended with {self._process.wait()} without a word"
            self._heard += piece
        line, self._heard = self._heard.split("\n", 1)
        return line

    def tell(self, line: str = "") -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """As a debugger or Ctrl-Z does. Returns when all of its threads stand still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def stop_between_writes(self, write: Callable[[], object]) -> None:
        """The same, while it does not hold the database: then everybody would wait for it."""
        for _ in range(50):
            self.stop()
            try:
                write()
                return
            except StoreBusy:
                self.go_on()
                time.sleep(A_WHILE_SECONDS)  # It has waited to write, too.
        raise AssertionError("it was always writing")

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self) -> int:
        return self._process.wait(DEADLINE_SECONDS)

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


def in_fork(work: object) -> int:
    """Run `work()` in a forked child. Returns its exit status: 0 if it returned."""
    import traceback
    import warnings

    with warnings.catch_warnings():
        # Python 3.12 warns that threads are running; that they are is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        # Whatever happens to it, it does not outlive the test by long.
        signal.alarm(round(2 * DEADLINE_SECONDS))
        try:
            work()  # type: ignore[operator]
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the parent only sees the status
            traceback.print_exc()
            os._exit(1)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the forked child did not end in time")
