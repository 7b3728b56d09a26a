"""Locks over all processes: held once, renewed, fenced; and leaders (J11)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.errors import InvalidInput, LeaseLost, LockTimeout
from penstock.model import Lease
from tests.processes import Child
from tests.waiting import SOON, wait_until

OpenHub = Callable[..., penstock.Hub]


def test_a_lock_is_held_by_one(open_hub: OpenHub) -> None:
    first, second = open_hub(), open_hub()
    with first.lock("nightly") as lock:
        assert lock.is_held
        lock.check()
        assert not second.lock("nightly").acquire(blocking=False)
        assert not first.lock("nightly").acquire(False)
        assert second.lock("another").acquire(False)
    assert not lock.is_held
    assert second.lock("nightly").acquire(False)


def test_tokens_rise(memory: penstock.Hub) -> None:
    tokens = []
    for _ in range(3):
        with memory.lock("l") as lock:
            tokens.append(lock.token)

    assert tokens == sorted(set(tokens))


def test_whoever_waits_gets_it_when_it_is_free(open_hub: OpenHub) -> None:
    first, second = open_hub(), open_hub()
    got = threading.Event()
    lock = first.lock("l")
    assert lock.acquire()

    def wait() -> None:
        with second.lock("l"):
            got.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not got.wait(0.05)
    lock.release()
    assert got.wait(SOON)
    waiting.join(SOON)


def test_waiting_has_an_end(memory: penstock.Hub) -> None:
    with memory.lock("l"):
        assert memory.lock("l").acquire(timeout=0.02) is False
        with pytest.raises(LockTimeout, match=r"0\.02 seconds"), memory.lock("l", timeout=0.02):
            raise AssertionError("never inside")


def test_many_threads_never_hold_it_twice(open_hub: OpenHub) -> None:
    hubs = [open_hub(durability="os") for _ in range(3)]
    inside: list[int] = []
    most: list[int] = []

    def work(hub: penstock.Hub) -> None:
        for _ in range(5):
            with hub.lock("l"):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work, args=(hub,)) for hub in hubs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert most == [1] * 30


def test_a_lock_is_renewed_by_itself(open_hub: OpenHub) -> None:
    """Also a short one beside a long one, whose time to be renewed is far away."""
    first, second = open_hub(), open_hub()
    with first.lock("long", 60), first.lock("short", 3) as lock:
        # Twice its lease, during which the other side tries again and again.
        assert not second.lock("short").acquire(timeout=6)
        assert lock.is_held


def test_what_is_not_held_says_so(memory: penstock.Hub) -> None:
    lock = memory.lock("l")
    for use in (lock.check, lambda: lock.token, lock.release):
        with pytest.raises(LeaseLost):
            use()
    assert not lock.is_held


def test_one_object_is_one_holder(memory: penstock.Hub) -> None:
    with memory.lock("l") as lock, pytest.raises(InvalidInput, match="already"):
        lock.acquire(False)


@pytest.mark.parametrize(("name", "seconds"), [("", 30), ("a\n", 30), ("a", 0), ("a", -1)])
def test_what_makes_no_sense_is_refused(memory: penstock.Hub, name: str, seconds: float) -> None:
    with pytest.raises(InvalidInput):
        memory.lock(name, seconds)


def test_a_lost_lock_is_told_at_the_end_of_the_block(memory: penstock.Hub) -> None:
    with pytest.raises(LeaseLost), memory.lock("l") as lock:
        steal(memory, lock.token)
    with pytest.raises(ZeroDivisionError), memory.lock("l") as lock:
        steal_and_fail(memory, lock.token)  # The user's own error is not hidden.


def steal_and_fail(hub: penstock.Hub, token: int) -> None:
    steal(hub, token)
    raise ZeroDivisionError


def steal(hub: penstock.Hub, token: int) -> None:
    """As another process does when the lease has run out."""
    runtime = hub._open()
    lease = penstock.model.Lease("lock\x1fl", token, runtime.name)
    assert runtime.committer.run(lambda tx: tx.leases.release(lease)).wait()


# Holders that end or hang


HOLDER = """
    import sys, time, penstock
    hub = penstock.connect(sys.argv[1])
    lock = hub.lock("l", float(sys.argv[2]))
    assert lock.acquire()
    print(lock.token, flush=True)
    sys.stdin.readline()
    print("held" if lock.is_held else "lost", flush=True)
    try:
        lock.check()
        lock.release()
        print("released", flush=True)
    except penstock.LeaseLost:
        print("refused", flush=True)
    try:
        lock.release()
    except penstock.LeaseLost:
        pass
    sys.stdin.readline()
