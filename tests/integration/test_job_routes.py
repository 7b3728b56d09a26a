"""Jobs over HTTP: every route, and who may use it (J6, J7, J8, J10)."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import penstock
from penstock.server import tokens_file
from penstock.server.tokens_file import Key, TokensFile, hash_key, new_key
from tests.factories import hub_on
from tests.serving import HttpServer, bearer, guarded_server
from tests.waiting import wait_until

WEB, OPS, OTHER, BOSS = (new_key() for _ in range(4))
SECRET = secrets.token_urlsafe(48)
KEYS = {
    "web": Key(sha256=hash_key(WEB).hex(), jobs=("mail", "report-*")),
    "ops": Key(sha256=hash_key(OPS).hex(), jobs_admin=("mail",)),
    "other": Key(sha256=hash_key(OTHER).hex(), jobs=("secret",), jobs_admin=("secret",)),
    "boss": Key(
        sha256=hash_key(BOSS).hex(),
        jobs_admin=("*", "penstock.*"),
        subscribe=("penstock.delivery",),
    ),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("jobs") / "hub.db") as server:
        yield server


@pytest.fixture
def http(server: HttpServer) -> httpx.Client:
    return server.http


@pytest.fixture
def hub(server: HttpServer) -> Iterator[penstock.Hub]:
    """Another process on the server's file, which does the work."""
    with hub_on(server.log.parent / "hub.db") as hub:
        yield hub


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with guarded_server(tmp_path_factory.mktemp("guarded"), KEYS, SECRET) as server:
        yield server


def enqueue(http: httpx.Client, **body: Any) -> int:
    answer = http.post("/v1/jobs", json={"queue": "q", "type": "t", **body})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


# Every route


def test_a_job_goes_in_runs_and_comes_back_with_its_result(
    http: httpx.Client, hub: penstock.Hub
) -> None:
    @hub.job(queue="sums", name="add")
    def add(payload: dict[str, int]) -> int:
        return payload["a"] + payload["b"]

    id = enqueue(http, queue="sums", type="add", payload={"a": 1, "b": 2}, priority=-3)
    job = http.get(f"/v1/jobs/{id}").json()
    assert (job["state"], job["payload"], job["priority"]) == ("pending", {"a": 1, "b": 2}, -3)
    assert "result" not in job
    still = http.get(f"/v1/jobs/{id}/outcome", params={"seconds": 0.01}).json()
    assert still["state"] == "pending"
    why = http.get(f"/v1/jobs/{id}/explanation").json()
    assert why["reasons"][0]["code"] == "no_worker"
    with hub.start_workers({"sums": 1}):
        done = http.get(f"/v1/jobs/{id}/outcome").json()
        [worker] = http.get("/v1/workers").json()["workers"]
    assert (done["state"], done["result"], done["result_format"]) == ("completed", 3, "json")
    assert (worker["queues"], worker["types"]) == ({"sums": 1}, ["add"])
    kinds = [event["kind"] for event in http.get(f"/v1/jobs/{id}/history").json()["events"]]
    assert kinds == ["enqueued", "started", "completed"]


def test_many_bytes_and_what_is_wrong(http: httpx.Client, hub: penstock.Hub) -> None:
    many = {"queue": "many", "type": "t", "jobs": [{"payload": 1}, {"base64": "AP8="}, {}]}
    added = http.post("/v1/jobs", json={**many, "delay": 60}).json()["jobs"]
    assert [one["state"] for one in added] == ["scheduled"] * 3
    assert [hub.jobs.get(one["id"]).payload for one in added] == [1, b"\x00\xff", None]
    shown = http.get(f"/v1/jobs/{added[1]['id']}").json()
    assert (shown["base64"], shown["format"], "payload" in shown) == ("AP8=", "bytes", False)
    for wrong in (
        {"queue": "q"},
        {"queue": "q", "type": "t", "payload": 1, "base64": ""},
        {"queue": "", "type": "t"},
        {"queue": "q", "type": "t", "delay": -1},
        {"queue": "q", "type": "t", "at": 1e300},
        {"queue": "q", "type": "t", "priority": 2**70},
        {"queue": "q", "type": "t", "surprise": 1},
        {**many, "unique_key": "k"},
        {**many, "jobs": []},
    ):
        assert http.post("/v1/jobs", json=wrong).status_code == 400, wrong
    missing = http.post("/v1/jobs", json={"queue": "q", "type": "t", "after": [2**80]})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "job_not_found")


