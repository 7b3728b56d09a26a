"""Mailboxes and power loss (fault table rows 2, 10, 11; M3, M12).

Short programs run on a machine that records what they write and sync. The power is cut at every
instant of each of them, and what may be on the disk then is opened: as many states as there are, or
a sample. What anybody was promised must be there, in order, and nothing is halted or a gap.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import MailboxesFailed, PenstockError
from penstock.mailboxes import box as box_module
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.folder import Folder
from penstock.telemetry import Telemetry
from tests.crash.mailbox_world import (
    FastDisk,
    Told,
    World,
    contents,
    memory_folder,
    new_mail,
    survivors,
)

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

SAMPLES = 6
"""States looked at for each instant; more of them in `make soak`."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: thousands of states are written."""
    made = Path(tempfile.mkdtemp(prefix="penstock-power-", dir=memory_folder()))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def one_box(world: World) -> None:
    a = world.start()
    a.send("x", "x1")
    a.send("x", "x2", "x3")
    a.ack("x")
    a.flush()
    a.put("x", "x4")
    a.ack("x", through=2)
    a.sync()
    a.flush()


def large_messages(world: World) -> None:
    """Each over several sectors, so that parts of it may be missing."""
    a = world.start()
    a.put("x", "x1", "x2", size=1400)
    a.sync()
    a.checkpoint()
    a.put("x", "x3", size=700)
    a.put("x", "x4", "x5", size=1400)
    a.sync()
    a.ack("x", through=2)
    a.put("x", "x6", size=2000)


def rotation(world: World) -> None:
    a = world.start()
    for group in (("x1", "x2", "x3", "x4"), ("x5", "x6", "x7")):
        a.send("x", *group, size=200)
        a.ack("x", through=3)
    a.flush()
    a.send("x", "x8", "x9", size=200)
    a.ack("x", through=4)
    a.checkpoint()
    a.send("x", "x10", "x11", "x12", "x13")
    a.ack("x", through=3)
    a.flush()
    a.send("x", "x14")


def switching_while_putting(world: World) -> None:
    """A file is read through between a put and its sync, which says nothing of that."""
    a = world.start()
    a.send("x", "x1", "x2", "x3", "x4", "x5")
    a.ack("x", through=4)
    a.send("x", "x6", "x7", "x8")
    a.checkpoint()
    a.put("y", "y1")
    a.ack("x", through=2)
    a.sync()
    a.put("x", "x9")
    a.sync()


def now_and_then(world: World) -> None:
    """durability = interval: what was put is safe with the next flush."""
    a = world.start()
    for n in range(3):
        a.put("x", f"x{n}", size=300)
        a.flush()
        world.say("ok", [("x", f"x{n}")])
    a.ack("x")
    a.put("x", "x3")
    a.flush()
    world.say("ok", [("x", "x3")])


def putting_while_syncing(world: World) -> None:
    """What comes while the boxes are synced is not among what was synced."""
    a = world.start()
    a.send("x", "x1", size=300)
    world.disks["a"].on_sync = lambda: a.put("x", "x2", size=300)
    a.checkpoint()
    a.ack("x")
    a.sync()
    a.put("x", "x3", size=600)
    world.disks["a"].on_sync = lambda: a.ack("x")
    a.checkpoint()
    a.sync()


def damaged_and_repaired(world: World) -> None:
    """Nothing is lost but what was: interrupted, a repair is done again."""
    a = world.start()
    a.send("x", "x1", "x2", "x3")
    a.ack("x")
    a.checkpoint()
    a.damage_header("x")
    a.repair("x")
    a.send("x", "x4")
    a.ack("x")


def checkpoints(world: World) -> None:
    a = world.start()
    for n in range(3):
        a.put_all({"x": [f"x{n}"], "y": [f"y{n}"]}, size=300)
        a.sync()
        a.ack("y")
        a.checkpoint()
    a.put_all({"x": ["x9"], "y": ["y9"]})
    a.checkpoint()
    a.sync()


def restarts(world: World) -> None:
    a = world.start()
    a.send("x", "x1", "x2")
    a.close()
    a = world.start()
    a.ack("x")
    a.send("x", "x3")
    a.die()
    a = world.start()
    a.send("x", "x4")
    a.ack("x")
    a.close()


def full_and_drained(world: World) -> None:
    a = world.start()
    a.send("x", *[f"x{n}" for n in range(8)])
    a.ack("x", through=6)
    a.flush()
    a.send("x", "x10")
    a.checkpoint()
    a.ack("x")
    a.send("x", "x11")


def deleted(world: World) -> None:
    a = world.start()
    a.send("x", "x1", "x2")
    a.checkpoint()
    a.delete("x")
    a.flush()
    a.send("x", "x3")
    a.ack("x")
    a.send("x", "x4")
    a.checkpoint()


