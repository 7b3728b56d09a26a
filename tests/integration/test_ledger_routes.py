"""The ledger over HTTP: every route, and who may use it (L2, L3, L6, L8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import jwt
import pytest

import penstock
from penstock.errors import AlreadyProcessed, InProgress
from penstock.server.tokens_file import Key, hash_key, new_key
from tests.factories import hub_on
from tests.serving import HttpServer, bearer, guarded_server
from tests.waiting import wait_until

USER, OPS, OTHER, BOSS = (new_key() for _ in range(4))
SECRET = "a secret of more than thirty-two bytes, for tests"
KEYS = {
    "user": Key(sha256=hash_key(USER).hex(), ledger=("billing", "mail-*")),
    "ops": Key(sha256=hash_key(OPS).hex(), ledger_admin=("billing",)),
    "other": Key(sha256=hash_key(OTHER).hex(), ledger_admin=("secret",), jobs=("billing",)),
    "boss": Key(sha256=hash_key(BOSS).hex(), ledger_admin=("*", "penstock.*")),
}
STRANGE = ("a/b", "ä ö", "..", "a?b#c", "%2F", " ", "\t", "x" * 200)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("ledger") / "hub.db") as server:
        yield server


@pytest.fixture
def http(server: HttpServer) -> httpx.Client:
    return server.http


@pytest.fixture
def hub(server: HttpServer) -> Iterator[penstock.Hub]:
    """Another process at the server's ledger."""
    with hub_on(server.log.parent / "hub.db") as hub:
        yield hub


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with guarded_server(tmp_path_factory.mktemp("guarded"), KEYS, SECRET) as server:
        yield server


