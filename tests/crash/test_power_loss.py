"""Power loss: what was acknowledged is on disk, and what is not is a suffix, never a hole."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Hub, LogTrimmed, Position
from tests.crash.power import LOSSES, Disk, Loss, PowerCut

pytestmark = pytest.mark.crash

SEEDS = range(5)
STEPS = 45
CUTS = 30
TOPICS = ("orders", "events", "short")


@dataclass
class Run:
    """What a program did on a disk, and where each message stands in the log."""

    disk: Disk
    log: dict[int, tuple[str, Any]] = field(default_factory=dict)
    started_at: int = 0
    """Where in the disk's history the database was made and the first message acknowledged."""


class Program:
    """Publishes, follows, trims, checkpoints and restarts, and marks every answer it got."""

    def __init__(self, folder: Path, disk: Disk, durability: str, seed: int) -> None:
        self.run = Run(disk)
        self._url = f"sqlite:///{folder / 'hub.db'}"
        self._durability = durability
        self._chance = random.Random(seed)
        self._count = 0
        self._open()

    def play(self, steps: int) -> Run:
        with self._hub.transaction(limit_seconds=30) as tx:
            tx.execute("CREATE TABLE own (number INTEGER PRIMARY KEY)")
        self._publish()
        self.run.started_at = self.run.disk.now()
        actions = {
            self._publish: 6,
            self._publish_many: 3,
            self._publish_from_threads: 1,
            self._publish_from_two_hubs: 1,
            self._transact: 3,
            self._follow: 4,
            self._trim: 1,
            self._sweep: 1,
            self._checkpoint: 2,
            self._restart: 1,
        }
        # Each once, so that every run has everything; then by weight.
        for action in self._chance.sample(list(actions), len(actions)):
            action()
        for action in self._chance.choices(list(actions), list(actions.values()), k=steps):
            action()
        self._close()
        return self.run

    def _open(self) -> None:
        self._hub = penstock.connect(self._url, durability=self._durability)
        self._follower = self._hub.topics.follow("orders", consumer="billing", start="earliest")

    def _close(self) -> None:
        self._follower.close()
        self._hub.close()

    def _payload(self) -> Any:
        self._count += 1
        return {"n": self._count, "filler": "x" * self._chance.choice((0, 40, 900, 3000))}

    def _acked(self, receipt: penstock.Receipt, payload: Any) -> None:
        self.run.log[receipt.id] = (receipt.topic, payload)
        self.run.disk.mark(("acked", receipt.id))

    def _publish(self) -> None:
        topic, payload = self._chance.choice(TOPICS), self._payload()
        self._acked(self._hub.topics.publish(topic, payload), payload)

    def _publish_many(self) -> None:
        topic = self._chance.choice(TOPICS)
        payloads = [self._payload() for _ in range(self._chance.randint(1, 30))]
        for receipt, payload in zip(
            self._hub.topics.publish_many(topic, payloads), payloads, strict=True
        ):
            self._acked(receipt, payload)

    def _publish_from_threads(self) -> None:
        def publish(topic: str, payloads: list[Any]) -> None:
            for payload in payloads:
                self._acked(self._hub.topics.publish(topic, payload), payload)

        threads = [
            threading.Thread(target=publish, args=(topic, [self._payload() for _ in range(4)]))
            for topic in (*TOPICS, *TOPICS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _publish_from_two_hubs(self) -> None:
        """Another writer with its own connections, as another process has."""
        with penstock.connect(self._url, durability=self._durability) as other:
            for hub in (other, self._hub, other, self._hub):
                payload = self._payload()
                self._acked(hub.topics.publish("events", payload), payload)

    def _transact(self) -> None:
        payload = self._payload()
        with self._hub.transaction(limit_seconds=30) as tx:
            receipt = tx.publish("events", payload, type="own")
            tx.execute("INSERT INTO own VALUES (?)", (payload["n"],))
            other = tx.publish("orders", payload, type="own")
        self._acked(receipt, payload)
        self._acked(other, payload)

    def _follow(self) -> None:
        batch = self._follower.take(self._chance.randint(1, 20), timeout=0)
        if batch:
            self.run.disk.mark(("asked", batch[-1].id))
            self._follower.commit()
            self.run.disk.mark(("committed", batch[-1].id))

    def _trim(self) -> None:
        if self._hub.topics.list("short"):
            self._hub.topics.trim("short", keep=self._chance.randint(0, 5))
            self._mark_trim()

    def _sweep(self) -> None:
        if self._hub.topics.list("short"):
            self._hub.topics.configure("short", penstock.Retention(messages_max=6))
            self._hub._open().sweeper.sweep()
            self._mark_trim()

    def _mark_trim(self) -> None:
        self.run.disk.mark(("trimmed", self._hub.topics.get("short").deleted_through))

    def _checkpoint(self) -> None:
        self._hub._open().store.maintain(force=True)

    def _restart(self) -> None:
        self._close()
        self._open()


def record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, durability: str, seed: int, steps: int = STEPS
) -> Run:
    folder.mkdir()
    disk = Disk(folder)
    with disk.plugged_in(monkeypatch):
        return Program(folder, disk, durability, seed).play(steps)


def told(cut: PowerCut, kind: str) -> list[int]:
    return [mark[1] for mark in cut.marks if mark[0] == kind]


class Survivor:
    """What a fresh hub finds after the power loss."""

    def __init__(self, hub: Hub, run: Run, cut: PowerCut) -> None:
        self.hub, self.run, self.cut = hub, run, cut
        self.last = hub.topics.position().offset
        self.found = {m.id: m for m in hub.topics.read("*", limit=1_000_000)}
        short = hub.topics.list("short")
        self.trimmed = short[0].deleted_through if short else 0

    def check_whole(self) -> None:
        """An undamaged file with a prefix of the log: no hole, nothing foreign, no half group."""
        assert self.hub.connection().__enter__().execute("PRAGMA integrity_check") == [("ok",)]
        assert self.hub.connection().__enter__().execute("PRAGMA auto_vacuum") == [(2,)]
        for number in range(1, self.last + 1):
            topic, payload = self.run.log[number]
            message = self.found.get(number)
            if message is None:
                assert topic == "short", f"message {number} is a hole in the log"
                assert number <= self.trimmed
            else:
                assert (message.topic, message.payload) == (topic, payload)
        assert all(number <= self.last for number in self.found)
        self._check_own_table()
        self._check_trim()
        assert self.watermark <= max(told(self.cut, "asked"), default=0)
        assert self.watermark <= self.last

    def check_nothing_acknowledged_is_lost(self) -> None:
        assert self.last >= max(told(self.cut, "acked"), default=0)
        assert self.watermark >= max(told(self.cut, "committed"), default=0)
        assert self.trimmed >= max(told(self.cut, "trimmed"), default=0)

    def check_goes_on(self) -> None:
        """The hub is as good as any: it publishes, and the consumer gets exactly what it lacks."""
        expected = [n for n, m in self.found.items() if m.topic == "orders" and n > self.watermark]
        assert self.hub.topics.publish("orders", "after").id == self.last + 1
        follower = self.hub.topics.follow("orders", consumer="billing", start="earliest")
        got: list[int] = []
        while len(got) <= len(expected):
            batch = follower.take(timeout=60)
            assert batch, f"only {got} of {expected}"
            got += [message.id for message in batch]
        assert got == [*expected, self.last + 1]

    @property
    def has_lost(self) -> bool:
        return self.last < max(told(self.cut, "acked"), default=0)

    @property
    def watermark(self) -> int:
        consumers = self.hub.consumers.list("billing")
        return consumers[0].position.offset if consumers else 0

    def _check_own_table(self) -> None:
        connection = self.hub.connection().__enter__()
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'own'"):
            own = [row[0] for row in connection.execute("SELECT number FROM own")]
            both = [m.payload["n"] for m in self.found.values() if m.type == "own"]
            assert both == [number for number in own for _ in range(2)]

    def _check_trim(self) -> None:
        epoch = self.hub.topics.position().epoch
        self.hub.topics.read("short", after=Position(epoch, min(self.trimmed, self.last)))
        if self.trimmed:
            with pytest.raises(LogTrimmed):
                self.hub.topics.read("short", after=Position(epoch, self.trimmed - 1))


def survivors(
    folder: Path, run: Run, cuts: list[int], losses: tuple[Loss, ...], seed: int
) -> Iterator[Survivor]:
    for index in cuts:
        cut = run.disk.cut(index)
        for loss in losses:
            yield from survivor(folder / f"{index}-{loss}", run, cut, loss, seed + index)


def survivor(folder: Path, run: Run, cut: PowerCut, loss: Loss, seed: int) -> Iterator[Survivor]:
    cut.materialise(folder, loss, seed)
    with penstock.connect(f"sqlite:///{folder / 'hub.db'}") as hub:
        yield Survivor(hub, run, cut)
    shutil.rmtree(folder)


def choose_cuts(run: Run, seed: int, count: int) -> list[int]:
    """Instants at which something is at risk, all over the run's life, and its end."""
    at_risk = [
        index for index in range(1, len(run.disk.history)) if run.disk.history[index].kind != "mark"
    ]
    chosen = random.Random(seed).sample(at_risk, min(count, len(at_risk)))
    return sorted({*chosen, len(run.disk.history)})


@pytest.mark.parametrize("seed", SEEDS)
def test_full_durability_loses_nothing_acknowledged(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4: acknowledged means on disk, for messages, watermarks, trims and own rows alike."""
    run = record(tmp_path / "run", monkeypatch, "full", seed)
    for found in survivors(tmp_path, run, choose_cuts(run, seed, CUTS), LOSSES, seed):
        found.check_whole()
        found.check_nothing_acknowledged_is_lost()


@pytest.mark.parametrize("seed", SEEDS)
def test_os_durability_loses_only_a_suffix(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4: with durability="os" the log that is left is dense, whole and usable."""
    run = record(tmp_path / "run", monkeypatch, "os", seed)
    lost = 0
    for found in survivors(tmp_path, run, choose_cuts(run, seed, CUTS), LOSSES, seed):
        found.check_whole()
        lost += found.has_lost
    assert lost, "nothing was ever lost: these cuts prove nothing about the suffix"


def test_the_hub_goes_on_after_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: ids continue, and the named consumer gets what it had not committed, once."""
    run = record(tmp_path / "run", monkeypatch, "full", seed=11)
    for found in survivors(tmp_path, run, choose_cuts(run, 11, 8), ("torn", "reorder"), 11):
        found.check_goes_on()


def test_every_instant_of_the_first_creation_can_be_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T13: a half-made database is made anew or finished by the next who opens it."""
    run = record(tmp_path / "run", monkeypatch, "full", seed=21, steps=0)
    creation = list(range(run.started_at + 1))
    assert len(creation) > 20
    for found in survivors(tmp_path, run, creation, ("drop", "torn", "garbage"), 21):
        found.check_whole()
        found.check_nothing_acknowledged_is_lost()


def test_a_file_torn_while_it_was_made_is_made_as_well_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T7: whatever its first page was left as, it can give space back later."""
    run = record(tmp_path / "run", monkeypatch, "full", seed=51, steps=0)
    first_pages = [n for n in range(run.started_at) if not told(run.disk.cut(n), "acked")][:25]
    for seed in range(8):
        for found in survivors(tmp_path, run, first_pages, ("garbage",), 1000 * seed):
            found.check_whole()


def test_a_disk_that_lies_about_syncs_loses_acknowledged_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without working syncs the same checks find the loss."""
    run = record(tmp_path / "run", monkeypatch, "full", seed=31)
    lost = 0
    for index in choose_cuts(run, 31, 10):
        if index <= run.started_at:
            continue
        cut = run.disk.cut(index, lies_after=run.started_at)
        for found in survivor(tmp_path / str(index), run, cut, "drop", 31):
            assert found.hub.connection().__enter__().execute("PRAGMA integrity_check") == [("ok",)]
            if found.has_lost:
                lost += 1
                with pytest.raises(AssertionError):
                    found.check_nothing_acknowledged_is_lost()
    assert lost


def test_a_second_power_loss_during_recovery_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4: recovering from one cut, and what is acknowledged after it, survive the next one."""
    run = record(tmp_path / "run", monkeypatch, "full", seed=41)
    for index in choose_cuts(run, 41, 4):
        first = run.disk.cut(index)
        folder = tmp_path / f"first-{index}"
        first.materialise(folder, "torn", 41 + index)
        disk = Disk(folder)
        for mark in first.marks:
            disk.mark(mark)
        adopted = disk.now()
        again = Run(disk, dict(run.log))
        with (
            disk.plugged_in(monkeypatch),
            penstock.connect(f"sqlite:///{folder / 'hub.db'}") as hub,
        ):
            receipt = hub.topics.publish("events", "again")
            again.log[receipt.id] = ("events", "again")
            disk.mark(("acked", receipt.id))
        recovery = range(adopted, len(disk.history) + 1)
        assert len(recovery) > 3
        for found in survivors(tmp_path / f"{index}", again, list(recovery), ("torn",), 41):
            found.check_whole()
            found.check_nothing_acknowledged_is_lost()


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("durability", ["full", "os"])
@pytest.mark.parametrize("seed", range(100, 120))
def test_soak_every_instant_and_every_loss(
    seed: int, durability: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4, exhaustively: each event of each run, each kind of loss."""
    run = record(tmp_path / "run", monkeypatch, durability, seed, steps=4 * STEPS)
    everywhere = list(range(len(run.disk.history) + 1))
    for found in survivors(tmp_path, run, everywhere, LOSSES, seed):
        found.check_whole()
        if durability == "full":
            found.check_nothing_acknowledged_is_lost()
