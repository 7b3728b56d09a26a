"""Processes killed and suspended at each transition of a claim: taken over once, late ones refused.

| killed | the ledger says | who comes next |
|---|---|---|
| before the claim is committed | nothing | claims it, first attempt |
| after it, in the work, before the completion is on disk | in progress, by nobody | takes it over |
| after the completion is committed | completed | gets the result |
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock
from penstock.entry import EntryState
from penstock.errors import AlreadyProcessed, InProgress
from tests.factories import file_url, hub_on
from tests.processes import Child
from tests.waiting import wait_until

pytestmark = pytest.mark.crash

HOUR = 3_600
"""A lease that no test waits for: what is taken over here is so because its process is gone."""

CLAIMER = """
import os, signal, sys
import penstock
from penstock.stores.sqlite.ledger import SqliteLedgerWriter as Writer

url, where = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying(method):
    # Written, and not committed.
    def call(self, *arguments, **keywords):
        method(self, *arguments, **keywords)
        die()
    return call

hub = penstock.connect(url)
hub.topics.position()
if where == "before claim":
    Writer.claim = dying(Writer.claim)
if where in ("before completion", "before release"):
    name = "complete" if where == "before completion" else "release"
    setattr(Writer, name, dying(getattr(Writer, name)))
claim = hub.ledger.claim("s", "k", lease_seconds=3600)
claim.__enter__()
if where == "after claim":
    die()
print("working", claim.token, flush=True)
claim.result = "first"
if where == "work":
    sys.stdin.readline()
if where in ("before release", "after release"):
    error = ValueError("failed")
    claim.__exit__(ValueError, error, None)
else:
    claim.__exit__(None, None, None)
die()
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[penstock.Hub]:
    with hub_on(tmp_path / "hub.db") as hub:
        hub.topics.position()
        yield hub


@pytest.fixture
def url(tmp_path: Path) -> str:
    return file_url(tmp_path / "hub.db")


def run_to_death(url: str, where: str) -> None:
    with Child(CLAIMER, url, where) as child:
        if where == "work":
            child.hear()
            child.kill()
        else:
            assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("where", ["before claim", "after release"])
def test_killed_where_nothing_is_claimed_the_key_is_free(
    hub: penstock.Hub, url: str, where: str
) -> None:
    run_to_death(url, where)

    assert hub.ledger.get("s", "k") is None
    with hub.ledger.claim("s", "k") as claim:
        assert claim.attempt == 1
    assert hub.ledger.count("s") == 1


@pytest.mark.parametrize("where", ["after claim", "work", "before completion", "before release"])
def test_killed_while_it_is_in_progress_it_is_taken_over_at_once(
    hub: penstock.Hub, url: str, where: str
) -> None:
    """L3: not after the lease, which is an hour."""
    run_to_death(url, where)

    found = hub.ledger.get("s", "k")
    assert found is not None
    assert (found.state, found.is_held) == (EntryState.IN_PROGRESS, False)
    assert hub.ledger.is_processed("s", "k") is False
    with hub.ledger.claim("s", "k", lease_seconds=HOUR) as claim:
        assert claim.attempt == 2
        assert claim.token > (found.token or 0)
        claim.result = "second"
    assert hub.ledger.get("s", "k").result == "second"  # type: ignore[union-attr]
    assert hub.ledger.stats()[0].in_progress == 0


def test_killed_after_the_completion_it_is_done(hub: penstock.Hub, url: str) -> None:
    run_to_death(url, "after completion")

    with pytest.raises(AlreadyProcessed), hub.ledger.claim("s", "k"):
        pass
    with hub.ledger.claim("s", "k", on_done="result") as claim:
        assert claim.result == "first"


def test_one_who_waits_gets_the_key_when_its_holder_is_killed(hub: penstock.Hub, url: str) -> None:
    with Child(CLAIMER, url, "work") as child, ThreadPoolExecutor(1) as pool:
        child.hear()
        with pytest.raises(InProgress), hub.ledger.claim("s", "k"):
            pass
        waiting = pool.submit(_take_over, hub)
        child.kill()
        assert waiting.result(60) == 2


