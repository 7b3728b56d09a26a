"""Programs under Node that use penstock.js as it is served."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import textwrap
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.processes import Child

CLIENT = Path(penstock.__file__).parent / "server" / "static" / "penstock.js"
HAS_WEBSOCKET = "process.exit(typeof WebSocket === 'function' ? 0 : 1)"

PREAMBLE = f"""
import * as penstock from {json.dumps(CLIENT.as_uri())};
import {{ createInterface }} from "node:readline";
const {{ connect }} = penstock;
const lines = createInterface({{ input: process.stdin }})[Symbol.asyncIterator]();
process.stdin.unref(); // A program ends when it has nothing left to do but to listen.
/** The next line the test says. */
const hear = async () => (await lines.next()).value;
/** Tell the test something. */
const say = (value) => process.stdout.write(JSON.stringify(value ?? null) + "\\n");
/** The code of the error that a promise, or a call, ends with. */
const codeOf = async (work) => {{
  try {{
    await (typeof work === "function" ? work() : work);
    return "no error";
  }} catch (error) {{
    return error instanceof penstock.PenstockError ? error.code : String(error);
  }}
}};
/** The next time that an event happens. */
const event = (emitter, name) => new Promise((resolve) => emitter.on(name, resolve));
const [url, ...rest] = process.argv.slice(1);
"""


@lru_cache(maxsize=1)
def node() -> str:
    """A Node with a WebSocket of its own: the machine's, or the one that Playwright brings."""
    candidates = [shutil.which("node")]
    try:
        from playwright._impl._driver import compute_driver_executable

        candidates.append(str(compute_driver_executable()[0]))
    except ImportError:
        pass
    for candidate in candidates:
        if candidate is None:
            continue
        if subprocess.run([candidate, "-e", HAS_WEBSOCKET], check=False).returncode == 0:
            return candidate
    reason = "There is no Node 22 or newer, neither on the PATH nor with Playwright."
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


class Node(Child):
    """A Node program: `url`, `rest`, `connect`, `hear()`, `say()` are there for it."""

    def __init__(self, code: str, *arguments: object) -> None:
        program = PREAMBLE + textwrap.dedent(code)
        command = [node(), "--input-type=module", "-e", program, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._heard = ""

    def told(self) -> Any:
        """What it says next."""
        return json.loads(self.hear())
