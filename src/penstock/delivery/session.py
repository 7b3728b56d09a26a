"""One client's connection: its commands, its rights, its subscriptions.

A session never waits: what takes time (the disk, the log) answers later, by the command's id.
Whatever a client sends, it gets a reply, an error or a close code, and others are not touched.
"""

from __future__ import annotations

import asyncio
import difflib
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec
from msgspec import UNSET

from penstock import codec
from penstock.delivery.access import Access
from penstock.delivery.limits import Bucket
from penstock.delivery.mail_desk import MailDesk
from penstock.delivery.subscriber import Socket
from penstock.delivery.subscribing import Subscription, open_subscription
from penstock.errors import (
    BadRequest,
    InvalidInput,
    LimitReached,
    PenstockError,
    QueueFull,
    RateLimited,
    Unauthorized,
)
from penstock.model import NewMessage, Position, Receipt, check_name, check_topic
from penstock.protocol import (
    Ack,
    Acked,
    AckMail,
    Close,
    CloseMailbox,
    Command,
    Connect,
    Members,
    OpenMailbox,
    Outgoing,
    Ping,
    Presence,
    Problem,
    Publish,
    Published,
    PublishedMany,
    PublishMany,
    PutMail,
    Refresh,
    Reply,
    Subscribe,
    Unsubscribe,
    UnsubscribedPush,
)
from penstock.topics.publishing import check_publishable, encode_message, refuse_with_conflate

if TYPE_CHECKING:
    from penstock.delivery.switchboard import Switchboard

T = TypeVar("T")

