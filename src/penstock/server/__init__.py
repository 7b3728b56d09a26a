"""The server: HTTP, server-sent events and WebSocket on one port, above the hub."""
