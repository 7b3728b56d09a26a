"""A folder of mailboxes, used directly: without a hub, threads or real syncs."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.mail import Mail, MailKind, NewMail, Posted
from penstock.mailboxes.contents import look, mails_of
from penstock.mailboxes.disk import Disk
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.inspection import Inspection, verify
from penstock.mailboxes.mailboxes import Mailboxes
from penstock.mailboxes.mailroom import MailRoom
from penstock.mailboxes.repair import Repaired, repair
from penstock.settings import Settings
from penstock.telemetry import Telemetry
from penstock.testing import FakeClock
from tests.crash.mailbox_world import FastDisk, new_mail, small_settings
from tests.waiting import SOON, wait_until


class Room:
    """`hub.mailboxes` on a disk of the test's choice, with its threads and without a database."""

    def __init__(self, root: Path, disk: Disk | None = None, **settings: Any) -> None:
        self.settings: Settings = small_settings(**({"mailbox_messages_max": 50} | settings))
        self.clock = FakeClock()
        self.telemetry = Telemetry()
        self.executor = ThreadPoolExecutor(2)
        self.mail = MailRoom(lambda: str(root), self.settings, self.clock, self.telemetry, disk)
        self.mailboxes = Mailboxes(lambda: self)  # type: ignore[arg-type, return-value]

    def stop_janitor(self) -> Room:
        """From now on nobody takes part but callers and the postman."""
        assert self.mail.folder is not None, "opened now, if it was not"
        assert self.mail._janitor is not None
        self.mail._janitor.stop(SOON)
        return self

    def wait_for_postman(self) -> None:
        """Until it sleeps: it answers first."""
        wait_until(lambda: self.mail.postman._is_asleep, "the postman sleeps")

    def close(self) -> None:
        try:
            self.mail.close()
        finally:
            self.executor.shutdown()


class Desk:
    """One process's view of a folder, closed at the end of a `with`."""

    def __init__(
        self,
        root: Path,
        *,
        disk: Disk | None = None,
        clock: FakeClock | None = None,
        **settings: Any,
    ) -> None:
        self.root = root
        self.clock = clock or FakeClock()
        self.events: list[tuple[str, dict[str, Any]]] = []
        telemetry = Telemetry()
        telemetry.attach(lambda name, details: self.events.append((name, dict(details))))
        self.settings = small_settings(**settings)
        disk = disk or FastDisk(is_same_boot=True)
        self.folder = Folder(str(root), self.settings, self.clock, telemetry, disk)

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *error: object) -> None:
        self.folder.close()

    def put_all(
        self, requests: dict[str, list[NewMail]], *, is_logged: bool = True
    ) -> list[list[Posted | PenstockError]]:
        group = self.folder.put(list(requests.items()), is_logged=is_logged)
        self.folder.sync(group)
        self.folder.show(group)
        answers = iter(group.answers)
        return [[next(answers) for _ in mails] for mails in requests.values()]

    def put(self, box: str, *ids: str, body: bytes = b"") -> list[Posted]:
        """Raises the first error."""
        answers = self.put_all({box: [new_mail(id, body) for id in ids]})[0]
        for answer in answers:
            if isinstance(answer, PenstockError):
                raise answer
        return [answer for answer in answers if isinstance(answer, Posted)]

    def mails(self, box: str) -> list[Mail]:
        with self.folder.locked(box) as found:
            return mails_of(found, self.folder, 10_000)

    def ids(self, box: str) -> list[str]:
        """Of what waits; `[quota]` and `[gap 2]` for what is no message."""
        return [_word(mail) for mail in self.mails(box)]

    def ack(self, box: str, id: str | None = None, *, through: bool = False) -> int:
        """The first message, or the one named."""
        with self.folder.locked(box) as found:
            look(found, self.folder)
            name = id or mails_of(found, self.folder, 1)[0].id
            return found.ack(self.folder, name, is_through=through)

    def drain(self, box: str) -> list[str]:
        ids = []
        while mails := self.mails(box):
            ids.append(_word(mails[0]))
            self.ack(box)
        return ids

    def size(self, box: str) -> int:
        return len(self.mails(box))

    def path(self, box: str) -> Path:
        with self.folder.locked(box) as found:
            return Path(found.folder)

    def files(self, box: str) -> list[str]:
        return sorted(path.name for path in self.path(box).glob("messages.*"))

    def verify(self, box: str | None = None) -> Inspection:
        return verify(self.folder, box, lambda done, total: None)

    def repair(self, box: str) -> Repaired:
        return repair(self.folder, box)

    def heard(self, event: str) -> list[dict[str, Any]]:
        return [details for name, details in self.events if name == event]


def _word(mail: Mail) -> str:
    if mail.kind == MailKind.GAP:
        return f"[gap {mail.missing}]"
    return "[quota]" if mail.kind == MailKind.QUOTA else mail.id


def box_files(root: Path) -> dict[str, bytes]:
    """All bytes of all boxes."""
    boxes = root / "boxes"
    found = {path: path.read_bytes() for path in sorted(boxes.rglob("*")) if path.is_file()}
    return {str(path.relative_to(root)): content for path, content in found.items()}


def message_file(root: Path, number: int = 0) -> Path:
    """Of the only box; counted from the oldest."""
    return sorted((root / "boxes").rglob("messages.*.log"))[number]


def state_log(root: Path) -> Path:
    return next((root / "boxes").rglob("queue.log"))


def copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def flip(path: Path, offset: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)
