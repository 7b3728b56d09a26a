"""The JavaScript of the documentation does what it says (D6).

The ```js blocks of a page run as one program, in order; a ```text block after one is what it
prints. The page's own server is a real one.
"""

from __future__ import annotations

import doctest
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client_js.node import CLIENT, node
from tests.client_js.servers import Server
from tests.docs.pages import all_pages, blocks, name_of

END = "--- end of block ---"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
DEADLINE_SECONDS = 60


def program(page: Path) -> tuple[str, list[str]]:
    """The page's code, and what each of its blocks should print."""
    pieces: list[str] = []
    expected: list[str] = []
    found = blocks(page)
    for number, block in enumerate(found):
        if block.language != "js" or block.mark == "not run":
            continue
        following = found[number + 1] if number + 1 < len(found) else None
        shows = following is not None and following.language == "text"
        pieces.append(f'{block.text}\nconsole.log("{END}");')
        expected.append(following.text if following is not None and shows else "")
    return "\n".join(pieces).replace("/static/penstock.js", CLIENT.as_uri()), expected


@pytest.mark.parametrize("page", [p for p in all_pages() if program(p)[1]], ids=name_of)
def test_a_page_runs_from_top_to_bottom(page: Path, start_server: Callable[..., Server]) -> None:
    code, expected = program(page)
    # What a browser knows by itself: where the page comes from.
    location = f'globalThis.location = new URL("{start_server().url}/");\n'
    done = subprocess.run(
        [node(), "--input-type=module", "-e", location + code],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{END}\n")[:-1]
    assert len(printed) == len(expected)
    checker = doctest.OutputChecker()
    for found, wanted in zip(printed, expected, strict=True):
        assert checker.check_output(wanted, found, FLAGS), f"{wanted}\nis\n{found}"
