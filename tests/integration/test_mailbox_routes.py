"""Mailboxes over HTTP: every route, and who may use it (M4, M6, M7, M13, D12)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import penstock
from penstock.codec import to_base64
from penstock.server import tokens_file
from penstock.server.tokens_file import Key, TokensFile, hash_key, new_key
from tests.factories import hub_on
from tests.serving import HttpServer, bearer
from tests.waiting import wait_until

SENDER, ANN, KEEPER, NOBODY = (new_key() for _ in range(4))
KEYS = {
    "sender": Key(sha256=hash_key(SENDER).hex(), mailboxes_put=("user-*",)),
    "ann": Key(sha256=hash_key(ANN).hex(), mailboxes_read=("user-ann",)),
    "keeper": Key(
        sha256=hash_key(KEEPER).hex(), mailboxes_admin=("user-*",), subscribe=("news-*",)
    ),
    "nobody": Key(sha256=hash_key(NOBODY).hex(), subscribe=("*",)),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("mailboxes")
    with HttpServer(folder / "hub.db", mailbox_messages_max=5, payload_bytes_max=100_000) as server:
        yield server


@pytest.fixture
def http(server: HttpServer) -> httpx.Client:
    return server.http


@pytest.fixture
def hub(server: HttpServer) -> Iterator[penstock.Hub]:
    """Another process on the server's boxes."""
    with hub_on(server.log.parent / "hub.db", mailbox_messages_max=5) as hub:
        yield hub


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens_file.write(folder / "tokens.toml", TokensFile(KEYS))
    with HttpServer(folder / "hub.db", tokens_file=str(folder / "tokens.toml")) as server:
        yield server


