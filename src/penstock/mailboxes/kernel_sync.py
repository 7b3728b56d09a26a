"""Syncs that the kernel does beside an event loop: no thread is woken to begin one, and none has to
wake the loop when it is done.

This is Linux's own asynchronous IO, of which `fdatasync` is the one call that is needed here. Where
it is not to be had, a thread syncs.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import itertools
import os
import platform
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
"""The numbers of `io_setup`, `io_destroy`, `io_submit` and `io_getevents`."""
_FDSYNC = 3
_WITH_EVENT = 1
_pack_request = struct.Struct("<QIIHhIQQqQII").pack_into
_unpack_result = struct.Struct("<QQqq").unpack_from
_REQUEST_BYTES, _RESULT_BYTES = 64, 32
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long

_numbers = itertools.count(1)

Done = Callable[[OSError | None], None]


class KernelSync:
    """For one event loop, and one sync at a time. By the loop's thread, but for its end."""

    def __init__(self) -> None:
        """Raises `OSError` where the kernel does not sync for others."""
        calls = _CALLS.get(platform.machine()) if sys.platform == "linux" else None
        if calls is None or sys.maxsize < 2**32:
            raise OSError(errno.ENOSYS, "Its numbers of these calls are not known.")
        setup, self._destroy, self._submit, self._get = map(ctypes.c_long, calls)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._context = ctypes.c_ulong(0)
        if _syscall(setup, ctypes.c_long(1), ctypes.byref(self._context)) < 0:
            os.close(self._event)
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._number = next(_numbers)
        """What bears another one was begun by somebody else."""
        self._none, self._one = ctypes.c_long(0), ctypes.c_long(1)
        self._request = ctypes.create_string_buffer(_REQUEST_BYTES)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._result = ctypes.create_string_buffer(_RESULT_BYTES)
        self._done: Done | None = None
        self.is_broken = False
        """The thread was struck and may have missed something: others sync from here on."""

    @property
    def is_busy(self) -> bool:
        return self._done is not None and not self.is_broken

    @property
    def is_free(self) -> bool:
        return self._done is None and not self.is_broken

    def join(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on it is this loop's."""
        loop.add_reader(self._event, self._look)

    def begin(self, file: int, done: Done) -> bool:
        """Call `done`, on the loop, when all that was written to this file is on disk, or cannot
        be brought there. False if the kernel does not do that now."""
        if self.is_broken:
            return False
        assert self._done is None, "one at a time"
        _pack_request(
            self._request,
            *(0, self._number, 0, 0, _FDSYNC, 0, file, 0, 0, 0, 0, _WITH_EVENT, self._event),
        )
        try:
            self._done = done
            if _syscall(self._submit, self._context, self._one, self._requests) == 1:
                return True
            self._done = None
        except BaseException:
            self.is_broken = True
            raise
        return False

    def _look(self) -> None:
        """The event was set: something is done."""
        try:
            with suppress(BlockingIOError):
                os.eventfd_read(self._event)
            while (error := self._next()) is not None:
                done, self._done = self._done, None
                if done is not None:
                    done(OSError(error, os.strerror(error)) if error else None)
        except BaseException:
            self.is_broken = True
            raise

    def _next(self) -> int | None:
        """The number of the error with which a sync has ended, or 0; None if none has."""
        arguments = self._context, self._none, self._one, self._result, None
        while _syscall(self._get, *arguments) == 1:
            number, _, result, _ = _unpack_result(self._result)
            if number == self._number:
                return -int(result)
        return None

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """By any thread. Waits for what the kernel is about to do."""
        self.is_broken = True
        _syscall(self._destroy, self._context)
        try:
            loop.call_soon_threadsafe(self._part, loop)
        except RuntimeError:
            os.close(self._event)  # The loop has ended.

    def _part(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._event)
        os.close(self._event)

    def abandon(self) -> None:
        """In a forked child: the loop and the kernel's part are the parent's."""
        self.is_broken = True
        os.close(self._event)
