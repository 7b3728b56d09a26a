"""The bytes of a message file: a header, then records, each with its checksum.

A checksum begins with the file's salt and the record's place in it, so that a record that was
moved or copied, or is left over from another file, does not count as one. The header stands there
twice. `docs/explain/mailbox-files.md` describes the same for people who write a reader.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

import msgspec
from crc32c import crc32c

from penstock.clock import Micros

MAGIC = 0x4C414D50  # "PMAL"
FILE_MAGIC = b"PMBX"
VERSION = 1
CRC32C = 1
COPY_SIZE = 256
HEADER_SIZE = 2 * COPY_SIZE
DIGEST_SIZE = 32
ATTRIBUTES_BYTES_MAX = 0xFFFF
"""What the record's head can say."""
RECORD_BYTES_MAX = 512 * 1024 * 1024
"""What is longer is no record. A lower limit of a hub does not make old messages unreadable."""

_FILE = struct.Struct("<4sBBHQIQQ")  # magic, version, checksum, id's length, file, salt, seq, at
_CRC = struct.Struct("<I")
_RECORD = struct.Struct("<IIQQBBHHH")  # magic, length, seq, at, type, encoding, id, attributes, 0
HEAD_SIZE = _RECORD.size + _CRC.size
OVERHEAD = HEAD_SIZE + _CRC.size
_RANGE = struct.Struct("<QQ")
_pack_record, _pack_crc = _RECORD.pack, _CRC.pack


class Type(enum.IntEnum):
    NOTHING = 0
    """Space that was allocated and never written."""
    MESSAGE = 1
    QUOTA = 2
    GAP = 3
    """Messages were here that cannot be read any more. Its body has the last of their numbers."""
    VOID = 4
    """Bytes of messages that nobody was told are on disk, or whose bytes are not to stay."""
    END = 5
    """The box goes on in the next file."""


class Header(msgspec.Struct, frozen=True):
    """Whose file this is."""

    id: str
    file: int
    salt: int
    first_seq: int
    at: Micros

    def encode(self) -> bytes:
        name = self.id.encode()
        head = _FILE.pack(
            FILE_MAGIC, VERSION, CRC32C, len(name), self.file, self.salt, self.first_seq, self.at
        )
        copy = (head + name).ljust(COPY_SIZE - _CRC.size, b"\0")
        copy += _CRC.pack(crc32c(copy))
        return copy + copy

    @classmethod
    def decode(cls, data: bytes | bytearray) -> Header | None:
        """From either copy; None if both are damaged."""
        for start in (0, COPY_SIZE):
            copy = data[start : start + COPY_SIZE]
            if len(copy) < COPY_SIZE or _CRC.unpack(copy[-4:])[0] != crc32c(copy[:-4]):
                continue
            magic, version, checksum, size, file, salt, first, at = _FILE.unpack_from(copy)
            if (magic, version, checksum) != (FILE_MAGIC, VERSION, CRC32C):
                continue
            name = copy[_FILE.size : _FILE.size + size].decode()
            return cls(name, file, salt, first, at)
        return None


class Record(msgspec.Struct, frozen=True):
    """One record, and where it is."""

    seq: int
    type: Type
    offset: int
    size: int
    """With all that belongs to it."""
    at: Micros
    encoding: int
    id: str
    attributes: bytes
    body: bytes

    @property
    def end(self) -> int:
        return self.offset + self.size

    @property
    def last_seq(self) -> int:
        """Of those it stands for."""
        if self.type in (Type.GAP, Type.VOID) and len(self.body) >= _RANGE.size:
            return int(_RANGE.unpack_from(self.body)[1])
        return self.seq if self.type != Type.END else self.seq - 1


class Damage(msgspec.Struct, frozen=True):
    """Bytes of a file that are no record, though records follow, or should be there."""

    offset: int
    end: int
    reason: str


def encode_record(
    type: Type,
    seq: int,
    at: Micros,
    salt: int,
    offset: int,
    id: bytes = b"",
    attributes: bytes = b"",
    body: bytes = b"",
    encoding: int = 0,
) -> bytes:
    content = id + attributes + body
    head = _pack_record(MAGIC, len(content), seq, at, type, encoding, len(id), len(attributes), 0)
    check = crc32c(head, (salt ^ offset) & 0xFFFFFFFF)
    return head + _pack_crc(check) + content + _pack_crc(crc32c(content, check))


