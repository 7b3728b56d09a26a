"""Mailboxes on sockets: the first messages of a box are pushed, the next when they are acked.

A feed is one socket's window on one box. It holds nothing: what was pushed and not acknowledged is
in the box, and pushed again to whoever opens it next. The socket that opened a box last has it,
over all instances; the one before is told.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

from penstock.delivery.mail_entries import encode_mail
from penstock.errors import HubClosed, MailboxTaken, PenstockError
from penstock.mailboxes.folder import Folder
from penstock.mailboxes.mailboxes import number_of_id
from penstock.mailboxes.window import Ask, Mark, Readers, View, look_in, mark_of
from penstock.protocol import MailAcked, MailboxClosedPush, MailboxOpened, MailPush, Problem

if TYPE_CHECKING:
    from penstock.delivery.session import Session
    from penstock.delivery.switchboard import Switchboard

TOGETHER_MAX = 64
"""Boxes that are looked into by one call of a thread."""
RETRY_SECONDS = 0.5


class MailboxFeed:
    """On the event loop's thread."""

    def __init__(
        self, feeds: MailboxFeeds, session: Session, mailbox: str, window: int, opening: int
    ) -> None:
        self.session = session
        self.mailbox = mailbox
        self.number = number_of_id(mailbox)
        self.token = 0
        self.has_seen_itself = False
        """Whether its own announcement was read: any that comes later is newer."""
        self.is_closed = False
        self._feeds = feeds
        self._window = window
        self._opening: int | None = opening
        """The command that is answered by the first look."""
        self._shown: frozenset[str] = frozenset()
        self._acks: list[tuple[int, str, bool]] = []
        self._asked: list[tuple[int, str, bool]] = []
        self._is_woken = True
        self._is_busy = False
        self._mark: Mark | None = None

    # What moves it

    def wake(self) -> None:
        """Something may have come."""
        self._is_woken = True
        self._pump()

    def wake_if(self, folder: Folder) -> None:
        """The same, unless it is certain that nothing has."""
        if self._mark is None or mark_of(folder, self.mailbox) != self._mark:
            self.wake()

    def ack(self, command: int, message: str, is_through: bool) -> None:
        self._acks.append((command, message, is_through))
        self._pump()

    def resume(self) -> None:
        """The socket has room again."""
        self.wake()

    def close(self) -> None:
        """Nothing more is pushed. What was not acknowledged stays in the box."""
        self.is_closed = True
        self._feeds.leave(self)

    def refuse_opening(self, error: PenstockError) -> bool:
        """Answer the command that opened it, if nobody has yet."""
        if self._opening is None:
            return False
        self.session.reply(self._opening, error=error)
        self._opening = None
        return True

    # Looking

    def _pump(self) -> None:
        if self._is_busy:
            return
        is_wanted = self._is_woken and not self.is_closed and not self.session.socket.is_paused
        if is_wanted or self._acks:
            self._is_busy = True
            self._feeds.look(self)

    def ask(self) -> Ask:
        """What it wants to know now."""
        is_shown = not self.is_closed and not self.session.socket.is_paused
        self._is_woken = self._is_woken and not is_shown
        self._asked, self._acks = self._acks, []
        acks = [(message, is_through) for _, message, is_through in self._asked]
        return Ask(self.mailbox, self._window if is_shown else 0, self._shown, acks)

    def take(self, ask: Ask, view: View) -> None:
        """The answer."""
        self._is_busy = False
        self._answer(view)
        if view.error is not None:
            self._fail(view.error)
        elif ask.size:
            self._show(view)
        self._pump()

    def lose(self, error: PenstockError) -> None:
        """There was no answer: what was asked for is not done."""
        self._is_busy = False
        self._answer(View(acked=[error] * len(self._asked), error=error))
        self._fail(error)

    def _answer(self, view: View) -> None:
        for (command, _, _), result in zip(self._asked, view.acked, strict=True):
            if isinstance(result, PenstockError):
                self.session.reply(command, error=result)
            else:
                self.session.reply(command, MailAcked(result))
        self._asked = []

    def _show(self, view: View) -> None:
        if self.is_closed:
            return
        if self._opening is not None:
            opened = MailboxOpened(self.mailbox, self._window, view.waiting)
            self.session.reply(self._opening, opened)
            self._opening = None
        self._mark = view.mark
        new = {mail.id for mail in view.messages}
        self._shown = frozenset(id for id in view.ids if id in new or id in self._shown)
        self._is_woken |= view.is_cut
        if view.messages:
            wire = self.session.socket.wire
            entries = [encode_mail(mail, wire) for mail in view.messages]
            self.session.socket.send(wire.encode(MailPush(self.mailbox, entries)))
            self._feeds.pushed += len(entries)

    def _fail(self, error: PenstockError) -> None:
        if self.is_closed:
            return
        if error.retryable:
            # Locked for a moment: the client keeps its place.
            self._is_busy = True
            self._feeds.loop.call_later(RETRY_SECONDS, self._try_again)
        else:
            self.session.mail.end(self, error)

    def _try_again(self) -> None:
        self._is_busy = False
        self.wake()


