"""The remote client: a hub's names, over WebSocket and HTTP.

What a program does with `penstock.connect("sqlite:///…")` it does with
`penstock.client.connect("https://…")`, on another machine. A lost connection is made again, with
subscriptions resumed by position and publishes stored once.
"""

from penstock.client.addresses import is_remote
from penstock.client.hub import AsyncRemoteHub, RemoteHub, connect

__all__ = ["AsyncRemoteHub", "RemoteHub", "connect", "is_remote"]