def post(http: httpx.Client, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = http.post(f"/v1/ledger{'' if path.startswith('-') else '/'}{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def code(answer: httpx.Response) -> str:
    found: str = answer.json()["error"]["code"]
    return found


# Marks


def test_a_mark_is_for_one_caller(http: httpx.Client, hub: penstock.Hub) -> None:
    """L2"""
    assert post(http, "marks-1/marks", {"key": "a"}) == {"marked": [True]}
    assert post(http, "marks-1/marks", {"key": "a"}) == {"marked": [False]}
    assert not hub.ledger.mark_processed("marks-1", "a")
    assert post(http, "marks-1/marks", {"keys": ["a", "b", "b", "c"]})["marked"] == [
        *(False, True, False, True),
    ]
    look = http.get("/v1/ledger/marks-1/entry?key=b").json()
    assert look["is_processed"] is True
    assert look["entry"]["state"] == "completed"
    assert "token" not in look["entry"]
    assert http.get("/v1/ledger/marks-1/entry?key=z").json() == {
        "is_processed": False,
        "entry": None,
    }
    scope = http.get("/v1/ledger/marks-1").json()
    assert (scope["processed"], scope["in_progress"], scope["keep_seconds"]) == (3, 0, None)
    assert http.get("/v1/ledger/never-used").json()["processed"] == 0


@pytest.mark.parametrize("key", STRANGE)
def test_any_text_is_a_key(http: httpx.Client, hub: penstock.Hub, key: str) -> None:
    post(http, "strange/marks", {"key": key})
    assert http.get("/v1/ledger/strange/entry", params={"key": key}).json()["is_processed"]
    assert hub.ledger.is_processed("strange", key)
    scope = quote(f"scope of {key!r}", safe="")
    assert http.post(f"/v1/ledger/{scope}/marks", json={"key": "k"}).json() == {"marked": [True]}


def test_the_same_key_for_something_else_is_a_conflict(
    http: httpx.Client, hub: penstock.Hub
) -> None:
    """What a payload means is the same from both sides."""
    post(http, "meant/marks", {"key": "a", "payload": {"sum": 7, "to": "x"}})
    post(http, "meant/marks", {"key": "a", "payload": {"to": "x", "sum": 7}})
    assert not hub.ledger.mark_processed("meant", "a", payload={"to": "x", "sum": 7})
    for other in ({"payload": {"sum": 8}}, {"base64": "AAE="}, {"hash": "00ff"}):
        answer = http.post("/v1/ledger/meant/marks", json={"key": "a", **other})
        assert (answer.status_code, code(answer)) == (409, "ledger_conflict")
    hub.ledger.mark_processed("meant", "b", payload=b"\0\1")
    assert post(http, "meant/marks", {"key": "b", "base64": "AAE="}) == {"marked": [False]}
    claim = http.post("/v1/ledger/meant/claims", json={"key": "b", "payload": 1})
    assert (claim.status_code, code(claim)) == (409, "ledger_conflict")


def test_marks_are_kept_as_long_as_they_say(http: httpx.Client, hub: penstock.Hub) -> None:
    post(http, "kept/marks", {"key": "short", "ttl_seconds": 60})
    post(http, "kept/marks", {"key": "ever", "ttl_seconds": "forever"})
    assert http.put("/v1/ledger/kept", json={"keep_seconds": 5}).json()["keep_seconds"] == 5
    post(http, "kept/marks", {"keys": ["scope"]})
    entries = {one["key"]: one for one in http.get("/v1/ledger/kept/entries").json()["entries"]}
    assert entries["ever"]["expires_at"] is None
    lives = {key: (one["expires_at"] or 0) - one["at"] for key, one in entries.items()}
    assert (lives["short"], lives["scope"]) == (60_000_000, 5_000_000)
    forever = http.put("/v1/ledger/kept", json={"keep_seconds": "forever"}).json()
    assert forever["keep_seconds"] == "forever"
    assert http.put("/v1/ledger/kept", json={"keep_seconds": None}).json()["keep_seconds"] is None


# Claims


def test_a_claim_goes_from_hand_to_hand(http: httpx.Client, hub: penstock.Hub) -> None:
    """L3: claimed, refused to others, completed with a result that all later callers get."""
    mine = post(http, "work/claims", {"key": "k"}, 201)
    assert (mine["is_mine"], mine["entry"]["state"]) == (True, "in_progress")
    busy = http.post("/v1/ledger/work/claims", json={"key": "k"})
    assert (busy.status_code, code(busy)) == (409, "in_progress")
    with pytest.raises(InProgress), hub.ledger.claim("work", "k"):
        pytest.fail("somebody else is at it")
    token = {"key": "k", "token": mine["token"]}
    assert post(http, "work/claims/renew", {**token, "lease_seconds": 60}) == token
    post(http, "work/claims/complete", {**token, "result": {"sum": 7}, "ttl_seconds": 100})

    done = post(http, "work/claims", {"key": "k"}, 200)
    assert (done["is_mine"], done["token"]) == (False, None)
    assert done["entry"]["result"] == {"sum": 7}
    with hub.ledger.claim("work", "k", on_done="result") as claim:
        assert claim.result == {"sum": 7}


def test_a_released_claim_is_free(http: httpx.Client, hub: penstock.Hub) -> None:
    mine = post(http, "work/claims", {"key": "free"}, 201)
    post(http, "work/claims/release", {"key": "free", "token": mine["token"]})
    with hub.ledger.claim("work", "free") as claim:
        assert claim.token > mine["token"]
        busy = http.post("/v1/ledger/work/claims", json={"key": "free"})
        assert busy.status_code == 409
    with pytest.raises(AlreadyProcessed), hub.ledger.claim("work", "free"):
        pytest.fail("it is done")


def test_a_claim_runs_out_by_its_lease(http: httpx.Client, hub: penstock.Hub) -> None:
    """L3: nobody here can see whether a client lives; another takes over when it is late."""
    late = post(http, "work/claims", {"key": "late", "lease_seconds": 0.05}, 201)
    taken: dict[str, Any] = {}

    def is_taken() -> bool:
        answer = http.post("/v1/ledger/work/claims", json={"key": "late"})
        taken.update(answer.json())
        return answer.status_code == 201

    wait_until(is_taken)
    assert taken["entry"]["attempts"] == 2
    for what in ("renew", "complete", "release"):
        refused = http.post(
            f"/v1/ledger/work/claims/{what}", json={"key": "late", "token": late["token"]}
        )
        assert (refused.status_code, code(refused)) == (409, "lease_lost")
    post(http, "work/claims/complete", {"key": "late", "token": taken["token"]})
    assert hub.ledger.is_processed("work", "late")


def test_a_claim_outlives_the_server_that_wrote_it(tmp_path_factory: Any) -> None:
    """L5: a deployment replaces the server while a client is at work."""
    folder = tmp_path_factory.mktemp("deployed")
    with HttpServer(folder / "hub.db") as first:
        mine = post(first.http, "work/claims", {"key": "k", "lease_seconds": 600}, 201)
    with HttpServer(folder / "hub.db") as second:
        busy = second.http.post("/v1/ledger/work/claims", json={"key": "k"})
        assert (busy.status_code, code(busy)) == (409, "in_progress")
        post(second.http, "work/claims/complete", {"key": "k", "token": mine["token"]})


def test_a_failure_can_be_the_answer(http: httpx.Client, hub: penstock.Hub) -> None:
    mine = post(http, "work/claims", {"key": "bad"}, 201)
    said = {"result": {"error": "ValueError", "message": "no"}, "is_failure": True}
    post(http, "work/claims/complete", {"key": "bad", "token": mine["token"], **said})
    assert post(http, "work/claims", {"key": "bad"})["entry"]["state"] == "failed"
    with (
        pytest.raises(penstock.PenstockError, match="ValueError"),
        hub.ledger.claim("work", "bad", on_done="result"),
    ):
        pytest.fail("it failed for good")


# By hand


def test_what_is_forgotten_can_be_processed_again(http: httpx.Client) -> None:
    post(http, "again/marks", {"keys": ["a", "b", "c"]})
    assert http.delete("/v1/ledger/again/entry?key=a").json() == {"removed": 1}
    assert http.delete("/v1/ledger/again/entry?key=a").json() == {"removed": 0}
    assert post(http, "again/forget", {"keys": ["b", "c", "d"]}) == {"removed": 2}
    assert post(http, "again/marks", {"key": "a"}) == {"marked": [True]}


def test_entries_and_events_are_read_in_pages(http: httpx.Client, hub: penstock.Hub) -> None:
    hub.ledger.mark_many("pages", [f"{n:03}" for n in range(120)])
    first = http.get("/v1/ledger/pages/entries", params={"limit": 70}).json()
    assert ([one["key"] for one in first["entries"]], first["is_complete"]) == (
        [f"{n:03}" for n in range(70)],
        False,
    )
    rest = http.get("/v1/ledger/pages/entries", params={"after": "069"}).json()
    assert (len(rest["entries"]), rest["is_complete"]) == (50, True)
    found, after = [], 0
    while True:
        page = http.get("/v1/ledger-events", params={"after": after, "limit": 100}).json()
        found += [one["key"] for one in page["events"] if one["scope"] == "pages"]
        if page["after"] == after:
            break
        after = page["after"]
    assert found == [f"{n:03}" for n in range(120)]


def test_pruning_goes_in_bounded_steps(http: httpx.Client) -> None:
    """L8"""
    post(http, "old/marks", {"keys": [f"{n}" for n in range(25)], "ttl_seconds": 0.001})
    wait_until(lambda: http.get("/v1/ledger/old/entries").json()["entries"] == [])
    first = post(http, "-prune", {"limit": 10})
    assert first == {"removed": 10, "is_complete": False}
    removed = 10
    while not (part := post(http, "-prune", {"limit": 10}))["is_complete"]:
        removed += part["removed"]
    assert removed + part["removed"] >= 25
    assert http.get("/v1/ledger/old").json()["processed"] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("s/marks", {}),
        ("s/marks", {"key": ""}),
        ("s/marks", {"key": 7}),
        ("s/marks", {"key": "k", "keys": ["k"]}),
        ("s/marks", {"keys": []}),
        ("s/marks", {"keys": ["k"], "payload": 1}),
        ("s/marks", {"key": "k", "payload": 1, "hash": "00"}),
        ("s/marks", {"key": "k", "hash": "xyz"}),
        ("s/marks", {"key": "k", "hash": "00" * 65}),
        ("s/marks", {"key": "k", "ttl_seconds": -1}),
        ("s/marks", {"key": "k", "ttl_seconds": 0}),
        ("s/marks", {"key": "k", "more": 1}),
        ("s/claims", {}),
        ("s/claims", {"key": "k", "lease_seconds": 0}),
        ("s/claims", {"key": "k", "lease_seconds": 1e9}),
        ("s/claims/complete", {"key": "k", "token": 0}),
        ("s/claims/complete", {"key": "k", "token": 2**63}),
        ("s/claims/complete", {"key": "k", "token": 1, "result": 1, "result_base64": ""}),
        ("s/claims/renew", {"key": "k"}),
        ("s/forget", {"keys": ["x"] * 1_001}),
        ("-prune", {"limit": 0}),
        ("%00/marks", {"key": "k"}),
        ("x" * 300 + "/marks", {"key": "k"}),
    ],
)
def test_what_makes_no_sense_is_refused(http: httpx.Client, path: str, body: Any) -> None:
    before = http.get("/v1/ledger").json()
    answer = http.post(f"/v1/ledger{'' if path.startswith('-') else '/'}{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert http.get("/v1/ledger").json() == before


# Rights


def test_rights_go_by_scope(guarded: HttpServer) -> None:
    http = guarded.http

    def ask(token: str, method: str, path: str, body: Any = None) -> int:
        return http.request(method, path, json=body, headers=bearer(token)).status_code

    claims = ("POST", "/v1/ledger/billing/claims", {"key": "k"})
    assert ask(USER, "POST", "/v1/ledger/billing/marks", {"key": "a"}) == 200
    assert ask(USER, *claims) == 201
    assert ask(USER, "GET", "/v1/ledger/mail-1") == 200
    assert ask(OPS, "GET", "/v1/ledger/billing/entry?key=a") == 200
    # To use is not to administer.
    for method, path, body in (
        ("PUT", "/v1/ledger/billing", {"keep_seconds": 1}),
        ("DELETE", "/v1/ledger/billing/entry?key=a", None),
        ("POST", "/v1/ledger/billing/forget", {"keys": ["a"]}),
        ("POST", "/v1/ledger-prune", {}),
    ):
        assert ask(USER, method, path, body) == 403, path
        # And a right on queues of that name is none on scopes.
        assert ask(OTHER, method, path, body) == 403, path
        wanted = 403 if path.endswith("prune") else 200
        assert ask(OPS, method, path, body) == wanted, path
        assert ask(BOSS, method, path, body) == 200, path
    assert http.get("/v1/ledger").status_code == 401


def test_scopes_of_others_are_as_if_they_were_not(guarded: HttpServer) -> None:
    """Answers about a foreign scope and about none are compared, but for the name itself."""
    http = guarded.http
    mark = {"key": "their-key"}
    assert http.post("/v1/ledger/secret/marks", json=mark, headers=bearer(OTHER)).is_success
    http.post("/v1/ledger/billing/marks", json={"key": "mine"}, headers=bearer(USER))
    claim = {"key": "their-key", "token": 1}
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/entries", None),
        ("GET", "/entry?key=their-key", None),
        ("PUT", "", {"keep_seconds": 1}),
        ("DELETE", "/entry?key=their-key", None),
        ("POST", "/forget", {"keys": ["their-key"]}),
        ("POST", "/marks", mark),
        ("POST", "/claims", mark),
        ("POST", "/claims/renew", claim),
        ("POST", "/claims/complete", claim),
        ("POST", "/claims/release", claim),
    ):
        answers = [
            http.request(method, f"/v1/ledger/{scope}{path}", json=body, headers=bearer(USER))
            for scope in ("secret", "nobody")
        ]
        assert [answer.status_code for answer in answers] == [403, 403], path
        texts = [
            answer.text.replace(scope, "…")
            for answer, scope in zip(answers, ("secret", "nobody"), strict=True)
        ]
        assert texts[0] == texts[1]
    scopes = http.get("/v1/ledger", headers=bearer(USER)).json()
    assert {one["scope"] for one in scopes["scopes"]} == {"billing"}
    assert scopes["processed"] == sum(one["processed"] for one in scopes["scopes"])
    events = http.get("/v1/ledger-events", headers=bearer(USER)).json()["events"]
    assert {one["scope"] for one in events} == {"billing"}
    all_of_them = http.get("/v1/ledger-events", headers=bearer(BOSS)).json()["events"]
    assert {one["scope"] for one in all_of_them} >= {"billing", "secret"}


def test_signed_tokens_have_the_same_rights(guarded: HttpServer) -> None:
    claims = {
        "sub": "ann",
        "aud": "penstock",
        "exp": 4_000_000_000,
        "penstock": {"ledger": ["billing"]},
    }
    token = jwt.encode(claims, SECRET, algorithm="HS256")
    http = guarded.http
    assert http.get("/v1/ledger/billing", headers=bearer(token)).is_success
    assert http.get("/v1/ledger/secret", headers=bearer(token)).status_code == 403