def test_unique_keys_and_dependencies(http: httpx.Client) -> None:
    id = enqueue(http, queue="u", unique_key="once")
    second = http.post("/v1/jobs", json={"queue": "u", "type": "t", "unique_key": "once"})
    assert (second.status_code, second.json()["error"]["code"]) == (409, "job_exists")
    kept = {"queue": "u", "type": "t", "unique_key": "once", "on_conflict": "return"}
    assert http.post("/v1/jobs", json=kept).json() == {
        "id": id,
        "state": "pending",
        "duplicate": True,
    }
    child = enqueue(http, queue="u", after=[id])
    assert http.get(f"/v1/jobs/{child}").json()["state"] == "waiting"


def test_listing_with_filters_and_pages(http: httpx.Client, hub: penstock.Hub) -> None:
    ids = [one.id for one in hub.jobs.enqueue_many("listed", "a", range(5))]
    hub.jobs.enqueue("listed", "b")
    hub.jobs.cancel(ids[0])

    def get(**parameters: Any) -> Any:
        answer = http.get("/v1/jobs", params={"queue": "listed", **parameters})
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert [job["id"] for job in get(type="a")["jobs"]] == ids[::-1]
    assert [job["id"] for job in get(state="cancelled")["jobs"]] == [ids[0]]
    assert len(get(state=["cancelled", "pending"])["jobs"]) == 6
    page = get(type="a", limit=2)
    assert ([job["id"] for job in page["jobs"]], page["is_complete"]) == (ids[:2:-1], False)
    rest = get(type="a", limit=3, before=page["jobs"][-1]["id"])
    assert ([job["id"] for job in rest["jobs"]], rest["is_complete"]) == (ids[2::-1], True)
    assert get(until=1)["jobs"] == []
    assert http.get("/v1/jobs", params={"state": "lost"}).status_code == 400


def test_large_payloads_end_a_page_early_and_nothing_is_skipped(
    http: httpx.Client, hub: penstock.Hub
) -> None:
    ids = [one.id for one in hub.jobs.enqueue_many("large", "t", ["x" * 900_000] * 9)]
    # zstd would make them small.
    raw = hub.jobs.enqueue_many("large", "t", [secrets.token_bytes(900_000)] * 9)
    ids += [one.id for one in raw]
    found: list[int] = []
    before: int | None = None
    pages = 0
    while True:
        parameters = {"queue": "large", **({} if before is None else {"before": before})}
        page = http.get("/v1/jobs", params=parameters).json()
        found += [job["id"] for job in page["jobs"]]
        pages += 1
        if page["is_complete"]:
            break
        before = found[-1]
    assert found == ids[::-1]
    assert pages > 1


def test_dead_letters_are_retried_by_filter_and_by_id(
    http: httpx.Client, hub: penstock.Hub
) -> None:
    """J8, with the meaning of the document's failed viewer and retry."""
    broken = threading.Event()
    broken.set()

    @hub.job(queue="fetch", name="get", max_attempts=1)
    def get(payload: int) -> None:
        if broken.is_set():
            raise ConnectionError(f"host {payload}")

    added = get.enqueue_many([1, 2, 2])
    with hub.start_workers({"fetch": 3}):
        hub.jobs.wait_all(added, timeout=60)
        failed = http.get("/v1/jobs", params={"queue": "fetch", "state": "failed"}).json()["jobs"]
        assert {job["failure"]["error"] for job in failed} == {"ConnectionError"}
        broken.clear()
        one = http.post(f"/v1/jobs/{added[0].id}/retry").json()
        assert one["changed"]
        wanted = {"queue": "fetch", "error": "host 2"}
        many = http.post("/v1/jobs/retry", json=wanted).json()
        assert many == {"jobs": [one.id for one in added[1:]], "after": None}
        hub.jobs.wait_all(added, timeout=60)
        assert http.post("/v1/jobs/retry", json={"queue": "fetch"}).json()["jobs"] == []
        by_id = {"ids": [added[0].id, 10**12, -1, 2**80]}
        assert http.post("/v1/jobs/retry", json=by_id).json()["jobs"] == [added[0].id]
        hub.jobs.wait_all(added, timeout=60)


