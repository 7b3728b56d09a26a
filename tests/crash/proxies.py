"""A load balancer in front of several servers: nginx, haproxy, or a small one of our own.

In CI one of the real ones must be there. Whichever it is, a connection goes to any server that
answers, and what is broken on one side is broken on the other.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.crash.processes import PATIENCE_SECONDS, until

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream penstock {{
        {servers}
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://penstock;
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
            proxy_set_header Host $host;
            proxy_read_timeout 60s;
        }}
    }}
}}
"""

HAPROXY = """
defaults
    mode http
    retries 3
    option redispatch 1
    timeout connect 1s
    timeout client 60s
    timeout server 60s
    timeout tunnel 1h
frontend clients
    bind 127.0.0.1:{port}
    default_backend penstock
backend penstock
    balance roundrobin
    {servers}
"""


@contextmanager
def balanced(folder: Path, ports: Sequence[int]) -> Iterator[int]:
    """The port that leads to one of the ports."""
    program = _find("nginx") or _find("haproxy")
    if program is None:
        assert not os.environ.get("CI"), "CI tests with a real proxy; install nginx or haproxy"
        with _own_proxy(ports) as port:
            yield port
        return
    port = _free_port()
    process = subprocess.Popen(
        _command(program, folder, port, ports),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: process.poll() is not None or _listens(port), f"{program} listens")
        assert process.poll() is None, f"{program} ended with {process.returncode}"
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _command(program: str, folder: Path, port: int, ports: Sequence[int]) -> list[str]:
    if Path(program).name == "nginx":
        servers = "\n".join(f"server 127.0.0.1:{n} max_fails=0;" for n in ports)
        file = folder / "nginx.conf"
        file.write_text(NGINX.format(folder=folder, port=port, servers=servers))
        return [program, "-p", str(folder), "-e", str(folder / "nginx-error.log"), "-c", str(file)]
    servers = "\n    ".join(f"server s{n} 127.0.0.1:{n}" for n in ports)
    file = folder / "haproxy.cfg"
    file.write_text(HAPROXY.format(port=port, servers=servers))
    return [program, "-db", "-f", str(file)]


def _find(name: str) -> str | None:
    # Where Debian puts it is not on every user's path.
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _own_proxy(ports: Sequence[int]) -> Iterator[int]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(_listen(ports), loop).result(PATIENCE_SECONDS)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result(PATIENCE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_SECONDS)
        loop.close()


async def _listen(ports: Sequence[int]) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for port in random.sample(list(ports), len(ports)):
            try:
                there, back = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
            return
        writer.transport.abort()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
    except OSError:
        writer.transport.abort()


async def _stop(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
