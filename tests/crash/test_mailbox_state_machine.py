"""Mailboxes against a list, with kills and power losses (fault table row 16; M3-M7, M12).

Two programs put, acknowledge, expire, delete and restart as hypothesis likes, on a machine whose
power fails now and then; a list says what must be there. Whatever is shown to be wrong is shown
with the shortest program that does it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from penstock.errors import QuotaExceeded, WrongAck
from penstock.mail import MailKind, Posted
from penstock.mailboxes.contents import expire, look
from tests.crash.mailbox_world import Program, Told, World, memory_folder

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

MESSAGES_MAX = 4
BOXES = st.sampled_from(["x", "y"])
NAMES = st.sampled_from(["a", "b"])


class Boxes(RuleBasedStateMachine):
    """What is in `model` was promised; what is in `maybe` may be there or not, and where."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-boxes-", dir=memory_folder()))
        self.world = World(self.folder / "0", **self.options)
        self.lives = 0
        self.count = 0
        self.model: dict[str, list[str]] = {"x": [], "y": []}
        self.unsynced: dict[str, list[tuple[str, str]]] = {"a": [], "b": []}
        self.hidden: dict[str, dict[str, int]] = {"a": {}, "b": {}}
        """From which place of which box on a program shows nothing yet."""

    options: ClassVar[dict[str, Any]] = {"mailbox_messages_max": MESSAGES_MAX}

    def teardown(self) -> None:
        self.world.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)

    def program(self, name: str) -> Program:
        return self.world.programs.get(name) or self.world.start(name)

    @property
    def is_waiting(self) -> bool:
        return any(self.unsynced.values())

    @initialize()
    def begin(self) -> None:
        self.program("a")

    @rule(name=NAMES, box=BOXES, count=st.integers(1, 3), size=st.sampled_from([0, 300, 900]))
    def put(self, name: str, box: str, count: int, size: int) -> None:
        """Also while what it has put before is being synced."""
        ids = [f"{box}{self.count + n}" for n in range(count)]
        self.count += count
        answers = self.program(name).put(box, *ids, size=size)
        self.hidden[name].setdefault(box, len(self.model[box]))
        is_full = "quota" in self.model[box]
        for id, answer in zip(ids, answers, strict=True):
            if is_full or len(self.model[box]) >= MESSAGES_MAX:
                assert isinstance(answer, QuotaExceeded), (self.model, answers)
                if not is_full:
                    self.model[box].append("quota")
                is_full = True
            else:
                assert isinstance(answer, Posted)
                assert answer.is_new
                self.model[box].append(id)
        self.unsynced[name] += [(box, id) for id in ids]

    @rule(name=NAMES, box=BOXES)
    def put_again(self, name: str, box: str) -> None:
        """What is there already is answered as such, by any program."""
        known = [id for id in self.model[box] if id != "quota"]
        if known:
            self.sync(name)
            answers = self.program(name).put(box, known[-1])
            assert isinstance(answers[0], Posted)
            assert not answers[0].is_new
            self.unsynced[name] = [(box, known[-1])]

    @rule(name=NAMES)
    def sync(self, name: str) -> None:
        if self.unsynced[name]:
            self.program(name).sync()
            self.unsynced[name] = []
            self.hidden[name].clear()

    @rule(name=NAMES, box=BOXES, count=st.integers(1, 4))
    def ack(self, name: str, box: str, count: int) -> None:
        for other in ("a", "b"):
            self.sync(other)
        self.program(name).ack(box, through=count)
        del self.model[box][:count]

    @rule(name=NAMES, box=BOXES)
    def ack_wrongly(self, name: str, box: str) -> None:
        program = self.program(name)
        before = program.peek(box)
        with program.folder.locked(box) as found:
            look(found, program.folder)
            with pytest.raises(WrongAck):
                found.ack(program.folder, "nobody's", is_through=True)
        assert program.peek(box) == before

    @rule(name=NAMES, box=BOXES)
    def expire(self, name: str, box: str) -> None:
        """All messages of one instant are old, or none is; a marker stays."""
        for other in ("a", "b"):
            self.sync(other)
        program = self.program(name)
        before = self.world.clock.now()
        self.world.clock.advance(10)
        marker = "quota" in self.model[box]
        expired = [id for id in self.model[box] if id != "quota"]
        self.world.say("acking", [(box, id) for id in expired])
        with program.folder.locked(box) as found:
            look(found, program.folder)
            assert expire(found, program.folder, before + 1) == len(expired)
        self.model[box] = ["quota"] if marker else []

    @rule(name=NAMES, box=BOXES)
    def delete(self, name: str, box: str) -> None:
        for other in ("a", "b"):
            self.sync(other)
        self.program(name).delete(box)
        self.model[box] = []

    @rule(name=NAMES)
    def flush(self, name: str) -> None:
        self.program(name).flush()

    @rule(name=NAMES)
    def checkpoint(self, name: str) -> None:
        self.program(name).checkpoint()

    @rule(name=NAMES)
    def close(self, name: str) -> None:
        self.sync(name)
        self.program(name).close()

    @rule(name=NAMES)
    def kill(self, name: str) -> None:
        """What it wrote is there; its log is replayed by whoever opens next."""
        self.program(name).die()
        self.unsynced[name] = []
        self.hidden[name].clear()

    @precondition(lambda self: self.lives < 3)
    @rule(seed=st.integers(0, 2**16), share=st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]))
    def lose_power(self, seed: int, share: float) -> None:
        """Whatever nobody was promised may be gone; so may acknowledgements that were not synced,
        and then messages come again. From here on the model is what was found."""
        machine = self.world.machine
        cut = machine.cut(machine.now())
        self.world.__exit__()
        self.lives += 1
        chance = Random(seed)
        target = self.folder / f"{self.lives}"
        cut.materialise(machine.root, target, lambda: chance.random() < share)
        before = self.world
        self.world = World(target, **self.options)
        self.world.clock, self.world.attempted = before.clock, before.attempted
        for mark in cut.marks:
            self.world.machine.mark(*mark)
        told = Told(cut.marks)
        self.unsynced, self.hidden = {"a": [], "b": []}, {"a": {}, "b": {}}
        found: dict[str, list[str]] = {}
        for box in self.model:
            mails = self.program("a").peek(box)
            assert not [mail for mail in mails if mail.kind == MailKind.GAP]
            found[box] = ["quota" if m.kind == MailKind.QUOTA else m.id for m in mails]
            told.check(box, [id for id in found[box] if id != "quota"])
        self.model = found
        for box, ids in found.items():
            # They may be acknowledged anew.
            for event in machine.history:
                if event.kind == "mark" and event.mark[0] == "acked":
                    assert not {(box, id) for id in ids} & set(event.mark[1])

    @invariant()
    def all_see_the_same(self) -> None:
        """What a program has put and not synced it shows to nobody; the others may have it."""
        for name, program in self.world.programs.items():
            for box, expected in self.model.items():
                mails = program.peek(box)
                found = ["quota" if m.kind == MailKind.QUOTA else m.id for m in mails]
                visible = expected[: self.hidden[name].get(box)]
                assert found == visible, (name, box)
                assert len(_files(program, box)) <= 2


