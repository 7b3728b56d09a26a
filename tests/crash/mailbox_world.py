"""Programs that use mailboxes on a machine, what they were told, and what must hold afterwards.

A program here is a `Folder` of its own, as another process would have it, driven step by step: what
the postman and the janitor do on their threads is a step of its own, so that a power cut or a kill
can be put between any two of them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock import codec
from penstock.clock import Micros
from penstock.errors import PenstockError, QuotaExceeded
from penstock.mail import Mail, MailKind, NewMail, Posted
from penstock.mailboxes.commit_log import Segment
from penstock.mailboxes.contents import delete, look, mails_of
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.record import HEADER_SIZE
from penstock.mailboxes.repair import repair
from penstock.mailboxes.round import Group
from penstock.settings import Settings
from penstock.telemetry import Telemetry
from penstock.testing import FakeClock
from tests.crash.mailbox_machine import Killed, Machine, RecordedDisk
from tests.factories import settings_for

LOG_BYTES = 64 * 1024


def small_settings(**changes: Any) -> Settings:
    """Limits so small that a short program meets all of them."""
    arguments = {
        "mailbox_messages_max": 5,
        "mailbox_file_messages_max": 6,
        "mailbox_log_bytes": LOG_BYTES,
        "mailbox_open_files_max": 4,
        "mailbox_reserve_bytes": 0,
        "lock_timeout_seconds": 0.2,
    }
    return settings_for("memory:", **(arguments | changes))


class FastDisk(Disk):
    """For looking at what survived: nothing depends on its syncs."""

    def __init__(self, *, is_same_boot: bool = False) -> None:
        self._booted_at = 0 if is_same_boot else time.time_ns() // 1000

    def booted_at(self) -> Micros:
        return self._booted_at

    def sync(self, file: int) -> None:
        pass

    def kernel_sync(self) -> None:
        return None

    def sync_folder(self, path: str) -> None:
        pass

    def sync_all(self, file: int) -> bool:
        return True


def memory_folder() -> str | None:
    """Where thousands of small files are written quickly, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def new_mail(id: str, body: bytes = b"") -> NewMail:
    return NewMail(id, body or id.encode(), codec.BYTES)


