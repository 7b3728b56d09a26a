"""The HTTP routes against a real server process and a real file (D6, D7, D9, T11, T12)."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

import penstock
from penstock.health import Metrics
from penstock.model import Position
from penstock.server.metrics import preferred
from penstock.server.routes.reading import REPLY_BYTES_MAX
from tests.docs.pages import DOCS
from tests.factories import hub_on, payloads
from tests.serving import HttpServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """One for all tests of this file, which keep to topics of their own."""
    with HttpServer(tmp_path_factory.mktemp("http") / "hub.db") as server:
        yield server


@pytest.fixture
def http(server: HttpServer) -> httpx.Client:
    return server.http


@pytest.fixture(scope="module")
def here(server: HttpServer) -> Iterator[penstock.Hub]:
    """This process's own view of the server's file."""
    with hub_on(server.log.with_name("hub.db")) as hub:
        yield hub


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W+", "-", request.node.name.removeprefix("test_"))


def publish(http: httpx.Client, topic: str, *payloads: Any) -> list[str]:
    """Positions of what was published in one request."""
    messages = [{"payload": payload} for payload in payloads]
    done = http.post(f"/v1/topics/{topic}/messages", json={"messages": messages})
    assert done.status_code == 201, done.text
    return [one["position"] for one in done.json()["messages"]]


def problem(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert error["message"]
    return error


# Publishing


def test_what_is_published_is_in_the_log(
    http: httpx.Client, here: penstock.Hub, topic: str
) -> None:
    done = http.post(
        f"/v1/topics/{topic}/messages",
        json={
            "payload": {"id": 7},
            "type": "created",
            "key": "k",
            "headers": {"trace": "1"},
            "ttl": 60,
        },
    )
    assert done.status_code == 201
    (message,) = here.topics.read(topic)
    assert done.json() == {"position": str(message.position), "at": message.created_at}
    assert (message.payload, message.type, message.key) == ({"id": 7}, "created", "k")
    assert message.headers == {"trace": "1"}
    assert message.expires_at == message.created_at + 60_000_000


def test_bytes_travel_as_base64(http: httpx.Client, here: penstock.Hub, topic: str) -> None:
    data = bytes(range(256))
    text = base64.b64encode(data).decode()
    assert http.post(f"/v1/topics/{topic}/messages", json={"base64": text}).status_code == 201
    (message,) = here.topics.read(topic)
    assert message.payload == data
    (entry,) = http.get(f"/v1/topics/{topic}/messages").json()["messages"]
    assert entry["base64"] == text
    assert "payload" not in entry


def test_many_are_published_in_order(http: httpx.Client, here: penstock.Hub, topic: str) -> None:
    positions = publish(http, topic, *range(100))
    assert payloads(here.topics.read(topic)) == list(range(100))
    assert [Position.parse(p).offset for p in positions] == [m.id for m in here.topics.read(topic)]


def test_many_are_published_all_or_none(http: httpx.Client, here: penstock.Hub, topic: str) -> None:
    messages = [{"payload": 1}, {"payload": 2, "ttl": -1}]
    refused = http.post(f"/v1/topics/{topic}/messages", json={"messages": messages})
    problem(refused, 400, "invalid_input")
    assert here.topics.read(topic) == []


def test_the_same_idempotency_key_publishes_once(http: httpx.Client, topic: str) -> None:
    """Fault row 26: whoever did not see the answer asks again."""
    body = {"payload": 1, "idempotency_key": f"{topic}-1"}
    first = http.post(f"/v1/topics/{topic}/messages", json=body).json()
    again = http.post(f"/v1/topics/{topic}/messages", json=body).json()
    assert again == {**first, "duplicate": True}
    other = http.post(f"/v1/topics/{topic}/messages", json={**body, "payload": 2})
    problem(other, 409, "idempotency_conflict")


def test_a_conflated_message_is_accepted_before_it_is_written(
    http: httpx.Client, topic: str
) -> None:
    """T8"""
    body = {"payload": {"x": 1}, "key": "ann", "conflate": True}
    done = http.post(f"/v1/topics/{topic}/messages", json=body)
    assert done.status_code == 201
    assert done.json()["position"] is None
    assert done.json()["durable"] is False


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "bad_request"),
        (b"not json", "bad_request"),
        (b"[]", "bad_request"),
        (b"{}", "bad_request"),
        (b'{"payload": 1, "base64": "AA=="}', "bad_request"),
        (b'{"payload": 1, "tpye": "x"}', "bad_request"),
        (b'{"payload": NaN}', "bad_request"),
        (b'{"payload": "\xff"}', "bad_request"),
        (b'{"payload": "\\ud800"}', "bad_request"),
        (b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad_request"),
        (b'{"payload": 1, "ttl": "soon"}', "bad_request"),
        (b'{"payload": 1, "ttl": -1}', "invalid_input"),
        (b'{"base64": "!"}', "invalid_payload"),
        (b'{"messages": []}', "invalid_input"),
        (b'{"messages": [{"payload": 1}], "type": "x"}', "bad_request"),
        (b'{"payload": {}, "format": "bytes"}', "invalid_payload"),
    ],
)
def test_a_bad_body_is_refused(http: httpx.Client, body: bytes, code: str) -> None:
    """Fault row 24."""
    refused = http.post(
        "/v1/topics/bad/messages", content=body, headers={"content-type": "application/json"}
    )
    problem(refused, 400, code)


def test_a_body_of_another_type_is_refused(http: httpx.Client) -> None:
    """A form on a web page can send text/plain without asking first."""
    refused = http.post(
        "/v1/topics/x/messages", content=b'{"payload": 1}', headers={"content-type": "text/plain"}
    )
    problem(refused, 400, "bad_request")


def test_a_payload_above_the_limit_is_refused(http: httpx.Client) -> None:
    body = {"payload": "x" * (1024 * 1024 + 1)}
    problem(http.post("/v1/topics/x/messages", json=body), 413, "payload_too_large")


# Names


@pytest.mark.parametrize(
    "name", ["a/b", "messages", "x/messages", "..", "ü ö", "a%2Fb", "100%", "a+b", "#", "x" * 255]
)
def test_a_topic_may_have_any_name(http: httpx.Client, here: penstock.Hub, name: str) -> None:
    """Fault row 23, over HTTP: distinct names are distinct topics."""
    path = quote(name, safe="").replace("..", "%2E%2E")
    before = here.topics.get(name).published if name in _names(here) else 0
    assert publish(http, path, name)
    assert here.topics.get(name).published == before + 1
    assert http.get(f"/v1/topics/{path}").json()["name"] == name
    assert http.get(f"/v1/topics/{path}/messages").json()["messages"][-1]["payload"] == name


def _names(hub: penstock.Hub) -> set[str]:
    return {topic.name for topic in hub.topics.list()}


@pytest.mark.parametrize("path", ["%00", "a%0Ab", "%FF", "%ED%A0%80", "x" * 256, "a*"])
def test_a_name_that_is_none_is_refused(http: httpx.Client, path: str) -> None:
    refused = http.post(f"/v1/topics/{path}/messages", json={"payload": 1})
    problem(refused, 400, "invalid_topic")


def test_topics_of_penstock_itself_are_not_published_to(http: httpx.Client) -> None:
    problem(http.post("/v1/topics/penstock.x/messages", json={"payload": 1}), 400, "invalid_topic")


# Reading


def test_reading_on_after_a_position_misses_and_repeats_nothing(
    http: httpx.Client, topic: str
) -> None:
    publish(http, topic, *range(25))
    seen: list[int] = []
    page = http.get(f"/v1/topics/{topic}/messages", params={"limit": 10}).json()
    while page["messages"]:
        assert len(page["messages"]) <= 10
        seen += [entry["payload"] for entry in page["messages"]]
        params = {"limit": 10, "after": page["position"]}
        page = http.get(f"/v1/topics/{topic}/messages", params=params).json()
    assert seen == list(range(25))


def test_the_last_messages_and_those_since_a_time(
    http: httpx.Client, here: penstock.Hub, topic: str
) -> None:
    publish(http, topic, *range(5))
    last = http.get(f"/v1/topics/{topic}/messages", params={"last": 2}).json()
    assert [entry["payload"] for entry in last["messages"]] == [3, 4]
    third = here.topics.read(topic)[2]
    since = http.get(f"/v1/topics/{topic}/messages", params={"since": third.created_at / 1e6})
    assert [entry["payload"] for entry in since.json()["messages"]][-1] == 4
    future = http.get(f"/v1/topics/{topic}/messages", params={"since": 9e10}).json()
    assert future["messages"] == []


def test_a_glob_reads_many_topics_in_the_order_of_the_log(http: httpx.Client, topic: str) -> None:
    """D3"""
    publish(http, f"{topic}.a", 1)
    publish(http, f"{topic}.b", 2)
    publish(http, f"{topic}.a", 3)
    found = http.get(f"/v1/topics/{topic}.*/messages").json()["messages"]
    assert [(entry["topic"], entry["payload"]) for entry in found] == [
        (f"{topic}.a", 1),
        (f"{topic}.b", 2),
        (f"{topic}.a", 3),
    ]


def test_a_reply_of_large_messages_ends_early_and_says_where_to_read_on(
    http: httpx.Client, topic: str
) -> None:
    """Row 24: memory is bounded by what a reply may have, whatever was asked for."""
    blobs = [base64.b64encode(secrets.token_bytes(600_000)).decode() for _ in range(16)]
    for blob in blobs:
        done = http.post(f"/v1/topics/{topic}/messages", json={"base64": blob})
        assert done.status_code == 201
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 1000}
    while True:
        answer = http.get(f"/v1/topics/{topic}/messages", params=params)
        assert len(answer.content) < 2 * REPLY_BYTES_MAX
        page = answer.json()
        if not page["messages"]:
            break
        seen += [entry["base64"] for entry in page["messages"]]
        params = {"after": page["position"], "limit": 1000}
    assert seen == blobs
    last = http.get(f"/v1/topics/{topic}/messages", params={"last": 1000, "limit": 1000})
    assert len(last.content) < 2 * REPLY_BYTES_MAX
    kept = [entry["base64"] for entry in last.json()["messages"]]
    assert kept == blobs[-len(kept) :]


def test_a_position_before_what_was_trimmed_is_gone(http: httpx.Client, topic: str) -> None:
    """D6: a gap is told, with where to read on."""
    positions = publish(http, topic, *range(5))
    trimmed = http.post(f"/v1/topics/{topic}/trim", json={"through": positions[2]})
    assert trimmed.json() == {"removed": 3}
    error = problem(
        http.get(f"/v1/topics/{topic}/messages", params={"after": positions[0]}), 410, "log_trimmed"
    )
    assert error["first"] == positions[3]
    rest = http.get(f"/v1/topics/{topic}/messages", params={"after": error["resume"]}).json()
    assert [entry["payload"] for entry in rest["messages"]] == [3, 4]


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        ({"after": "nonsense"}, 400, "invalid_input"),
        ({"after": "another:1"}, 409, "epoch_changed"),
        ({"after": "x:1", "last": 1}, 400, "invalid_input"),
        ({"limit": 0}, 400, "bad_request"),
        ({"limit": 1001}, 400, "bad_request"),
        ({"limit": "many"}, 400, "bad_request"),
        ({"last": 0}, 400, "bad_request"),
        ({"since": "nan"}, 400, "bad_request"),
    ],
)
def test_a_bad_question_is_refused(
    http: httpx.Client, params: dict[str, Any], status: int, code: str
) -> None:
    problem(http.get("/v1/topics/x/messages", params=params), status, code)


# Topics


def test_a_topic_is_created_configured_and_deleted(http: httpx.Client, topic: str) -> None:
    """D7, T7"""
    made = http.put(f"/v1/topics/{topic}", json={"retention": {"age_seconds": 60}})
    assert made.status_code == 201
    assert made.json()["retention"]["age_seconds"] == 60
    changed = http.put(f"/v1/topics/{topic}", json={"delivery": {"slow_policy": "disconnect"}})
    assert changed.status_code == 200
    assert changed.json()["delivery"]["slow_policy"] == "disconnect"
    assert changed.json()["retention"]["age_seconds"] == 60
    assert http.put(f"/v1/topics/{topic}").json() == changed.json()
    publish(http, topic, 1, 2)
    assert http.delete(f"/v1/topics/{topic}").json() == {"removed": 2}
    problem(http.get(f"/v1/topics/{topic}"), 404, "topic_not_found")
    problem(http.delete(f"/v1/topics/{topic}"), 404, "topic_not_found")


@pytest.mark.parametrize(
    "body",
    [
        {"retention": {"age_seconds": -1}},
        {"retention": {"age": 1}},
        {"delivery": {"batch_max": 0}},
        {"delivery": {"slow_policy": "shout"}},
        {"batch_max": 3},
    ],
)
def test_a_bad_configuration_is_refused(http: httpx.Client, body: dict[str, Any]) -> None:
    assert http.put("/v1/topics/badly-configured", json=body).status_code == 400
    assert http.get("/v1/topics/badly-configured").status_code == 404


def test_topics_are_listed_in_pages(http: httpx.Client, topic: str) -> None:
    names = [f"{topic}.{letter}" for letter in "abc"]
    for name in names:
        publish(http, name, 1)
    first = http.get("/v1/topics", params={"match": f"{topic}.*", "limit": 2}).json()
    assert [found["name"] for found in first["topics"]] == names[:2]
    assert not first["is_complete"]
    params = {"match": f"{topic}.*", "after": names[1]}
    second = http.get("/v1/topics", params=params).json()
    assert [found["name"] for found in second["topics"]] == names[2:]
    assert second["is_complete"]


def test_a_topic_is_trimmed_by_count_or_age(http: httpx.Client, topic: str) -> None:
    publish(http, topic, *range(10))
    assert http.post(f"/v1/topics/{topic}/trim", json={"keep": 4}).json() == {"removed": 6}
    done = http.post(f"/v1/topics/{topic}/trim", json={"older_than_seconds": 3600})
    assert done.json() == {"removed": 0}
    problem(http.post(f"/v1/topics/{topic}/trim", json={}), 400, "invalid_input")


def test_the_stats_of_a_topic(http: httpx.Client, topic: str) -> None:
    positions = publish(http, topic, 1, 2, 3)
    stats = http.get(f"/v1/topics/{topic}/stats").json()
    assert (stats["messages"], stats["published"]) == (3, 3)
    assert (stats["first"], stats["last"]) == (positions[0], positions[-1])


def test_nobody_is_present_on_a_quiet_topic(http: httpx.Client, topic: str) -> None:
    """T9"""
    found = http.get(f"/v1/topics/{topic}/presence").json()
    assert found == {"topic": topic, "members": [], "is_complete": True}


# Consumers


def test_consumers_are_listed_moved_and_forgotten(
    http: httpx.Client, here: penstock.Hub, topic: str
) -> None:
    """T3, T12"""
    name = f"c/{topic}"
    path = f"/v1/consumers/c%2F{topic}"
    publish(http, topic, 1, 2, 3)
    with here.topics.follow(topic, consumer=name, start="earliest"):
        pass
    (found,) = http.get(path).json()["consumers"]
    assert (found["name"], found["subscription"], found["lag_messages"]) == (name, topic, 3)
    listed = http.get("/v1/consumers").json()["consumers"]
    assert (name, topic) in {(one["name"], one["subscription"]) for one in listed}
    moved = http.post(f"{path}/reset", json={"topic": topic, "to": "latest"})
    assert moved.json()["lag_messages"] == 0
    back = http.post(f"{path}/reset", json={"topic": topic, "to": found["position"]})
    assert back.json()["lag_messages"] == 3
    problem(http.post(f"{path}/reset", json={"topic": topic, "to": "x"}), 400, "invalid_input")
    assert http.delete(path).json() == {"removed": 1}
    problem(http.get(path), 404, "consumer_not_found")
    problem(http.delete(path), 404, "consumer_not_found")
    gone = http.post(f"{path}/reset", json={"topic": topic, "to": "latest"})
    problem(gone, 404, "consumer_not_found")


def test_a_consumer_that_is_held_is_not_moved(
    http: httpx.Client, here: penstock.Hub, topic: str
) -> None:
    publish(http, topic, 1)
    with here.topics.follow(topic, consumer=topic, start="earliest") as follower:
        assert follower.take()
        refused = http.post(f"/v1/consumers/{topic}/reset", json={"topic": topic, "to": "latest"})
        error = problem(refused, 409, "consumer_busy")
        assert error["retryable"]


# Health and metrics


def test_the_process_lives_and_is_ready(http: httpx.Client) -> None:
    assert http.get("/health/live").json() == {"status": "ok"}
    assert http.get("/health/ready").json()["status"] == "ok"


def test_the_full_report_is_critical_when_a_consumer_is(
    open_hub: Callable[..., penstock.Hub], path: Path
) -> None:
    """T12: with a server of its own, for its consumer falls behind."""
    with HttpServer(path, lag_warning_messages=1, lag_critical_messages=2) as server:
        assert server.http.get("/health").status_code == 200
        hub = open_hub()
        with hub.topics.follow("orders", consumer="slow", start="earliest"):
            pass
        hub.topics.publish_many("orders", [1, 2, 3])
        report = server.http.get("/health")
        assert report.status_code == 503
        assert report.json()["status"] == "critical"
        assert report.json()["lags"][0]["messages"] == 3
        assert server.http.get("/health/ready").status_code == 200


def test_without_its_database_it_lives_and_is_not_ready(path: Path) -> None:
    """Issue point 8: degraded while the file is away, and by itself well again."""
    with HttpServer(path) as server:
        assert server.http.post("/v1/topics/a/messages", json={"payload": 1}).status_code == 201
        away = path.with_name("away.db")
        path.rename(away)
        try:
            assert server.http.get("/health/live").status_code == 200
            ready = server.http.get("/health/ready")
            assert (ready.status_code, ready.json()["reason"]) == (503, "store_replaced")
            report = server.http.get("/health")
            assert (report.status_code, report.json()["status"]) == (503, "critical")
            refused = server.http.post("/v1/topics/a/messages", json={"payload": 2})
            problem(refused, 503, "store_replaced")
            assert refused.headers["retry-after"]
        finally:
            away.rename(path)
        assert server.http.get("/health/ready").status_code == 200
        assert server.http.post("/v1/topics/a/messages", json={"payload": 3}).status_code == 201


TOPIC_NAMES = {
    "queue_depth",
    "queue_max_size",
    "batch_size_avg",
    "messages_published",
    "messages_delivered",
    "messages_dropped",
    "subscriber_count",
    "latency_ms",
}
GLOBAL_NAMES = {
    "active_topics",
    "active_subscribers",
    "total_published",
    "total_delivered",
    "total_dropped",
}


def test_metrics_are_the_json_of_the_requirement(http: httpx.Client, topic: str) -> None:
    """D9, with T11 under a key of its own."""
    publish(http, topic, 1, 2)
    with http.stream("GET", f"/v1/topics/{topic}/events", params={"last": 2}) as events:
        for line in events.iter_lines():
            if line.startswith("data:") and '"payload":2' in line:
                break
    metrics = http.get("/metrics").json()
    assert set(metrics) == {"uptime_seconds", "topics", "global", "queue"}
    assert metrics["uptime_seconds"] > 0
    assert set(metrics["global"]) == GLOBAL_NAMES
    found = metrics["topics"][topic]
    assert set(found) == TOPIC_NAMES
    assert set(found["latency_ms"]) == {"avg", "p95", "p99"}
    assert (found["messages_published"], found["messages_delivered"]) == (2, 2)
    assert found["queue_max_size"] == 10_000
    assert set(metrics["queue"]) == set(msgspec.structs.asdict(_metrics()))
    assert metrics["queue"]["queue_size"] >= 2


def _metrics() -> Metrics:
    with penstock.connect("memory:") as hub:
        return hub.metrics()


@pytest.mark.parametrize("accept", ["application/openmetrics-text; version=1.0.0", "text/plain"])
def test_metrics_are_openmetrics_when_asked_for(
    http: httpx.Client, topic: str, accept: str
) -> None:
    """D9: parsed by Prometheus' own parsers."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
    from prometheus_client.parser import text_string_to_metric_families as plain

    publish(http, topic, 1)
    answer = http.get("/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith(accept.partition(";")[0])
    parse = openmetrics if "openmetrics" in accept else plain
    found = {family.name: family for family in parse(answer.text)}
    assert found["penstock_queue_messages"].samples[0].value >= 1
    assert found["penstock_uptime_seconds"].type == "gauge"
    assert found["penstock_topic_messages_delivered"].type == "counter"
    assert "process_cpu_seconds" in found


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "application/json"),
        ("text/plain", "text/plain"),
        ("application/json, text/plain;q=0.5", "application/json"),
        ("text/plain;q=0.5, application/json;q=0.4", "text/plain"),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*",
            "application/openmetrics-text",
        ),
        ("text/plain;q=x", "text/plain"),
    ],
)
def test_the_form_of_the_metrics_is_negotiated(accept: str, kind: str) -> None:
    assert preferred(accept) == kind


