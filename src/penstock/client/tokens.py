"""The token a client shows, and where a fresh one comes from."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

Token = str | Callable[[], str] | Callable[[], Awaitable[str]]


class Tokens:
    """A fixed token, or a function that is asked for one: at first, and when it has run out.

    The function may be a coroutine function; any other runs in a thread, so it may take its time.
    """

    def __init__(self, token: Token | None) -> None:
        self._ask = token if callable(token) else None
        self._current = token if isinstance(token, str) else None

    @property
    def can_refresh(self) -> bool:
        return self._ask is not None

    async def get(self, *, fresh: bool = False) -> str | None:
        if self._ask is None or (self._current is not None and not fresh):
            return self._current
        ask = self._ask
        if inspect.iscoroutinefunction(ask):
            answer = await ask()
        else:
            answer = await asyncio.to_thread(ask)
            if inspect.isawaitable(answer):
                answer = await answer
        self._current = str(answer)
        return self._current

    def forget(self) -> None:
        """The server did not take it: ask again next time."""
        if self._ask is not None:
            self._current = None

    def __repr__(self) -> str:
        return "<Tokens>"