def two_programs(world: World) -> None:
    """Each writes behind what the other has not synced."""
    a, b = world.start("a"), world.start("b")
    a.put("x", "x1", size=300)
    b.put("x", "x2", size=300)
    b.sync()
    a.put("x", "x3", size=600)
    b.ack("x")
    b.flush()
    a.sync()
    b.put("x", "x4")
    a.ack("x")
    b.sync()
    a.flush()
    a.checkpoint()
    b.put("x", "x5")
    a.put("x", "x6")
    a.sync()
    b.checkpoint()
    b.sync()


def two_programs_rotate(world: World) -> None:
    """A file begun by one, never synced, is gone on with by the other."""
    a, b = world.start("a"), world.start("b")
    a.send("x", "x1", "x2", "x3", "x4")
    b.ack("x", through=3)
    b.flush()
    a.put("x", "x5", "x6", "x7", size=300)
    b.put("x", "x8", size=300)
    b.sync()
    b.ack("x", through=4)
    b.flush()
    b.put("x", "x9", "x10")
    b.sync()


def the_other_begins_and_ends_a_file(world: World) -> None:
    """Begun by one, never synced; filled up by the other, and left, in one put."""
    a, b = world.start("a"), world.start("b")
    a.put("x", "x1", "x2", "x3", "x4")
    b.ack("x", through=4)
    b.put("x", "x5", "x6", "x7", "x8")
    b.sync()
    b.flush()


def the_other_has_it(world: World) -> None:
    """A message put again through another program, while the first has not synced it."""
    a, b = world.start("a"), world.start("b")
    a.send("x", "x0")
    a.put("x", "x1", size=300)
    b.send("x", "x1", size=300)
    b.ack("x")
    b.flush()
    a.die()
    b.send("x", "x1", "x2")


def one_dies(world: World) -> None:
    a, b = world.start("a"), world.start("b")
    a.send("x", "x1")
    a.put("x", "x2", size=300)
    a.die()
    b.send("x", "x3", size=300)
    c = world.start("c")
    c.send("x", "x4")
    b.ack("x", through=2)
    b.flush()
    c.checkpoint()


SCRIPTS: dict[str, tuple[Callable[[World], None], dict[str, object]]] = {
    "one box": (one_box, {}),
    "large messages": (large_messages, {}),
    "rotation": (rotation, {}),
    "switching while putting": (switching_while_putting, {}),
    "now and then": (now_and_then, {}),
    "checkpoints": (checkpoints, {}),
    "putting while syncing": (putting_while_syncing, {}),
    "damaged and repaired": (damaged_and_repaired, {}),
    "restarts": (restarts, {}),
    "full and drained": (full_and_drained, {}),
    "drained, scrubbed": (full_and_drained, {"mailbox_scrub": "drained"}),
    "rotation, scrubbed": (rotation, {"mailbox_scrub": "ack"}),
    "large messages, scrubbed": (large_messages, {"mailbox_scrub": "ack"}),
    "deleted": (deleted, {}),
    "two programs": (two_programs, {}),
    "two programs rotate": (two_programs_rotate, {}),
    "the other begins and ends a file": (the_other_begins_and_ends_a_file, {}),
    "the other has it": (the_other_has_it, {}),
    "one dies": (one_dies, {}),
}


def play(folder: Path, name: str, *, is_lying: bool = False) -> World:
    script, settings = SCRIPTS[name]
    with World(folder / "machine", is_lying=is_lying, **settings) as world:
        script(world)
    return world


def check_all_cuts(world: World, folder: Path, samples: int, seed: int = 1) -> int:
    """Returns how many states were looked at."""
    chance = random.Random(seed)
    count = 0
    for index in range(world.machine.now() + 1):
        cut = world.machine.cut(index)
        for keeps in cut.losses(chance, samples):
            cut.materialise(world.machine.root, folder / "state", keeps)
            try:
                survivors(str(folder / "state" / "store"), Told(cut.marks), world.settings)
            except BaseException as error:
                error.add_note(f"The power was cut before event {index}.")
                raise
            count += 1
    return count


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_was_promised_survives_a_power_loss_at_any_instant(folder: Path, name: str) -> None:
    """Row 2; M12: no state of the disk that is possible loses a message anybody was told is there,
    shows it twice after its acknowledgement was on disk, or stops a box."""
    assert check_all_cuts(play(folder, name), folder, SAMPLES) > 100


@pytest.mark.parametrize("name", ["one box", "two programs"])
def test_with_syncs_that_do_nothing_the_loss_is_found(folder: Path, name: str) -> None:
    """Row 11, the negative control: could this pass without syncs, it would say nothing."""
    world = play(folder, name, is_lying=True)
    with pytest.raises((AssertionError, PenstockError)):
        check_all_cuts(world, folder, 4)


