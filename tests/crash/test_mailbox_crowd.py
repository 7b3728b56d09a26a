"""Many processes on the same mailboxes, and what becomes of them (fault table rows 14 and 18).

Decision 10 replaces "a second process is refused" by "any process may use any box": the total-queue
checker says whether that holds, with and without kills.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.mail import MailKind
from tests.factories import file_url, hub_on
from tests.waiting import DEADLINE_SECONDS, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

ACTORS = Path(__file__).with_name("mailbox_actors.py")
BOXES = [f"box-{n}" for n in range(6)]
SETTINGS = {"mailbox_messages_max": 40, "mailbox_file_messages_max": 50}

SLOWEST_PER_SECOND = 1_000
"""As slow as a machine may be with its puts."""


class Actor:
    """One process. What it said stays when it is dead."""

    def __init__(self, role: str, url: str, **options: Any) -> None:
        self.role = role
        self.lines: list[list[str]] = []
        self._counts = Counter[str]()
        self._process = subprocess.Popen(
            [sys.executable, str(ACTORS), role, url, json.dumps({"settings": SETTINGS} | options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ACTORS.parents[2],
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                words = line.decode().split()
                self.lines.append(words)
                self._counts[words[0]] += 1

    def count(self, word: str) -> int:
        return self._counts[word]

    def said(self, word: str) -> list[tuple[str, str]]:
        return [(line[1], line[2]) for line in list(self.lines) if line[0] == word]

    def expect(self, word: str, count: int = 1) -> None:
        def has_said() -> bool:
            assert self._process.poll() in (None, 0), self._complaint()
            return self.count(word) >= count

        seconds = 4 * DEADLINE_SECONDS + count / SLOWEST_PER_SECOND
        wait_until(has_said, f"{self.role}: {word} {count} times", seconds=seconds)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self.finish()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        assert self._process.wait(4 * DEADLINE_SECONDS) == 0, self._complaint()
        self.finish()

    def finish(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue

    def _complaint(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read().decode()


class Crowd:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = file_url(path)
        self.actors: list[Actor] = []
        self.lives = Counter[str]()

    def producer(self, name: str, **options: Any) -> Actor:
        self.lives[name] += 1
        life = f"{name}-{self.lives[name]}"
        self.actors.append(Actor("produce", self.url, name=life, boxes=BOXES, **options))
        return self.actors[-1]

    def consumer(self, **options: Any) -> Actor:
        self.actors.append(Actor("consume", self.url, boxes=BOXES, **options))
        return self.actors[-1]

    def close(self) -> None:
        for actor in self.actors:
            actor.finish()

    def check(self) -> int:
        """Drain what is left, and compare. Returns how many messages were promised."""
        got: dict[str, list[list[str]]] = defaultdict(list)
        for actor in self.actors:
            by_reader: dict[tuple[str, str], list[str]] = defaultdict(list)
            for line in actor.lines:
                if line[0] == "got" and line[3] == "message":
                    by_reader[line[1], line[4]].append(line[2])
            for (box, _), ids in by_reader.items():
                got[box].append(ids)
        left: dict[str, list[str]] = {}
        with hub_on(self.path, **SETTINGS) as hub:
            assert hub.mailboxes.verify().is_clean
            for box in BOXES:
                mails = hub.mailboxes.open(box).peek_many(1000)
                assert not [mail for mail in mails if mail.kind == MailKind.GAP]
                assert [mail.seq for mail in mails] == sorted({mail.seq for mail in mails})
                left[box] = [mail.id for mail in mails if mail.kind == MailKind.MESSAGE]
                got[box].append(left[box])
        promised = {pair for actor in self.actors for pair in actor.said("ok")}
        read = {(box, id) for box, lives in got.items() for ids in lives for id in ids}
        lost = promised - read
        assert not lost, f"promised and never read: {sorted(lost)[:10]}"
        known = {f"{name}-{life}" for name in self.lives for life in range(1, 1 + self.lives[name])}
        for box, id in read:
            assert re.fullmatch(r"[^.]+\.\d+\.\d+", id), f"{box}: {id} was never sent"
            assert id.partition(".")[0] in known, f"{box}: {id} was never sent"
        acked = {pair for actor in self.actors for pair in actor.said("acked")}
        again = {(box, id) for box in BOXES for id in left[box]} & acked
        assert not again, f"acknowledged, and there again: {sorted(again)[:10]}"
        for box, lives in got.items():
            for ids in lives:
                check_order(box, ids)
        return len(promised)


def check_order(box: str, ids: list[str]) -> None:
    """A reader gets each sender's messages in their order. It may get one again that it had when
    another reader was faster, and never goes back behind that."""
    last: dict[tuple[str, str], int] = {}
    for id in ids:
        name, thread, n = id.split(".")
        key = (name, thread)
        assert int(n) >= last.get(key, -1), f"{box}: {id} came after {last[key]}"
        last[key] = int(n)


@pytest.fixture
def crowd(path: Path) -> Iterator[Crowd]:
    crowd = Crowd(path)
    yield crowd
    crowd.close()


def test_several_processes_on_the_same_boxes(crowd: Crowd) -> None:
    """Row 14, as decided: all put into all boxes and read from all, and the checker is clean."""
    producers = [crowd.producer(f"p{n}", threads=4, count=150, is_counted=True) for n in range(3)]
    consumers = [crowd.consumer(threads=3) for _ in range(2)]
    for producer in producers:
        producer.expect("done")
    for consumer in consumers:
        consumer.expect("acked")
        consumer.stop()
    assert crowd.check() == 3 * 4 * 150


def disorder(crowd: Crowd, seconds: float, seed: int = 1) -> int:
    """Sixty-four threads in eight processes, some of them killed, stopped and started again."""
    chance = random.Random(seed)
    producers = {f"p{n}": crowd.producer(f"p{n}") for n in range(4)}
    consumers = [crowd.consumer() for _ in range(4)]
    for actor in crowd.actors[:]:
        actor.expect("ready")
    ends_at = time.monotonic() + seconds
    kills = 0
    # On a slow machine it takes longer until enough has happened.
    while time.monotonic() < ends_at or kills < 4 or not _has_moved(crowd):
        time.sleep(chance.uniform(0.1, 0.6))
        choice = chance.random()
        if choice < 0.4:
            name = chance.choice(sorted(producers))
            producers[name].kill()
            producers[name] = crowd.producer(name)
            kills += 1
        elif choice < 0.8:
            place = chance.randrange(len(consumers))
            consumers[place].kill()
            consumers[place] = crowd.consumer()
            kills += 1
        else:
            stopped = chance.choice([*producers.values(), *consumers])
            stopped.signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.05, 0.3))
            stopped.signal(signal.SIGCONT)
    for actor in (*producers.values(), *consumers):
        actor.expect("ready")
    for actor in (*producers.values(), *consumers):
        actor.stop()
    return crowd.check()


def _has_moved(crowd: Crowd) -> bool:
    acked = sum(actor.count("acked") for actor in crowd.actors)
    return acked > 200 and sum(actor.count("ok") for actor in crowd.actors) > 200


def test_killed_and_stopped_at_random(crowd: Crowd) -> None:
    """Row 18, for some seconds."""
    assert disorder(crowd, 6) > 200


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_killed_and_stopped_at_random_for_ten_minutes(crowd: Crowd) -> None:
    """Row 18."""
    assert disorder(crowd, 600, seed=int(time.time())) > 10_000


def puts_until_killed(crowd: Crowd, count: int) -> None:
    """One process puts, is killed in the middle, and all it promised is there, in order."""
    boxes = [f"many-{n}" for n in range(50)]
    options = {"settings": {"mailbox_messages_max": count, "mailbox_file_messages_max": count + 1}}
    crowd.lives["p"] += 1
    actor = Actor("produce", crowd.url, name="p-1", boxes=boxes, threads=8, **options)
    crowd.actors.append(actor)
    actor.expect("ok", count)
    actor.kill()
    promised = defaultdict(list)
    for box, id in actor.said("ok"):
        promised[box].append(id)
    with penstock.connect(crowd.url, **options["settings"]) as hub:
        assert hub._open().mail.folder.recovered == 1
        for box in boxes:
            found = [mail.id for mail in hub.mailboxes.open(box).peek_many(count)]
            check_order(box, found)
            assert set(promised[box]) <= set(found)
            assert len(set(found)) == len(found)
        assert hub.mailboxes.verify().is_clean


def test_killed_in_the_middle_of_many_puts_all_accepted_ones_are_there(crowd: Crowd) -> None:
    """M12."""
    puts_until_killed(crowd, 5_000)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_killed_in_the_middle_of_a_million_puts(crowd: Crowd) -> None:
    """M12, as the word has it."""
    puts_until_killed(crowd, 1_000_000)
