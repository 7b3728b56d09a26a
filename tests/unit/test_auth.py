"""Who may connect: keys, signed tokens, origins and bind addresses (threat model; fault row 27)."""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from penstock.clock import SECOND
from penstock.delivery.access import Access, Anybody
from penstock.errors import BadRequest, Forbidden, InvalidInput, InvalidSettings, Unauthorized
from penstock.server import tokens_file
from penstock.server.auth import (
    LEEWAY_SECONDS,
    RELOAD_SECONDS,
    Tokens,
    bearer,
    check_exposure,
    is_allowed_origin,
    make_authenticator,
    refuse_token_in_url,
)
from penstock.server.tokens_file import Key, TokensFile, hash_key, new_key
from penstock.testing import FakeClock
from tests.factories import settings_for

SECRET = "a secret of more than thirty-two bytes"

Configure = Callable[..., Tokens]
Sign = Callable[..., str]


def key_for(secret: str, **rights: Any) -> Key:
    return Key(sha256=hash_key(secret).hex(), **rights)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


@pytest.fixture
def configure(tmp_path: Path, file: Path, clock: FakeClock) -> Configure:
    """Tokens as the settings have them; both kinds are on."""

    def make(**arguments: Any) -> Tokens:
        if not file.exists():
            tokens_file.write(file, TokensFile())
        key_file = tmp_path / "jwt.key"
        if not key_file.exists():
            key_file.write_text(SECRET + "\n")
            key_file.chmod(0o600)
        chosen = {"tokens_file": str(file), "jwt_key_file": str(key_file), **arguments}
        found = make_authenticator(settings_for("memory:", **chosen), clock)
        assert isinstance(found, Tokens)
        return found

    return make


