"""Four processes publish at once, three follow: everyone sees everything, once, in one order."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from tests.crash import checker
from tests.crash.processes import PATIENCE_SECONDS, Actor, company

pytestmark = pytest.mark.crash

PUBLISHERS = 4
EACH = 10_000


def received(actor: Actor) -> list[int]:
    return [number for batch in checker.batches(actor) for number in batch]


def crowd(url: str, each: int) -> None:
    total = PUBLISHERS * each
    with company() as start:
        listeners = [
            start("subscribe", url, pattern="load-*", until=total),
            start("follow", url, pattern="load-*", consumer="all", until=total),
            start("subscribe_async", url, pattern="load-?", until=total),
        ]
        for listener in listeners:
            listener.expect("ready")
        publishers = [
            start("publish_quickly", url, name=str(n), count=each) for n in range(PUBLISHERS)
        ]
        for publisher in publishers:
            publisher.expect("ready")
        for publisher in publishers:
            publisher.tell()
        for actor in (*publishers, *listeners):
            assert actor.wait(seconds=5 * PATIENCE_SECONDS) == 0, actor.complaint.decode()

    with penstock.connect(url) as hub:
        log = checker.whole_log(hub)
        checker.check_ids(log, total)
        for n in range(PUBLISHERS):
            mine = [m.payload for m in log if m.topic == f"load-{n}"]
            assert mine == [[str(n), 0, k] for k in range(each)]
    for listener in listeners:
        assert received(listener) == list(range(1, total + 1)), listener.role


def test_four_publishers_and_three_followers_agree_on_one_order(tmp_path: Path) -> None:
    """T1, T5, T6: all 40,000 in id order, exactly once, live, named and over a glob."""
    crowd(f"sqlite:///{tmp_path / 'hub.db'}", EACH)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak_crowd(tmp_path: Path) -> None:
    """The same, a hundred times, on both sides of the followers' buffers."""
    for n in range(100):
        crowd(f"sqlite:///{tmp_path / f'{n}.db'}", EACH)