def encode_range(
    type: Type, first: int, last: int, at: Micros, salt: int, offset: int, size: int = 0
) -> bytes:
    """A record in place of others, of the size asked for. One that stands for itself only may be
    too small to say so."""
    if size and size < RANGE_SIZE:
        assert first == last, "a range needs space"
        body = bytes(size - OVERHEAD)
    else:
        body = _RANGE.pack(first, last).ljust(max(_RANGE.size, size - OVERHEAD), b"\0")
    return encode_record(type, first, at, salt, offset, body=body)


RANGE_SIZE = OVERHEAD + _RANGE.size


def decode_record(data: bytes | bytearray, start: int, base: int, salt: int) -> Record | str:
    """The record at `start` of data that lies at `base` in its file; or why there is none."""
    if start + HEAD_SIZE > len(data):
        return "the head is cut off"
    magic, size, seq, at, type, encoding, id_size, attributes_size, _ = _RECORD.unpack_from(
        data, start
    )
    if magic != MAGIC:
        return "there is no record"
    offset = base + start
    head = data[start : start + _RECORD.size]
    check = crc32c(head, (salt ^ offset) & 0xFFFFFFFF)
    if _CRC.unpack_from(data, start + _RECORD.size)[0] != check:
        return "the head's checksum is wrong"
    if size > RECORD_BYTES_MAX or id_size + attributes_size > size:
        return "its size is not possible"
    end = start + HEAD_SIZE + size
    if end + _CRC.size > len(data):
        return "the content is cut off"
    content = bytes(data[start + HEAD_SIZE : end])
    if _CRC.unpack_from(data, end)[0] != crc32c(content, check):
        return "the content's checksum is wrong"
    try:
        id = content[:id_size].decode()
        kind = Type(type)
    except ValueError:
        return "its id or type is not known"
    attributes = content[id_size : id_size + attributes_size]
    body = content[id_size + attributes_size :]
    return Record(seq, kind, offset, size + OVERHEAD, at, encoding, id, attributes, body)


def scan(data: bytes, base: int, salt: int) -> Iterator[Record | Damage]:
    """All records of a part of a file, and the damage between them.

    Damage that reaches to the end may be no more than a write that was cut off; the caller knows
    up to where the file was whole.
    """
    start = 0
    while start < len(data):
        found = decode_record(data, start, base, salt)
        if isinstance(found, Record):
            yield found
            start += found.size
            continue
        resumed = _next_record(data, start + 1, base, salt)
        end = len(data) if resumed is None else resumed
        yield Damage(base + start, base + end, found)
        start = end


_MAGIC_BYTES = struct.pack("<I", MAGIC)


def _next_record(data: bytes, start: int, base: int, salt: int) -> int | None:
    while True:
        start = data.find(_MAGIC_BYTES, start)
        if start < 0:
            return None
        if isinstance(decode_record(data, start, base, salt), Record):
            return start
        start += 1


# Where the header is lost


def find_salt(content: bytes) -> int | None:
    """The salt of a file whose header is damaged, from any record in it that is whole.

    A checksum of bytes that are known tells what it began with: each bit of the beginning changes
    the same bits of the result, whatever the bytes.
    """
    start = content.find(_MAGIC_BYTES)
    while start >= 0:
        if start + HEAD_SIZE <= len(content):
            head = content[start : start + _RECORD.size]
            seed = _seed_of(head, _CRC.unpack_from(content, start + _RECORD.size)[0])
            salt = seed ^ (start & 0xFFFFFFFF)
            if isinstance(decode_record(content, start, 0, salt), Record):
                return salt
        start = content.find(_MAGIC_BYTES, start + 1)
    return None


def _seed_of(head: bytes, check: int) -> int:
    """With which seed these bytes have this checksum."""
    zero = crc32c(head, 0)
    rows = [(crc32c(head, 1 << bit) ^ zero, 1 << bit) for bit in range(32)]
    wanted, seed = check ^ zero, 0
    for bit in range(32):
        pivot = next((row for row in rows if row[0] >> bit & 1), None)
        assert pivot is not None, "a checksum loses nothing of what it began with"
        rows.remove(pivot)
        rows = [
            (row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> bit & 1 else row for row in rows
        ]
        if wanted >> bit & 1:
            wanted, seed = wanted ^ pivot[0], seed ^ pivot[1]
    return seed