# The rest


def test_an_unknown_path_and_method_are_refused_in_the_same_shape(http: httpx.Client) -> None:
    problem(http.get("/v2/topics"), 404, "not_found")
    refused = http.patch("/v1/topics/x")
    problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"]


def test_the_document_describes_the_routes_by_the_shapes_that_are_sent(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    paths = document["paths"]
    assert set(paths["/v1/topics/{topic}/messages"]) == {"get", "post"}
    assert set(paths["/v1/topics/{topic}"]) == {"get", "put", "delete"}
    schemas = document["components"]["schemas"]
    assert {"Entry", "Problem", "OutgoingOne", "Published", "MetricsReply"} <= set(schemas)
    assert "422" not in str([operation["responses"].keys() for operation in _operations(paths)])


def test_the_page_lists_every_route_and_no_other(http: httpx.Client) -> None:
    text = (DOCS / "reference" / "http.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `((?:GET|POST|PUT|DELETE) /[^`]*)`", text, re.MULTILINE))
    paths = http.get("/openapi.json").json()["paths"]
    assert listed == {f"{method.upper()} {path}" for path in paths for method in paths[path]}


def _operations(paths: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in paths.values() for operation in path.values()]


def test_the_pages_need_nothing_from_elsewhere(http: httpx.Client) -> None:
    """Offline, and under a policy that allows the server's own files only."""
    for path in ("/", "/docs"):
        page = http.get(path)
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page.text)
        assert not re.search(r"<script(?![^>]*\ssrc=)[^>]*>", page.text)
        assert not re.search(r"\s(?:style|on\w+)=[\"']", page.text)
        for file in re.findall(r"(?:src|href)=\"(/static/[^\"]+)\"", page.text):
            assert http.get(file).status_code == 200, file


def test_the_client_library_is_served(http: httpx.Client) -> None:
    library = http.get("/static/penstock.js")
    assert library.headers["content-type"] == "text/javascript; charset=utf-8"
    assert http.get("/static/..%2Fapp.py").status_code == 404
    assert http.get("/static/nope.js").status_code == 404


def test_stopping_ends_streams_and_the_process(path: Path) -> None:
    """D8: SIGTERM does not wait for those who would listen for ever."""
    with HttpServer(path) as server:
        with server.http.stream("GET", "/v1/topics/orders/events") as events:
            lines = events.iter_lines()
            assert next(lines) == "retry: 2000"
            server._process.terminate()
            rest = list(lines)
            assert all(line.startswith((":", "id:")) or not line for line in rest)
        assert server.wait() == 0
        assert server.hear() == "closed"
