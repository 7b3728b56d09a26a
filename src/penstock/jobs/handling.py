"""What holds for all handlers, wherever they run: how they are called, and what becomes of it.

Whatever a handler does or raises becomes an outcome: an answer, or a setback that says when to
try again. Every text that is kept is bounded and can be encoded.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import msgspec

from penstock import codec
from penstock.clock import Clock, micros, seconds
from penstock.errors import InvalidPayload, JobTimeout, UndecodablePayload
from penstock.job import Answer, Claim, Failure, Kind, Setback
from penstock.jobs.registry import Cancel, Handler, Snooze
from penstock.jobs.retry import decide, squared
from penstock.settings import Settings

Outcome = Answer | Setback

TRACEBACK_CHARACTERS_MAX = 16_000
MESSAGE_CHARACTERS_MAX = 2_000
FRAMES_MAX = 50

_DEFAULT_RETRY = squared()
_OWN = ("penstock.jobs.", "penstock.spark.")


class Entry:
    """A handler, made ready to be called many times."""

    __slots__ = ("_clock", "_decode", "_settings", "function", "handler", "takes_job")

    def __init__(self, handler: Handler, settings: Settings, clock: Clock) -> None:
        self.handler = handler
        self.function = handler.function
        self.takes_job = handler.takes_job
        self._settings = settings
        self._clock = clock
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(handler.payload_type).decode

    def payload(self, claim: Claim) -> Any:
        if claim.encoding == codec.JSON:
            try:
                return self._decode(claim.body)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise UndecodablePayload(f"The payload cannot be decoded: {error}.") from error
        return codec.decode(claim.body, claim.encoding, self.handler.payload_type)

    def limit_seconds(self, claim: Claim) -> float | None:
        return self.handler.timeout_seconds if claim.timeout is None else seconds(claim.timeout)

    def judge(self, claim: Claim, result: Any) -> Outcome:
        """What a handler that has returned has said."""
        if result is None:
            return Answer(claim.id, claim.token)
        if isinstance(result, Snooze):
            at = self._clock.now() + micros(max(0.0, result.seconds))
            return Setback(claim.id, claim.token, Kind.SNOOZED, at)
        if isinstance(result, Cancel):
            reason = Failure("Cancel", _text(str(result.reason), MESSAGE_CHARACTERS_MAX))
            return Setback(claim.id, claim.token, Kind.CANCELLED, None, reason)
        return self.answer(claim, result)

    def answer(self, claim: Claim, result: Any) -> Answer:
        """Done, with this result."""
        if result is None:
            return Answer(claim.id, claim.token)
        if inspect.iscoroutine(result):
            result.close()
            raise InvalidPayload(
                "The handler returned a coroutine that nobody awaits.",
                hint="Make it 'async def', or await inside.",
            )
        body, encoding = codec.encode(
            result, None, self._settings.payload_bytes_max, self._settings.compress_above_bytes
        )
        kept = self.handler.result_seconds
        return Answer(claim.id, claim.token, body, encoding, None if kept is None else micros(kept))

    def set_back(self, claim: Claim, error: BaseException) -> Setback:
        return set_back(claim, error, self._clock, self.handler)

    def timed_out(self, claim: Claim) -> Setback:
        limit = self.limit_seconds(claim)
        return self.set_back(claim, JobTimeout(f"The job ran for more than {limit:g} seconds."))


def set_back(
    claim: Claim, error: BaseException, clock: Clock, handler: Handler | None = None
) -> Setback:
    """An attempt that went wrong: tried again when its policy says, or given up."""
    failure = describe(error)
    delay: float | None = None
    if claim.attempt < claim.max_attempts:
        policy = _DEFAULT_RETRY if handler is None else handler.retry
        try:
            delay = decide(policy, claim.attempt, error)
        except Exception as mistake:  # noqa: BLE001 - a policy is user code, too
            # The job must not be lost to it: it is tried again as if there was none.
            delay = decide(_DEFAULT_RETRY, claim.attempt, error)
            failure = _with_note(failure, f"Its retry policy failed: {describe(mistake).error}.")
    if delay is None:
        return Setback(claim.id, claim.token, Kind.DIED, None, failure)
    return Setback(claim.id, claim.token, Kind.FAILED, clock.now() + micros(delay), failure)


def describe(error: BaseException) -> Failure:
    """An error as it is kept: bounded, and text whatever it holds."""
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = str(error)
    except Exception as mistake:  # noqa: BLE001 - an error that cannot even be printed
        message = f"(its message raises {type(mistake).__name__})"
    return Failure(
        _text(name, MESSAGE_CHARACTERS_MAX),
        _text(message, MESSAGE_CHARACTERS_MAX),
        _text(_trace(error, name, message), TRACEBACK_CHARACTERS_MAX),
    )


def _trace(error: BaseException, name: str, message: str) -> str:
    own = _from_handler(error.__traceback__)
    try:
        found = traceback.TracebackException(
            type(error), error, own, limit=-FRAMES_MAX, compact=True
        )
        return "".join(found.format())
    except Exception:  # noqa: BLE001 - the same, inside the traceback
        frames = "".join(traceback.format_tb(own, limit=-FRAMES_MAX))
        return f"Traceback (most recent call last):\n{frames}{name}: {message}\n"


def _from_handler(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames that led to the handler, which are always the same."""
    found = trace
    while found is not None and found.tb_frame.f_globals.get("__name__", "").startswith(_OWN):
        found = found.tb_next
    return trace if found is None else found


def _with_note(failure: Failure, note: str) -> Failure:
    message = _text(f"{failure.message} {note}".strip(), MESSAGE_CHARACTERS_MAX)
    return msgspec.structs.replace(failure, message=message)


def _text(text: str, limit: int) -> str:
    """What matters stands at both ends; what is too much is left out in the middle."""
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(clean) <= limit:
        return clean
    half = limit // 2
    return f"{clean[:half]}\n… {len(clean) - limit:,} characters left out …\n{clean[-half:]}"
