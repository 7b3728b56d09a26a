"""Feeders of mailboxes that are killed: nothing is skipped, repeats are dropped (D12, M12)."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

import penstock
from penstock.mail import MailKind
from penstock.mailboxes.mailboxes import Mailbox
from penstock.mailboxes.news import BATCH_MAX
from tests.factories import file_url, hub_on
from tests.processes import Child
from tests.waiting import wait_until

pytestmark = pytest.mark.crash

FEED = """
    import os, random, signal, sys
    import penstock
    from penstock.mailboxes.feeder import Feeder
    from penstock.settings import load

    url, when, seed = sys.argv[1:4]
    chance = random.Random(int(seed))
    note = Feeder._note

    def die(self, moves):
        moves = list(moves)
        is_news = any(move.is_news for move in moves)
        if when == "before note" and is_news:
            os.kill(os.getpid(), signal.SIGKILL)
        note(self, moves)
        if when == "after note" and is_news and chance.random() < 0.5:
            os.kill(os.getpid(), signal.SIGKILL)

    if when != "never":
        Feeder._note = die
    hub = penstock.Hub(load(url, environ={}))
    feeder = hub.start_feeding()
    print("started", flush=True)
    sys.stdin.readline()
    hub.close()
    """


def read_all(hub: penstock.Hub, mailbox: str) -> list[object]:
    box, found = hub.mailboxes.open(mailbox), []
    while (mail := box.peek()) is not None:
        box.ack(mail.id)
        assert mail.kind == MailKind.MESSAGE
        found.append(mail.payload)
    return found


def is_fed(hub: penstock.Hub, through: int) -> bool:
    return all(s.position.offset >= through for s in hub.mailboxes.subscriptions())


@pytest.mark.parametrize("when", ["before note", "after note"])
def test_killed_between_the_put_and_the_note_nothing_is_missing_or_twice(
    path: Path, when: str
) -> None:
    """Each feeder dies at the same place; recipients read meanwhile, and see each message once."""
    names = [f"box-{number}" for number in range(5)]
    with hub_on(path) as hub:
        for name in names:
            hub.mailboxes.subscribe(name, "orders")
        seen: dict[str, list[object]] = {name: [] for name in names}
        published = 0
        for life in range(6):
            hub.topics.publish_many("orders", [published + n for n in range(20)])
            published += 20
            with Child(FEED, file_url(path), when, life) as child:
                if when == "before note":
                    child.wait()
                else:
                    wait_until(partial(is_fed, hub, published))
            for name in names[: life % 5 + 1]:
                seen[name] += read_all(hub, name)
        with Child(FEED, file_url(path), "never", 0):
            wait_until(partial(is_fed, hub, published))
        for name in names:
            assert seen[name] + read_all(hub, name) == list(range(published)), name


def test_killed_at_any_moment_another_takes_over_and_all_comes_in_order(path: Path) -> None:
    """Three feeders, killed and started again while messages are published and read."""
    chance = random.Random(7)
    with hub_on(path, mailbox_messages_max=40, mailbox_file_messages_max=64) as hub:
        names = [f"box-{number}" for number in range(8)]
        for name in names:
            hub.mailboxes.subscribe(name, "orders")
        feeders = [Child(FEED, file_url(path), "never", 0) for _ in range(3)]
        seen: dict[str, list[object]] = {name: [] for name in names}
        deaths = 0
        try:
            for start in range(0, 600, 30):
                hub.topics.publish_many("orders", list(range(start, start + 30)))
                for name in chance.sample(names, 4):
                    seen[name] += read_all(hub, name)
                if start % 90 == 0:
                    victim = chance.randrange(len(feeders))
                    deaths += 1
                    feeders[victim].kill()
                    feeders[victim].__exit__(None, None, None)
                    feeders[victim] = Child(FEED, file_url(path), "never", 0)

            def is_complete() -> bool:
                for name in names:
                    seen[name] += read_all(hub, name)
                return all(seen[name] and seen[name][-1] == 599 for name in names)

            wait_until(is_complete, "everybody has the last message")
        finally:
            for feeder in feeders:
                feeder.__exit__(None, None, None)
    for name in names:
        order = list(dict.fromkeys(seen[name]))
        assert order == list(range(600)), name
        # A box drops what comes again as far as it remembers; at most a batch for each death.
        assert len(seen[name]) - len(order) <= deaths * BATCH_MAX, name


@pytest.mark.slow
def test_a_thousand_mailboxes_half_of_them_offline_each_drains_its_own_later(path: Path) -> None:
    """The others, who read as it comes, wait for nobody."""
    count, messages = 1_000, 60
    with hub_on(path, mailbox_messages_max=20, mailbox_file_messages_max=32) as hub:
        boxes = [hub.mailboxes.open(f"box-{number}") for number in range(count)]
        for box in boxes:
            hub.mailboxes.subscribe(box.id, "news")
        online, offline = boxes[::2], boxes[1::2]
        read: dict[str, list[object]] = {box.id: [] for box in boxes}
        feeder = hub.start_feeding()

        def read_on(some: list[Mailbox]) -> int:
            for box in some:
                found = box.peek_many(20)
                if found:
                    read[box.id] += [mail.payload for mail in found]
                    box.ack(found[-1].id, through=True)
            return min(len(read[box.id]) for box in some)

        for start in range(0, messages, 10):
            hub.topics.publish_many("news", list(range(start, start + 10)))
            wait_until(lambda: read_on(online) >= start + 10)  # noqa: B023 - called at once
        assert [box.size() for box in offline] == [20] * len(offline)
        assert feeder.status().full == len(offline)
        wait_until(lambda: read_on(offline) >= messages, "those who were away have all of it")
    for box in boxes:
        assert read[box.id] == list(range(messages)), box.id
