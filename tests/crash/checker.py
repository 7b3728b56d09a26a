"""What must hold whatever was killed when: a total-queue checker after Jepsen's.

Nothing acknowledged is lost, nothing is there that was not sent, nothing is there twice, each
publisher's messages stand in its order, ids have no gaps; a follower misses nothing, and repeats
only the batch it had in hand when it was killed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

import penstock
from tests.crash.processes import Actor


def whole_log(hub: penstock.Hub) -> list[penstock.Message]:
    return hub.topics.read("*", limit=10_000_000)


def check_file(hub: penstock.Hub) -> None:
    with hub.connection() as connection:
        assert connection.execute("PRAGMA integrity_check") == [("ok",)]


def acknowledged(actor: Actor) -> dict[int, int]:
    """From the sender's number to the id in its receipt."""
    return {
        int(n): int(number)
        for line in actor.heard("acked")
        for n, number in (item.split(":") for item in line)
    }


def check_ids(log: Sequence[penstock.Message], last_id: int) -> None:
    assert [message.id for message in log] == list(range(1, last_id + 1))


def check_publisher(
    log: Iterable[penstock.Message], name: str, lives: Sequence[Actor], in_flight: int
) -> int:
    """Returns how many acknowledged messages were found."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for message in log:
        if message.payload[0] == name:
            found[message.payload[1]].append((message.payload[2], message.id))
    assert set(found) <= set(range(len(lives))), "messages of a run that never was"
    total = 0
    for run, life in enumerate(lives):
        acked = acknowledged(life)
        written = dict(found[run])
        lost = {n: number for n, number in acked.items() if written.get(n) != number}
        assert not lost, f"{name}, run {run}: acknowledged but not there: {lost}"
        numbers = [n for n, _ in found[run]]
        assert numbers == list(range(len(numbers))), f"{name}, run {run}: repeated or reordered"
        assert len(numbers) - len(acked) <= in_flight, f"{name}, run {run}: more than was under way"
        total += len(acked)
    return total


def batches(actor: Actor) -> list[list[int]]:
    return [[int(word) for word in line] for line in actor.heard("batch")]


def check_follower(expected: Sequence[int], lives: Sequence[Sequence[Sequence[int]]]) -> int:
    """`lives`: the batches of each incarnation. Returns how many messages were repeated."""
    place = {number: index for index, number in enumerate(expected)}
    repeated = 0
    reached = 0
    in_hand = 0
    for life in lives:
        got = list(itertools.chain.from_iterable(life))
        if not got:
            continue
        assert got[0] in place, f"message {got[0]} was not for this follower"
        start = place[got[0]]
        # It begins behind the last batch of the life before, or with it, if that was lost.
        assert start in (reached, in_hand), (
            f"resumed at {start}; the batch in hand was {in_hand} to {reached}"
        )
        assert got == list(expected[start : start + len(got)]), "missed, repeated or reordered"
        repeated += reached - start
        reached = start + len(got)
        in_hand = reached - len(life[-1])
    assert reached == len(expected), f"stopped at {reached} of {len(expected)}"
    return repeated
