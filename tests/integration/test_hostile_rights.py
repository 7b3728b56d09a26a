"""Clients that want what is not theirs, on a real server with tokens (threat model, T9)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest

from penstock.protocol import Close
from penstock.server import tokens_file
from penstock.server.auth import LEEWAY_SECONDS
from penstock.server.tokens_file import Key, TokensFile
from tests.factories import hub_on
from tests.raw_sockets import TEXT, RawSocket, frame, unharmed
from tests.serving import HttpServer

SECRET = "0123456789abcdef" * 4


class Realm:
    """A server with two tenants, and what is needed to make and revoke tokens."""

    def __init__(self, folder: Path) -> None:
        self.tokens = folder / "tokens.toml"
        self.keys = {name: tokens_file.new_key() for name in ("acme", "globex", "leaver")}
        self.write(TokensFile({name: self._key(name) for name in self.keys}))
        (folder / "jwt.key").write_text(SECRET)
        with hub_on(folder / "hub.db") as hub:
            for topic in ("acme.orders", "globex.orders", "globex.secrets"):
                hub.topics.publish(topic, "x")
        self.server = HttpServer(
            folder / "hub.db",
            durability="os",
            stats_seconds=0,
            tokens_file=str(self.tokens),
            jwt_key_file=str(folder / "jwt.key"),
        )

    @property
    def port(self) -> int:
        return self.server.port

    def write(self, tokens: TokensFile) -> None:
        tokens_file.write(self.tokens, tokens)

    def _key(self, name: str) -> Key:
        rights = (f"{name}.*",)
        return Key(
            sha256=tokens_file.hash_key(self.keys[name]).hex(),
            publish=rights,
            subscribe=rights,
        )

    def revoke(self, name: str) -> None:
        tokens = tokens_file.read(self.tokens)
        self.write(msgspec.structs.replace(tokens, revoked=tokens.revoked | {name}))

    def signed(self, lives_seconds: float, subject: str = "acme") -> str:
        """A token that is good for so long, counted without the leeway that is given."""
        claims = {
            "sub": subject,
            "aud": "penstock",
            "exp": time.time() + lives_seconds - LEEWAY_SECONDS,
            "penstock": {"publish": ["acme.*"], "subscribe": ["acme.*"]},
        }
        return jwt.encode(claims, SECRET, "HS256")

    def client(self, name: str = "acme") -> RawSocket:
        return RawSocket(self.port).connected(token=self.keys[name])

    def unharmed(self) -> Any:
        return unharmed(self.server, token=self.keys["globex"], topic="globex.witness")


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    made = Realm(tmp_path_factory.mktemp("rights"))
    with made.server:
        yield made


def alike(error: dict[str, Any], topic: str) -> str:
    """An error without the topic's name: what is left must not tell topics apart."""
    return json.dumps(error).replace(topic, "TOPIC")


@pytest.mark.parametrize("op", ["subscribe", "publish", "presence", "publish_many"])
def test_another_tenants_topic_is_refused_in_the_same_words_whether_it_exists(
    realm: Realm, op: str
) -> None:
    fields: dict[str, Any] = {
        "publish": {"payload": 1},
        "publish_many": {"messages": [{"payload": 1}]},
    }.get(op, {})
    with realm.unharmed(), realm.client() as offender:
        answers = set()
        for n, topic in enumerate(("globex.secrets", "globex.nothing", "nobody", "penstock.x")):
            reply = offender.ask(op, n + 1, topic=topic, **fields)
            assert reply["error"]["code"] == "forbidden"
            answers.add(alike(reply["error"], topic))
        assert len(answers) == 1
        assert offender.ask("ping", 99) == {"id": 99, "ok": {}}


@pytest.mark.parametrize(
    "glob", ["*", "a*", "acme*", "?cme.*", "acme?*", "*.orders", "acme.*x*" * 30, "penstock.*"]
)
def test_a_glob_that_is_not_covered_whole_is_refused(realm: Realm, glob: str) -> None:
    with realm.unharmed(), realm.client() as offender:
        reply = offender.ask("subscribe", 1, topic=glob)
        assert "ok" not in reply or glob.startswith("acme.")


def test_a_glob_inside_ones_own_is_served_and_nothing_else_comes(realm: Realm) -> None:
    with (
        realm.unharmed(),
        realm.client() as reader,
        realm.client() as client,
        realm.client("globex") as other,
    ):
        assert "ok" in reader.ask("subscribe", 1, topic="acme.*")
        assert "ok" in other.ask("publish", 1, topic="globex.orders", payload="not yours")
        assert "ok" in client.ask("publish", 2, topic="acme.orders", payload="yours")
        # A channel sends in the order of ids, so what is not ours would have come first.
        entries = json.loads(reader.receive()[1])["messages"]
        assert [entry["payload"] for entry in entries] == ["yours"]


