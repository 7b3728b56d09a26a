"""Fixtures for tests of the command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from tests.acceptance.terminal import Terminal
from tests.factories import hub_on
from tests.waiting import wait_until


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    shell = Terminal(tmp_path)
    yield shell
    shell.close()


@pytest.fixture
def hub(terminal: Terminal) -> Iterator[penstock.Hub]:
    """This process's own view of the terminal's database."""
    with hub_on(terminal.file) as hub:
        yield hub


@pytest.fixture
def listening(hub: penstock.Hub) -> Callable[[int], None]:
    """Waits until so many processes have begun to follow."""

    def wait(count: int) -> None:
        wait_until(lambda: hub.metrics().active_pollers >= count, f"{count} followers listen")

    return wait


@pytest.fixture
def is_root() -> bool:
    return os.geteuid() == 0