def _files(program: Program, box: str) -> list[Path]:
    """Those that are not waiting to be removed."""
    with program.folder.locked(box) as found:
        folder, read = Path(found.folder), found.read_file
    numbers = [(int(path.name[9:25]), path) for path in folder.glob("messages.*")]
    return [path for number, path in numbers if number >= read]


class ScrubbedBoxes(Boxes):
    options: ClassVar[dict[str, Any]] = {
        "mailbox_messages_max": MESSAGES_MAX,
        "mailbox_scrub": "ack",
    }


class DrainedBoxes(Boxes):
    options: ClassVar[dict[str, Any]] = {
        "mailbox_messages_max": MESSAGES_MAX,
        "mailbox_scrub": "drained",
    }


class ForgetfulBoxes(Boxes):
    """One box in memory, four files open: everything is read again all the time."""

    options: ClassVar[dict[str, Any]] = {
        "mailbox_messages_max": MESSAGES_MAX,
        "mailbox_cached_max": 1,
    }


SHORT = hypothesis_settings(max_examples=40, stateful_step_count=30)
LONG = hypothesis_settings(max_examples=3_000, stateful_step_count=60)

TestBoxes = Boxes.TestCase
TestScrubbedBoxes = ScrubbedBoxes.TestCase
TestDrainedBoxes = DrainedBoxes.TestCase
TestForgetfulBoxes = ForgetfulBoxes.TestCase
TestBoxes.settings = TestScrubbedBoxes.settings = SHORT
TestDrainedBoxes.settings = TestForgetfulBoxes.settings = SHORT


@pytest.mark.soak
@pytest.mark.parametrize("machine", [Boxes, ScrubbedBoxes, DrainedBoxes, ForgetfulBoxes])
def test_for_long(machine: type[Boxes]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
