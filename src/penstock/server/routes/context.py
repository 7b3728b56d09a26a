"""What every route has at hand: the hub, the delivery core, who is calling, how to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from penstock.clock import Clock, SystemClock
from penstock.delivery.access import Access, Authenticator, covers
from penstock.errors import BadRequest, PenstockError
from penstock.hub import Hub
from penstock.server.auth import bearer
from penstock.server.limits import Connections, Proxies, PublishRates

if TYPE_CHECKING:
    from penstock.delivery.switchboard import Switchboard

T = TypeVar("T")

MONITORED = "penstock.delivery"
"""Who may read this topic knows all topics and their figures: so it is the right to monitor."""

_encode = msgspec.json.Encoder().encode


class Context:
    """One for the application, as `request.app.state.context`."""

    def __init__(
        self,
        hub: Hub,
        delivery: Switchboard,
        authenticator: Authenticator,
        connections: Connections | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.hub = hub
        self.delivery = delivery
        self.authenticator = authenticator
        self.settings = hub.settings
        self.clock = clock or SystemClock()
        self.connections = connections or Connections(hub.settings)
        self.rates = PublishRates(hub.settings, self.clock)
        self._proxies = Proxies(hub.settings.trusted_proxies)

    def access(self, request: Request) -> Access:
        """The rights of the caller. Raises `Unauthorized`."""
        return self.authenticator.authenticate(bearer(request.headers.get("authorization")))

    def address(self, request: Request) -> str:
        peer = request.client.host if request.client is not None else None
        return self._proxies.client_address(peer, request.headers.getlist("x-forwarded-for"))


def context_of(request: Request) -> Context:
    found: Context = request.app.state.context
    return found


def reply(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")


async def body_as(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """The request's body, checked. Raises `BadRequest`."""
    content_type = request.headers.get("content-type", "application/json")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise BadRequest(
            f"The body's type is {content_type!r}.", hint="Send Content-Type: application/json."
        )
    try:
        body = await request.body()
    except ClientDisconnect:
        raise BadRequest("The request ended before its body did.") from None
    return decode(body, decoder)


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except PenstockError:
        raise
    except msgspec.ValidationError as error:
        raise BadRequest(f"{error}.", hint="/docs shows what is asked for.") from None
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        raise BadRequest(f"The body is not JSON: {error}.", hint="/docs has the shapes.") from None
    except RecursionError:
        raise BadRequest("The body is nested too deeply.", hint="/docs has the shapes.") from None


def may_see(access: Access, pattern: str) -> bool:
    """Whether a topic, or a consumer on it, exists for this caller at all."""
    return any(covers(grant, pattern) for grant in (*access.subscribe, *access.admin))


def check_see(access: Access, pattern: str) -> None:
    """Raises `Forbidden` in the same words whether it exists or not."""
    if not may_see(access, pattern):
        access.check_subscribe(pattern)


def check_monitor(access: Access) -> None:
    access.check_subscribe(MONITORED)
