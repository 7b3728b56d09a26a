"""A session's commands about mailboxes: open, put, ack, close."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from penstock import codec
from penstock.delivery.access import Access
from penstock.delivery.mailbox_feed import MailboxFeed, tell_closed
from penstock.errors import BadRequest, InvalidInput, LimitReached, PenstockError
from penstock.mail import Posted
from penstock.mailboxes.coroutines import AsyncMailbox
from penstock.protocol import AckMail, CloseMailbox, MailAcked, OpenMailbox, PutMail

if TYPE_CHECKING:
    from penstock.delivery.session import Session
    from penstock.delivery.switchboard import Switchboard

WINDOW_MAX = 1_000_000


class MailDesk:
    """One for each session."""

    def __init__(self, session: Session, switchboard: Switchboard) -> None:
        self._session = session
        self._switchboard = switchboard
        self._feeds: dict[str, MailboxFeed] = {}

    # Commands

    def open(self, command: OpenMailbox) -> None:
        self._access.check_mailboxes_read(command.mailbox)
        settings = self._switchboard.runtime.settings
        if not 1 <= command.window <= WINDOW_MAX:
            raise InvalidInput(f"window is 1 or more, not {command.window}.")
        if command.mailbox in self._feeds:
            raise InvalidInput(
                f"This socket has the mailbox {command.mailbox!r} open already.",
                hint="Close it first to have another window.",
            )
        self._session.count_subscription()
        if len(self._feeds) >= settings.subscriptions_max:
            raise LimitReached(f"A socket may have {settings.subscriptions_max:,} mailboxes open.")
        window = min(command.window, settings.mailbox_window_max)
        feeds = self._switchboard.mailboxes
        feed = MailboxFeed(feeds, self._session, command.mailbox, window, command.id)
        self._feeds[command.mailbox] = feed
        feeds.enter(feed)
        feed.wake()

    def close(self, command: CloseMailbox) -> None:
        feed = self._feeds.pop(command.mailbox, None)
        if feed is None:
            raise InvalidInput(f"This socket does not have the mailbox {command.mailbox!r} open.")
        feed.refuse_opening(InvalidInput("Closed meanwhile."))
        feed.close()
        self._session.reply(command.id, {})

    def put(self, command: PutMail) -> None:
        self._access.check_mailboxes_put(command.mailbox)
        if (command.payload is UNSET) == (command.base64 is UNSET):
            raise BadRequest("A message has either payload or base64.")
        self._session.count_messages(1)
        payload: Any = command.payload
        if isinstance(command.base64, str):
            payload = codec.from_base64(command.base64)
        box, spawn = self._box(command.mailbox), self._switchboard.spawn
        self._session.write(
            command.id,
            self._session.frame_bytes,
            lambda: spawn(
                box.put(payload, id=command.message, type=command.type, format=command.format)
            ),
            _as_it_is,
        )

    def ack(self, command: AckMail) -> None:
        self._access.check_mailboxes_read(command.mailbox)
        feed = self._feeds.get(command.mailbox)
        if feed is not None:
            feed.ack(command.id, command.message, command.through)
            return
        acking = self._box(command.mailbox).ack(command.message, through=command.through)
        self._session.answer(self._switchboard.spawn(acking), command.id, MailAcked)

    # What else happens

    def check(self, access: Access) -> None:
        """The rights are others now."""
        for feed in tuple(self._feeds.values()):
            try:
                access.check_mailboxes_read(feed.mailbox)
            except PenstockError as error:
                self.end(feed, error)

    def resume(self) -> None:
        """The socket has room again."""
        for feed in tuple(self._feeds.values()):
            feed.resume()
            if self._session.socket.is_paused:
                return

    def end(self, feed: MailboxFeed, error: PenstockError) -> None:
        """Take a mailbox away, and say why."""
        if feed.is_closed:
            return
        self.forget(feed)
        if not feed.refuse_opening(error):
            tell_closed(feed, error)

    def forget(self, feed: MailboxFeed) -> None:
        if self._feeds.get(feed.mailbox) is feed:
            del self._feeds[feed.mailbox]
        feed.close()

    def leave(self) -> None:
        """The socket is gone, or going."""
        for feed in tuple(self._feeds.values()):
            self.forget(feed)

    @property
    def _access(self) -> Access:
        access = self._session.access
        assert access is not None
        return access

    def _box(self, mailbox: str) -> AsyncMailbox:
        return AsyncMailbox(lambda: self._switchboard.runtime, mailbox)


def _as_it_is(posted: Posted) -> Posted:
    return posted
