"""What a mailbox does (M1-M9, M11, M14): the properties the reference server tests, by number.

Where we differ on purpose, the test says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Hub
from penstock.errors import (
    InvalidSettings,
    MailboxError,
    QuotaExceeded,
    WrongAck,
)
from penstock.mail import MailKind
from penstock.mailboxes import box as box_module
from penstock.mailboxes.state import last_state, parse_line
from penstock.testing import FakeClock
from tests.factories import hub_on
from tests.integration.mailbox_desk import Desk, message_file, state_log
from tests.waiting import wait_until

QUOTA, FILE = 3, 4
"""As in the reference server's tests."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def desk(root: Path) -> Any:
    with Desk(root, mailbox_messages_max=QUOTA, mailbox_file_messages_max=FILE) as desk:
        yield desk


def test_messages_come_in_order_and_only_the_first_finds_it_empty(desk: Desk) -> None:
    """Property 1; M4, M6."""
    posted = [desk.put("x", f"m{n}")[0] for n in range(3)]
    assert [answer.was_empty for answer in posted] == [True, False, False]
    assert [answer.seq for answer in posted] == [1, 2, 3]
    assert desk.drain("x") == ["m0", "m1", "m2"]
    assert desk.put("x", "m3")[0].was_empty


def test_peeking_changes_nothing(desk: Desk, root: Path) -> None:
    """Properties 2 and 11; M6: reading never writes."""
    desk.put("x", "m1", "m2")
    desk.ack("x")
    before = {path: path.read_bytes() for path in (message_file(root), state_log(root))}
    first = desk.mails("x")
    for _ in range(3):
        assert desk.mails("x") == first
    assert {path: path.read_bytes() for path in before} == before


def test_an_acknowledgement_of_anything_but_the_first_changes_nothing(desk: Desk) -> None:
    """Property 3; M7. We raise `WrongAck` where the reference server says nothing; the one that was
    just acknowledged is no error, since the answer may have been lost on the way."""
    desk.put("x", "m1", "m2", "m3")
    for wrong in ("m2", "m3", "nobody's", ""):
        with pytest.raises(WrongAck):
            desk.ack("x", wrong or "?")
        assert desk.ids("x") == ["m1", "m2", "m3"]
    assert desk.ack("x", "m1") == 1
    assert desk.ack("x", "m1") == 0
    with pytest.raises(WrongAck):
        desk.ack("x", "m3")
    assert desk.ids("x") == ["m2", "m3"]


def test_an_empty_box_has_nothing_to_acknowledge(desk: Desk) -> None:
    """M7: an error if nothing was delivered."""
    with pytest.raises(WrongAck, match="no message"):
        desk.ack("x", "m1")
    assert not desk.path("x").exists()


def test_several_are_acknowledged_at_once(desk: Desk) -> None:
    desk.put("x", "m1", "m2", "m3")
    assert desk.ack("x", "m2", through=True) == 2
    assert desk.ids("x") == ["m3"]
    with pytest.raises(WrongAck):
        desk.ack("x", "nobody's", through=True)
    assert desk.ids("x") == ["m3"]


def test_acknowledging_gives_the_next(hub: Hub) -> None:
    """Property 4; M7: a wrong id is an error and changes nothing."""
    box = hub.mailboxes.open("x")
    box.put_many([b"1", b"2"])
    first, second = box.peek_many(10)
    with pytest.raises(WrongAck):
        box.ack_and_peek(second.id)
    assert box.ack_and_peek(first.id) == second
    assert box.ack_and_peek(second.id) is None


def test_a_full_box_says_so_once_and_reopens_when_it_is_drained(desk: Desk) -> None:
    """Properties 5, 21 and 22; M4: one marker, with the id of the first that was refused, comes
    last; until it is acknowledged everything is refused."""
    desk.put("x", "m1", "m2", "m3")
    for refused in ("m4", "m5"):
        with pytest.raises(QuotaExceeded):
            desk.put("x", refused)
    assert desk.ids("x") == ["m1", "m2", "m3", "[quota]"]
    marker = desk.mails("x")[-1]
    assert (marker.kind, marker.key, marker.body) == (MailKind.QUOTA, "m4", b"")
    for n in range(3):
        desk.ack("x", f"m{n + 1}")
        with pytest.raises(QuotaExceeded):
            desk.put("x", "m6")
    assert desk.ids("x") == ["[quota]"]
    desk.ack("x", marker.id)
    assert desk.put("x", "m4")[0].is_new, "it was refused, so it is not known"
    assert desk.ids("x") == ["m4"]
    with pytest.raises(WrongAck):
        desk.ack("x", marker.id)  # By another reader, who has the marker in hands, too.
    assert desk.ids("x") == ["m4"]


