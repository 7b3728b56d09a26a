"""Mailboxes and killed processes (fault table row 1; M3, M12): at every system call of everything.

What a killed process wrote is there, whatever it had not come to do is not. Whoever opens the
folder next, and whoever was using it all the time, finds every promise kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.mailboxes import box as box_module
from tests.crash.mailbox_machine import Killed
from tests.crash.mailbox_world import (
    Program,
    Told,
    World,
    contents,
    killed_at,
    survivors,
)

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

Step = Callable[[World, Program], None]


def nothing(world: World, a: Program) -> None:
    pass


def some(world: World, a: Program) -> None:
    a.send("x", "x1", "x2", "x3")
    a.ack("x")


def nearly_a_file(world: World, a: Program) -> None:
    a.send("x", "x1", "x2", "x3", "x4", "x5")
    a.ack("x", through=4)


def two_files(world: World, a: Program) -> None:
    nearly_a_file(world, a)
    a.send("x", "x6", "x7", "x8")
    a.flush()


def damaged(world: World, a: Program) -> None:
    two_files(world, a)
    a.checkpoint()
    a.damage_header("x")


def much_state(world: World, a: Program) -> None:
    for n in range(3):
        a.send("x", f"x{n}")
        a.ack("x")
    a.send("x", "x8", "x9")


ACTIONS: dict[str, tuple[Step, Step]] = {
    "first put": (nothing, lambda world, a: a.send("x", "y1")),
    "put": (some, lambda world, a: a.send("x", "y1")),
    "put to many": (
        some,
        lambda world, a: (a.put_all({box: [f"{box}1"] for box in "xyzuvw"}), a.sync())[1],
    ),
    "put many": (some, lambda world, a: a.send("x", "y1", "y2", size=5000)),
    "put again": (some, lambda world, a: a.send("x", "x2", "x3", "y1")),
    "put into a full box": (two_files, lambda world, a: a.send("x", "y1", "y2", "y3", "y4")),
    "rotate": (nearly_a_file, lambda world, a: a.send("x", "y1", "y2", "y3")),
    "ack": (some, lambda world, a: a.ack("x")),
    "ack and flush": (some, lambda world, a: (a.ack("x"), a.flush())[1]),
    "switch": (two_files, lambda world, a: (a.ack("x", through=3), a.flush())[1]),
    "drain": (two_files, lambda world, a: (a.ack("x", through=9), a.flush())[1]),
    "compact": (much_state, lambda world, a: (a.ack("x"), a.flush())[1]),
    "checkpoint": (two_files, lambda world, a: a.checkpoint()),
    "second checkpoint": (
        two_files,
        lambda world, a: (a.checkpoint(), a.send("x", "y1"), a.checkpoint())[2],
    ),
    "delete": (two_files, lambda world, a: (a.delete("x"), a.flush())[1]),
    "close": (two_files, lambda world, a: a.close()),
    "repair": (damaged, lambda world, a: a.repair("x")),
}


@pytest.fixture(params=["file", "drained", "ack"])
def scrub(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _compact_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_module, "COMPACT_BYTES", 700)


def all_kills(tmp_path: Path, name: str, scrub: str, check: Callable[[World], None]) -> int:
    """The action, killed at its first system call, then at its second, until it is through."""
    prepare, act = ACTIONS[name]
    call = 0
    is_killed = True
    while is_killed:
        call += 1
        with World(tmp_path / f"{call}", mailbox_scrub=scrub) as world:
            a = world.start("a")
            # Another process that has seen the box as it was, and goes on afterwards.
            b = world.start("b")
            prepare(world, a)
            if prepare is not damaged:
                b.peek("x")
            is_killed = killed_at(a, call, lambda: act(world, a))  # noqa: B023 - called at once
            if is_killed:
                a.die()
            try:
                check(world)
            except BaseException as error:
                error.add_note(f"Killed at system call {call} of {name!r}.")
                raise
    return call


@pytest.mark.parametrize("name", ACTIONS)
def test_killed_at_any_system_call_the_next_to_open_finds_all(
    tmp_path: Path, name: str, scrub: str
) -> None:
    """Row 1: opens, nothing lost, nothing twice, in order."""

    def check(world: World) -> None:
        for program in list(world.programs.values()):
            program.die()
        told = Told([event.mark for event in world.machine.history if event.kind == "mark"])
        survivors(world.root, told, world.settings, is_same_boot=True)

    assert all_kills(tmp_path, name, scrub, check) > 3


@pytest.mark.parametrize("name", ACTIONS)
def test_killed_at_any_system_call_those_who_live_find_all(
    tmp_path: Path, name: str, scrub: str
) -> None:
    """Row 1 with decision 10: another process goes on with the box as the dead one left it."""

    def check(world: World) -> None:
        told = Told([event.mark for event in world.machine.history if event.kind == "mark"])
        b = world.programs["b"]
        for box in told.boxes:
            if box in told.said["damaged"]:
                b.repair(box)
            told.check(box, contents(b.folder, box))
        b.ack("x")
        b.send("x", "later")
        for program in list(world.programs.values()):
            program.die()
        told = Told([event.mark for event in world.machine.history if event.kind == "mark"])
        survivors(world.root, told, world.settings, is_same_boot=True)

    assert all_kills(tmp_path, name, scrub, check) > 3


@pytest.mark.parametrize("prepare", [some, two_files, much_state])
@pytest.mark.parametrize("how", ["killed", "power lost"])
def test_killed_at_any_system_call_of_recovery_the_next_recovers(
    tmp_path: Path, prepare: Step, how: str
) -> None:
    """Row 1 for opening: a recovery that was cut off is done again, by the next."""
    call = 0
    is_killed = True
    while is_killed:
        call += 1
        folder = tmp_path / f"{call}"
        with World(folder) as world:
            a = world.start("a")
            prepare(world, a)
            a.send("z", "z1", size=2000)
            a.die()
            root = Path(world.root)
            if how == "power lost":
                for file in root.rglob("messages.*"):
                    file.write_bytes(file.read_bytes()[:700])
            disk = world.machine.disk()
            disk.killed_at = call
            try:
                Program("b", world.root, disk, world.settings, world).die()
                is_killed = False
            except Killed:
                disk.die()
            marks = [event.mark for event in world.machine.history if event.kind == "mark"]
        survivors(world.root, Told(marks), world.settings, is_same_boot=how == "killed")
    assert call > 20