def test_cancelling_and_priorities(http: httpx.Client, hub: penstock.Hub) -> None:
    a, b, c = (one.id for one in hub.jobs.enqueue_many("hands", "t", range(3)))
    first = http.post(f"/v1/jobs/{a}/cancel", json={"reason": "no"}).json()
    assert (first["changed"], first["job"]["state"]) == (True, "cancelled")
    assert http.post(f"/v1/jobs/{a}/cancel", json={}).json()["changed"] is False
    assert http.get(f"/v1/jobs/{a}/history").json()["events"][-1]["data"] == {"reason": "no"}
    moved = http.put(f"/v1/jobs/{c}/priority", json={"priority": -1}).json()
    assert (moved["changed"], moved["job"]["priority"]) == (True, -1)
    assert http.put(f"/v1/jobs/{c}/priority", json={"priority": 2**70}).status_code == 400
    rest = http.post("/v1/jobs/cancel", json={"queue": "hands"}).json()["jobs"]
    assert rest == [b, c]
    gone = http.post("/v1/jobs/prune", json={"state": ["cancelled"], "older_than_seconds": 0})
    assert gone.json()["removed"] >= 3
    assert http.get(f"/v1/jobs/{a}").status_code == 404


def test_queues_are_counted_paused_and_limited(http: httpx.Client, hub: penstock.Hub) -> None:
    """J7: stats by queue and overall."""
    hub.jobs.enqueue_many("counted", "t", range(4))
    found = http.get("/v1/queues").json()
    by_name = {queue["queue"]: queue for queue in found["queues"]}
    assert by_name["counted"]["pending"] == 4
    assert found["overall"]["pending"] == sum(queue["pending"] for queue in found["queues"])
    assert "counted" in found["unattended"]

    limits = http.put("/v1/queues/counted", json={"concurrency_max": 2, "is_paused": True}).json()
    assert limits == {
        "concurrency_max": 2,
        "rate_max": None,
        "rate_seconds": 1.0,
        "is_paused": True,
    }
    assert http.put("/v1/queues/counted", json={"rate_max": 5}).json()["concurrency_max"] == 2
    assert http.get("/v1/queues/counted").json()["limits"]["is_paused"]
    assert http.put("/v1/queues/counted", json={"is_paused": False}).json()["rate_max"] == 5
    assert http.put("/v1/queues/counted", json={"concurrency_max": None}).json()["rate_max"] == 5
    for wrong in ({"rate_max": 0}, {"rate_max": 2**70}, {"rate_seconds": 1e300}, {"x": 1}):
        assert http.put("/v1/queues/counted", json=wrong).status_code == 400, wrong
    assert http.get("/v1/queues/never").json()["pending"] == 0


def test_schedules(http: httpx.Client, hub: penstock.Hub) -> None:
    body = {"cron": "0 3 * * *", "queue": "reports", "type": "build", "payload": {"n": 1}}
    made = http.put("/v1/schedules/nightly", json={**body, "timezone": "Europe/Vienna"}).json()
    assert (made["payload"], made["timezone"], made["paused_at"]) == (
        {"n": 1},
        "Europe/Vienna",
        None,
    )
    assert http.get("/v1/schedules").json()["schedules"] == [made]
    assert http.post("/v1/schedules/nightly/pause").json()["paused_at"] is not None
    assert http.post("/v1/schedules/nightly/resume").json()["paused_at"] is None
    run = http.post("/v1/schedules/nightly/run")
    assert run.status_code == 201
    assert hub.jobs.get(run.json()["id"]).schedule == "nightly"
    for wrong in (
        {"cron": "often"},
        {"timezone": "Mars"},
        {"priority": 2**70},
        {"timeout": 1e300},
        {"max_attempts": 0},
    ):
        assert http.put("/v1/schedules/x", json={**body, **wrong}).status_code == 400, wrong
    assert http.delete("/v1/schedules/nightly").json() == {"removed": 1}
    assert http.delete("/v1/schedules/nightly").status_code == 404