@pytest.mark.parametrize("count", [QUOTA - 1, QUOTA, QUOTA + 1])
def test_the_quota_is_met_exactly(desk: Desk, count: int) -> None:
    """Row 17: one below, at, and above; in one call. What fits before it is put."""
    ids = [f"m{n}" for n in range(count)]
    if count <= QUOTA:
        desk.put("x", *ids)
        assert desk.ids("x") == ids
    else:
        with pytest.raises(QuotaExceeded):
            desk.put("x", *ids)
        assert desk.ids("x") == [*ids[:QUOTA], "[quota]"]


def test_a_lower_limit_after_a_restart_refuses_and_loses_nothing(root: Path) -> None:
    """Row 17: limits are changed between two lives; at most two files all the same."""
    with Desk(root, mailbox_messages_max=9, mailbox_file_messages_max=10) as desk:
        desk.put("x", *[f"m{n}" for n in range(8)], body=b"x" * 5000)
    limits = {"mailbox_messages_max": 2, "mailbox_file_messages_max": 3}
    with Desk(root, **limits, payload_bytes_max=100) as desk:
        with pytest.raises(QuotaExceeded):
            desk.put("x", "m8")
        assert desk.ids("x") == [*[f"m{n}" for n in range(8)], "[quota]"]
        for _ in range(7):
            desk.ack("x")
        with pytest.raises(QuotaExceeded):
            desk.put("x", "m9")
        assert desk.drain("x") == ["m7", "[quota]"]
        for n in range(10, 30):
            desk.put("x", f"m{n}")
            assert len(desk.files("x")) <= 2
            desk.ack("x")
            desk.folder.flush()


def test_a_higher_limit_opens_no_full_box(root: Path) -> None:
    """Row 17: another process, with other limits, has filled and drained it."""
    small = {"mailbox_messages_max": 2, "mailbox_file_messages_max": 3}
    with Desk(root, **small) as desk, Desk(root, mailbox_messages_max=5) as other:
        desk.put("x", "m1", "m2")
        with pytest.raises(QuotaExceeded):
            desk.put("x", "m3")
        with pytest.raises(QuotaExceeded):
            other.put("x", "m3")
        assert desk.drain("x") == ["m1", "m2", "[quota]"]
        assert other.put("x", "m3")


def test_boxes_do_not_know_each_other(desk: Desk) -> None:
    """Property 6."""
    for n in range(3):
        desk.put("x", f"x{n}")
        desk.put("y", f"y{n}")
    with pytest.raises(WrongAck):
        desk.ack("x", "y0")
    assert desk.drain("x") == ["x0", "x1", "x2"]
    assert desk.ids("y") == ["y0", "y1", "y2"]


def test_expiry_takes_from_the_beginning_and_stops_at_a_marker(
    open_hub: Callable[..., Hub], clock: FakeClock
) -> None:
    """Properties 7 and 26; M13. Ours is "older than": at the same instant nothing is older than
    nothing, and so expire(0) removes nothing that came just now."""
    hub = open_hub(clock=clock, mailbox_messages_max=3, mailbox_file_messages_max=4)
    box = hub.mailboxes.open("x")
    box.put(b"1")
    assert box.expire(0) == 0
    clock.advance(10)
    box.put(b"2")
    assert box.expire(10) == 0
    clock.advance(1)
    assert box.expire(10) == 1
    assert box.expire() == 0, "not older than mailbox_ttl_seconds"
    box.put_many([b"3", b"4"])
    with pytest.raises(QuotaExceeded):
        box.put(b"5")
    clock.advance(100)
    assert box.expire(50) == 3
    assert [mail.kind for mail in box.peek_many(10)] == [MailKind.QUOTA]
    assert box.expire(50) == 0
    with pytest.raises(penstock.PenstockError):
        box.expire(-1)