def put(http: httpx.Client, mailbox: str, **message: Any) -> dict[str, Any]:
    answer = http.post(f"/v1/mailboxes/{mailbox}/messages", json=message)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def first(http: httpx.Client, mailbox: str, **parameters: Any) -> list[dict[str, Any]]:
    answer = http.get(f"/v1/mailboxes/{mailbox}/next", params=parameters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["messages"]
    return found


def ack(http: httpx.Client, mailbox: str, **body: Any) -> httpx.Response:
    return http.post(f"/v1/mailboxes/{mailbox}/ack", json=body)


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


# Every route


def test_put_next_and_ack(http: httpx.Client, hub: penstock.Hub) -> None:
    one = put(http, "box", payload={"id": 7}, id="m-1", type="order")
    assert one == {"id": "m-1", "seq": 1, "was_empty": True, "is_new": True}
    again = put(http, "box", payload={"id": 7}, id="m-1")
    assert (again["seq"], again["is_new"]) == (1, False)
    two = put(http, "box", base64="AP8=")

    [mail] = first(http, "box")
    assert {name: mail[name] for name in ("id", "seq", "type", "payload")} == {
        "id": "m-1",
        "seq": 1,
        "type": "order",
        "payload": {"id": 7},
    }
    assert first(http, "box") == [mail]
    assert [m["id"] for m in first(http, "box", limit=10)] == ["m-1", two["id"]]
    assert hub.mailboxes.open("box").peek_many(2)[1].payload == b"\x00\xff"
    assert code_of(ack(http, "box", id=two["id"])) == (409, "wrong_ack")
    assert ack(http, "box", id="m-1").json() == {"acked": True}
    assert ack(http, "box", id="m-1").json() == {"acked": False}
    following = http.post("/v1/mailboxes/box/ack-and-next", json={"id": two["id"]})
    assert following.json() == {"messages": []}
    assert code_of(ack(http, "box", id="never")) == (409, "wrong_ack")


def test_many_are_put_in_order_and_acknowledged_at_once(http: httpx.Client) -> None:
    messages = [{"payload": n, "id": f"n-{n}"} for n in range(4)]
    posted = put(http, "many", messages=messages)["messages"]
    assert [one["seq"] for one in posted] == [1, 2, 3, 4]
    assert [m["payload"] for m in first(http, "many", limit=100)] == [0, 1, 2, 3]
    rest = http.post(
        "/v1/mailboxes/many/ack-and-next", json={"id": "n-2", "through": True, "limit": 2}
    )
    assert [m["id"] for m in rest.json()["messages"]] == ["n-3"]


def test_payloads_come_as_they_were_put(http: httpx.Client, hub: penstock.Hub) -> None:
    """What is not JSON comes as the bytes that are stored."""
    box = hub.mailboxes.open("formats")
    box.put({"ü": [1, None]})
    box.put(b"\x00")
    box.put({"b": b"\xff"}, format="msgpack")
    packed = to_base64(msgspec.msgpack.encode({"raw": b"\x01"}))
    put(http, "formats", msgpack=packed)
    plain, raw, mixed, sent = first(http, "formats", limit=10)
    assert (plain["payload"], raw["base64"]) == ({"ü": [1, None]}, "AA==")
    assert "format" not in raw
    assert (mixed["format"], mixed["base64"]) == (
        "msgpack",
        to_base64(msgspec.msgpack.encode({"b": b"\xff"})),
    )
    assert (sent["format"], sent["base64"]) == ("msgpack", packed)
    assert box.peek_many(4)[3].payload == {"raw": b"\x01"}


def test_a_full_box_refuses_and_says_so_in_its_last_message(http: httpx.Client) -> None:
    """M4: also of many, those that fit are put."""
    answer = http.post(
        "/v1/mailboxes/full/messages", json={"messages": [{"payload": n} for n in range(7)]}
    )
    assert code_of(answer) == (409, "quota_exceeded")
    assert answer.json()["error"]["retryable"] is True
    found = first(http, "full", limit=10)
    assert [m.get("kind", "message") for m in found] == ["message"] * 5 + ["quota"]
    assert [m["payload"] for m in found[:5]] == [0, 1, 2, 3, 4]
    assert "payload" not in found[5]
    assert ack(http, "full", id=found[4]["id"], through=True).json() == {"acked": True}
    refused = http.post("/v1/mailboxes/full/messages", json={"payload": 1})
    assert code_of(refused) == (409, "quota_exceeded")
    stats = http.get("/v1/mailboxes/full").json()
    assert (stats["messages"], stats["can_write"]) == (1, False)
    ack(http, "full", id=found[5]["id"])
    assert put(http, "full", payload="again")["was_empty"] is True


def test_waiting_ends_with_a_message_or_with_the_time(
    http: httpx.Client, server: HttpServer
) -> None:
    assert first(http, "wait", wait=0.05) == []
    found: list[Any] = []
    waiting = threading.Thread(
        target=lambda: found.extend(
            httpx.get(
                f"{server.url}/v1/mailboxes/wait/next", params={"wait": 20}, timeout=60
            ).json()["messages"]
        )
    )
    waiting.start()
    put(http, "wait", payload="here", id="w-1")
    waiting.join(60)
    assert [mail["payload"] for mail in found] == ["here"]
    body = {"id": "w-1", "wait": 20}
    thread = threading.Timer(0.1, lambda: put(http, "wait", payload="next"))
    thread.start()
    following = httpx.post(f"{server.url}/v1/mailboxes/wait/ack-and-next", json=body, timeout=60)
    thread.join()
    assert [mail["payload"] for mail in following.json()["messages"]] == ["next"]


def test_whoever_waits_is_sent_home_when_the_server_stops(tmp_path: Path) -> None:
    """With its answer: whoever would not have one by then is cut off after `drain_seconds`."""
    with HttpServer(tmp_path / "hub.db", drain_seconds=2) as server:
        answers: list[httpx.Response] = []
        url = f"{server.url}/v1/mailboxes/box/next"
        waiting = threading.Thread(
            target=lambda: answers.append(httpx.get(url, params={"wait": 20}, timeout=60))
        )
        waiting.start()
        wait_until(lambda: _figure(server, "penstock_connections") >= 1)
        assert server.terminate() == 0
        waiting.join(60)
    assert answers[0].json() == {"messages": []}


def _figure(server: HttpServer, name: str) -> float:
    text = server.http.get("/metrics", headers={"accept": "text/plain"}).text
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def test_looking_after_mailboxes(http: httpx.Client, hub: penstock.Hub) -> None:
    for name in ("care/a b", "care-ü", "care-3"):
        hub.mailboxes.put(name, "x")
    listed = http.get("/v1/mailboxes").json()
    assert {"care/a b", "care-ü", "care-3"} <= set(listed["mailboxes"])
    assert listed["is_complete"] is True
    page = http.get("/v1/mailboxes", params={"after": "care-3", "limit": 1}).json()
    assert page == {"mailboxes": ["care-ü"], "is_complete": False}
    stats = http.get("/v1/mailboxes/care%2Fa%20b").json()
    assert (stats["id"], stats["messages"], stats["next_seq"]) == ("care/a b", 1, 2)
    expire = "/v1/mailboxes/care-3/expire"
    assert http.post(expire, json={}).json() == {"removed": 0}
    assert http.post(expire, json={"older_than_seconds": 0}).json() == {"removed": 1}
    assert http.delete("/v1/mailboxes/care-%C3%BC").json() == {"deleted": True}
    assert http.delete("/v1/mailboxes/care-%C3%BC").json() == {"deleted": False}
    assert http.get("/v1/mailboxes/never").json()["messages"] == 0


def test_a_subscription_is_made_fed_listed_and_ended(http: httpx.Client, hub: penstock.Hub) -> None:
    """The server feeds by itself (D12)."""
    hub.topics.publish("news-1", "old")
    url = "/v1/mailboxes/reader/subscriptions"
    made = http.put(f"{url}/news-*", json={"start": "earliest"}).json()
    assert (made["mailbox"], made["topic"]) == ("reader", "news-*")
    receipt = hub.topics.publish("news-2", {"n": 2}, key="k", headers={"a": "b"})
    [old, new] = wait_until(lambda: len(found := first(http, "reader", limit=5)) == 2 and found)
    assert old["payload"] == "old"
    assert {
        name: new[name] for name in ("id", "payload", "topic", "position", "key", "headers")
    } == {
        "id": str(receipt.position),
        "payload": {"n": 2},
        "topic": "news-2",
        "position": str(receipt.position),
        "key": "k",
        "headers": {"a": "b"},
    }
    assert http.put(f"{url}/other").status_code == 200
    assert [s["topic"] for s in http.get(url).json()["subscriptions"]] == ["news-*", "other"]
    page = http.get("/v1/mailbox-subscriptions", params={"limit": 1}).json()
    assert page["after"] == page["subscriptions"][0]["id"]
    assert http.delete(f"{url}/news-*").json() == {"removed": 1}
    assert http.delete(url).json() == {"removed": 1}
    assert http.get(url).json() == {"subscriptions": [], "after": None}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("box/messages", {}),
        ("box/messages", {"payload": 1, "base64": ""}),
        ("box/messages", {"base64": "!"}),
        ("box/messages", {"msgpack": "wQ=="}),
        ("box/messages", {"msgpack": "AQ==", "format": "json"}),
        ("box/messages", {"payload": 1, "id": ""}),
        ("box/messages", {"payload": 1, "id": "x" * 300}),
        ("box/messages", {"payload": 1, "type": "x" * 300}),
        ("box/messages", {"payload": 1, "surprise": 1}),
        ("box/messages", {"messages": []}),
        ("box/messages", {"messages": [{"payload": 1}], "payload": 1}),
        ("a%00b/messages", {"payload": 1}),
        (f"{'x' * 201}/messages", {"payload": 1}),
        ("%FF/messages", {"payload": 1}),
        ("box/ack", {}),
        ("box/ack", {"id": 7}),
        ("box/ack-and-next", {"id": "x", "wait": 21}),
        ("box/ack-and-next", {"id": "x", "limit": 0}),
        ("box/expire", {"older_than_seconds": -1}),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    before = http.get("/v1/mailboxes/box").json()["next_seq"]
    answer = http.post(f"/v1/mailboxes/{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert http.get("/v1/mailboxes/box").json()["next_seq"] == before


def test_too_large_and_unknown_starts_are_refused(http: httpx.Client) -> None:
    large = http.post("/v1/mailboxes/box/messages", json={"payload": "x" * 200_000})
    assert code_of(large) == (413, "payload_too_large")
    assert http.put("/v1/mailboxes/b/subscriptions/t", json={"start": "now"}).status_code == 400
    assert http.get("/v1/mailboxes/b/next", params={"wait": 100}).status_code == 400


# Who may


def test_each_right_allows_what_it_says_and_no_more(guarded: HttpServer) -> None:
    http, body = guarded.http, {"payload": 1, "id": "m"}
    sender, ann, keeper = bearer(SENDER), bearer(ANN), bearer(KEEPER)
    box = "/v1/mailboxes/user-ann"

    def status(method: str, path: str, who: dict[str, str], json: Any = None) -> int:
        return http.request(method, box + path, headers=who, json=json).status_code

    matrix = [
        ("POST", "/messages", body, (201, 403, 403)),
        ("GET", "/next", None, (403, 200, 403)),
        ("POST", "/ack", {"id": "m"}, (403, 200, 403)),
        ("POST", "/ack-and-next", {"id": "m"}, (403, 200, 403)),
        ("GET", "", None, (403, 200, 200)),
        ("GET", "/subscriptions", None, (403, 200, 200)),
        ("PUT", "/subscriptions/news-1", {}, (403, 403, 200)),
        ("PUT", "/subscriptions/other", {}, (403, 403, 403)),
        ("DELETE", "/subscriptions/news-1", None, (403, 403, 200)),
        ("DELETE", "/subscriptions", None, (403, 403, 200)),
        ("POST", "/expire", {}, (403, 403, 200)),
        ("DELETE", "", None, (403, 403, 200)),
    ]
    for method, path, json, expected in matrix:
        found = tuple(status(method, path, who, json) for who in (sender, ann, keeper))
        assert found == expected, (method, path)
        assert status(method, path, bearer(NOBODY), json) == 403
        assert status(method, path, {}, json) == 401
    http.post("/v1/mailboxes/user-bob/messages", headers=sender, json=body)
    names = {who: _names(http, bearer(token)) for who, token in (("k", KEEPER), ("a", ANN))}
    assert names == {"k": ["user-bob"], "a": []}
    assert http.get("/v1/mailbox-subscriptions", headers=ann).json()["subscriptions"] == []


def _names(http: httpx.Client, who: dict[str, str]) -> list[str]:
    names: list[str] = http.get("/v1/mailboxes", headers=who).json()["mailboxes"]
    return names


def test_a_mailbox_that_is_not_there_and_a_forbidden_one_answer_alike(guarded: HttpServer) -> None:
    """Also to one who may read others, and whatever is in it."""
    http = guarded.http
    http.post("/v1/mailboxes/user-bob/messages", headers=bearer(SENDER), json={"payload": 1})
    routes = [
        ("GET", "/next", None),
        ("POST", "/ack", {"id": "x"}),
        ("POST", "/ack-and-next", {"id": "x"}),
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/subscriptions", None),
    ]
    for method, path, json in routes:
        there, missing = (
            http.request(method, f"/v1/mailboxes/{name}{path}", headers=bearer(ANN), json=json)
            for name in ("user-bob", "user-zoe")
        )
        assert there.status_code == missing.status_code == 403
        assert there.text.replace("user-bob", "user-zoe") == missing.text
        assert {n: v for n, v in there.headers.items() if n != "date"} == {
            n: v for n, v in missing.headers.items() if n != "date"
        }


def test_a_right_by_glob_does_not_reach_names_that_look_like_one(guarded: HttpServer) -> None:
    """Names may have stars; a mailbox under `penstock.` is covered by a grant that says so."""
    for name in ("user-%2A", "user-%3F", "user-x"):
        put_there = guarded.http.post(
            f"/v1/mailboxes/{name}/messages", headers=bearer(SENDER), json={"payload": 1}
        )
        assert put_there.status_code == 201, name
    for name in ("%2A", "use%2A", "penstock.x", "xuser-ann"):
        refused = guarded.http.post(
            f"/v1/mailboxes/{name}/messages", headers=bearer(SENDER), json={"payload": 1}
        )
        assert refused.status_code == 403, name
