"""Fixtures over every store in `places.PLACES`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ports import Store
from penstock.testing import FakeClock
from tests.audit import audit_jobs
from tests.conformance.desk import Desk
from tests.conformance.places import PLACES, Place, Scribe


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Place]:
    with PLACES[request.param](tmp_path) as url:
        place = Place(url, clock)
        yield place
        place.close()


@pytest.fixture
def store(place: Place) -> Store:
    return place.open()


@pytest.fixture
def scribe(place: Place, store: Store, clock: FakeClock) -> Scribe:
    return Scribe(store, place.writer(store), clock)


@pytest.fixture
def open_desk(place: Place) -> Iterator[Callable[..., Desk]]:
    """Processes that work with jobs on one store: `open_desk("other")`.

    Where there can be only one, the test is skipped at the second. At the end, the jobs are
    audited.
    """
    desks: list[Desk] = []

    def open_one(name: str = "desk", **settings: Any) -> Desk:
        store = place.open(**settings)
        desks.append(Desk(store, place.writer(store), place.clock, name))
        return desks[-1]

    yield open_one
    for desk in desks[:1]:
        audit_jobs(desk.store)


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    return open_desk()