def test_written_and_acknowledged_across_files(desk: Desk) -> None:
    """Property 8: five times the length of a file, one by one, and in pairs."""
    for n in range(5 * FILE):
        desk.put("x", f"m{n}")
        assert desk.drain("x") == [f"m{n}"]
    for n in range(0, 5 * FILE, 2):
        desk.put("x", f"n{n}", f"n{n + 1}")
        assert desk.ids("x")[-2:] == [f"n{n}", f"n{n + 1}"]
        desk.ack("x")
        if len(desk.ids("x")) == QUOTA:
            desk.ack("x")
        desk.ack("x") if len(desk.ids("x")) > 1 else None


def test_the_folder_has_two_files_and_three_after_rotation(desk: Desk, root: Path) -> None:
    """Properties 9 and 14; M1, M5: the second file begins exactly at the limit, and the first goes
    when it is read through and that is on disk. We write no state before something is read."""
    desk.put("x", "m1", "m2")
    assert [path.name for path in desk.path("x").iterdir()] == ["messages.0000000000000001.log"]
    desk.ack("x")
    desk.put("x", "m3")
    desk.ack("x")
    desk.put("x", "m4")
    assert len(desk.files("x")) == 1
    desk.put("x", "m5")
    assert len(desk.files("x")) == 2
    assert sorted(path.name for path in desk.path("x").iterdir()) == [
        "messages.0000000000000001.log",
        "messages.0000000000000002.log",
        "queue.log",
    ]
    assert desk.ids("x") == ["m3", "m4", "m5"]
    desk.ack("x")
    desk.ack("x")
    assert len(desk.files("x")) == 2, "not before it is on disk"
    desk.folder.flush()
    assert desk.files("x") == ["messages.0000000000000002.log"]
    assert desk.ids("x") == ["m5"]


@pytest.mark.parametrize("scrub", ["file", "drained", "ack"])
def test_there_are_never_more_than_two_files(root: Path, scrub: str) -> None:
    """M5, whatever the order of puts and acknowledgements."""
    with Desk(
        root, mailbox_messages_max=3, mailbox_file_messages_max=4, mailbox_scrub=scrub
    ) as desk:
        n = 0
        for puts, acks in ((3, 1), (1, 2), (2, 3), (3, 3), (1, 0), (2, 1), (1, 3)) * 4:
            for _ in range(puts):
                desk.put("x", f"m{n}")
                n += 1
            for _ in range(acks):
                desk.ack("x")
            desk.folder.flush()
            assert len(desk.files("x")) <= 2
        assert desk.drain("x") == [f"m{k}" for k in range(n - desk_left(n), n)]


def desk_left(put: int) -> int:
    """What the rounds above leave: all that was put, less all that was acknowledged."""
    return put - 4 * (1 + 2 + 3 + 3 + 0 + 1 + 3)


def test_a_drained_box_is_as_it_was_on_opening(root: Path) -> None:
    """Properties 14 and 16. We keep the file of an empty box, for its ids and until it is full;
    numbers go on, so that a message is known by its number for good."""
    with Desk(root) as desk:
        desk.put("x", "m1")
        desk.ack("x")
    with Desk(root) as desk:
        assert desk.ids("x") == []
        assert not desk.put("x", "m1")[0].is_new, "it was here just before"
        assert desk.put("x", "m2")[0].seq == 2


def test_drained_means_gone_where_that_is_asked_for(root: Path) -> None:
    """M9: scrub = drained: no byte of a message stays when the box is empty."""
    with Desk(root, mailbox_scrub="drained") as desk:
        desk.put("x", "m1", "m2")
        desk.ack("x")
        assert desk.files("x")
        desk.ack("x")
        desk.folder.flush()
        assert not desk.files("x")
        assert desk.put("x", "m3")[0].seq == 3
        assert desk.ids("x") == ["m3"]


def test_acknowledged_means_gone_where_that_is_asked_for(root: Path) -> None:
    """M9: scrub = ack: its bytes go when the acknowledgement is on disk, at the latest when the box
    is opened again after a crash in between."""
    with Desk(root, mailbox_scrub="ack") as desk:
        desk.put("x", "m1", "m2", body=b"secret of the first")
        desk.ack("x")
        desk.folder.flush()
        content = message_file(root).read_bytes()
        assert content.count(b"secret of the first") == 1
        assert b"m1" not in content
        assert desk.ids("x") == ["m2"]
    with Desk(root) as desk:
        desk.ack("x")
    assert b"secret" in message_file(root).read_bytes()
    with Desk(root, mailbox_scrub="ack") as desk:
        assert desk.ids("x") == []
        desk.folder.flush()
        assert b"secret" not in message_file(root).read_bytes()
        assert desk.verify().is_clean


