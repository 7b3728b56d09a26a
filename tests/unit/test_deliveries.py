"""What a postman takes at once, and who gets which answer (M11, M12)."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from penstock.errors import HubClosed, StoreError
from penstock.mail import NewMail, Posted
from penstock.mailboxes.deliveries import (
    Delivery,
    Ticket,
    answer,
    in_order,
    refuse,
    refuse_all,
    requests_of,
    take,
)
from penstock.mailboxes.round import Answer


def mail(id: str, size: int = 0) -> NewMail:
    return NewMail(id, bytes(size), 0)


def delivery(box: str, *ids: str, size: int = 0) -> Delivery:
    return box, [mail(id, size) for id in ids], Ticket(), False


def posted(id: str) -> Posted:
    return Posted(id, 1, False)


@pytest.mark.parametrize(
    ("counts", "sizes", "expected"),
    [
        ([], [], 0),
        ([1, 1, 1], [10, 10, 10], 3),
        ([1, 1, 1, 1], [1, 1, 1, 1], 3),
        ([1, 1, 1], [60, 60, 1], 1),
        ([1, 2, 1], [1, 1, 1], 2),
        ([5, 1], [1, 1], 1),
        ([1, 1], [1000, 1], 1),
        ([5], [1000], 1),
    ],
)
def test_as_many_are_taken_as_the_limits_allow_and_at_least_one(
    counts: list[int], sizes: list[int], expected: int
) -> None:
    waiting = [
        delivery("box", *[str(n) for n in range(count)], size=size)
        for count, size in zip(counts, sizes, strict=True)
    ]
    queue = deque(waiting)
    taken, count, size = take(queue, count_max=3, bytes_max=100)
    assert taken == waiting[:expected]
    assert list(queue) == waiting[expected:]
    assert count == sum(counts[:expected])
    weights = [count * size for count, size in zip(counts, sizes, strict=True)]
    assert size == sum(weights[:expected])


def test_a_box_gets_one_request_and_each_caller_its_own_answers() -> None:
    group = [delivery("a", "1"), delivery("b", "2", "3"), delivery("a", "4", "5")]
    requests = requests_of(group)
    assert [(box, [m.id for m in mails]) for box, mails in requests] == [
        ("a", ["1", "4", "5"]),
        ("b", ["2", "3"]),
    ]
    assert [len(mails) for _, mails, _, _ in group] == [1, 2, 2], "the callers' lists stay theirs"
    answers: list[Answer] = [posted(id) for id in ("1", "4", "5", "2", "3")]
    answer(group, in_order(group, requests, answers))
    tickets = [waiting for _, _, waiting, _ in group if isinstance(waiting, Ticket)]
    found = [[one.id for one in t.wait(0) if isinstance(one, Posted)] for t in tickets]
    assert found == [["1"], ["2", "3"], ["4", "5"]]


async def test_a_task_that_put_one_message_gets_its_answer_itself() -> None:
    loop = asyncio.get_running_loop()
    one, many, gone = loop.create_future(), loop.create_future(), loop.create_future()
    gone.cancel()
    group: list[Delivery] = [
        ("a", [mail("1")], one, True),
        ("b", [mail("2")], gone, True),
        ("c", [mail("3")], many, False),
    ]
    await asyncio.to_thread(answer, group, [posted("1"), posted("2"), posted("3")])
    assert await one == posted("1")
    assert await many == [posted("3")]


async def test_who_cannot_be_served_is_told() -> None:
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    thread = delivery("a", "1")
    refuse([thread, ("b", [mail("2")], future, True)], StoreError("no"))
    assert isinstance(thread[2], Ticket)
    with pytest.raises(StoreError):
        thread[2].wait(0)
    with pytest.raises(StoreError):
        await future


def test_those_who_came_too_late_are_told() -> None:
    late = [delivery("a", "1"), delivery("b", "2")]
    queue = deque(late)
    refuse_all(queue, HubClosed())
    assert not queue
    for _, _, waiting, _ in late:
        assert isinstance(waiting, Ticket)
        with pytest.raises(HubClosed):
            waiting.wait(0)


def test_a_loop_that_has_ended_is_passed_over() -> None:
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()
    thread = delivery("a", "1")
    answer([("b", [mail("2")], future, True), thread], [posted("2"), posted("1")])
    assert isinstance(thread[2], Ticket)
    assert thread[2].wait(0) == [posted("1")]