class Program:
    """One process, and what it says to its users."""

    def __init__(self, name: str, root: str, disk: Disk, settings: Settings, world: World) -> None:
        self.name, self.world = name, world
        self.disk = disk
        self.telemetry = Telemetry()
        self.folder = Folder(root, settings, world.clock, self.telemetry, disk)
        self._groups: list[tuple[Group, list[tuple[str, str]]]] = []
        self._acked: list[tuple[str, str]] = []

    def put(self, box: str, *ids: str, size: int = 0) -> list[Posted | PenstockError]:
        """Written, not synced: nobody is told anything yet."""
        return self.put_all({box: list(ids)}, size=size)[0]

    def put_all(
        self, boxes: dict[str, list[str]], size: int = 0, *, is_synced_beside: bool = False
    ) -> list[list[Posted | PenstockError]]:
        """As an event loop does it, and what takes more steps as the postman's thread."""
        self.world.attempting([(box, id) for box, ids in boxes.items() for id in ids])
        requests = {
            box: [new_mail(id, id.encode().ljust(size, b".")) for id in ids]
            for box, ids in boxes.items()
        }
        answers: dict[str, list[Posted | PenstockError]] = {}
        left = list(requests.items())
        group = Group()
        begin_sync = Segment.sync if is_synced_beside else lambda segment: None
        if self.folder.try_put(left, group, log_bytes=0, begin_sync=begin_sync):
            answers = self._written(group, left)
            left = [request for request in left if request[0] not in answers]
        if left:
            answers |= self._written(self.folder.put(left, is_logged=True), left)
        return [answers[box] for box in requests]

    def _written(
        self, group: Group, requests: list[tuple[str, list[NewMail]]]
    ) -> dict[str, list[Posted | PenstockError]]:
        """The answers for each box, of those that were not left."""
        found = iter(group.answers)
        answers = {box: [next(found) for _ in mails] for box, mails in requests}
        answers = {box: own for box, own in answers.items() if box not in group.left}
        told = [
            (box, answer.id)
            for box, own in answers.items()
            for answer in own
            if isinstance(answer, Posted)
        ]
        self._groups.append((group, told))
        return answers

    def sync(self) -> None:
        """The senders are told OK."""
        assert self._groups
        groups, self._groups = self._groups, []
        self.folder.sync(*[group for group, _ in groups])
        for group, told in groups:
            self.world.say("ok", told)
            self.folder.show(group)

    def send(self, box: str, *ids: str, size: int = 0) -> None:
        self.put_all({box: list(ids)}, size, is_synced_beside=True)
        self.sync()

    def peek(self, box: str) -> list[Mail]:
        with self.folder.locked(box) as found:
            return mails_of(found, self.folder, 10_000)

    def ack(self, box: str, *, through: int = 1) -> None:
        """The first so many messages are done with."""
        mails = self.peek(box)[:through]
        if not mails:
            return
        told = [(box, mail.id) for mail in mails]
        self.world.say("acking", told)
        with self.folder.locked(box) as found:
            look(found, self.folder)
            found.ack(self.folder, mails[-1].id, is_through=True)
        self._acked += told

    def delete(self, box: str) -> None:
        told = [(box, id) for owner, id in self.world.attempted if owner == box]
        self.world.say("acking", told)
        with self.folder.locked(box) as found:
            look(found, self.folder)
            delete(found, self.folder)
        self._acked += told

    def damage_header(self, box: str) -> None:
        """Both copies, on disk: what a bad sector does."""
        self.world.say("damaged", [(box, "header")])
        with self.folder.locked(box) as found:
            path = found.path(found.write_file)
            file = self.disk.open(path, os.O_RDWR)
            self.disk.write(file, bytes(HEADER_SIZE), 0)
            self.disk.sync(file)
            self.disk.close(file)
            found.forget()

    def repair(self, box: str) -> None:
        repair(self.folder, box)

    def flush(self) -> None:
        acked, self._acked = self._acked, []
        self.folder.flush()
        self.world.say("acked", acked)

    def checkpoint(self) -> None:
        self.folder.checkpoint()

    def close(self) -> None:
        self.folder.close()
        self.world.programs.pop(self.name, None)

    def die(self) -> None:
        """Killed. What it wrote is in the page cache."""
        assert isinstance(self.disk, RecordedDisk)
        abandon(self.folder)
        self.disk.die()
        self.world.programs.pop(self.name, None)


def abandon(folder: Folder) -> None:
    """What the kernel does to a killed process, as far as the disk does not do it."""
    folder.arrivals._close_pipe()
    folder._changes._memory.close()


