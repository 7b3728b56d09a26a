"""Schemathesis over the OpenAPI document, against a real server (fault row 28)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.server.routes.mailboxes import WAIT_SECONDS_MAX
from tests.serving import HttpServer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
METHODS = {"GET", "POST", "PUT", "DELETE", "PATCH"}
EXAMPLES = 15
BUSY_MIN = {"positive": 12, "negative": 7}
"""Operations that were really tried. Those that take only a name cannot be asked wrongly."""
STREAM = "/v1/topics/{topic}/events"
WAIT = "/v1/jobs/{id}/outcome"
WAITING = ("/v1/mailboxes/{mailbox}/next", "/v1/mailboxes/{mailbox}/ack-and-next")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("openapi") / "hub.db") as server:
        yield server


@pytest.fixture(scope="module")
def operations(server: HttpServer) -> list[Any]:
    """All of them but the stream, which answers for ever, and the wait for a job that nobody
    does: their own tests are about that."""
    found = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in found.exclude(path=[STREAM, WAIT]).get_all_operations()]
    assert {operation.path for operation in operations} >= set(WAITING)
    return operations


def hurry(case: schemathesis.Case) -> None:
    """Nobody puts anything into these mailboxes: waiting for it would only take time."""
    for part in (case.query, case.body):
        wait = part.get("wait") if isinstance(part, dict) else None
        if isinstance(wait, (int, float)) and 0 <= wait <= WAIT_SECONDS_MAX:
            part["wait"] = 0


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_whatever_is_sent_no_route_fails_or_answers_otherwise_than_it_says(
    operations: list[Any], mode: schemathesis.GenerationMode
) -> None:
    """Valid and invalid requests: no 5xx, and only the statuses and shapes of the document.

    Not by Schemathesis' own decorator, which does not know this release of pytest.
    """
    tried: Counter[str] = Counter()
    for operation in operations:
        try:
            strategy = operation.as_strategy(generation_mode=mode)
        except Unsatisfiable:
            continue

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        @given(strategy)
        def check(case: schemathesis.Case) -> None:
            tried[case.operation.label] += 1
            hurry(case)
            case.call_and_validate(checks=CHECKS)

        try:
            check()
        except Unsatisfiable:
            continue  # Nothing could be wrong about a route that takes nothing.
    busy = [label for label, count in tried.items() if count >= EXAMPLES // 2]
    assert len(busy) >= BUSY_MIN[mode.value], tried


def test_methods_that_are_not_declared_are_refused(server: HttpServer) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]
    assert len(paths) > 10
    for path, declared in paths.items():
        real = path.format(
            topic="x", consumer="c", id=1, queue="q", schedule="s", mailbox="m", scope="s"
        )
        for method in METHODS - {name.upper() for name in declared}:
            answer = server.http.request(method, real)
            assert answer.status_code == 405, (method, path)
            assert answer.headers["allow"], (method, path)
