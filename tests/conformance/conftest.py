"""Fixtures over every store in `places.PLACES`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ports import Store
from penstock.testing import FakeClock
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
