"""What the page on guarantees says about forks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_SECONDS = 60

FORK = """
import os, sqlite3, penstock
hub = penstock.connect("sqlite:///penstock.db")
{before}
child = os.fork()
if child == 0:
    hub.topics.publish("from", "child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
hub.topics.publish("from", "parent")
print([message.payload for message in hub.topics.read("from")])
hub.close()
"""


@pytest.mark.parametrize("before", ["", "hub.topics.list()"], ids=["not yet used", "only read"])
def test_a_child_opens_its_own_connection_though_sqlite3_is_imported(
    before: str, tmp_path: Path
) -> None:
    """The inherited descriptors of the parent's hub are no foreign connection to the child."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FORK.format(before=before)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.stdout == "['child', 'parent']\n", done.stderr