def test_metrics_have_jobs(http: httpx.Client, hub: penstock.Hub) -> None:
    """J10: Prometheus."""
    hub.jobs.enqueue_many("measured", "t", range(3))
    text = http.get("/metrics", headers={"accept": "application/openmetrics-text"}).text
    found = {family.name: family for family in text_string_to_metric_families(text)}
    jobs = {
        (sample.labels["queue"], sample.labels["state"]): sample.value
        for sample in found["penstock_jobs"].samples
    }
    assert jobs["measured", "pending"] == 3
    alone = {s.labels["queue"]: s.value for s in found["penstock_job_queue_unattended"].samples}
    assert alone["measured"] == 1
    assert http.get("/metrics").json()["queue"]["jobs"]["overall"]["pending"] >= 3


# Who may


def test_rights_go_by_queue(guarded: HttpServer) -> None:
    http = guarded.http
    mail = {"queue": "mail", "type": "send"}
    sent = http.post("/v1/jobs", json=mail, headers=bearer(WEB))
    assert sent.status_code == 201
    id = sent.json()["id"]
    assert http.post("/v1/jobs", json={**mail, "queue": "report-1"}, headers=bearer(WEB)).is_success
    assert http.get(f"/v1/jobs/{id}", headers=bearer(WEB)).is_success
    # To use is not to administer.
    for method, path, body in (
        ("POST", f"/v1/jobs/{id}/retry", None),
        ("POST", f"/v1/jobs/{id}/cancel", {}),
        ("PUT", f"/v1/jobs/{id}/priority", {"priority": 1}),
        ("PUT", "/v1/queues/mail", {"is_paused": True}),
        ("POST", "/v1/jobs/retry", {"queue": "mail"}),
        ("POST", "/v1/jobs/cancel", {"queue": "mail"}),
        ("POST", "/v1/jobs/prune", {}),
        ("PUT", "/v1/schedules/s", {"cron": "* * * * *", **mail}),
    ):
        answer = http.request(method, path, json=body, headers=bearer(WEB))
        assert answer.status_code == 403, (method, path)
    assert http.post(f"/v1/jobs/{id}/cancel", json={}, headers=bearer(OPS)).json()["changed"]
    assert http.put("/v1/queues/mail", json={}, headers=bearer(OPS)).is_success
    for everything in ("retry", "cancel", "prune"):
        refused = http.post(f"/v1/jobs/{everything}", json={}, headers=bearer(OPS))
        assert refused.status_code == 403
        assert http.post(f"/v1/jobs/{everything}", json={}, headers=bearer(BOSS)).is_success


def test_what_is_in_other_queues_is_as_if_it_were_not(guarded: HttpServer) -> None:
    """The answers about a foreign job and about none are compared, headers included."""
    http = guarded.http
    secret = {"queue": "secret", "type": "t", "unique_key": "their-key"}
    id = http.post("/v1/jobs", json=secret, headers=bearer(OTHER)).json()["id"]
    plan = {"cron": "0 0 * * *", "queue": "secret", "type": "t"}
    assert http.put("/v1/schedules/theirs", json=plan, headers=bearer(OTHER)).is_success
    unknown = 10**9

    def ask(token: str, method: str, path: str, body: Any = None) -> tuple[Any, ...]:
        answer = http.request(method, path, json=body, headers=bearer(token))
        ignored = ("date", "content-length")
        headers = {k: v for k, v in answer.headers.items() if k not in ignored}
        text = answer.text
        for name in (str(unknown), str(id), "theirs", "nobodys"):
            text = text.replace(f" {name}.", " X.").replace(repr(name), "X")
        return answer.status_code, headers, text

    for token in (WEB, OPS):
        for method, path, body in (
            ("GET", "/v1/jobs/{}", None),
            ("GET", "/v1/jobs/{}/outcome", None),
            ("GET", "/v1/jobs/{}/history", None),
            ("GET", "/v1/jobs/{}/explanation", None),
            ("POST", "/v1/jobs/{}/retry", None),
            ("POST", "/v1/jobs/{}/cancel", {}),
            ("PUT", "/v1/jobs/{}/priority", {"priority": 1}),
        ):
            foreign = ask(token, method, path.format(id), body)
            assert foreign == ask(token, method, path.format(unknown), body), path
            assert foreign[0] == 404
        for method, path in (
            ("GET", "/v1/schedules/{}"),
            ("DELETE", "/v1/schedules/{}"),
            ("POST", "/v1/schedules/{}/pause"),
            ("POST", "/v1/schedules/{}/run"),
        ):
            foreign = ask(token, method, path.format("theirs"))
            assert foreign == ask(token, method, path.format("nobodys")), path
            assert foreign[0] == 404
        for queue in ("secret", "nowhere"):
            assert ask(token, "GET", f"/v1/queues/{queue}")[0] == 403
            assert ask(token, "GET", f"/v1/jobs?queue={queue}")[0] == 403
        listed = http.get("/v1/jobs", headers=bearer(token)).json()["jobs"]
        assert {job["queue"] for job in listed} <= {"mail", "report-1"}
        queues = http.get("/v1/queues", headers=bearer(token)).json()
        assert "secret" not in str(queues)
        assert http.get("/v1/schedules", headers=bearer(token)).json()["schedules"] == []
    changed = http.post("/v1/jobs/cancel", json={"ids": [id]}, headers=bearer(OPS)).json()
    assert changed["jobs"] == []
    behind = {"queue": "mail", "type": "t", "after": [id]}
    waits = http.post("/v1/jobs", json=behind, headers=bearer(WEB))
    none = http.post("/v1/jobs", json={**behind, "after": [unknown]}, headers=bearer(WEB))
    assert waits.status_code == none.status_code == 404
    for policy in ("reject", "return", "replace", "debounce"):
        taken = {"queue": "mail", "type": "t", "unique_key": "their-key", "on_conflict": policy}
        refused = http.post("/v1/jobs", json=taken, headers=bearer(WEB))
        assert refused.status_code == 409
        assert refused.json()["error"]["message"] == "The unique key 'their-key' is taken."
    kept = http.get(f"/v1/jobs/{id}", headers=bearer(OTHER)).json()
    assert (kept["queue"], kept["type"], kept["payload"]) == ("secret", "t", None)
    stolen = http.put("/v1/schedules/theirs", json={**plan, "queue": "mail"}, headers=bearer(OPS))
    assert stolen.status_code == 403


