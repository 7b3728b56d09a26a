"""What went wrong in Spark, in one line: the cause, not the path it took through the JVM.

An error of a source, a sink or a user's function arrives as text, in the middle of a Java stack.
"""

from __future__ import annotations

import re

from penstock import errors
from penstock.errors import PenstockError, PipelineFailed

TEXT_MAX = 500
PASSING = ("Python worker failed to connect back", "CANNOT_OPEN_SOCKET")

# As Python prints the last line of a traceback.
_OURS = re.compile(r"^\s*(?:[\w.]*: )?penstock\.errors\.(\w+): (.+)$", re.MULTILINE)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\w*)(?:: (.*))?$")
_CAUSE = re.compile(r"terminated with exception: (.*)", re.DOTALL)
# Of a task that was lost with its process or its executor.
_LOST = re.compile(r"most recent failure: (?:Lost task [^:]*: )?(.*)")
_CALLED = re.compile(r"^An error occurred while calling [^\n]*\n: (.*)", re.DOTALL)
_STATE = re.compile(r"\s*SQLSTATE: \w+")
_JAVA = re.compile(r"^(?:[\w$]+\.)+([\w$]+): ")


def explain(error: BaseException) -> PenstockError:
    """The error as one of ours, with the cause as its message."""
    if isinstance(error, PenstockError):
        return error
    if not _is_sparks(error):
        text = str(error) or "no message"
        return PipelineFailed(f"{type(error).__name__}: {_short(text)}", hint=_where(error))
    text = str(error)
    ours = [match for match in _OURS.finditer(text) if hasattr(errors, match[1])]
    if ours:
        return _ours(*ours[-1].groups())
    raised = _last_raised(text)
    if raised is not None:
        return PipelineFailed(_short(raised))
    for pattern in (_LOST, _CAUSE, _CALLED):
        cause = pattern.search(text)
        if cause:
            text = cause[1]
            break
    return PipelineFailed(_short(_JAVA.sub(r"\1: ", _STATE.sub("", text.strip()))))


def is_passing(error: PenstockError) -> bool:
    """Whether the same may go well a little later: the store was busy, or the machine so slow
    that Spark did not wait for its own Python processes."""
    return error.retryable or any(text in error.message for text in PASSING)


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


def _ours(name: str, text: str) -> PenstockError:
    """Message and hint are one text in a traceback."""
    kind: type[PenstockError] = getattr(errors, name)
    hint = kind.hint
    if hint and text.endswith(hint):
        text = text.removesuffix(hint).rstrip()
    found = kind.__new__(kind)
    PenstockError.__init__(found, text)
    return found


def _last_raised(text: str) -> str | None:
    """What the innermost Python traceback ends with."""
    _, marker, after = text.rpartition("Traceback (most recent call last):")
    if not marker:
        return None
    for line in after.splitlines():
        match = _RAISED.match(line.strip()) if line[:1].strip() else None
        if match:
            name = match[1].removeprefix("builtins.")
            return f"{name}: {match[2]}" if match[2] else name
    return None


def _where(error: BaseException) -> str:
    """The last line of the user's own code that it went through."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "site-packages" not in code.co_filename and "/penstock/" not in code.co_filename:
            found = f"In {code.co_name}, {code.co_filename}, line {trace.tb_lineno}."
        trace = trace.tb_next
    return found


def _short(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return line if len(line) <= TEXT_MAX else f"{line[:TEXT_MAX]}…"
