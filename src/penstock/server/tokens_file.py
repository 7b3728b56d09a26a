"""The tokens file: API keys and what they allow, and what was revoked. TOML, mode 0600.

```toml
revoked = ["ann", "7f3c…"]      # names of keys, subjects and ids (jti) of signed tokens

[keys.dashboard]
sha256 = "9f86d0…"              # of the key; the key itself is nowhere
publish = []
subscribe = ["orders", "canvas-*"]
admin = []
jobs = ["mails"]                # queues to enqueue into and read
jobs_admin = []                 # queues to retry, cancel, pause and limit
mailboxes_put = ["user-*"]      # mailboxes to put into
mailboxes_read = []             # mailboxes to read and acknowledge
mailboxes_admin = []            # mailboxes to list, expire, delete and subscribe to topics
ledger = ["billing"]            # scopes of the ledger to look up, mark and claim in
ledger_admin = []               # scopes to forget keys of, prune and set the retention of
expires = 2027-01-01T00:00:00Z  # optional
```

A key has 256 random bits, so that a plain hash is enough: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tomllib
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from penstock.clock import Micros, micros
from penstock.delivery.access import RIGHTS
from penstock.errors import InvalidInput, InvalidSettings
from penstock.model import Pattern, check_name

KEY_PREFIX = "pk_"
"""So that people and programs that look for leaked secrets recognise one."""
KEY_BYTES = 32
PATTERNS_MAX = 1_000
FILE_BYTES_MAX = 16 * 1024 * 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEADING = """\
# Written by 'penstock tokens'. Servers read it again when it changes.
# Keys are stored as SHA-256: a lost one cannot be read back, only replaced.
"""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the file says about one API key."""

    sha256: str
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    jobs_admin: tuple[str, ...] = ()
    mailboxes_put: tuple[str, ...] = ()
    mailboxes_read: tuple[str, ...] = ()
    mailboxes_admin: tuple[str, ...] = ()
    ledger: tuple[str, ...] = ()
    ledger_admin: tuple[str, ...] = ()
    expires: datetime | None = None

    @property
    def expires_at(self) -> Micros | None:
        return None if self.expires is None else micros(self.expires.timestamp())


class TokensFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content, checked."""

    keys: dict[str, Key] = {}
    revoked: frozenset[str] = frozenset()


def new_key() -> str:
    """A secret. It is shown once and stored nowhere."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_key(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def check_patterns(patterns: tuple[str, ...], what: str) -> tuple[str, ...]:
    """The patterns, if each is a topic or a glob."""
    if len(patterns) > PATTERNS_MAX:
        raise InvalidInput(f"{what} has {len(patterns):,} patterns; the limit is {PATTERNS_MAX:,}.")
    for pattern in patterns:
        try:
            Pattern.parse(pattern)
        except InvalidInput as error:
            raise InvalidInput(f"{what}: {error.message}", hint=error.hint) from None
    return patterns


def read(path: Path) -> TokensFile:
    """The file's content. Raises `InvalidSettings` in words that quote nothing secret."""
    return parse(read_secret(path, "tokens file"), path)


def read_secret(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidSettings(
            f"The {what} {path} cannot be read: {error.strerror}.",
            hint="'penstock tokens create' makes one." if what == "tokens file" else "",
        ) from None
    if len(content) > FILE_BYTES_MAX:
        raise InvalidSettings(f"The {what} {path} is larger than {FILE_BYTES_MAX:,} bytes.")
    return content


def parse(content: bytes, path: Path) -> TokensFile:
    try:
        found = msgspec.convert(tomllib.loads(content.decode()), TokensFile)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"The tokens file {path} is not TOML: {error}.") from None
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"The tokens file {path} is not right: {error}.") from None
    for name, key in found.keys.items():
        _check(path, name, key)
    return found


def write(path: Path, tokens: TokensFile) -> None:
    """Replace the file in one step: temporary file, fsync, rename, fsync of the folder.

    It is readable by its owner only, from its first byte on.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(render(tokens).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise InvalidSettings(
            f"The tokens file {path} cannot be written: {error.strerror}."
        ) from None


def render(tokens: TokensFile) -> str:
    """As TOML. The standard library only reads it."""
    lines = [_HEADING, f"revoked = {_toml(sorted(tokens.revoked))}"]
    for name, key in sorted(tokens.keys.items()):
        lines += ["", f"[keys.{_toml(name)}]", f"sha256 = {_toml(key.sha256)}"]
        for right in RIGHTS:
            lines.append(f"{right} = {_toml(getattr(key, right))}")
        if key.expires is not None:
            lines.append(f"expires = {key.expires.isoformat()}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    # TOML's basic strings escape as JSON's do, but for DEL, which names and patterns cannot have.
    return msgspec.json.encode(value).decode()


def _check(path: Path, name: str, key: Key) -> None:
    try:
        check_name(name, "name of a key")
        for right in RIGHTS:
            check_patterns(getattr(key, right), right)
        if not _SHA256.fullmatch(key.sha256):
            raise InvalidInput("sha256 is not 64 hexadecimal digits")
        if key.expires is not None and key.expires.tzinfo is None:
            raise InvalidInput("expires has no time zone; end it with Z")
    except InvalidInput as error:
        raise InvalidSettings(
            f"The tokens file {path}, key {name!r}: {error.message}", hint=error.hint
        ) from None
