"""Who is on a topic: rows that belong to this instance, and events for those who watch.

Joins and leaves are gathered for a moment and written in one transaction, together with a message
to `penstock.presence` that tells the other instances. While clients stay, nothing is written. When
an instance is killed, its clients are gone from every list at once, and one of the survivors says
so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock import codec
from penstock.clock import micros
from penstock.delivery.subscriber import Socket
from penstock.errors import PenstockError
from penstock.model import RESERVED_PREFIX, Instance, Message, NewMessage, Pattern, Presence
from penstock.ports import Transaction
from penstock.protocol import Member, Members, PresencePush, Wire
from penstock.topics.positions import open_live_subscription
from penstock.topics.subscription import AsyncLive, Subscription

if TYPE_CHECKING:
    from penstock.delivery.switchboard import Switchboard

PRESENCE_TOPIC = f"{RESERVED_PREFIX}presence"
EVENT_SECONDS = 60.0
"""How long an event is kept for instances that are late."""
EVENT_MEMBERS_MAX = 500
"""Members in one event; more are told in several."""
RETRY_SECONDS = 1.0
HELD_MAX = 1_000


class PresenceEvent(msgspec.Struct, frozen=True):
    """What a message of `penstock.presence` says."""

    topic: str
    joined: list[Member] = []
    left: list[str] = []


class Roster:
    """This instance's clients on their topics, and who wants to know of all."""

    def __init__(self, switchboard: Switchboard) -> None:
        self._switchboard = switchboard
        self._runtime = switchboard.runtime
        self._here: Counter[tuple[str, str]] = Counter()
        """Sockets of this instance by (topic, client)."""
        self._entered: dict[tuple[str, str], Presence] = {}
        self._joining: dict[tuple[str, str], Presence] = {}
        self._leaving: set[tuple[str, str]] = set()
        self._watchers: dict[str, dict[Socket, Watcher]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._has_failed = False
        self._next_at = 0.0
        self._changes = 0
        self._written_through = 0
        """So many of the changes made here stand in the store."""
        self._wrote = asyncio.Event()
        self._is_listening = asyncio.Event()
        """Whether events are heard: who is told of everybody before that misses somebody."""
        self._epoch = ""

    # This instance's clients

    def join(self, member: Presence) -> None:
        key = (member.topic, member.client)
        self._here[key] += 1
        self._leaving.discard(key)
        entered = self._entered.get(key)
        if entered is None or entered.info != member.info:
            self._joining[key] = msgspec.structs.replace(
                member, joined_at=self._runtime.clock.now()
            )
            self._changes += 1
            self._write_soon()
        else:
            self._settle()

    def leave(self, topic: str, client: str) -> None:
        key = (topic, client)
        self._here[key] -= 1
        if self._here[key] > 0:
            return
        del self._here[key]
        self._joining.pop(key, None)
        if key in self._entered or self._writing is not None:
            self._leaving.add(key)
            self._changes += 1
            self._write_soon()
        else:
            self._settle()

    async def members(self, topic: str) -> Members:
        """Everybody, on all instances."""
        await self._written()
        limit = self._runtime.settings.presence_members_max
        found = await self._switchboard.in_thread(
            self._runtime.store.presence.members, topic, limit + 1
        )
        members = [_member(presence) for presence in found[:limit]]
        return Members(topic, members, is_complete=len(found) <= limit)

    # Who watches

    def watch(self, topic: str, socket: Socket) -> None:
        watcher = Watcher(topic, socket)
        self._watchers.setdefault(topic, {})[socket] = watcher
        if self._watching is None:
            self._watching = self._switchboard.spawn(self._watch())
        self._refresh(watcher)

    def resume(self, topic: str, socket: Socket) -> None:
        """The socket has room again. If it missed anything, it is told everything."""
        watcher = self._watchers.get(topic, {}).get(socket)
        if watcher is not None and watcher.is_stale and watcher.held is None:
            self._refresh(watcher)

    def unwatch(self, topic: str, socket: Socket) -> None:
        watchers = self._watchers.get(topic)
        if watchers is not None:
            watchers.pop(socket, None)
            if not watchers:
                del self._watchers[topic]

    def _refresh(self, watcher: Watcher) -> None:
        """Tell it of everybody, again if that is under way."""
        watcher.is_stale = True
        if watcher.held is None:
            watcher.held = []
            self._switchboard.spawn(self._tell_all(watcher))

    async def _tell_all(self, watcher: Watcher) -> None:
        """Everybody who is there, then what happened meanwhile: repeating that does no harm."""
        topic, socket = watcher.topic, watcher.socket
        found: Members | None = None
        while found is None or watcher.is_stale:
            await self._is_listening.wait()
            watcher.held, watcher.is_stale = [], False
            try:
                found = await self.members(topic)
            except PenstockError:
                found = None
                await asyncio.sleep(RETRY_SECONDS)
            if self._watchers.get(topic, {}).get(socket) is not watcher:
                return
        held, watcher.held = watcher.held, None
        if socket.is_paused:
            watcher.is_stale = True  # The whole list is no small thing: once there is room.
            return
        socket.send(socket.wire.encode(PresencePush(topic, members=found.members)))
        for data in held or ():
            socket.send(data)

    # Upkeep

    async def tick(self) -> None:
        """Now and then: announce the clients of instances that have died."""
        store = self._runtime.store
        while await self._switchboard.in_thread(store.presence.has_dead):
            await self._runtime.committer.run_async(self._forget_dead)
        if self._entered:
            epoch = (await self._switchboard.in_thread(store.log)).epoch
            if self._epoch and epoch != self._epoch:
                self._enter_all_again()
            self._epoch = epoch

    async def close(self) -> None:
        """Everybody here leaves."""
        if self._watching is not None:
            self._watching.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._timer is not None:
            self._timer.cancel()
        instance = self._runtime.instance
        if self._entered and instance is not None:
            await self._runtime.committer.run_async(
                lambda tx: self._announce(tx, left=tx.presence.leave_all(instance))
            )

    def _forget_dead(self, transaction: Transaction) -> None:
        self._announce(transaction, left=transaction.presence.forget_dead())

    def _enter_all_again(self) -> None:
        """The database was restored: its list is empty."""
        for key, member in self._entered.items():
            if key in self._here:
                self._joining.setdefault(key, member)
        self._write_soon()

    def _write_soon(self) -> None:
        """At once after a pause, then no more often than `presence_ms`, whoever asks."""
        if self._timer is None and self._writing is None:
            loop = self._switchboard.loop
            self._timer = loop.call_at(max(loop.time(), self._next_at), self._start_writing)

    def _start_writing(self) -> None:
        self._timer = None
        if self._writing is not None:
            return
        if self._joining or self._leaving:
            delay = self._runtime.settings.presence_ms / 1000
            self._next_at = self._switchboard.loop.time() + delay
            self._writing = self._switchboard.spawn(self._write())

    async def _written(self) -> None:
        """Until what happened here so far stands in the store."""
        wanted = self._changes
        while self._written_through < wanted:
            wrote = self._wrote
            self._write_soon()
            await wrote.wait()
            if self._has_failed:
                return  # It is tried again later.

    def _settle(self) -> None:
        """Who came has left again, or the other way round: nobody has to wait for that."""
        if not self._joining and not self._leaving and self._writing is None:
            self._has_written(self._changes)

    def _has_written(self, through: int) -> None:
        self._written_through = max(self._written_through, through)
        self._wrote.set()
        self._wrote = asyncio.Event()

    async def _write(self) -> None:
        through = self._written_through
        changes = self._changes
        joining, self._joining = self._joining, {}
        leaving, self._leaving = self._leaving, set()
        # One who comes back while this is under way has to be entered again.
        left = {key: self._entered.pop(key) for key in leaving if key in self._entered}
        try:
            instance = await self._switchboard.in_thread(self._instance)
            await self._runtime.committer.run_async(
                lambda tx: self._change(tx, instance, list(joining.values()), sorted(leaving))
            )
            self._entered.update(joining)
            self._has_failed = False
            through = changes
        except PenstockError as error:
            # The database is busy or away: what is newer than this attempt counts. Whoever left
            # meanwhile may stand in the store all the same, if the outcome is unknown.
            again = {key: member for key, member in joining.items() if key in self._here}
            self._joining = {**again, **self._joining}
            self._leaving |= (leaving | joining.keys()) - self._here.keys()
            self._entered.update(left)
            self._has_failed = True
            self._next_at = self._switchboard.loop.time() + RETRY_SECONDS
            self._runtime.telemetry.emit("service_failed", service="presence", error=repr(error))
        finally:
            self._writing = None
            self._has_written(through)
        if self._joining or self._leaving:
            self._write_soon()
        else:
            self._settle()

    def _instance(self) -> Instance:
        self._runtime.start_reading()
        instance = self._runtime.instance
        assert instance is not None
        return instance

    def _change(
        self,
        transaction: Transaction,
        instance: Instance,
        joining: list[Presence],
        leaving: list[tuple[str, str]],
    ) -> None:
        left = transaction.presence.leave(instance, leaving) if leaving else []
        joined = transaction.presence.join(instance, joining) if joining else []
        self._announce(transaction, joined, left)

    def _announce(
        self,
        transaction: Transaction,
        joined: Sequence[Presence] = (),
        left: Sequence[Presence] = (),
    ) -> None:
        """As messages of the same transaction: told if, and only if, it became true."""
        events: list[PresenceEvent] = []
        for topic in dict.fromkeys(member.topic for member in [*joined, *left]):
            news = [_member(member) for member in joined if member.topic == topic]
            gone = [member.client for member in left if member.topic == topic]
            size = EVENT_MEMBERS_MAX
            for start in range(0, max(len(news), len(gone)), size):
                end = start + size
                events.append(PresenceEvent(topic, news[start:end], gone[start:end]))
        if events:
            transaction.topics.append(
                [
                    NewMessage(
                        PRESENCE_TOPIC,
                        msgspec.json.encode(event),
                        codec.JSON,
                        type="presence",
                        ttl=micros(EVENT_SECONDS),
                    )
                    for event in events
                ],
                producer=self._runtime.name,
                now=self._runtime.clock.now(),
            )

    # Events of all instances

    async def _watch(self) -> None:
        """Tell the watchers here what any instance announced."""
        while True:
            try:
                subscription = await self._switchboard.in_thread(self._open_events)
                live = AsyncLive(
                    subscription, self._runtime.settings.follow_batch_max, self._runtime.executor
                )
                async with live:
                    self._is_listening.set()
                    while True:
                        for message in await live.take():
                            self._tell(message)
            except PenstockError as error:
                self._runtime.telemetry.emit(
                    "service_failed", service="presence", error=repr(error)
                )
                # What happens until we listen again is missed.
                self._is_listening.clear()
                for watchers in self._watchers.values():
                    for watcher in watchers.values():
                        self._refresh(watcher)
                await asyncio.sleep(RETRY_SECONDS)

    def _open_events(self) -> Subscription:
        return open_live_subscription(
            self._runtime, Pattern(PRESENCE_TOPIC), after=None, last=None, on_trimmed="skip"
        )

    def _tell(self, message: Message) -> None:
        event = message.decode(PresenceEvent)
        watchers = self._watchers.get(event.topic)
        if not watchers:
            return
        push = PresencePush(event.topic, event.joined, event.left)
        frames: dict[Wire, bytes] = {}
        for socket, watcher in tuple(watchers.items()):
            data = frames.get(socket.wire)
            if data is None:
                data = frames[socket.wire] = socket.wire.encode(push)
            watcher.tell(data)


class Watcher:
    """A socket that wants to know of a topic's presence."""

    __slots__ = ("held", "is_stale", "socket", "topic")

    def __init__(self, topic: str, socket: Socket) -> None:
        self.topic = topic
        self.socket = socket
        self.held: list[bytes] | None = None
        """Events that wait until the whole list was sent, while it is being read."""
        self.is_stale = False

    def tell(self, data: bytes) -> None:
        if self.held is not None and len(self.held) < HELD_MAX:
            self.held.append(data)
        elif self.held is not None or self.socket.is_paused:
            # It is told everything once it has room again.
            self.is_stale = True
        else:
            self.socket.send(data)


def _member(presence: Presence) -> Member:
    return Member(presence.client, presence.info, presence.joined_at)