class MailboxFeeds:
    """All feeds of one process: one for each box at most."""

    def __init__(self, switchboard: Switchboard) -> None:
        self.loop = switchboard.loop
        self.pushed = 0
        """Messages, since it started."""
        self._switchboard = switchboard
        self._runtime = switchboard.runtime
        self._feeds: dict[str, MailboxFeed] = {}
        self._by_number: dict[int, set[MailboxFeed]] = {}
        self._waiting: dict[MailboxFeed, None] = {}
        self._woken: set[int] = set()
        self._readers: Readers | None = None
        self._opening = threading.Lock()

    def __len__(self) -> int:
        return len(self._feeds)

    def enter(self, feed: MailboxFeed) -> None:
        """It has the box from now on."""
        older = self._feeds.get(feed.mailbox)
        if older is not None:
            older.session.mail.end(older, MailboxTaken())
        self._feeds[feed.mailbox] = feed
        self._by_number.setdefault(feed.number, set()).add(feed)

    def leave(self, feed: MailboxFeed) -> None:
        if self._feeds.get(feed.mailbox) is feed:
            del self._feeds[feed.mailbox]
        others = self._by_number.get(feed.number)
        if others is not None:
            others.discard(feed)
            if not others:
                del self._by_number[feed.number]
        if self._runtime.mail.is_open:
            self._runtime.mail.folder.arrivals.forget(feed.number, feed)

    def look(self, feed: MailboxFeed) -> None:
        """Have its box looked into, together with others for which it is asked now."""
        if not self._waiting:
            self.loop.call_soon(self._look)
        self._waiting[feed] = None

    def close(self) -> None:
        for feed in tuple(self._feeds.values()):
            feed.close()
        if self._readers is not None:
            self._readers.close()
            self._readers = None

    # Inside

    def _look(self) -> None:
        feeds, self._waiting = list(self._waiting), {}
        for start in range(0, len(feeds), TOGETHER_MAX):
            some = feeds[start : start + TOGETHER_MAX]
            asks = [feed.ask() for feed in some]
            new = [feed for feed in some if not feed.token and not feed.is_closed]
            try:
                looking = self.loop.run_in_executor(
                    self._runtime.executor, self._look_in, asks, new
                )
            except RuntimeError:
                self._lose(some, HubClosed())
                return
            looking.add_done_callback(partial(self._on_looked, some, asks))

    def _look_in(self, asks: list[Ask], new: list[MailboxFeed]) -> list[View]:
        """On a thread."""
        folder = self._runtime.mail.folder
        readers = self._open_readers(folder.root)
        for feed in new:
            folder.arrivals.wait_for(feed.number, feed, partial(self._wake, feed.number))
            feed.token = readers.announce(feed.number)
        if new:
            # Whoever reads one of these in another process learns of it by being woken.
            folder.arrivals.tell([feed.number for feed in new])
        return look_in(folder, asks, self._runtime.settings.frame_payload_bytes_max)

    def _open_readers(self, root: str) -> Readers:
        with self._opening:
            if self._readers is None:
                self._readers = Readers(f"{root}/readers")
            return self._readers

    def _on_looked(
        self,
        feeds: list[MailboxFeed],
        asks: list[Ask],
        looking: asyncio.Future[list[View]],
    ) -> None:
        if looking.cancelled():
            return
        error = looking.exception()
        if error is not None:
            if isinstance(error, PenstockError):
                self._lose(feeds, error)
                return
            self._lose(feeds, PenstockError("The server failed; see its log."))
            raise error
        self._hear()
        for feed, ask, view in zip(feeds, asks, looking.result(), strict=True):
            if feed.is_closed:
                self.leave(feed)  # It may have been entered on the thread after it had left.
            feed.take(ask, view)

    def _lose(self, feeds: list[MailboxFeed], error: PenstockError) -> None:
        for feed in feeds:
            feed.lose(error)

    def _hear(self) -> None:
        """Whether somebody has opened a box, here or in another process. On this thread only, so
        that they are heard in their order."""
        for number, token in self._readers.news() if self._readers is not None else ():
            for feed in tuple(self._by_number.get(number, ())):
                if feed.token == token:
                    feed.has_seen_itself = True
                elif feed.has_seen_itself:
                    feed.session.mail.end(feed, MailboxTaken())

    def _wake(self, number: int) -> None:
        """On any thread: something came for this box."""
        is_first = not self._woken
        self._woken.add(number)
        if is_first:
            try:
                self.loop.call_soon_threadsafe(self._wake_all)
            except RuntimeError:
                return  # The loop has ended.

    def _wake_all(self) -> None:
        self._hear()
        folder = self._runtime.mail.folder
        while self._woken:
            for feed in tuple(self._by_number.get(self._woken.pop(), ())):
                feed.wake_if(folder)


def tell_closed(feed: MailboxFeed, error: PenstockError) -> None:
    """The feed has ended; the socket goes on."""
    socket = feed.session.socket
    socket.send(socket.wire.encode(MailboxClosedPush(feed.mailbox, Problem.of(error))))