STRIKES_MAX = 20
"""Commands that make no sense before the socket is closed."""
INFLIGHT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes a client has sent and that are not on disk yet, before it is read no further."""
UNREAD_BYTES_MAX: Final = 64 * 1024
"""Bytes of replies behind a full buffer, before the client that does not read is not read."""
QUESTIONS_MAX: Final = 8
"""Lists of members, which can be long, that are read for one client at the same time."""
CLOSE_REASON_BYTES_MAX: Final = 123


class Session:
    """Fed by a socket: `receive`, `pause`, `resume`, `ended`."""

    def __init__(
        self,
        switchboard: Switchboard,
        socket: Socket,
        *,
        token: str | None = None,
        admit: Callable[[Access], Callable[[], None]] | None = None,
    ) -> None:
        self.socket = socket
        self.client = ""
        self.access: Access | None = None
        self.subscriptions: dict[str, Subscription | None] = {}
        """By topic or glob; None while it is being opened."""
        self.mail = MailDesk(self, switchboard)
        """The mailboxes it has open."""
        self.frame_bytes = 0
        """Of the command that is being carried out."""
        self._opening: dict[str, Subscribe] = {}
        """Whose answer is waited for: a client may unsubscribe and subscribe again meanwhile."""
        self._switchboard = switchboard
        self._runtime = switchboard.runtime
        self._token = token
        self._admit = admit
        self._dismiss: Callable[[], None] | None = None
        self._bucket = Bucket(switchboard.runtime.settings.publish_rate_max)
        self._subscribe_bucket = Bucket(switchboard.runtime.settings.subscribe_rate_max)
        self._strikes = 0
        self._inflight_bytes = 0
        self._unread_bytes = 0
        self._questions = 0
        self._holds: set[str] = set()
        self._is_closed = False
        now = switchboard.loop.time()
        self._opened_at = now
        self._heard_at = now
        self._pinged_at: float | None = None
        self._taken = 0
        switchboard.sessions.add(self)

    # What the socket says

    def receive(self, data: bytes) -> None:
        """One whole frame."""
        self._heard_at = self._switchboard.loop.time()
        self._pinged_at = None
        if self._is_closed:
            return
        wire = self.socket.wire
        self.frame_bytes = len(data)
        try:
            command = wire.decode_command(data)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            self._refuse(data, error)
            return
        if self.access is None and not isinstance(command, Connect):
            unknown = Unauthorized("The first command must be connect.")
            self.reply(command.id, error=unknown)
            self.close(Close.BAD_TOKEN, unknown.message)
            return
        try:
            _HANDLERS[type(command)](self, command)
        except PenstockError as error:
            self.reply(command.id, error=error)

    def heard(self) -> None:
        """A sign of life, such as a pong."""
        self._heard_at = self._switchboard.loop.time()
        self._pinged_at = None

    def pause(self) -> None:
        """The socket's buffer is full."""
        for subscription in tuple(self.subscriptions.values()):
            if subscription is not None:
                subscription.subscriber.pause()

    def resume(self) -> None:
        """It has room again."""
        self.heard()
        self._unread_bytes = 0
        self._let_go("replies")
        self.mail.resume()  # First: they push a few messages, and may have to wait for a thread.
        for topic, subscription in tuple(self.subscriptions.items()):
            if subscription is not None:
                subscription.resume()
            if self.socket.is_paused:
                # Next time the others come first: one busy topic must not keep them waiting.
                if topic in self.subscriptions:
                    self.subscriptions[topic] = self.subscriptions.pop(topic)
                return

    def ended(self) -> None:
        """The connection is gone, whoever ended it."""
        self._is_closed = True
        self._switchboard.forget(self)
        for topic in tuple(self.subscriptions):
            self._drop(topic)
        self.mail.leave()
        if self._dismiss is not None:
            self._dismiss()
            self._dismiss = None

    # What the switchboard says

    def check(self, now: float) -> None:
        """Once a second: is the client there, and still welcome?"""
        settings = self._runtime.settings
        access = self.access
        if self._is_closed:
            return
        if access is None:
            if now - self._opened_at > settings.connect_seconds:
                self.close(Close.BAD_TOKEN, "No connect command came.")
            return
        if access.expires_at is not None and self._runtime.clock.now() >= access.expires_at:
            self.close(Close.TOKEN_EXPIRED, "The token has expired.")
        elif self._switchboard.authenticator.is_revoked(access):
            self.close(Close.REVOKED, "The token was revoked.")
        elif self._pinged_at is not None:
            self._check_pong(now, settings.pong_seconds)
        elif now - self._heard_at >= settings.ping_seconds:
            self._pinged_at = now
            self._taken = self.socket.taken()
            self.socket.ping()

    def _check_pong(self, now: float, pong_seconds: float) -> None:
        assert self._pinged_at is not None
        if now - self._pinged_at < pong_seconds:
            return
        taken = self.socket.taken()
        if taken > self._taken and self.socket.unsent():
            # Slow, but reading: the ping is still in the queue before it.
            self._pinged_at, self._taken = now, taken
        else:
            self.close(Close.NO_PONG, "No pong came.")

    def hold(self, why: str) -> None:
        """Read no further what the client sends, until every reason for it is gone."""
        if not self._holds:
            self.socket.hold(True)
        self._holds.add(why)

    def close(self, code: int, reason: str = "") -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for why in tuple(self._holds):
            self._let_go(why)  # Its answer to the close is to be heard.
        for topic in tuple(self.subscriptions):
            self._drop(topic)
        self.mail.leave()
        self.socket.close(code, _cut(reason, CLOSE_REASON_BYTES_MAX))

    def reply(self, id: int, ok: object = UNSET, error: PenstockError | None = None) -> None:
        if self._is_closed:
            return
        problem = UNSET if error is None else Problem.of(error)
        data = self.socket.wire.encode(Reply(id, ok, problem))
        self.socket.send(data)
        if self.socket.is_paused:
            # Asking and not reading the answers must not fill our memory.
            self._unread_bytes += len(data)
            if self._unread_bytes > UNREAD_BYTES_MAX:
                self.hold("replies")

    # Commands

    def _connect(self, command: Connect) -> None:
        if self.access is not None:
            raise BadRequest("This socket is connected already.")
        try:
            access = self._authenticate(command.token or self._token)
            if self._admit is not None:
                self._dismiss = self._admit(access)
            self.client = self._name(command.client, access)
        except PenstockError as error:
            code = Close.LIMIT if isinstance(error, LimitReached) else Close.BAD_TOKEN
            self.reply(command.id, error=error)
            self.close(code, error.message)
            return
        self.access = access
        self._token = None
        self.reply(command.id, self._switchboard.welcome(self.client, access))

    def _refresh(self, command: Refresh) -> None:
        access = self._authenticate(command.token)
        if self.access is None or access.subject != self.access.subject:
            raise Unauthorized("The new token is for somebody else.")
        self.access = access
        for topic in tuple(self.subscriptions):
            try:
                access.check_subscribe(topic)
            except PenstockError as error:
                self.end(topic, error)
        self.mail.check(access)
        self.reply(command.id, self._switchboard.welcome(self.client, access))

    def _subscribe(self, command: Subscribe) -> None:
        self._allowed.check_subscribe(command.topic)
        if command.topic in self.subscriptions:
            raise InvalidInput(
                f"This socket is subscribed to {command.topic!r} already.",
                hint="Unsubscribe first to start from another position.",
            )
        self.count_subscription()
        limit = self._runtime.settings.subscriptions_max
        if len(self.subscriptions) >= limit:
            raise LimitReached(f"A socket may have {limit:,} subscriptions.")
        opening = open_subscription(self._switchboard, self, command)
        self.subscriptions[command.topic] = None
        if isinstance(opening, Subscription):
            self._subscribed(command, opening)
        else:
            self._opening[command.topic] = command
            task = self._switchboard.spawn(opening)
            task.add_done_callback(partial(self._on_opened, command))

    def _on_opened(self, command: Subscribe, task: asyncio.Task[Subscription]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        is_wanted = self._opening.get(command.topic) is command
        if is_wanted:
            del self._opening[command.topic]
        if error is None:
            opened = task.result()
            if not is_wanted:
                opened.close()  # The client left, or changed its mind.
                self.reply(command.id, error=InvalidInput("Unsubscribed meanwhile."))
            else:
                self._subscribed(command, opened)
            return
        if is_wanted:
            del self.subscriptions[command.topic]
        if not isinstance(error, PenstockError):
            self.reply(command.id, error=PenstockError("The server failed; see its log."))
            raise error
        self.reply(command.id, error=error)

    def _subscribed(self, command: Subscribe, opened: Subscription) -> None:
        self.subscriptions[command.topic] = opened
        self.reply(command.id, opened.answer)
        # After the reply, so that no message comes before it.
        opened.start()

    def _unsubscribe(self, command: Unsubscribe) -> None:
        if command.topic not in self.subscriptions:
            raise InvalidInput(f"This socket is not subscribed to {command.topic!r}.")
        self._drop(command.topic)
        self.reply(command.id, {})

    def _publish(self, command: Publish) -> None:
        self._allowed.check_publish(command.topic)
        self.count_messages(1)
        runtime, topic = self._runtime, command.topic
        payload = _payload(command)
        if command.conflate:
            check_publishable(topic)
            refuse_with_conflate(
                command.headers, command.ttl, command.idempotency_key, command.format
            )
            receipt = runtime.conflator.put(topic, command.key, payload, command.type)
            self.reply(command.id, _published(receipt))
            return
        message = encode_message(
            runtime.settings,
            topic,
            payload,
            command.type,
            command.key,
            command.headers,
            command.ttl,
            command.idempotency_key,
            command.format,
        )
        self._append(command.id, topic, [message], _only)

    def _publish_many(self, command: PublishMany) -> None:
        self._allowed.check_publish(command.topic)
        limit = self._runtime.settings.commit_group_max
        if not 1 <= len(command.messages) <= limit:
            raise InvalidInput(
                f"publish_many takes 1 to {limit:,} messages, not {len(command.messages):,}."
            )
        self.count_messages(len(command.messages))
        messages = [
            encode_message(
                self._runtime.settings,
                command.topic,
                _payload(outgoing),
                outgoing.type,
                outgoing.key,
                outgoing.headers,
                outgoing.ttl,
                outgoing.idempotency_key,
                outgoing.format,
            )
            for outgoing in command.messages
        ]
        self._append(command.id, command.topic, messages, _all)

    def _ack(self, command: Ack) -> None:
        subscription = self.subscriptions.get(command.topic)
        if subscription is None or subscription.holding is None:
            raise InvalidInput(
                f"There is no subscription to {command.topic!r} with a consumer.",
                hint="Subscribe with consumer to have something to acknowledge.",
            )
        position = Position.parse(command.position)
        write = subscription.acknowledge(position)
        future = self._runtime.committer.run_async(write)
        self.answer(future, command.id, lambda _: Acked(str(subscription.acked(position))))

    def _presence(self, command: Presence) -> None:
        self._allowed.check_subscribe(command.topic)
        check_topic(command.topic)
        if self._questions >= QUESTIONS_MAX:
            raise RateLimited(f"Only {QUESTIONS_MAX} presence commands at a time.")
        self._questions += 1
        task = self._switchboard.spawn(self._switchboard.roster.members(command.topic))
        task.add_done_callback(self._on_told)
        self.answer(task, command.id, _identity)

    def _on_told(self, task: asyncio.Task[Members]) -> None:
        self._questions -= 1

    def _ping(self, command: Ping) -> None:
        self.reply(command.id, {})

    # Helpers

    @property
    def _allowed(self) -> Access:
        assert self.access is not None
        return self.access

    def _authenticate(self, token: str | None) -> Access:
        access = self._switchboard.authenticator.authenticate(token)
        if access.expires_at is not None and self._runtime.clock.now() >= access.expires_at:
            raise Unauthorized
        return access

    def _name(self, wanted: str | None, access: Access) -> str:
        """Under a token, a client cannot take a name that is not its own."""
        name = f"c-{secrets.token_hex(6)}" if wanted is None else check_name(wanted, "client name")
        if access.token_id and name != access.subject:
            return f"{access.subject}/{name}"
        return name

    def count_messages(self, count: int) -> None:
        """Raises `RateLimited`."""
        self._take_rate(count, self._bucket, "messages")

    def count_subscription(self) -> None:
        """Raises `RateLimited`."""
        self._take_rate(1, self._subscribe_bucket, "subscriptions")

    def _take_rate(self, count: int, bucket: Bucket, what: str) -> None:
        now = round(self._switchboard.loop.time() * 1_000_000)
        if not bucket.take(count, now):
            wait = bucket.wait_seconds(count, now)
            raise RateLimited(f"Too many {what} at once; try again in {wait:.1f} seconds.")

    def _let_go(self, why: str) -> None:
        if why in self._holds:
            self._holds.discard(why)
            if not self._holds:
                self.socket.hold(False)

    def _append(
        self,
        id: int,
        topic: str,
        messages: list[NewMessage],
        answer: Callable[[list[Receipt]], object],
    ) -> None:
        def begin() -> asyncio.Future[list[Receipt]]:
            if topic in self._runtime.conflator.waiting:
                return self._switchboard.spawn(self._append_after_conflated(topic, messages))
            return self._runtime.committer.append_async(messages)

        self.write(id, sum(len(message.body) for message in messages), begin, answer)

    def write(
        self,
        id: int,
        size: int,
        begin: Callable[[], asyncio.Future[T]],
        answer: Callable[[T], object],
    ) -> None:
        """Begin to write so many bytes, and reply to the command when they are on disk."""
        if not self._switchboard.take_room(size):
            raise QueueFull("Too many bytes are waiting for the disk.")
        try:
            future = begin()
        except BaseException:
            self._switchboard.give_room(size)
            raise
        self._inflight_bytes += size
        if self._inflight_bytes > INFLIGHT_BYTES_MAX:
            self.hold("disk")
        future.add_done_callback(partial(self._on_written, size))
        self.answer(future, id, answer)

    async def _append_after_conflated(
        self, topic: str, messages: list[NewMessage]
    ) -> list[Receipt]:
        with self._runtime.conflator.ahead_of(topic) as batch:
            receipts = await self._runtime.committer.append_async([*batch, *messages])
            return receipts[len(batch) :]

    def _on_written(self, size: int, future: asyncio.Future[Any]) -> None:
        self._switchboard.give_room(size)
        self._inflight_bytes -= size
        if self._inflight_bytes <= INFLIGHT_BYTES_MAX // 2:
            self._let_go("disk")

    def answer(self, future: asyncio.Future[T], id: int, answer: Callable[[T], object]) -> None:
        """Reply to a command when this is done."""

        def done(future: asyncio.Future[T]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                self.reply(id, answer(future.result()))
            elif isinstance(error, PenstockError):
                self.reply(id, error=error)
            else:
                self.reply(id, error=PenstockError("The server failed; see its log."))
                raise error

        future.add_done_callback(done)

    def _drop(self, topic: str) -> None:
        self._opening.pop(topic, None)
        subscription = self.subscriptions.pop(topic, None)
        if subscription is not None:
            subscription.close()

    def end(self, topic: str, error: PenstockError) -> None:
        """Take a subscription away, and say why."""
        if topic in self.subscriptions and not self._is_closed:
            self._drop(topic)
            push = UnsubscribedPush(topic, Problem.of(error))
            self.socket.send(self.socket.wire.encode(push))

    def _refuse(self, data: bytes, error: Exception) -> None:
        """Answer what is no command, if it can be told whose it is."""
        self._strikes += 1
        try:
            found = self.socket.wire.decode_any(data)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            found = None
        id = found.get("id") if isinstance(found, dict) else None
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < 2**53:
            self.close(Close.BAD_REQUEST, f"Not a command: {error}")
            return
        op = cast("dict[str, Any]", found).get("op")
        near = difflib.get_close_matches(str(op)[:32], _OPS, n=1)
        hint = f"Did you mean {near[0]}?" if near and op not in _OPS else ""
        self.reply(id, error=BadRequest(f"{_cut(str(error), 200)}.", hint=hint))
        if self._strikes >= STRIKES_MAX:
            self.close(Close.LIMIT, "Too many commands that make no sense.")


_HANDLERS: Final[dict[type[Command], Callable[[Session, Any], None]]] = {
    Connect: Session._connect,
    Refresh: Session._refresh,
    Subscribe: Session._subscribe,
    Unsubscribe: Session._unsubscribe,
    Publish: Session._publish,
    PublishMany: Session._publish_many,
    Ack: Session._ack,
    Presence: Session._presence,
    OpenMailbox: lambda session, command: session.mail.open(command),
    CloseMailbox: lambda session, command: session.mail.close(command),
    PutMail: lambda session, command: session.mail.put(command),
    AckMail: lambda session, command: session.mail.ack(command),
    Ping: Session._ping,
}
_OPS: Final = [str(command.__struct_config__.tag) for command in _HANDLERS]


def _payload(outgoing: Publish | Outgoing) -> Any:
    if (outgoing.payload is UNSET) == (outgoing.base64 is UNSET):
        raise BadRequest("A message has either payload or base64.")
    if isinstance(outgoing.base64, str):
        return codec.from_base64(outgoing.base64)
    return outgoing.payload


def _published(receipt: Receipt) -> Published:
    position = None if receipt.position is None else str(receipt.position)
    return Published(position, receipt.created_at, receipt.durable, receipt.duplicate)


def _only(receipts: list[Receipt]) -> Published:
    return _published(receipts[0])


def _all(receipts: list[Receipt]) -> PublishedMany:
    return PublishedMany([_published(receipt) for receipt in receipts])


def _identity(members: Members) -> Members:
    return members


def _cut(text: str, bytes_max: int) -> str:
    return text.encode()[:bytes_max].decode(errors="ignore")
