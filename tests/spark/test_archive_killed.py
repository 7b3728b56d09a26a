"""A real Spark driver killed while it archives, and started again (S3)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import penstock
from penstock.model import Retention
from tests.spark.families import kill_with_children, wait_for_end
from tests.spark.lakes import rows_in_lake, store_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(900)]

DRIVER = Path(__file__).with_name("archive_driver.py")
PATIENCE_SECONDS = 240.0
TOPICS = ("orders", "users", "Größe")


class Archives:
    """Drivers on one database, one after the other, and what was published for them."""

    def __init__(self, hub: penstock.Hub, path: Path) -> None:
        self.hub = hub
        self.path = path
        self.complaints = path.with_name("complaints")
        self.mark = path.with_name("mark")
        self.published: Counter[tuple[str, int]] = Counter()

    def publish(self, count: int) -> None:
        for number in range(count):
            topic = TOPICS[number % len(TOPICS)]
            payloads = range(10 * number, 10 * number + 10)
            receipts = self.hub.topics.publish_many(topic, payloads)
            self.published.update((topic, receipt.id) for receipt in receipts)

    def start(self, *arguments: object) -> subprocess.Popen[bytes]:
        self.mark.unlink(missing_ok=True)
        with self.complaints.open("wb") as stderr:
            return subprocess.Popen(
                [sys.executable, str(DRIVER), self.hub.url, *map(str, arguments)],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=DRIVER.parents[2],
                env={**os.environ, "PATH": "/usr/bin:/bin"},
            )

    def steps(self) -> list[str]:
        """Those that the driver has come to."""
        return self.mark.read_text().splitlines() if self.mark.exists() else []

    def wait_for(
        self, driver: subprocess.Popen[bytes], condition: Callable[[list[str]], bool]
    ) -> None:
        """Until its steps are such, or it has ended."""
        wait_until(
            lambda: condition(self.steps()) or driver.poll() is not None,
            "the driver is where it was to be",
            seconds=PATIENCE_SECONDS,
        )

    def run_to_the_end(self) -> None:
        driver = self.start()
        try:
            assert driver.wait(PATIENCE_SECONDS) == 0, self.complaints.read_text()
        finally:
            kill_with_children(driver)

    def sweep(self) -> None:
        """What is not archived must survive this."""
        with store_of(self.path) as store:
            writer = store.open_writer()
            for topic in TOPICS:
                with writer.transaction() as transaction:
                    transaction.topics.sweep(
                        topic, Retention(messages_max=1), now=2**50, limit=100_000
                    )
            writer.close()

    def check(self) -> None:
        rows = rows_in_lake(self.path)
        assert Counter((row["topic"], row["offset"]) for row in rows) == self.published


@pytest.fixture
def archives(java_home: Path, hub: penstock.Hub, path: Path) -> Archives:
    return Archives(hub, path)


@pytest.mark.soak
@pytest.mark.parametrize("step", ["hold"])
def test_a_driver_killed_amid_the_entry_of_a_batch_loses_nothing_and_repeats_nothing(
    archives: Archives, step: str
) -> None:
    archives.publish(200)
    victim = archives.start(archives.mark, step)
    try:
        archives.wait_for(victim, lambda steps: step in steps)
        assert victim.poll() is None, archives.complaints.read_text()
    finally:
        kill_with_children(victim)
    archives.sweep()

    archives.run_to_the_end()

    archives.check()


def kill_at_random(archives: Archives, kills: int) -> int:
    """So many drivers are killed, each at a random moment. How many were amid their batches."""
    chance = random.Random()
    hit = 0
    for _ in range(kills):
        archives.publish(300)
        victim = archives.start(archives.mark)
        family: list[psutil.Process] = []
        try:
            count = chance.randrange(1, 35)
            archives.wait_for(victim, lambda steps, count=count: len(steps) >= count)
            time.sleep(chance.uniform(0, 0.4))  # Between two steps: the moment is the point.
            if victim.poll() is None:
                family = psutil.Process(victim.pid).children(recursive=True)
                hit += "batch" in archives.steps()
            # The driver alone: its JVM and its tasks find out by themselves, a little later.
            victim.kill()
            victim.wait()
        finally:
            kill_with_children(victim)
        archives.sweep()
        wait_for_end(family)
    archives.run_to_the_end()
    return hit


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_twenty_kills_at_random_moments(archives: Archives) -> None:
    hit = kill_at_random(archives, 20)

    archives.check()
    assert hit >= 10, "most of them were at work"
