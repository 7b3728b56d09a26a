"""Fixtures for tests of delivery: switchboards on hubs of one file, and clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest_asyncio

import penstock
from penstock.delivery.access import Authenticator
from penstock.delivery.switchboard import Switchboard
from penstock.protocol import JSON_WIRE, Wire
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
