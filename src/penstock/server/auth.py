"""Who may connect: API keys from a file, signed tokens (JWT), or anybody on loopback.

Both kinds may be on. Every refusal has the same words, whatever was wrong; no token is logged,
kept in a `repr` or accepted in a URL. Files are read again when they change, so that a key that
was removed, or a token that was revoked, is refused within `RELOAD_SECONDS`, also on sockets that
are open: their sessions ask `is_revoked`.
"""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import jwt
import msgspec

from penstock.clock import Clock, SystemClock, micros, seconds
from penstock.delivery.access import RIGHTS, Access, Anybody, Authenticator, covers
from penstock.errors import BadRequest, InvalidInput, InvalidSettings, Unauthorized
from penstock.model import check_name
from penstock.server import tokens_file
from penstock.server.exposure import check_exposure, is_allowed_origin
from penstock.server.tokens_file import KEY_PREFIX, TokensFile, check_patterns, hash_key
from penstock.settings import Settings

__all__ = [
    "Tokens",
    "bearer",
    "check_exposure",
    "is_allowed_origin",
    "make_authenticator",
    "refuse_token_in_url",
]

RELOAD_SECONDS = 1.0
LEEWAY_SECONDS = 5.0
"""How far the clocks of those who sign and those who check may be apart."""
TOKEN_BYTES_MAX = 16 * 1024
SECRET_BYTES_MIN = 32

KEY_ID = "key:"
JWT_ID = "jwt:"

_IN_URL = re.compile(r"(?:^|[&;])(?:token|access_token|api_?key|authorization|jwt)=", re.IGNORECASE)

logger = logging.getLogger("penstock")

T = TypeVar("T")


def make_authenticator(settings: Settings, clock: Clock | None = None) -> Authenticator:
    """What the settings ask for. Raises `InvalidSettings` if their files are not right."""
    if not settings.tokens_file and not settings.jwt_key_file:
        return Anybody()
    return Tokens(settings, clock or SystemClock())


