"""The nginx configuration of the how-to works as printed (T17, D6, D8).

Only what is the reader's own is replaced: the ports, the certificate, the name.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.docs.pages import DOCS, blocks
from tests.factories import hub_on
from tests.serving import HttpServer
from tests.waiting import wait_until

PAGE = DOCS / "howto" / "several-instances.md"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
DEADLINE_SECONDS = 60.0

pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx (apt-get install nginx-light)")


class Proxy:
    """nginx with the page's configuration, in front of two servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers = [HttpServer(folder / "hub.db", trusted_proxies=["127.0.0.1"])]
        self.servers.append(HttpServer(folder / "hub.db", trusted_proxies=["127.0.0.1"]))
        certificate, key = _make_certificate(folder)
        self.trust = ssl.create_default_context(cafile=str(certificate))
        self.port = _free_port()
        replaced = {
            "127.0.0.1:8411": f"127.0.0.1:{self.servers[0].port}",
            "127.0.0.1:8412": f"127.0.0.1:{self.servers[1].port}",
            "listen 443 ssl": f"listen 127.0.0.1:{self.port} ssl",
            "app.example.com;": "localhost;",
            "/etc/ssl/app.example.com.pem": str(certificate),
            "/etc/ssl/app.example.com.key": str(key),
        }
        [text] = [block.text for block in blocks(PAGE) if block.language == "nginx"]
        for printed, ours in replaced.items():
            assert printed in text
            text = text.replace(printed, ours)
        (folder / "penstock.conf").write_text(text)
        main = folder / "nginx.conf"
        main.write_text(_MAIN.format(folder=folder))
        assert NGINX is not None
        self._process = subprocess.Popen([NGINX, "-c", str(main), "-p", str(folder)])
        wait_until(self._answers, "nginx answers")

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, verify=self.trust, timeout=DEADLINE_SECONDS, **options)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[ClientConnection, str]]:
        """A socket through nginx, and the name of the instance it reached."""
        url = f"wss://localhost:{self.port}/ws"
        async with connect(url, ssl=self.trust, origin=self.url) as client:  # type: ignore[arg-type]
            ok = await ask(client, op="connect", id=1)
            yield client, ok["instance"]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_SECONDS)
        for server in self.servers:
            server.__exit__(None, None, None)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "nginx ended"
        try:
            return self.get("/health/live").status_code == 200
        except httpx.TransportError:
            return False


_MAIN = """
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/penstock.conf;
}}
"""


def _make_certificate(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    options = (
        "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(
        ["openssl", "req", *options.split(), "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    return certificate, key


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def ask(client: ClientConnection, **command: Any) -> dict[str, Any]:
    await client.send(json.dumps(command))
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            frame = json.loads(await client.recv())
            if frame.get("id") == command["id"]:
                ok: dict[str, Any] = frame["ok"]
                return ok


async def payloads(client: ClientConnection, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(found) < count:
            frame = json.loads(await client.recv())
            if frame.get("push") == "messages":
                found += [entry["payload"] for entry in frame["messages"]]
    return found


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    proxy = Proxy(tmp_path)
    yield proxy
    proxy.close()


async def test_a_client_resumes_through_nginx_when_its_instance_is_killed_or_stopped(
    proxy: Proxy,
) -> None:
    with hub_on(proxy.folder / "hub.db") as hub:
        async with proxy.connect() as (first, _), proxy.connect() as (second, _):
            for client in (first, second):
                await ask(client, op="subscribe", id=2, topic="orders")
            receipt = hub.topics.publish("orders", 1)
            assert await payloads(first, 1) == await payloads(second, 1) == [1]
            # least_conn has put one on each; whichever it is, the other one is not touched.
            await asyncio.to_thread(proxy.servers[0].kill)
            ended = {first, second}
            async with asyncio.timeout(DEADLINE_SECONDS):
                done, alive = await asyncio.wait(
                    [asyncio.ensure_future(s.wait_closed()) for s in ended],
                    return_when=asyncio.FIRST_COMPLETED,
                )
            assert len(done) == len(alive) == 1
            alive.pop().cancel()
        hub.topics.publish("orders", 2)
        async with proxy.connect() as (again, _):
            ok = await ask(again, op="subscribe", id=2, topic="orders", after=str(receipt.position))
            assert ok["recovered"] is True
            assert await payloads(again, 1) == [2]
            proxy.servers[1]._process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await again.wait_closed()
            assert again.close_code == 3001


def test_events_come_through_at_once(proxy: Proxy) -> None:
    with (
        hub_on(proxy.folder / "hub.db") as hub,
        httpx.stream(
            "GET",
            f"{proxy.url}/v1/topics/orders/events",
            verify=proxy.trust,
            timeout=DEADLINE_SECONDS,
        ) as events,
    ):
        assert events.status_code == 200
        lines = events.iter_lines()
        hub.topics.publish("orders", "through nginx")
        assert next(line for line in lines if "through nginx" in line)


def test_figures_are_for_this_machine_only(proxy: Proxy) -> None:
    assert proxy.get("/metrics").status_code == 200
    assert proxy.get("/health/ready").status_code == 200
    [text] = [block.text for block in blocks(PAGE) if block.language == "nginx"]
    assert "deny all" in text