@pytest.fixture
def sign(clock: FakeClock) -> Sign:
    def make(secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
        given = {
            "sub": "ann",
            "aud": "penstock",
            "exp": clock.now() // SECOND + 60,
            "penstock": {"subscribe": ["orders"]},
            **claims,
        }
        kept = {name: value for name, value in given.items() if value is not None}
        return jwt.encode(kept, secret, algorithm=algorithm)

    return make


# API keys


def test_a_key_gives_the_rights_the_file_grants(configure: Configure, file: Path) -> None:
    secret = new_key()
    tokens_file.write(
        file, TokensFile({"shop": key_for(secret, publish=("orders",), subscribe=("canvas-*",))})
    )
    access = configure().authenticate(secret)
    assert (access.subject, access.publish, access.subscribe) == (
        "shop",
        ("orders",),
        ("canvas-*",),
    )
    access.check_publish("orders")
    access.check_subscribe("canvas-*")
    with pytest.raises(Forbidden):
        access.check_subscribe("*")
    with pytest.raises(Forbidden):
        access.check_admin("orders")


def test_keys_whose_hashes_begin_alike_are_told_apart(configure: Configure, file: Path) -> None:
    secret = new_key()
    digest = hash_key(secret).hex()
    other = Key(sha256=digest[:8] + "0" * 56, publish=("theirs",))
    tokens_file.write(file, TokensFile({"a": other, "b": key_for(secret, publish=("ours",))}))
    assert configure().authenticate(secret).subject == "b"


def test_every_refusal_has_the_same_words(
    configure: Configure, file: Path, sign: Sign, clock: FakeClock
) -> None:
    expired, revoked = new_key(), new_key()
    past = datetime.fromtimestamp(clock.now() / SECOND - 1, UTC)
    tokens_file.write(
        file,
        TokensFile(
            {
                "old": key_for(expired, publish=("*",), expires=past),
                "bad": key_for(revoked, publish=("*",)),
            },
            frozenset({"bad", "jti-1"}),
        ),
    )
    tokens = configure()
    now = clock.now() // SECOND
    wrong = {
        "none": None,
        "empty": "",
        "unknown key": new_key(),
        "expired key": expired,
        "revoked key": revoked,
        "not a token": "hello",
        "too long": "x" * 20_000,
        "not text": "\ud800",
        "another's signature": sign("another secret of more than 32 bytes"),
        "no algorithm": jwt.encode({"sub": "ann"}, None, algorithm="none"),
        "an algorithm that is not the pinned one": sign(SECRET * 2, "HS512"),
        "expired": sign(exp=now - 60),
        "no expiry": sign(exp=None),
        "expiry of a strange kind": sign(exp=True),
        "not yet": sign(nbf=now + 60),
        "another audience": sign(aud="elsewhere"),
        "no audience": sign(aud=None),
        "no subject": sign(sub=None),
        "revoked id": sign(jti="jti-1"),
        "revoked subject": sign(sub="bad"),
        "rights that are no patterns": sign(penstock={"publish": ["a\nb"]}),
        "rights that are no list": sign(penstock={"publish": "*"}),
        "too many rights": sign(penstock={"publish": ["a"] * 2_000}),
    }
    said = set()
    for what, token in wrong.items():
        try:
            tokens.authenticate(token)
        except Unauthorized as error:
            said.add((str(error), error.code))
        else:
            pytest.fail(what)
    assert len(said) == 1


def test_a_removed_key_is_revoked_on_open_sockets_too(
    configure: Configure, file: Path, clock: FakeClock
) -> None:
    """Fault row 27."""
    secret = new_key()
    tokens_file.write(file, TokensFile({"shop": key_for(secret, publish=("orders",))}))
    tokens = configure()
    access = tokens.authenticate(secret)
    assert not tokens.is_revoked(access)
    tokens_file.write(file, TokensFile())
    clock.advance(RELOAD_SECONDS)
    assert tokens.is_revoked(access)
    with pytest.raises(Unauthorized):
        tokens.authenticate(secret)


def test_a_key_that_was_replaced_revokes_the_old_one(
    configure: Configure, file: Path, clock: FakeClock
) -> None:
    old, new = new_key(), new_key()
    tokens_file.write(file, TokensFile({"shop": key_for(old, publish=("orders",))}))
    tokens = configure()
    access = tokens.authenticate(old)
    tokens_file.write(file, TokensFile({"shop": key_for(new, publish=("orders",))}))
    clock.advance(RELOAD_SECONDS)
    assert tokens.is_revoked(access)
    assert tokens.authenticate(new).subject == "shop"


@pytest.mark.parametrize(
    ("granted", "is_revoked"), [(("orders", "more"), False), (("ord*",), False), ((), True)]
)
def test_fewer_rights_revoke_an_access_and_more_do_not(
    configure: Configure,
    file: Path,
    clock: FakeClock,
    granted: tuple[str, ...],
    is_revoked: bool,
) -> None:
    secret = new_key()
    tokens_file.write(file, TokensFile({"shop": key_for(secret, publish=("orders",))}))
    tokens = configure()
    access = tokens.authenticate(secret)
    tokens_file.write(file, TokensFile({"shop": key_for(secret, publish=granted)}))
    clock.advance(RELOAD_SECONDS)
    assert tokens.is_revoked(access) is is_revoked


@pytest.mark.parametrize("damage", [b"not = [toml", b"keys = 3\n", b"\xff\xfe", None])
def test_a_damaged_file_lets_nobody_in_and_throws_nobody_out(
    configure: Configure, file: Path, clock: FakeClock, damage: bytes | None
) -> None:
    secret = new_key()
    tokens_file.write(file, TokensFile({"shop": key_for(secret, publish=("orders",))}))
    tokens = configure()
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    clock.advance(RELOAD_SECONDS)
    assert tokens.authenticate(secret).subject == "shop"
    tokens_file.write(file, TokensFile())
    clock.advance(RELOAD_SECONDS)
    with pytest.raises(Unauthorized):
        tokens.authenticate(secret)


# The file


def test_the_file_is_its_owners_alone_and_has_no_secret(file: Path) -> None:
    secret = new_key()
    before = os.umask(0)
    try:
        tokens_file.write(file, TokensFile({"shop": key_for(secret, publish=("orders",))}))
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret not in file.read_text()
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_what_is_written_is_what_is_read(file: Path) -> None:
    tokens = TokensFile(
        {
            'a "quoted" näme.with dots': key_for(
                "x", publish=("a*", 'b"c\\'), expires=datetime(2027, 1, 1, tzinfo=UTC)
            ),
            "b": key_for("y", subscribe=("*", "penstock.*"), admin=("?",)),
        },
        frozenset({"ann", "jti"}),
    )
    tokens_file.write(file, tokens)
    assert tokens_file.read(file) == tokens


@pytest.mark.parametrize(
    "content",
    [
        '[keys.a]\nsha256 = "short"',
        f'[keys.a]\nsha256 = "{"0" * 64}"\npublish = ["a\\nb"]',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nexpires = 2027-01-01T00:00:00',
        f'[keys.a]\nsha256 = "{"0" * 64}"\nrights = ["all"]',
        f'[keys."a\\nb"]\nsha256 = "{"0" * 64}"',
        "[keys.a]\npublish = []",
        'revoked = "ann"',
    ],
)
def test_a_wrong_file_is_refused_when_the_server_starts(
    configure: Configure, file: Path, content: str
) -> None:
    file.write_text(content)
    with pytest.raises(InvalidSettings, match=r"tokens\.toml"):
        configure()


# Signed tokens


def test_a_signed_token_gives_the_rights_it_claims(
    configure: Configure, sign: Sign, clock: FakeClock
) -> None:
    claims = {"publish": ["a"], "subscribe": ["b*"], "admin": ["c"]}
    access = configure().authenticate(sign(jti="j1", penstock=claims))
    assert (access.subject, access.publish, access.subscribe) == ("ann", ("a",), ("b*",))
    assert access.admin == ("c",)
    assert access.expires_at == clock.now() // SECOND * SECOND + (60 + LEEWAY_SECONDS) * SECOND


def test_an_issuer_is_asked_for_where_one_is_set(configure: Configure, sign: Sign) -> None:
    tokens = configure(jwt_issuer="https://login.example")
    assert tokens.authenticate(sign(iss="https://login.example")).subject == "ann"
    for token in (sign(), sign(iss="https://evil.example")):
        with pytest.raises(Unauthorized):
            tokens.authenticate(token)


@pytest.mark.parametrize("listed", ["ann", "j1"])
def test_a_signed_token_is_revoked_by_subject_or_id(
    configure: Configure, file: Path, sign: Sign, clock: FakeClock, listed: str
) -> None:
    tokens = configure()
    access = tokens.authenticate(sign(jti="j1"))
    tokens_file.write(file, TokensFile({}, frozenset({listed})))
    clock.advance(RELOAD_SECONDS)
    assert tokens.is_revoked(access)


def test_a_signing_key_can_be_replaced_while_the_server_runs(
    configure: Configure, tmp_path: Path, sign: Sign, clock: FakeClock
) -> None:
    tokens = configure()
    (tmp_path / "jwt.key").write_text("another secret of more than 32 bytes")
    clock.advance(RELOAD_SECONDS)
    assert tokens.authenticate(sign("another secret of more than 32 bytes")).subject == "ann"
    with pytest.raises(Unauthorized):
        tokens.authenticate(sign())


def test_a_short_secret_is_refused(configure: Configure, tmp_path: Path) -> None:
    (tmp_path / "jwt.key").write_text("short")
    with pytest.raises(InvalidSettings, match="HS256 needs 32"):
        configure()


def test_a_public_key_is_no_secret(configure: Configure, tmp_path: Path) -> None:
    """Whoever knows a public key could sign with it, if it were taken for a shared secret."""
    pem = "-----BEGIN PUBLIC KEY-----\n" + "A" * 80 + "\n-----END PUBLIC KEY-----\n"
    (tmp_path / "jwt.key").write_text(pem)
    with pytest.raises(InvalidSettings, match="not one for HS256"):
        configure()


PRIVATE_KEYS: dict[str, Any] = {
    "RS256": lambda: rsa.generate_private_key(public_exponent=65_537, key_size=2048),
    "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate,
}


def pem_of(public_key: Any) -> bytes:
    encoding = serialization.Encoding.PEM
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    pem: bytes = public_key.public_bytes(encoding, kind)
    return pem


@pytest.mark.parametrize("algorithm", PRIVATE_KEYS)
def test_tokens_of_one_who_keeps_the_private_key(
    algorithm: str, configure: Configure, sign: Sign, tmp_path: Path
) -> None:
    """Only those of the pinned algorithm and that key: not another key's, nor the public key
    used as a secret."""
    private, other = PRIVATE_KEYS[algorithm](), PRIVATE_KEYS[algorithm]()
    public = pem_of(private.public_key())
    (tmp_path / "jwt.key").write_bytes(public)
    tokens = configure(jwt_algorithm=algorithm)

    assert tokens.authenticate(sign(private, algorithm)).subscribe == ("orders",)
    with pytest.raises(Unauthorized):
        tokens.authenticate(sign(other, algorithm))
    with pytest.raises(Unauthorized):
        tokens.authenticate(signed_with_public_key(sign(), public))


def signed_with_public_key(token: str, public: bytes) -> str:
    """The oldest trick: the public key as the secret of HS256. By hand: PyJWT refuses to."""
    head, body, _ = token.split(".")
    mac = hmac.digest(public, f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def test_secrets_are_in_no_repr(configure: Configure, sign: Sign, file: Path) -> None:
    secret = new_key()
    tokens_file.write(file, TokensFile({"shop": key_for(secret, publish=("orders",))}))
    tokens, signed = configure(), sign()
    shown = repr([tokens, vars(tokens), tokens.authenticate(secret), tokens.authenticate(signed)])
    assert secret not in shown
    assert signed not in shown
    assert SECRET not in shown


def test_without_tokens_anybody_may_do_everything() -> None:
    authenticator = make_authenticator(settings_for("memory:"))
    assert isinstance(authenticator, Anybody)
    access: Access = authenticator.authenticate(None)
    access.check_admin("*")


# Headers and URLs


@pytest.mark.parametrize(
    ("header", "token"), [(None, None), ("Bearer abc", "abc"), ("bearer  abc ", "abc")]
)
def test_the_bearer_token_of_a_header(header: str | None, token: str | None) -> None:
    assert bearer(header) == token


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "abc"])
def test_a_header_without_a_bearer_token_is_refused(header: str) -> None:
    with pytest.raises(Unauthorized):
        bearer(header)