class Tokens:
    """API keys, signed tokens, or both."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._file = (
            WatchedFile(Path(settings.tokens_file), "tokens file", Keyring.read, clock)
            if settings.tokens_file
            else None
        )
        self._signed = SignedTokens(settings, clock) if settings.jwt_key_file else None

    def authenticate(self, token: str | None) -> Access:
        """The rights of a token. Raises `Unauthorized`, in the same words whatever is wrong."""
        access = self._find(token) if token and len(token) <= TOKEN_BYTES_MAX else None
        if access is None or self._has_expired(access) or self.is_revoked(access):
            raise Unauthorized
        return access

    def is_revoked(self, access: Access) -> bool:
        """Whether an access given earlier is no longer good.

        A key's is not when the file no longer grants all that it granted then.
        """
        ring = self._file.value if self._file is not None else EMPTY
        if access.subject in ring.revoked:
            return True
        if access.token_id.startswith(KEY_ID):
            now = ring.by_id.get(access.token_id)
            return now is None or not _grants_all(now, access)
        return access.token_id.removeprefix(JWT_ID) in ring.revoked

    def _find(self, token: str | None) -> Access | None:
        assert token is not None
        if token.startswith(KEY_PREFIX):
            return self._file.value.find(token) if self._file is not None else None
        return self._signed.read(token) if self._signed is not None else None

    def _has_expired(self, access: Access) -> bool:
        return access.expires_at is not None and access.expires_at <= self._clock.now()


class Keyring:
    """The API keys of a tokens file."""

    def __init__(self, tokens: TokensFile) -> None:
        self.revoked = tokens.revoked
        self.by_id: dict[str, Access] = {}
        self._by_prefix: dict[bytes, list[tuple[bytes, Access]]] = {}
        for name, key in tokens.keys.items():
            access = Access(
                subject=name,
                **{right: getattr(key, right) for right in RIGHTS},
                expires_at=key.expires_at,
                token_id=f"{KEY_ID}{name}:{key.sha256[:16]}",
            )
            digest = bytes.fromhex(key.sha256)
            self.by_id[access.token_id] = access
            self._by_prefix.setdefault(digest[:4], []).append((digest, access))

    @classmethod
    def read(cls, content: bytes, path: Path) -> Keyring:
        return cls(tokens_file.parse(content, path))

    def find(self, token: str) -> Access | None:
        # What is compared are hashes, which nobody can steer towards another; the first bytes
        # only choose among thousands of keys, and the rest is compared in constant time.
        digest = hash_key(token)
        found = None
        for candidate, access in self._by_prefix.get(digest[:4], ()):
            if hmac.compare_digest(candidate, digest):
                found = access
        return found


EMPTY = Keyring(TokensFile())


class Rights(msgspec.Struct, frozen=True):
    """The claim `penstock` of a signed token."""

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


class Claims(msgspec.Struct, frozen=True):
    """The claims that are looked at. The audience, issuer and signature were checked before."""

    sub: str
    exp: int | float
    nbf: int | float | None = None
    jti: str = ""
    penstock: Rights = Rights()


class SignedTokens:
    """JSON Web Tokens of one algorithm, which the token itself cannot choose."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._clock = clock
        self._algorithm = settings.jwt_algorithm
        self._audience = settings.jwt_audience or None
        self._issuer = settings.jwt_issuer or None
        self._key: WatchedFile[Any] = WatchedFile(
            Path(settings.jwt_key_file), "key file", self._prepare, clock
        )

    def read(self, token: str) -> Access | None:
        """The rights of a token, None if anything is wrong with it."""
        try:
            payload = jwt.decode(
                token,
                self._key.value,
                algorithms=[self._algorithm],
                audience=self._audience,
                issuer=self._issuer,
                # Times are checked below, by the clock of the hub.
                options={
                    "require": ["exp", "sub", "aud"] if self._audience else ["exp", "sub"],
                    "verify_aud": self._audience is not None,
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
            claims = msgspec.convert(payload, Claims)
            check_name(claims.sub, "subject")
            for right in RIGHTS:
                check_patterns(getattr(claims.penstock, right), right)
            expires_at = micros(claims.exp + LEEWAY_SECONDS)
        except (jwt.PyJWTError, msgspec.ValidationError, InvalidInput):
            return None
        except (ValueError, OverflowError, RecursionError, TypeError):
            return None  # What JSON can say and a token should not: 1e999, lists a mile deep.
        now_seconds = seconds(self._clock.now())
        if claims.nbf is not None and claims.nbf > now_seconds + LEEWAY_SECONDS:
            return None
        rights = claims.penstock
        return Access(
            subject=claims.sub,
            **{right: getattr(rights, right) for right in RIGHTS},
            expires_at=expires_at,
            token_id=JWT_ID + claims.jti,
        )

    def _prepare(self, content: bytes, path: Path) -> Any:
        return prepare_key(content, path, self._algorithm)


def prepare_key(content: bytes, path: Path, algorithm: str) -> Any:
    """The key in the form its algorithm wants, checked."""
    secret = content.strip()
    if algorithm == "HS256" and len(secret) < SECRET_BYTES_MIN:
        raise InvalidSettings(
            f"The key in {path} has {len(secret)} bytes; HS256 needs {SECRET_BYTES_MIN}.",
            hint="'penstock tokens jwt --new-key' makes one.",
        )
    known = jwt.algorithms.get_default_algorithms()
    if algorithm not in known:
        raise InvalidSettings(
            f"{algorithm} needs the package cryptography.", hint="pip install cryptography"
        )
    try:
        return known[algorithm].prepare_key(secret)
    except (jwt.PyJWTError, ValueError, TypeError):
        # The driver's words may quote the key.
        raise InvalidSettings(f"The key in {path} is not one for {algorithm}.") from None


class WatchedFile(Generic[T]):
    """What a file says, read again when it changes.

    A file that became unreadable or wrong is reported once, and what it said before holds: half
    of an edit must neither let anybody in nor throw everybody out.
    """

    def __init__(
        self, path: Path, what: str, parse: Callable[[bytes, Path], T], clock: Clock
    ) -> None:
        self._path = path
        self._what = what
        self._parse = parse
        self._clock = clock
        self._stamp = self._look()
        self._value = parse(tokens_file.read_secret(path, what), path)
        self._looked_at = clock.monotonic()
        self._warn_if_readable_by_others()

    @property
    def value(self) -> T:
        now = self._clock.monotonic()
        if now - self._looked_at >= micros(RELOAD_SECONDS):
            self._looked_at = now
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self._reload()
        return self._value

    def _reload(self) -> None:
        try:
            self._value = self._parse(tokens_file.read_secret(self._path, self._what), self._path)
        except InvalidSettings as error:
            logger.error("%s What it said before holds.", error.message)
        else:
            logger.info("The %s %s was read again.", self._what, self._path)

    def _look(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev

    def _warn_if_readable_by_others(self) -> None:
        try:
            mode = self._path.stat().st_mode
        except OSError:
            return
        if mode & 0o077:
            logger.warning(
                "The %s %s can be read by others than its owner: chmod 600.", self._what, self._path
            )


def bearer(authorization: str | None) -> str | None:
    """The token of an `Authorization: Bearer` header, None without one."""
    if authorization is None:
        return None
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized
    return token.strip()


def refuse_token_in_url(query: str) -> None:
    """A token in a URL ends up in logs, histories and Referer headers: it counts as leaked."""
    if _IN_URL.search(query):
        raise BadRequest(
            "Tokens are not accepted in URLs.",
            hint="Send 'Authorization: Bearer …', over WebSocket in the connect command. "
            "Replace this token: it may be in a log by now.",
        )


def _grants_all(now: Access, then: Access) -> bool:
    return all(
        any(covers(grant, wanted) for grant in getattr(now, right))
        for right in RIGHTS
        for wanted in getattr(then, right)
    )
