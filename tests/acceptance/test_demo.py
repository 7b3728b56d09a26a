"""`make run`: two instances on one file, which messages cross in both directions (T17)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import websockets.sync.client as websockets

from tests.acceptance.terminal import Terminal
from tests.factories import file_url
from tests.waiting import wait_until


class Demo:
    """A running demo, and what it has printed so far."""

    def __init__(self, terminal: Terminal, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "penstock.demo", "--url", file_url(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=terminal.environment,
        )
        self.said = ""
        self.hear("Ctrl-C stops everything.")
        self.addresses = re.findall(r"http://127\.0\.0\.1:\d+(?=/#)", self.said)

    def hear(self, text: str) -> None:
        out = self._process.stdout
        assert out is not None
        while text not in self.said:
            line = out.readline()
            assert line, self.said
            self.said += line

    def stop(self) -> int:
        self._process.send_signal(signal.SIGINT)
        out, _ = self._process.communicate(timeout=100)
        self.said += out
        return self._process.returncode


@pytest.fixture
def demo(terminal: Terminal, tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(terminal, tmp_path / "demo.db")
    yield demo
    if demo._process.poll() is None:
        demo.stop()


@contextmanager
def subscribed(address: str, topic: str) -> Iterator[websockets.ClientConnection]:
    with websockets.connect(f"{address.replace('http', 'ws')}/ws") as socket:
        for id, command in enumerate(({"op": "connect"}, {"op": "subscribe", "topic": topic})):
            socket.send(json.dumps({"id": id, **command}))
            assert "ok" in json.loads(socket.recv(60))
        yield socket


def test_messages_cross_between_the_two_instances(demo: Demo) -> None:
    assert len(demo.addresses) == 2
    for here, there in (demo.addresses, demo.addresses[::-1]):
        with subscribed(there, "mine") as socket:
            sent = httpx.post(f"{here}/v1/topics/mine/messages", json={"payload": {"from": here}})
            assert sent.status_code in (200, 201), sent.text
            push = json.loads(socket.recv(60))
        assert [message["payload"] for message in push["messages"]] == [{"from": here}]


def test_both_show_the_page_and_the_demo_publishes(demo: Demo) -> None:
    for address in demo.addresses:
        assert "penstock" in httpx.get(address).text
    with subscribed(demo.addresses[1], "demo") as socket:
        push = json.loads(socket.recv(60))
    assert push["messages"][0]["type"] == "tick"


def test_an_instance_that_is_killed_comes_back(demo: Demo) -> None:
    pid = int(re.findall(r"kill -9 (\d+)", demo.said)[0])
    subprocess.run(["kill", "-9", str(pid)], check=True)
    demo.hear("comes back")
    demo.hear("is back")

    wait_until(lambda: httpx.get(f"{demo.addresses[0]}/health/ready").status_code == 200)


def test_ctrl_c_ends_it_in_order(demo: Demo) -> None:
    assert demo.stop() == 0
    assert demo.said.endswith("Stopping ...\n")
    with pytest.raises(httpx.ConnectError):
        httpx.get(demo.addresses[0])
