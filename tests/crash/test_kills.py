"""SIGKILL at any instant: nothing acknowledged is lost, nothing repeated, no follower misses."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import penstock
from penstock import LogTrimmed, Position
from penstock.model import Pattern
from tests.crash import actors, checker
from tests.crash.processes import Actor, Victim, company, doomed, until

pytestmark = pytest.mark.crash

RUN_SECONDS = 9.0
SWEEP_KILLS = 12


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'hub.db'}"


def kill_publishers_and_followers(url: str, seconds: float) -> None:
    publishers = {
        "one": (Victim("publish_one_by_one", url, seed=1, name="one"), 1),
        "flight": (Victim("publish_in_flight", url, seed=2, name="flight"), actors.IN_FLIGHT),
        "many": (Victim("publish_many", url, seed=3, name="many"), actors.MANY_MAX),
    }
    patterns = {"all": "load-*", "odd": "load-odd"}
    followers = {
        consumer: Victim("follow", url, seed=4 + n, pattern=pattern, consumer=consumer)
        for n, (consumer, pattern) in enumerate(patterns.items())
    }
    victims = [victim for victim, _ in publishers.values()] + list(followers.values())
    with doomed(*victims) as await_lives:
        victims[0].join(seconds)
        await_lives(round(seconds / 2))
        for victim, _ in publishers.values():
            until(lambda victim=victim: any(life.heard("acked") for life in victim.lives), "acks")

    with penstock.connect(url) as hub:
        log = checker.whole_log(hub)
        checker.check_file(hub)
        checker.check_ids(log, hub.topics.position().offset)
        for name, (victim, in_flight) in publishers.items():
            assert checker.check_publisher(log, name, victim.lives, in_flight) > 0
        for consumer, victim in followers.items():
            pattern = Pattern.parse(patterns[consumer])
            expected = [message.id for message in log if pattern.matches(message.topic)]
            lives = [checker.batches(life) for life in victim.lives]
            lives.append(drain(url, patterns[consumer], consumer, expected[-1]))
            checker.check_follower(expected, lives)


def drain(url: str, pattern: str, consumer: str, last: int) -> list[list[int]]:
    """The follower's last life: it is left alone until it has everything."""
    with company() as start:
        follower = start("follow", url, pattern=pattern, consumer=consumer)
        follower.expect("ready")
        with penstock.connect(url) as hub:
            until(
                lambda: (
                    any(str(last) in line for line in follower.heard("batch"))
                    or hub.consumers.get(consumer, pattern).position.offset >= last
                ),
                "the follower has caught up",
            )
        follower.kill()
        return checker.batches(follower)


def test_killed_publishers_and_followers_lose_nothing(url: str) -> None:
    """T3, T4: acknowledged once is there once, in order; followers resume without a gap."""
    kill_publishers_and_followers(url, RUN_SECONDS)


def test_killed_transactions_are_all_or_nothing(url: str) -> None:
    """T4: three messages and a row of the user's own table, or none of them."""
    victim = Victim("transact", url, seed=7, name="tx", life_seconds=(0.0, 0.15))
    with doomed(victim) as await_lives:
        await_lives(11)
    with penstock.connect(url) as hub:
        log = checker.whole_log(hub)
        checker.check_file(hub)
        checker.check_ids(log, hub.topics.position().offset)
        triples = [tuple(message.payload) for message in log]
        groups = triples[::3]
        assert triples == [group for group in groups for _ in range(3)]
        assert len(set(groups)) == len(groups)
        with hub.connection() as connection:
            own = connection.execute("SELECT name, run, n FROM own ORDER BY rowid")
        assert own == groups
        for run, life in enumerate(victim.lives):
            written = [n for _, r, n in groups if r == run]
            acked = list(checker.acknowledged(life))
            assert written[: len(acked)] == acked
            assert len(written) - len(acked) <= 1


def test_nothing_of_a_transaction_killed_inside_is_visible(url: str) -> None:
    """T4: killed after its writes and before its commit, it has not happened."""
    with company() as start, penstock.connect(url) as hub:
        before = hub.topics.publish("held", "before").id
        holder = start("hold_transaction", url)
        holder.expect("inside")
        holder.kill()
        assert hub.topics.publish("held", "after").id == before + 1
        assert [message.payload for message in hub.topics.read("held")] == ["before", "after"]
        with hub.connection() as connection:
            assert connection.execute("SELECT 1 FROM sqlite_master WHERE name='unseen'") == []
        checker.check_file(hub)


