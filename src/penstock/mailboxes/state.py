"""The state log of a box: readable lines, the last valid one of which holds.

It says how far the box was read. What was written is in the message files: a lost state log means
that messages come again, never that they are lost.
"""

from __future__ import annotations

import msgspec
from crc32c import crc32c

NAME = "queue.log"
LINE_BYTES_MAX = 512


Whole = tuple[int, int, int]
"""File, byte and number of a message: all before them was on disk."""
NOTHING: Whole = (0, 0, 0)


class State(msgspec.Struct, frozen=True):
    n: int = 0
    """Counts the lines."""
    read_file: int = 1
    read_msg: int = 0
    """Messages of the read file that are acknowledged."""
    read_byte: int = 0
    read_seq: int = 1
    """The next message to acknowledge has this number, or a higher one."""
    write_file: int = 1
    write_msg: int = 0
    write_byte: int = 0
    write_seq: int = 1
    """The next message put gets this number, or a higher one."""
    size: int = 0
    can_write: bool = True
    durable_file: int = 0
    durable_byte: int = 0
    """All before this place was on disk: what is damaged there was not just cut off."""
    durable_seq: int = 0
    """And so were all messages before this one."""
    deleted: bool = False

    @property
    def whole(self) -> Whole:
        return self.durable_file, self.durable_byte, self.durable_seq

    def line(self) -> bytes:
        text = "v1 " + " ".join(
            f"{name}={_word(value)}" for name, value in zip(_NAMES, _values(self), strict=True)
        )
        return f"{text} crc={crc32c(text.encode()):08x}\n".encode()


_NAMES = State.__struct_fields__


def _values(state: State) -> tuple[int | bool, ...]:
    return msgspec.structs.astuple(state)


def _word(value: int | bool) -> str:
    if isinstance(value, bool):
        return "T" if value else "F"
    return str(value)


def parse_line(line: bytes) -> State | None:
    """None if it is not one, or damaged."""
    text, mark, check = line.strip().rpartition(b" crc=")
    if not mark or not text.startswith(b"v1 "):
        return None
    try:
        if int(check, 16) != crc32c(text):
            return None
        words = [word.partition("=") for word in text[3:].decode().split(" ")]
        values: list[int | bool] = []
        for (name, _, value), expected in zip(words, _NAMES, strict=True):
            if name != expected:
                return None
            values.append(value == "T" if value in "TF" and value else int(value))
        return State(*values)  # type: ignore[arg-type]
    except (ValueError, UnicodeDecodeError):
        return None


def has_end(line: bytes) -> bool:
    """Whether there is a checksum where one would be in a line that is not cut off."""
    return line[-13:-8] == b" crc="


def last_state(content: bytes) -> tuple[State | None, bool]:
    """The last valid line, and whether everything behind it is whole."""
    lines = content.split(b"\n")
    is_whole = lines[-1] == b""
    for line in reversed(lines if not is_whole else lines[:-1]):
        state = parse_line(line)
        if state is not None:
            return state, is_whole
        is_whole = False
    return None, not content