def test_compaction_survives_a_power_loss_at_any_instant(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 1 and 2 for the state log; M3, M8: there is one at every moment."""
    monkeypatch.setattr(box_module, "COMPACT_BYTES", 500)
    with World(folder / "machine", mailbox_history_min=1, mailbox_history_seconds=0) as world:
        a = world.start()
        for n in range(7):
            a.send("x", f"x{n}", f"y{n}")
            a.ack("x", through=1 + n % 2)
            world.clock.advance(1)
            a.flush()
    assert check_all_cuts(world, folder, SAMPLES) > 100


@pytest.mark.parametrize("name", ["large messages", "two programs rotate", "rotation", "one dies"])
def test_recovery_survives_a_power_loss_of_its_own(folder: Path, name: str) -> None:
    """Row 2, twice: the power fails, and fails again while the logs are being replayed."""
    world = play(folder, name)
    chance = random.Random(2)
    count = 0
    for index in range(world.machine.now() // 3, world.machine.now() + 1, 5):
        cut = world.machine.cut(index)
        for keeps in list(cut.losses(chance, 9))[-2:]:
            shutil.rmtree(folder / "again", ignore_errors=True)
            cut.materialise(world.machine.root, folder / "again", keeps)
            with World(folder / "again") as again:
                for mark in cut.marks:
                    again.machine.mark(*mark)
                before = again.machine.now()
                again.start().peek("x")
            count += check_cuts_from(again, folder, before, 3)
    assert count > 100


def check_cuts_from(world: World, folder: Path, start: int, samples: int) -> int:
    chance = random.Random(3)
    count = 0
    for index in range(start, world.machine.now() + 1):
        cut = world.machine.cut(index)
        for keeps in cut.losses(chance, samples):
            cut.materialise(world.machine.root, folder / "state", keeps)
            survivors(str(folder / "state" / "store"), Told(cut.marks), world.settings)
            count += 1
    return count


class SlowDisk(FastDisk):
    """Stops at the first write to a box, until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.has_come = threading.Event()
        self.goes_on = threading.Event()

    def write(self, file: int, data: bytes, offset: int) -> None:
        if not self.has_come.is_set() and "messages" in os.readlink(f"/proc/self/fd/{file}"):
            self.has_come.set()
            assert self.goes_on.wait(60)
        super().write(file, data, offset)


def test_nobody_uses_a_box_before_the_logs_are_replayed(folder: Path) -> None:
    """Decision 10: two processes start after a power loss. The one that comes second must not put
    where the first is about to write what was promised."""
    with World(folder / "machine") as world:
        world.start().send("x", "x1", "x2")
    cut = world.machine.cut(world.machine.now())
    cut.materialise(world.machine.root, folder / "state", lambda: False)
    root = str(folder / "state" / "store")
    first, opened, answers = SlowDisk(), [], []

    def start(disk: Disk) -> None:
        opened.append(Folder(root, world.settings, world.clock, Telemetry(), disk))
        put = opened[-1].put([("x", [new_mail(f"new-{threading.get_ident()}")])], is_logged=True)
        opened[-1].sync(put)
        opened[-1].show(put)
        answers.append(put.answers)

    threads = [threading.Thread(target=start, args=(disk,)) for disk in (first, FastDisk())]
    threads[0].start()
    assert first.has_come.wait(60)
    threads[1].start()
    # It must not come to anything; there is no signal for that.
    threads[1].join(0.3)
    is_early = bool(answers)
    first.goes_on.set()
    for thread in threads:
        thread.join(60)
    assert not is_early
    try:
        for one in opened:
            assert contents(one, "x")[:2] == ["x1", "x2"]
            assert len(contents(one, "x")) == 4
    finally:
        for one in opened:
            one.close()


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("put", "commits"),
        ("flush", "commits"),
        ("checkpoint", "commits"),
        ("checkpoint", "messages."),
        ("checkpoint", "boxes/2d"),
    ],
)
def test_a_sync_that_fails_ends_the_promises_and_nothing_promised_is_lost(
    folder: Path, where: str, what: str
) -> None:
    """Row 10: nobody of that group is told OK, nothing is accepted any more, and what was promised
    before is there after opening anew, also if the power fails then: what a failed sync was to
    write is written again, for it may be in memory only."""
    with World(folder / "machine") as world:
        a = world.start()
        a.send("x", "x1", size=300)
        a.checkpoint()
        a.send("x", "x2", size=300)
        a.send("y", "y1")
        a.put("x", "x3", size=300)
        disk = world.disks["a"]
        disk.failing = what
        with pytest.raises(MailboxesFailed):
            {"put": a.sync, "flush": a.folder.flush, "checkpoint": a.checkpoint}[where]()
        disk.failing = ""
        for action in (lambda: a.send("x", "x4"), lambda: a.peek("x"), lambda: a.ack("x")):
            with pytest.raises(MailboxesFailed):
                action()
        a.close()
        start = world.machine.now()
        b = world.start("b")
        b.send("x", "x5")
        b.close()
    assert check_cuts_from(world, folder, start, SAMPLES) > 50


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", SCRIPTS)
def test_many_more_states(folder: Path, name: str, seed: int) -> None:
    """Row 2, for as long as one likes."""
    check_all_cuts(play(folder, name), folder, 200, seed)