def check_trims_are_exact(hub: penstock.Hub) -> int:
    """Reads raise LogTrimmed exactly when something was lost. Returns the highest loss."""
    end = hub.topics.position()
    highest = 0
    for topic, first in (("odd", 1), ("even", 2)):
        published = list(range(first, end.offset + 1, 2))
        there = [message.id for message in hub.topics.read(topic, limit=1_000_000)]
        lost = published[: len(published) - len(there)]
        assert there == published[len(lost) :], "removed from the middle"
        edge = lost[-1] if lost else 0
        found = hub.topics.get(topic)
        assert found.deleted_through == edge
        assert found.published == len(published)
        after = hub.topics.read(topic, after=Position(end.epoch, edge), limit=1_000_000)
        assert [message.id for message in after] == there
        if lost:
            with pytest.raises(LogTrimmed) as trimmed:
                hub.topics.read(topic, after=Position(end.epoch, edge - 1))
            assert trimmed.value.first == (Position(end.epoch, there[0]) if there else None)
        highest = max(highest, edge)
    return highest


def kill_sweeps(url: str, kills: int) -> None:
    settings = {"sweep_batch_max": 7}
    chance = random.Random(kills)
    with penstock.connect(url, **settings) as hub:
        hub.topics.create("odd", penstock.Retention(messages_max=25))
        hub.topics.create("even", penstock.Retention(messages_max=60))
        for kill in range(kills):
            with company() as start:
                sweeper = start("sweep", url, pairs=60, settings=settings)
                # Now while sweeping, now while trimming, now while publishing.
                sweeper.expect(("published", "swept", "trimmed")[kill % 3], 1 + kill % 4)
                sweeper.kill(chance.uniform(0, 0.02))
            check_trims_are_exact(hub)
            checker.check_file(hub)
        hub._open().sweeper.sweep()
        for topic in ("odd", "even"):
            # What was hidden by a killed trim has been removed, and the counters agree.
            with hub.connection() as connection:
                rows = connection.execute(
                    """SELECT count(*), coalesce(sum(length(body)), 0) FROM penstock_messages
                       WHERE topic_id = (SELECT id FROM penstock_topics WHERE name = ?)""",
                    (topic,),
                )
            found = hub.topics.get(topic)
            assert rows == [(found.messages, found.bytes)]
            assert found.messages == len(hub.topics.read(topic))
        assert check_trims_are_exact(hub) > 0


def test_trims_stay_exact_when_retention_is_killed(url: str) -> None:
    """T7: what was removed, and what deleted_through says, are one transaction."""
    kill_sweeps(url, SWEEP_KILLS)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak_kills(tmp_path: Path) -> None:
    """T3, T4, T7: the same for an hour."""
    for hour in range(6):
        kill_publishers_and_followers(f"sqlite:///{tmp_path / f'kills-{hour}.db'}", 600)
        kill_sweeps(f"sqlite:///{tmp_path / f'sweeps-{hour}.db'}", 300)


def test_a_killed_follower_is_replaced_at_once(url: str) -> None:
    """T3: the lease of a process that has ended is free, long before it runs out."""
    settings = {"consumer_lease_seconds": 3_600.0}
    with company() as start, penstock.connect(url) as hub:
        sent = [hub.topics.publish("load-x", n).id for n in range(250)]
        first: Actor = start("follow", url, pattern="load-*", consumer="one", settings=settings)
        first.expect("batch", 2)
        first.kill()
        second = start("follow", url, pattern="load-*", consumer="one", settings=settings)
        second.expect("ready")
        lives = [checker.batches(first)]
        assert lives[0], "the first follower got something"
        until(
            lambda: (
                any(str(sent[-1]) in line for line in second.heard("batch"))
                or hub.consumers.get("one", "load-*").position.offset == sent[-1]
            ),
            "the second follower has the rest",
        )
        second.kill()
        checker.check_follower(sent, [*lives, checker.batches(second)])
