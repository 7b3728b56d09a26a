"""The remote client: a hub's names, over WebSocket and HTTP.

What a program does with `penstock.connect("sqlite:///…")` it does with
`penstock.client.connect("https://…")`, on another machine. A lost connection is made again, with
subscriptions resumed by position and publishes stored once.
"""

from penstock.client.addresses import is_remote
from penstock.errors import Unsupported

try:
    from penstock.client.hub import AsyncRemoteHub, RemoteHub, connect
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("httpx", "websockets"):
        raise
    raise Unsupported(
        "The remote client needs httpx and websockets.", hint="pip install 'penstock[client]'"
    ) from missing

__all__ = ["AsyncRemoteHub", "RemoteHub", "connect", "is_remote"]