def test_of_duplicate_topics_the_one_that_is_used_is_the_one_that_is_checked(
    realm: Realm,
) -> None:
    with realm.unharmed(), realm.client() as offender:
        body = b'{"op":"publish","id":1,"topic":"acme.orders","topic":"globex.orders","payload":1}'
        offender.send(frame(TEXT, body))
        assert offender.reply(1)["error"]["code"] == "forbidden"


@pytest.mark.parametrize("token", [None, "", "wrong", "pk_wrong", "a.b.c", "x" * 100_000])
def test_a_bad_token_is_refused_and_the_socket_closed(realm: Realm, token: str | None) -> None:
    with realm.unharmed(), RawSocket(realm.port) as offender:
        reply = offender.ask("connect", 1, token=token)
        assert reply["error"]["code"] == "unauthorized"
        assert offender.close_code() == Close.BAD_TOKEN


def test_all_bad_tokens_are_refused_in_the_same_words(realm: Realm) -> None:
    others = (
        realm.signed(-60),
        jwt.encode({"sub": "acme"}, "another secret of thirty-two bytes or more", "HS256"),
        jwt.encode({"sub": "acme", "aud": "penstock", "exp": 2**40}, "", "none"),
        "nothing",
    )
    answers = set()
    for token in others:
        with RawSocket(realm.port) as offender:
            answers.add(json.dumps(offender.ask("connect", 1, token=token)))
    assert len(answers) == 1


def test_a_token_in_the_url_is_refused(realm: Realm) -> None:
    import httpx

    answer = httpx.get(f"{realm.server.url}/v1/topics?token={realm.keys['acme']}")
    assert answer.status_code in (400, 401)
    assert realm.keys["acme"] not in realm.server.log.read_text()


def test_a_token_that_expires_mid_stream_closes_the_socket(realm: Realm) -> None:
    with realm.unharmed(), RawSocket(realm.port) as client:
        client.connected(token=realm.signed(1.5))
        assert "ok" in client.ask("subscribe", 1, topic="acme.orders")
        assert "ok" in client.ask("publish", 2, topic="acme.orders", payload=1)
        assert client.close_code() == Close.TOKEN_EXPIRED


def test_a_token_that_is_refreshed_in_time_keeps_the_socket(realm: Realm) -> None:
    with realm.unharmed(), RawSocket(realm.port) as client:
        client.connected(token=realm.signed(1.5))
        assert "ok" in client.ask("refresh", 1, token=realm.signed(3600))
        with RawSocket(realm.port) as other:
            # When the first token's twin is closed, the first one has expired too.
            other.connected(token=realm.signed(1.5))
            assert other.close_code() == Close.TOKEN_EXPIRED
        assert client.ask("ping", 2) == {"id": 2, "ok": {}}


def test_a_token_cannot_be_changed_into_somebody_elses(realm: Realm) -> None:
    with realm.unharmed(), realm.client() as offender:
        reply = offender.ask("refresh", 1, token=realm.keys["globex"])
        assert reply["error"]["code"] == "unauthorized"
        assert offender.ask("publish", 2, topic="globex.x", payload=1)["error"]["code"] == (
            "forbidden"
        )


def test_a_key_that_is_revoked_mid_stream_closes_its_sockets_and_no_others(realm: Realm) -> None:
    with realm.unharmed(), realm.client("leaver") as leaver, realm.client() as other:
        assert "ok" in leaver.ask("subscribe", 1, topic="leaver.x")
        realm.revoke("leaver")
        assert leaver.close_code() == Close.REVOKED
        assert other.ask("ping", 1) == {"id": 1, "ok": {}}
        with RawSocket(realm.port) as again:
            assert again.ask("connect", 1, token=realm.keys["leaver"])["error"]["code"] == (
                "unauthorized"
            )


def test_nobody_is_listed_under_the_name_of_another(realm: Realm) -> None:
    """T9: a name under a token is the subject's, or stands behind it."""
    with realm.unharmed(), RawSocket(realm.port) as offender:
        offender.send(
            frame(
                TEXT,
                json.dumps(
                    {"op": "connect", "id": 0, "token": realm.keys["acme"], "client": "globex"}
                ).encode(),
            )
        )
        assert offender.reply(0)["ok"]["client"] == "acme/globex"


def test_no_secret_is_in_the_log(realm: Realm) -> None:
    log = realm.server.log.read_text()
    assert all(key not in log for key in realm.keys.values())
    assert SECRET not in log