def test_signed_tokens_have_the_same_rights(guarded: HttpServer) -> None:
    def sign(**rights: Any) -> str:
        claims = {"sub": "ann", "exp": 4e9, "aud": "penstock", "penstock": rights}
        return jwt.encode(claims, SECRET, algorithm="HS256")

    body = {"queue": "signed", "type": "t"}
    given = {"token": sign(jobs=["signed"]), "admin": sign(jobs_admin=["signed"])}
    for token in given.values():
        assert guarded.http.post("/v1/jobs", json=body, headers=bearer(token)).is_success
    for token, status in zip(given.values(), (403, 200), strict=True):
        answer = guarded.http.post(
            "/v1/jobs/cancel", json={"queue": "signed"}, headers=bearer(token)
        )
        assert answer.status_code == status
    other = guarded.http.post("/v1/jobs", json={**body, "queue": "x"}, headers=bearer(sign()))
    assert other.status_code == 403


def test_a_restricted_list_merges_queues_without_a_gap(guarded: HttpServer) -> None:
    ids = []
    for n in range(12):
        body = {"queue": "mail" if n % 3 else "report-2", "type": "merge"}
        ids.append(guarded.http.post("/v1/jobs", json=body, headers=bearer(WEB)).json()["id"])
    found: list[int] = []
    while True:
        parameters: dict[str, Any] = {"type": "merge", "limit": 5}
        if found:
            parameters["before"] = found[-1]
        page = guarded.http.get("/v1/jobs", params=parameters, headers=bearer(WEB)).json()
        found += [job["id"] for job in page["jobs"]]
        if page["is_complete"]:
            break
    assert found == ids[::-1]


def test_a_right_that_was_taken_back_is_gone(tmp_path: Path) -> None:
    key = new_key()
    granted = Key(sha256=hash_key(key).hex(), jobs=("a", "b"))
    path = tmp_path / "tokens.toml"
    tokens_file.write(path, TokensFile({"k": granted}))
    with HttpServer(tmp_path / "hub.db", tokens_file=str(path)) as server:
        body = {"queue": "b", "type": "t"}
        assert server.http.post("/v1/jobs", json=body, headers=bearer(key)).is_success
        fewer = Key(sha256=hash_key(key).hex(), jobs=("a",))
        tokens_file.write(path, TokensFile({"k": fewer}))

        def is_refused() -> bool:
            answer = server.http.post("/v1/jobs", json=body, headers=bearer(key))
            return answer.status_code == 403

        wait_until(is_refused, "the file is read again")
