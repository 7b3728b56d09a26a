"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import penstock
from penstock.testing import FakeClock, memory_hub
from tests.factories import hub_on

settings.register_profile(
    "penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("penstock")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what it runs in the background, and so would do all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

SUMMARY_LINES = 4
SUMMARY_COLUMNS = 300
_has_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    item.stash[_has_failed] = report.failed or item.stash.get(_has_failed, False)
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        # For the summary at the end, which is all that is seen of a long log: what failed and why
        # stay together on a screen. The whole message is with the traceback.
        lines = [line[:SUMMARY_COLUMNS] for line in crash.message.splitlines() if line.strip()]
        crash.message = "\n  ".join(lines[:SUMMARY_LINES])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """What a failed test left open is closed here, and charged to nobody.

    Its traceback keeps its sockets and files alive. They would use up descriptors, and whichever
    test comes next to a collection of garbage would fail for them.
    """
    result = yield
    if item.stash.get(_has_failed, False):
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            if hasattr(sys, name):
                delattr(sys, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
    return result


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spark",
        choices=("with", "without", "only"),
        default="with",
        help="whether to run the tests that share one Spark session, and so one process",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    which = config.getoption("--spark")
    if which == "with":
        return
    left, chosen = [], []
    for item in items:
        needs_session = "spark" in getattr(item, "fixturenames", ())
        (chosen if needs_session == (which == "only") else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = chosen


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine the tests run on reaches them."""
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a hub's file may be."""
    return tmp_path / "hub.db"


@pytest.fixture
def open_hub(path: Path) -> Iterator[Callable[..., penstock.Hub]]:
    """Hubs on one file, closed at the end: `open_hub(clock=…, setting=…)`."""
    hubs: list[penstock.Hub] = []

    def open_one(**arguments: Any) -> penstock.Hub:
        hubs.append(hub_on(path, **arguments))
        return hubs[-1]

    yield open_one
    for hub in hubs:
        hub.close()


@pytest.fixture
def hub(open_hub: Callable[..., penstock.Hub]) -> penstock.Hub:
    """A hub on a file, on the real clock."""
    return open_hub()


@pytest.fixture
def memory() -> Iterator[penstock.Hub]:
    """A hub on a private store."""
    with memory_hub() as hub:
        yield hub
