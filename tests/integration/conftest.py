"""Fixtures for tests of delivery (switchboards on hubs of one file, and clients), and of mailboxes
without a database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import penstock
from penstock.delivery.access import Authenticator
from penstock.delivery.switchboard import Switchboard
from penstock.mailboxes.disk import Disk
from penstock.protocol import JSON_WIRE, Wire
from tests.integration.mailbox_desk import Room
from tests.sockets import Client

OpenBoard = Callable[..., Awaitable[Switchboard]]
Join = Callable[..., Awaitable[Client]]


@pytest_asyncio.fixture
async def open_board(open_hub: Callable[..., penstock.Hub]) -> AsyncIterator[OpenBoard]:
    """Instances that share a file: `await open_board(authenticator, setting=…)`."""
    boards: list[Switchboard] = []

    async def open_one(
        authenticator: Authenticator | None = None, hub: penstock.Hub | None = None, **settings: Any
    ) -> Switchboard:
        settings = {"durability": "os", **settings}
        board = (hub or open_hub(**settings)).open_delivery(authenticator)
        await board.start()
        boards.append(board)
        return board

    yield open_one
    for board in boards:
        for session in tuple(board.sessions):
            session.ended()
        await board.close()


@pytest_asyncio.fixture
async def board(open_board: OpenBoard) -> Switchboard:
    return await open_board()


@pytest_asyncio.fixture
async def join() -> Join:
    """A client that is connected: `await join(board, client="ann")`."""

    async def connect(board: Switchboard, wire: Wire = JSON_WIRE, **fields: Any) -> Client:
        client = Client(board, wire)
        await client.ask("connect", **fields)
        return client

    return connect


@pytest.fixture
def open_room(tmp_path: Path) -> Iterator[Callable[..., Room]]:
    rooms: list[Room] = []

    def open_one(disk: Disk | None = None, **settings: Any) -> Room:
        limits = {"mailbox_file_messages_max": 60}
        rooms.append(Room(tmp_path / "store", disk, **(limits | settings)))
        return rooms[-1]

    yield open_one
    for room in rooms:
        room.close()
