"""Brings messages of topics to many boxes at once: written together, synced together."""

from __future__ import annotations

import msgspec

from penstock import codec
from penstock.errors import MailboxesFailed, PenstockError, QueueFull
from penstock.mail import Attributes, NewMail, Posted
from penstock.mailboxes.contents import look
from penstock.mailboxes.deliveries import Ticket
from penstock.mailboxes.mailroom import MailRoom
from penstock.mailboxes.record import ATTRIBUTES_BYTES_MAX
from penstock.model import Message, Position
from penstock.settings import Settings

WAITING_MAX = 2_000
"""Boxes that wait for the disk at the same time: others want to write, too."""
LEFT_OUT = {"penstock-headers": "left out: a mailbox has no room for so many"}

Load = tuple[str, list[NewMail]]

_encode = msgspec.msgpack.Encoder().encode


class Lost(msgspec.Struct, frozen=True):
    """The payload of a gap: what did not come, and why."""

    reason: str
    topic: str
    """The topic or glob of the subscription."""
    after: str
    """The position up to which everything came."""
    resumes: str
    """The position after which messages follow."""


class Outcome(msgspec.Struct, frozen=True):
    """What became of one box's messages."""

    put: int
    """So many are on disk: the first ones."""
    error: PenstockError | None = None
    """Why the others are not."""


class Courier:
    def __init__(self, mail: MailRoom, settings: Settings) -> None:
        self._mail = mail
        self._settings = settings

    def bring(self, loads: list[Load]) -> list[Outcome]:
        """Put them; returns when all that could be put is on disk.

        Raises `MailboxesFailed` if nothing can be put by this process any more.
        """
        if self._settings.mailbox_durability == "os":
            folder = self._mail.folder
            group = folder.put(loads, is_logged=False)
            folder.show(group)
            answers = iter(group.answers)
            return [_outcome([next(answers) for _ in mails]) for _, mails in loads]
        outcomes: list[Outcome] = []
        for start in range(0, len(loads), WAITING_MAX):
            outcomes += self._bring(loads[start : start + WAITING_MAX])
        if self._settings.mailbox_durability == "interval":
            # Whoever brought them says next that they need not be brought again.
            self._mail.folder.flush()
        return outcomes

    def room(self, mailbox: str) -> int:
        """How many messages the box takes now. Raises what is wrong with it."""
        folder = self._mail.folder
        with folder.locked(mailbox) as box:
            look(box, folder)
            return folder.limits.messages_max - len(box.pending) if box.can_write else 0

    def mail_of(self, message: Message, topic: str) -> NewMail:
        """A message as mail. Its id is its position, by which a box knows what it has had."""
        position = message.position
        size = len(message.body) + ATTRIBUTES_BYTES_MAX
        if size > self._mail.folder.limits.record_bytes_max:
            # Published under a larger limit than is in force here.
            before = Position(position.epoch, position.offset - 1)
            return gap_of("too_large", topic, before, position)
        attributes = Attributes(
            message.type,
            message.topic,
            position.epoch,
            position.offset,
            message.key,
            message.headers or None,
        )
        encoded = _encode(attributes)
        if len(encoded) > ATTRIBUTES_BYTES_MAX:
            encoded = _encode(msgspec.structs.replace(attributes, headers=LEFT_OUT))
        return NewMail(str(position), message.body, message.encoding, encoded, leaves_marker=False)

    def _bring(self, loads: list[Load]) -> list[Outcome]:
        postman = self._mail.postman
        deliveries: list[Ticket | QueueFull] = []
        for mailbox, mails in loads:
            try:
                deliveries.append(postman.put(mailbox, mails))
            except QueueFull as error:
                deliveries.append(error)
        return [_wait(delivery) for delivery in deliveries]


def gap_of(reason: str, topic: str, after: Position, resumes: Position) -> NewMail:
    """Mail that says that messages of a topic are gone."""
    body = msgspec.json.encode(Lost(reason, topic, str(after), str(resumes)))
    attributes = Attributes(topic=topic, epoch=resumes.epoch, offset=resumes.offset, is_gap=True)
    return NewMail(f"{resumes}-gap", body, codec.JSON, _encode(attributes), leaves_marker=False)


def _wait(delivery: Ticket | QueueFull) -> Outcome:
    if isinstance(delivery, QueueFull):
        return Outcome(0, delivery)
    try:
        return _outcome(delivery.wait())
    except MailboxesFailed:
        raise
    except PenstockError as error:
        return Outcome(0, error)


def _outcome(answers: list[Posted | PenstockError]) -> Outcome:
    for number, answer in enumerate(answers):
        if isinstance(answer, MailboxesFailed):
            raise answer
        if isinstance(answer, PenstockError):
            return Outcome(number, answer)
    return Outcome(len(answers))