class World:
    """A machine, the programs on it, and what all of them were told."""

    def __init__(self, folder: Path, *, is_lying: bool = False, **settings: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.machine = Machine(folder, is_lying=is_lying)
        self.root = f"{folder}/store"
        self.clock = FakeClock()
        self.settings = small_settings(**settings)
        self.programs: dict[str, Program] = {}
        self.disks: dict[str, RecordedDisk] = {}
        self.attempted: list[tuple[str, str]] = []

    def __enter__(self) -> World:
        return self

    def __exit__(self, *error: object) -> None:
        for program in list(self.programs.values()):
            program.die()

    def start(self, name: str = "a", **changes: Any) -> Program:
        settings = small_settings(**changes) if changes else self.settings
        disk = self.machine.disk()
        try:
            program = Program(name, self.root, disk, settings, self)
        except BaseException:
            disk.die()
            raise
        self.programs[name], self.disks[name] = program, disk
        return program

    def attempting(self, mails: list[tuple[str, str]]) -> None:
        self.attempted += [mail for mail in mails if mail not in self.attempted]
        self.say("attempting", mails)

    def say(self, word: str, mails: Iterable[tuple[str, str]]) -> None:
        self.machine.mark(word, list(mails))


class Told:
    """What had been said up to some instant, box by box."""

    def __init__(self, marks: Iterable[tuple[Any, ...]]) -> None:
        self.said: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for word, mails in marks:
            for box, id in mails:
                known = self.said[word][box]
                if id not in known:
                    known.append(id)

    @property
    def boxes(self) -> list[str]:
        return list(self.said["attempting"])

    def check(self, box: str, found: list[str]) -> None:
        """The total-queue checker: nothing lost, nothing invented, nothing twice, all in order."""
        attempted, told = self.said["attempting"][box], set(self.said["ok"][box])
        acking, acked = set(self.said["acking"][box]), set(self.said["acked"][box])
        assert len(set(found)) == len(found), f"{box}: twice: {found}"
        assert set(found) <= set(attempted), f"{box}: never sent: {set(found) - set(attempted)}"
        lost = told - acking - set(found)
        assert not lost, f"{box}: lost {sorted(lost)}, found {found}"
        again = set(found) & acked
        assert not again, f"{box}: acknowledged for good, and there again: {again}"
        assert found == [id for id in attempted if id in set(found)], f"{box}: order: {found}"


def survivors(root: str, told: Told, settings: Settings, *, is_same_boot: bool = False) -> None:
    """Open what is left as a new process would, check it, use it, and open it once more."""
    clock = FakeClock()
    events: list[tuple[str, Any]] = []
    telemetry = Telemetry()
    telemetry.attach(lambda name, details: events.append((name, details)))
    for life in range(2):
        folder = Folder(root, settings, clock, telemetry, FastDisk(is_same_boot=is_same_boot))
        try:
            for box in told.boxes:
                if box in told.said["damaged"]:
                    repair(folder, box)
                told.check(box, contents(folder, box))
                if life == 0:
                    _use(folder, box, told)
        finally:
            folder.close()
    assert not list((Path(root) / "commits").glob("*")), "a log was left behind"


def contents(folder: Folder, box: str) -> list[str]:
    with folder.locked(box) as found:
        mails = mails_of(found, folder, 10_000)
    assert not [mail for mail in mails if mail.kind == MailKind.GAP], f"{box}: a gap: {mails}"
    seqs = [mail.seq for mail in mails]
    assert seqs == sorted(set(seqs)), f"{box}: {seqs}"
    for mail in mails:
        if mail.kind == MailKind.MESSAGE:
            assert mail.data.rstrip(b".") == mail.id.encode(), f"{box}: another's body"
    return [mail.id for mail in mails if mail.kind == MailKind.MESSAGE]


def _use(folder: Folder, box: str, told: Told) -> None:
    """A message goes in behind the others, and is there for the next life, too."""
    id = f"{box}-later"
    told.said["attempting"][box].append(id)
    group = folder.put([(box, [new_mail(id)])], is_logged=True)
    folder.sync(group)
    folder.show(group)
    answer = group.answers[0]
    if isinstance(answer, QuotaExceeded):
        return
    assert isinstance(answer, Posted), answer
    told.said["ok"][box].append(id)
    assert contents(folder, box)[-1] == id


def copy_of(root: str, target: Path) -> str:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root, target)
    return str(target)


def killed_at(program: Program, call: int, action: Callable[[], None]) -> bool:
    """Run it, killed at its n-th system call. Whether it came that far."""
    assert isinstance(program.disk, RecordedDisk)
    program.disk.calls = 0
    program.disk.killed_at = call
    try:
        action()
    except Killed:
        return True
    finally:
        is_over = program.disk.killed_at == 0
        program.disk.killed_at = None
        if is_over:
            program.disk.is_dead = True
    return False
