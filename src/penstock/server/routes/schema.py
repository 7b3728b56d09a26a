"""The OpenAPI document, made of the shapes that are really sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from penstock.server.routes.shapes import ErrorReply

Shape = type[Any] | tuple[type[Any], ...]

REF = "#/components/schemas/{name}"
SECURITY = {"token": {"type": "http", "scheme": "bearer"}}
ALWAYS = (401, 403, 503)
MEANINGS = {
    400: "The request is not valid",
    401: "A valid token is needed",
    403: "The token, or the page's origin, does not allow that",
    404: "There is none of this name",
    408: "The request took too long",
    409: "It conflicts with what is there",
    410: "Messages after this position are gone; `error.resume` says where to read on",
    413: "The body is too large",
    429: "Too much in too short a time; see Retry-After",
    503: "The store or the server cannot do it now",
}

_shapes: set[type[Any]] = {ErrorReply}


def describe(
    summary: str,
    *,
    ok: Mapping[int, Shape],
    body: Shape | None = None,
    errors: Sequence[int] = (400,),
    is_open: bool = False,
    media: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Arguments for a route's decorator: what it takes and answers. `is_open`: without a token."""
    responses: dict[int | str, dict[str, Any]] = {
        status: {
            "description": "Done" if status < 400 else MEANINGS[status],
            "content": {"application/json": {"schema": _ref(shape)}, **(media or {})},
        }
        for status, shape in ok.items()
    }
    for status in sorted({*errors, *(() if is_open else ALWAYS)}):
        responses.setdefault(
            status,
            {
                "description": MEANINGS[status],
                "content": {"application/json": {"schema": _ref(ErrorReply)}},
            },
        )
    extra: dict[str, Any] = {"security": [] if is_open else [{"token": []}, {}]}
    if body is not None:
        extra["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(body)}},
        }
    return {
        "summary": summary,
        "responses": responses,
        "openapi_extra": extra,
        "response_model": None,
        "status_code": min(ok),
    }


def event_stream(summary: str) -> dict[str, Any]:
    """As `describe`, for a stream of events."""
    described = describe(summary, ok={200: ErrorReply}, errors=(400, 403, 429))
    described["responses"][200] = {
        "description": "Events: `message`, `gap` and `error`",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    return described


def build(app: FastAPI) -> dict[str, Any]:
    """The document. FastAPI's own shapes of errors, which are not sent, are left out."""
    if app.openapi_schema:
        return app.openapi_schema
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=app.openapi_tags,
    )
    _, shapes = msgspec.json.schema_components(
        sorted(_shapes, key=lambda shape: shape.__name__), ref_template=REF
    )
    document["components"] = {"schemas": shapes, "securitySchemes": SECURITY}
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    app.openapi_schema = document
    return document


def _ref(shape: Shape) -> dict[str, Any]:
    if isinstance(shape, tuple):
        return {"oneOf": [_ref(one) for one in shape]}
    _shapes.add(shape)
    return {"$ref": REF.format(name=shape.__name__)}