@pytest.mark.parametrize("query", ["token=x", "a=1&access_token=x", "API_KEY=", "jwt=x"])
def test_a_token_in_a_url_is_refused(query: str) -> None:
    with pytest.raises(BadRequest, match="not accepted in URLs") as caught:
        refuse_token_in_url(query)
    assert "x" not in caught.value.message


@pytest.mark.parametrize("query", ["", "after=x:1", "mytoken=1", "tokens=1", "match=token"])
def test_other_queries_are_none_of_its_business(query: str) -> None:
    refuse_token_in_url(query)


# Exposure


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_tokens(host: str) -> None:
    check_exposure(settings_for("memory:", bind_host=host), insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.com", "", "127.0.0.1.x"])
def test_any_other_address_needs_tokens_or_a_word(host: str) -> None:
    open_settings = settings_for("memory:", bind_host=host)
    with pytest.raises(InvalidSettings, match="Without tokens") as caught:
        check_exposure(open_settings, insecure=False)
    assert "--insecure" in caught.value.hint
    check_exposure(open_settings, insecure=True)
    check_exposure(settings_for("memory:", bind_host=host, tokens_file="t"), insecure=False)


@pytest.mark.parametrize(
    "origin", ["*", "example.com", "https://a.example/path", "null", "https://"]
)
def test_an_origin_that_is_none_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(InvalidSettings, match="origins"):
        check_exposure(settings_for("memory:", origins=(origin,)), insecure=False)


ALLOWED = "https://app.example"


@pytest.mark.parametrize(
    ("origin", "host", "is_allowed"),
    [
        (None, "127.0.0.1:8400", True),
        (None, None, True),
        ("http://127.0.0.1:8400", "127.0.0.1:8400", True),
        ("http://localhost:8400", "localhost:8400", True),
        ("http://[::1]:8400", "[::1]:8400", True),
        (ALLOWED, "127.0.0.1:8400", True),
        (ALLOWED + ":443", "127.0.0.1:8400", True),
        (ALLOWED.replace("https", "http"), "127.0.0.1:8400", False),
        (ALLOWED + ".evil.example", "127.0.0.1:8400", False),
        ("https://notapp.example", "127.0.0.1:8400", False),
        ("http://127.0.0.1:9999", "127.0.0.1:8400", False),
        ("http://localhost:8400", "127.0.0.1:8400", False),
        ("null", "127.0.0.1:8400", False),
        ("", "127.0.0.1:8400", False),
        ("https://user@app.example", "127.0.0.1:8400", False),
        ("file://", "127.0.0.1:8400", False),
        ("http://[::1", "127.0.0.1:8400", False),
    ],
)
def test_origins(origin: str | None, host: str | None, is_allowed: bool) -> None:
    settings = settings_for("memory:", origins=(ALLOWED,))
    assert is_allowed_origin(origin, host, settings) is is_allowed


@pytest.mark.parametrize(
    "host",
    ["evil.example:8400", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example"],
)
def test_a_page_whose_name_was_pointed_here_is_refused(host: str) -> None:
    """DNS rebinding: to the browser it is one origin, and GET has no Origin at all."""
    settings = settings_for("memory:")
    assert not is_allowed_origin(f"http://{host}", host, settings)
    assert not is_allowed_origin(None, host, settings)


def test_with_tokens_any_host_name_is_answered() -> None:
    settings = settings_for("memory:", tokens_file="t")
    assert is_allowed_origin("https://hub.example", "hub.example", settings)
    assert not is_allowed_origin("https://evil.example", "hub.example", settings)


def test_a_pattern_that_is_none_is_named() -> None:
    with pytest.raises(InvalidInput, match="--publish"):
        tokens_file.check_patterns(("a\x00",), "--publish")