def _take_over(hub: penstock.Hub) -> int:
    with hub.ledger.claim("s", "k", on_busy="wait") as claim:
        return claim.attempt


SLEEPER = """
import sys
import penstock
from penstock.errors import LeaseLost

hub = penstock.connect(sys.argv[1])
with hub.transaction() as tx:
    tx.execute("CREATE TABLE IF NOT EXISTS effects (who)")
try:
    with hub.ledger.claim("s", "k", lease_seconds=0.5) as claim:
        claim.result = "late"
        print("working", claim.token, flush=True)
        sys.stdin.readline()
        if sys.argv[2] == "transaction":
            with hub.transaction() as tx:
                tx.execute("INSERT INTO effects VALUES ('late')")
                tx.complete(claim)
    print("completed", flush=True)
except LeaseLost:
    print("lost", flush=True)
"""


@pytest.mark.parametrize("how", ["block", "transaction"])
def test_a_suspended_process_is_replaced_after_its_lease_and_its_answer_refused(
    hub: penstock.Hub, url: str, how: str
) -> None:
    """L3: SIGSTOP for longer than the lease, then SIGCONT: the zombie changes nothing."""
    with Child(SLEEPER, url, how) as child:
        child.hear()
        child.stop()
        with hub.ledger.claim("s", "k", on_busy="wait", timeout=60) as claim:
            assert claim.attempt == 2
            claim.result = "second"
        child.go_on()
        child.tell()
        assert child.hear() == "lost"

    assert hub.ledger.get("s", "k").result == "second"  # type: ignore[union-attr]
    with hub.connection() as connection:
        assert connection.execute("SELECT * FROM effects") == []


def test_a_busy_process_keeps_its_claim(hub: penstock.Hub, url: str) -> None:
    """The control: it is renewed while the work runs, for many times its lease."""
    with Child(SLEEPER, url, "block") as child:
        child.hear()
        seen: set[int] = set()

        def renewals() -> bool:
            with hub.connection() as connection:
                seen.update(
                    row[0]
                    for row in connection.execute(
                        "SELECT lease_until FROM penstock_ledger WHERE state = 1"
                    )
                )
            return len(seen) > 4

        wait_until(renewals, "the claim is renewed")
        with pytest.raises(InProgress), hub.ledger.claim("s", "k"):
            pass
        child.tell()
        assert child.hear() == "completed"


MARKER = """
import sys
import penstock

url, count = sys.argv[1], int(sys.argv[2])
with penstock.connect(url) as hub:
    hub.ledger.stats()
    print("ready", flush=True)
    sys.stdin.readline()
    won = [n for n in range(count) if hub.ledger.mark_processed("store", f"msg-{n}")]
    print(*won, flush=True)
"""


def test_instances_that_overlap_during_a_deployment_process_each_message_once(url: str) -> None:
    """L5: four processes, the same messages at the same time: one winner each."""
    count = 200
    children = [Child(MARKER, url, count) for _ in range(4)]
    try:
        for child in children:
            assert child.hear() == "ready"
        for child in children:
            child.tell()
        won = [int(number) for child in children for number in child.hear().split()]
    finally:
        for child in children:
            child.__exit__(None, None, None)

    assert sorted(won) == list(range(count))


WORKER = """
import os, random, signal, sys
import penstock
from penstock.errors import AlreadyProcessed, InProgress

url, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
hub = penstock.connect(url)
print("ready", flush=True)
sys.stdin.readline()
for key in chance.sample(range(count), count):
    try:
        with hub.ledger.claim("work", str(key), lease_seconds=3600) as claim:
            if chance.random() < 0.08:
                os.kill(os.getpid(), signal.SIGKILL)
            with hub.transaction() as tx:
                tx.execute("INSERT INTO effects VALUES (?)", (key,))
                tx.publish("done", key)
                tx.complete(claim)
                if chance.random() < 0.08:
                    os.kill(os.getpid(), signal.SIGKILL)
    except (AlreadyProcessed, InProgress):
        continue
print("through", flush=True)
"""


