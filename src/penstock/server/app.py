"""The HTTP application: routes, pages, errors, and the document that describes them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

import penstock
from penstock.delivery.access import Authenticator
from penstock.errors import BadRequest, PenstockError
from penstock.hub import Hub
from penstock.protocol import Problem
from penstock.server.guard import Guard, encode_error
from penstock.server.limits import Connections
from penstock.server.routes import (
    admin,
    consumers,
    events,
    job_changes,
    jobs,
    ledger,
    mailbox_subscriptions,
    mailboxes,
    queues,
    schedules,
    topics,
)
from penstock.server.routes.context import Context, reply
from penstock.server.routes.schema import build
from penstock.server.routes.shapes import ErrorReply
from penstock.server.routes.topics import PublishRoute

if TYPE_CHECKING:
    from penstock.delivery.switchboard import Switchboard

STATIC = Path(__file__).with_name("static")
CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    # Python's own table takes it for a film.
    ".ts": "text/plain; charset=utf-8",
}
CODES = {404: "not_found", 405: "method_not_allowed"}

logger = logging.getLogger("penstock")


def create_app(
    hub: Hub,
    delivery: Switchboard,
    authenticator: Authenticator,
    connections: Connections | None = None,
) -> FastAPI:
    """The application. Its streams end when the delivery drains."""
    app = FastAPI(
        title="penstock",
        version=penstock.__version__,
        description="Topics, jobs, mailboxes and the ledger over HTTP. Live messages are at "
        "`/ws` and `/v1/topics/{topic}/events`.",
        # Its own pages load scripts from elsewhere, which needs the internet and trusts it.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.context = Context(hub, delivery, authenticator, connections)
    app.router.routes.append(Route(PublishRoute.path, PublishRoute(), methods=["POST"]))
    for room in (
        *(topics, events, consumers, jobs, job_changes, queues, schedules),
        *(mailboxes, mailbox_subscriptions, ledger, admin),
    ):
        app.include_router(room.router)
    _add_pages(app)
    app.add_exception_handler(PenstockError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(Guard, settings=hub.settings)
    return app


def _add_pages(app: FastAPI) -> None:
    files = {path.name: path for path in STATIC.iterdir() if path.suffix in CONTENT_TYPES}

    async def openapi() -> Response:
        return reply(build(app))

    def page(name: str) -> Any:
        async def show() -> Response:
            return _file(files.get(name))

        return show

    async def static(name: str) -> Response:
        return _file(files.get(name))

    app.add_api_route("/openapi.json", openapi, include_in_schema=False)
    app.add_api_route("/docs", page("docs.html"), include_in_schema=False)
    app.add_api_route("/", page("index.html"), include_in_schema=False)
    app.add_api_route("/static/{name}", static, include_in_schema=False)


def _file(path: Path | None) -> Response:
    if path is None:
        raise HTTPException(404)
    # Small files of ours: reading one takes microseconds, and an edit is seen at once.
    return Response(path.read_bytes(), headers={"content-type": CONTENT_TYPES[path.suffix]})


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    status, headers, body = encode_error(error)
    if status == 500:
        logger.error("%s %s: %s", request.method, request.url.path, error.message)
    return _raw(status, headers, body)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors()]
    return await _on_error(request, BadRequest("; ".join(found) + ".", hint="/docs says more."))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = Problem(CODES.get(error.status_code, "bad_request"), str(error.detail) + ".")
    answer = reply(ErrorReply(problem), error.status_code)
    answer.headers.update(error.headers or {})
    return answer


async def _on_bug(request: Request, error: Exception) -> Response:
    # Starlette raises it again after this, and uvicorn logs it with its traceback.
    problem = Problem("error", "The server failed; see its log.")
    return reply(ErrorReply(problem), 500)


def _raw(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> Response:
    answer = Response(body, status)
    answer.raw_headers = [*headers, (b"content-length", b"%d" % len(body))]
    return answer