def test_the_last_line_of_state_holds(desk: Desk, root: Path) -> None:
    """Property 11; M2, M3: one line for each acknowledgement, readable, numbered."""
    desk.put("x", "m1", "m2", "m3")
    for _ in range(3):
        desk.ack("x")
    lines = [parse_line(line) for line in state_log(root).read_bytes().splitlines()]
    assert [(line.n, line.read_seq, line.size) for line in lines if line] == [
        (1, 2, 2),
        (2, 3, 1),
        (3, 4, 0),
    ]


def test_the_state_log_is_compacted_and_older_ones_kept_for_a_while(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Properties 11 and 15; M3, M8: at least so many, and those that are not too old."""
    monkeypatch.setattr(box_module, "COMPACT_BYTES", 600)
    with Desk(root, mailbox_history_min=2, mailbox_history_seconds=100) as desk:
        for n in range(40):
            desk.put("x", f"m{n}")
            desk.ack("x")
            desk.clock.advance(10)
            state, is_whole = last_state(state_log(root).read_bytes())
            assert state is not None
            assert is_whole
            assert state.n == n + 1
            assert state_log(root).stat().st_size <= 600
            histories = sorted(state_log(root).parent.glob("queue.0*"))
            ages = [(desk.clock.now() - int(path.name[6:26])) / 1e6 for path in histories]
            assert all(age <= 140 for age in ages[:-2])
        assert 2 <= len(histories) < 10
        desk.clock.advance(1000)
        for n in range(5):
            desk.put("x", f"n{n}")
            desk.ack("x")
        assert len(list(state_log(root).parent.glob("queue.0*"))) == 2


def test_a_message_without_a_line_of_state_is_taken(desk: Desk, root: Path) -> None:
    """Property 13, on purpose the other way round: the message log is the truth. A message that
    nobody was promised may appear; one that was promised is never discarded."""
    desk.put("x", "m1")
    desk.ack("x")
    desk.put("x", "m2")
    desk.folder.close()
    lines = state_log(root).read_bytes().splitlines(keepends=True)
    state_log(root).write_bytes(lines[0])
    with Desk(root) as again:
        assert again.ids("x") == ["m2"]
        again.put("x", "m3")
        assert again.ids("x") == ["m2", "m3"]


def test_two_senders_at_once(hub: Hub) -> None:
    """Property 23: fifty each, all there once, each in its order."""
    box = hub.mailboxes.open("x")
    start = threading.Barrier(2)

    def send(name: str) -> None:
        start.wait()
        for n in range(50):
            box.put([name, n])

    senders = [threading.Thread(target=send, args=(name,)) for name in ("a", "b")]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    found = [mail.payload for mail in box.peek_many(200)]
    assert [n for name, n in found if name == "a"] == list(range(50))
    assert [n for name, n in found if name == "b"] == list(range(50))


def test_everything_is_there_after_a_restart(path: Path) -> None:
    """Property 25."""
    with hub_on(path) as hub:
        box = hub.mailboxes.open("x")
        box.put({"n": 1}, id="m1", type="greeting")
        box.put(b"\x00\xff", id="m2")
        box.put("text", id="m3")
        box.ack("m1")
        before = box.peek_many(10)
    with hub_on(path) as hub:
        box = hub.mailboxes.open("x")
        assert box.peek_many(10) == before
        assert [mail.payload for mail in before] == [b"\x00\xff", "text"]
        assert not box.put(b"again", id="m2").is_new
        assert box.size() == 2
        assert hub.mailboxes.list() == ["x"]


def test_the_same_id_is_taken_once(desk: Desk) -> None:
    """M4, issue: idempotent by id, within what waits and what was acknowledged just before."""
    first, again = desk.put("x", "m1", "m1")
    assert (first.is_new, again.is_new, again.seq) == (True, False, first.seq)
    assert not desk.put("x", "m1")[0].is_new
    desk.ack("x")
    assert not desk.put("x", "m1")[0].is_new
    assert desk.ids("x") == []
    assert desk.put("y", "m1")[0].is_new


def test_a_file_holds_more_than_the_quota(tmp_path: Path) -> None:
    """M5: refused at start-up otherwise."""
    with pytest.raises(InvalidSettings, match="mailbox_messages_max"):
        Desk(tmp_path / "store", mailbox_messages_max=4, mailbox_file_messages_max=4)
    assert not (tmp_path / "store" / "commits").exists()


def test_a_deleted_box_is_gone_and_its_numbers_go_on(hub: Hub) -> None:
    box = hub.mailboxes.open("x")
    assert box.delete() is False
    box.put(b"1")
    assert list(hub.mailboxes.list()) == ["x"]
    assert box.delete() is True
    assert list(hub.mailboxes.list()) == [], "also before its files are removed"
    assert box.delete() is False
    assert (box.peek(), box.size()) == (None, 0)
    assert box.put(b"2").seq == 2
    assert list(hub.mailboxes.list()) == ["x"]


@pytest.mark.parametrize("durability", ["durable", "interval", "os"])
def test_files_that_were_read_through_are_removed(
    open_hub: Callable[..., Hub], path: Path, durability: str
) -> None:
    """M5, M9: also where nobody waits for the disk."""
    hub = open_hub(
        mailbox_durability=durability, mailbox_messages_max=3, mailbox_file_messages_max=4
    )
    box = hub.mailboxes.open("x")
    for n in range(20):
        box.put(n)
        mail = box.peek()
        assert mail is not None
        box.ack(mail.id)
    root = path.with_name(f"{path.name}.mailboxes")
    wait_until(lambda: len(list(root.glob("boxes/**/messages.*"))) <= 2, "they are gone")


def test_what_a_box_looks_like_is_told(open_hub: Callable[..., Hub], clock: FakeClock) -> None:
    """Property 21: figures follow each step."""
    hub = open_hub(clock=clock, mailbox_messages_max=2, mailbox_file_messages_max=3)
    box = hub.mailboxes.open("x")
    empty = box.stats()
    assert (empty.messages, empty.can_write, empty.oldest_age_seconds) == (0, True, None)
    assert (empty.bytes, empty.next_seq) == (0, 1)
    box.put(b"1")
    clock.advance(5)
    box.put(b"2")
    with pytest.raises(MailboxError):
        box.put(b"3")
    full = box.stats()
    assert (full.messages, full.can_write, full.next_seq) == (3, False, 4)
    assert full.oldest_age_seconds == 5
    assert full.bytes > 0
    for mail in box.peek_many(3):
        box.ack(mail.id)
    assert box.stats().can_write


def test_waiting_ends_when_something_comes_or_the_time_is_over(path: Path) -> None:
    """Also from another process."""
    with hub_on(path) as hub, hub_on(path) as other:
        box = hub.mailboxes.open("x")
        assert box.wait(0.01) is None
        got: list[Any] = []
        waiter = threading.Thread(target=lambda: got.append(box.wait(60)))
        waiter.start()
        other.mailboxes.open("x").put(b"from elsewhere")
        waiter.join(60)
        assert got[0].payload == b"from elsewhere"


def test_all_processes_see_the_same(root: Path) -> None:
    """Decision 10: any process may use any box, and sees what the others did."""
    with Desk(root) as one, Desk(root) as two, Desk(root) as three:
        everyone = (one, two, three)
        for n in range(30):
            everyone[n % 3].put("x", f"m{n}")
            for desk in everyone:
                assert desk.ids("x")[-1] == f"m{n}"
            if n % 3 == 2:
                for k in range(3):
                    assert everyone[(n + k) % 3].ack("x") == 1
            assert len({tuple(desk.ids("x")) for desk in everyone}) == 1


def test_a_compacted_state_log_is_followed_by_all(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process compacts while the other has the old log open: no line is lost in it."""
    monkeypatch.setattr(box_module, "COMPACT_BYTES", 600)
    with Desk(root) as one, Desk(root) as two:
        for n in range(30):
            one.put("x", f"m{n}a", f"m{n}b")
            two.ack("x", f"m{n}a")
            one.ack("x", f"m{n}b")
            assert two.ids("x") == one.ids("x") == []
    with Desk(root) as desk:
        assert desk.ids("x") == []