def test_effects_happen_exactly_once_though_workers_are_killed_in_the_middle(
    hub: penstock.Hub, url: str
) -> None:
    """L3, L5: three at a time, killed in the work and inside the transaction, and replaced."""
    count = 60
    with hub.transaction() as tx:
        tx.execute("CREATE TABLE effects (key INTEGER)")
    deaths = seed = 0
    while hub.ledger.count("work") < count:
        children = [Child(WORKER, url, seed + n, count) for n in range(3)]
        seed += 3
        try:
            for child in children:
                child.hear()
            for child in children:
                child.tell()
            deaths += sum(child.wait() != 0 for child in children)
        finally:
            for child in children:
                child.__exit__(None, None, None)
        assert seed < 300, "it does not get through"

    assert deaths > 0
    with hub.connection() as connection:
        effects = Counter(key for (key,) in connection.execute("SELECT key FROM effects"))
    assert effects == Counter(range(count))
    assert Counter(m.payload for m in hub.topics.read("done")) == effects
    assert hub.ledger.stats()[0].in_progress == 0


ATOMIC = """
import os, signal, sys
import penstock

hub = penstock.connect(sys.argv[1])
where = sys.argv[2]
if where == "before commit":
    from penstock.transaction import HubTransaction
    HubTransaction.commit = lambda self: os.kill(os.getpid(), signal.SIGKILL)
with hub.ledger.atomic("s", "k", limit_seconds=30) as tx:
    tx.execute("INSERT INTO effects VALUES ('x')")
    tx.publish("t", 1)
    tx.enqueue("q", "j", 1)
    if where == "inside":
        os.kill(os.getpid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("where", "happened"), [("inside", 0), ("before commit", 0), ("after commit", 1)]
)
def test_atomic_work_is_all_there_or_not_at_all(
    hub: penstock.Hub, url: str, where: str, happened: int
) -> None:
    with hub.transaction() as tx:
        tx.execute("CREATE TABLE effects (who)")
    with Child(ATOMIC, url, where) as child:
        assert child.wait() == -signal.SIGKILL

    def counts() -> list[int]:
        with hub.connection() as connection:
            (own,) = connection.execute("SELECT count(*) FROM effects")[0]
        return [
            own,
            len(hub.topics.read("t")),
            len(hub.jobs.list("q")),
            hub.ledger.count("s"),
        ]

    assert counts() == [happened] * 4
    if happened:
        with pytest.raises(AlreadyProcessed), hub.ledger.atomic("s", "k"):
            pass
    else:
        with hub.ledger.atomic("s", "k"):
            pass


FOLLOWER = """
import os, random, signal, sys
import penstock

url, seed = sys.argv[1], int(sys.argv[2])
chance = random.Random(f"life {seed}")
hub = penstock.connect(url, follow_batch_max=7)
with hub.topics.follow("t", consumer="c", start="earliest", idempotent=True) as follower:
    while batch := follower.take(timeout=0.3):
        with hub.transaction() as tx:
            for message in batch:
                tx.execute("INSERT INTO effects VALUES (?)", (message.payload,))
            tx.ack(follower)
            if chance.random() < 0.15:
                os.kill(os.getpid(), signal.SIGKILL)
        if chance.random() < 0.15:
            os.kill(os.getpid(), signal.SIGKILL)
hub.close()
"""


def test_an_idempotent_follower_killed_and_set_back_has_each_message_once(
    hub: penstock.Hub, url: str
) -> None:
    """L3, L4: after each death the consumer is set back to the beginning; the ledger knows."""
    count = 210
    with hub.transaction() as tx:
        tx.execute("CREATE TABLE effects (key INTEGER)")
    hub.topics.publish_many("t", list(range(count)))
    deaths = 0
    for seed in range(60):
        with Child(FOLLOWER, url, seed) as child:
            ended = child.wait()
        if ended == 0:
            break
        deaths += 1
        if hub.consumers.list("c"):
            hub.consumers.seek("c", "t", "earliest")

    assert ended == 0
    assert deaths > 1
    with hub.connection() as connection:
        effects = Counter(key for (key,) in connection.execute("SELECT key FROM effects"))
    assert effects == Counter(range(count))
    assert hub.ledger.count("c") == count