"""


def test_the_lock_of_a_killed_holder_is_free_at_once(hub: penstock.Hub, path: Path) -> None:
    """Long before its lease has run out."""
    with Child(HOLDER, f"sqlite:///{path}", 3600) as child:
        token = int(child.hear())
        assert not hub.lock("l").acquire(False)
        child.kill()
        with hub.lock("l", timeout=SOON) as lock:
            assert lock.token > token


def test_a_suspended_holder_knows_at_once_that_it_lost_the_lock(
    open_hub: OpenHub, path: Path
) -> None:
    """SIGSTOP for longer than the lease: the first look after SIGCONT says that it is lost,
    before anything was renewed, and the next holder's token is higher."""
    hub = open_hub(lock_timeout_seconds=0.5)
    with Child(HOLDER, f"sqlite:///{path}", 0.5) as child:
        token = int(child.hear())
        child.stop_between_writes(lambda: hub.topics.publish("any", 1))
        lock = hub.lock("l", timeout=SOON)
        with lock:
            assert lock.token > token
            child.tell()
            child.go_on()
            assert child.hear() == "lost"
            assert child.hear() == "refused"
            lock.check()
            assert not hub.lock("l").acquire(False)


# As coroutines


async def test_locks_on_an_event_loop(memory: penstock.Hub) -> None:
    order: list[str] = []

    async def work(name: str) -> None:
        async with memory.aio.lock("l") as lock:
            order.append(f"{name} in")
            lock.check()
            await asyncio.sleep(0.005)
            order.append(f"{name} out")

    await asyncio.gather(*(work(name) for name in "abc"))
    assert [line[-2:] for line in order[::2]] == ["in"] * 3
    assert [line[0] for line in order[::2]] == [line[0] for line in order[1::2]]


async def test_a_lock_is_shared_by_threads_and_coroutines(memory: penstock.Hub) -> None:
    async with memory.aio.lock("l"):
        assert not memory.lock("l").acquire(False)
        assert await memory.aio.lock("l").acquire(False) is False
        with pytest.raises(LockTimeout):
            async with memory.aio.lock("l", timeout=0.02):
                raise AssertionError("never inside")
    assert await memory.aio.lock("l").acquire(False) is True


async def test_a_cancelled_wait_leaves_nothing_held(memory: penstock.Hub) -> None:
    for delay in (0.0, 0.0005, 0.001, 0.003):
        lock = memory.aio.lock("l")
        waiting = asyncio.create_task(lock.acquire())
        await asyncio.sleep(delay)
        waiting.cancel()
        try:
            if await waiting:
                # It had it already: as with any lock, whoever cancels has to know.
                await lock.release()
        except asyncio.CancelledError:
            pass
        free = memory.aio.lock("l", timeout=SOON)
        async with free:
            free.check()


def test_a_lock_whose_object_is_gone_is_free_when_its_time_is_over(open_hub: OpenHub) -> None:
    """Nobody could give it back."""
    first, second = open_hub(), open_hub()
    assert first.lock("l", lease_seconds=0.5).acquire()
    assert not second.lock("l").acquire(False)
    assert second.lock("l").acquire(timeout=SOON)


# Leaders


def test_one_of_all_leads_and_another_follows(open_hub: OpenHub) -> None:
    first, second = open_hub().leader("reports", 30), open_hub().leader("reports", 30)
    leaders = (first, second)
    wait_until(lambda: any(one.is_leader for one in leaders), "one leads")
    leader, other = leaders if first.is_leader else leaders[::-1]
    assert leader.wait(0)
    assert not other.wait(0.01)
    token = leader.token
    with pytest.raises(LeaseLost):
        assert other.token
    leader.stop()
    assert other.wait(SOON)
    assert other.token > token
    assert not leader.is_leader
    other.stop()


def test_a_leader_ends_with_its_hub(open_hub: OpenHub) -> None:
    hub, other = open_hub(), open_hub()
    leader = hub.leader("reports", 0.3)
    assert leader.wait(SOON)
    hub.close()
    with other.leader("reports") as heir:
        assert heir.wait(SOON)
        wait_until(lambda: not leader.is_leader and not leader.is_running, "the first has ended")


def test_a_lease_that_comes_while_others_are_renewed_is_not_forgotten(open_hub: OpenHub) -> None:
    """The keeper is waiting for the database, and would sleep for long afterwards."""
    hub, other = open_hub(), open_hub()
    runtime = hub._open()
    runtime.start_reading()

    def take(name: str, seconds: float) -> Lease:
        key = hub.lock(name)._key()
        lease = runtime.committer.run(
            lambda tx: tx.leases.acquire(key, owner=runtime.name, seconds=seconds)
        ).wait()
        assert lease is not None
        return lease

    long, short = take("long", 60), take("short", 3)
    with other.transaction() as tx:
        tx.publish("t", 1)
        runtime.keeper.keep(long, lambda: None, seconds=60)
        wait_until(lambda: not runtime.committer.is_idle)
        kept = runtime.keeper.keep(short, lambda: None, seconds=3)
    assert not other.lock("short").acquire(timeout=4)
    assert kept.is_held
