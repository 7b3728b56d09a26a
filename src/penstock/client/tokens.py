"""The token a client shows, and where a fresh one comes from."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.errors import Unauthorized

_HINT: Final = "The function that was passed as token= is asked for it."

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
        try:
            answer = await self._call(self._ask)
        except Exception as error:  # user code, which may fail in any way
            raise Unauthorized(f"No token could be had: {error}.", hint=_HINT) from error
        if not isinstance(answer, str):
            kind = type(answer).__name__
            raise Unauthorized(f"A token is text, not {kind}.", hint=_HINT)
        self._current = answer
        return answer

    async def _call(self, ask: Callable[[], Any]) -> Any:
        if inspect.iscoroutinefunction(ask):
            return await ask()
        answer = await asyncio.to_thread(ask)
        return await answer if inspect.isawaitable(answer) else answer

    def forget(self) -> None:
        """The server did not take it: ask again next time."""
        if self._ask is not None:
            self._current = None

    def __repr__(self) -> str:
        return "<Tokens>"
