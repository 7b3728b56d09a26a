"""Damaged mailboxes: found, stopped at, told of and mended (fault table rows 3-9; M3, M14)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import MailboxCorrupt
from penstock.mailboxes.record import (
    COPY_SIZE,
    HEADER_SIZE,
    RANGE_SIZE,
    Header,
    Type,
    encode_record,
)
from penstock.mailboxes.state import last_state, parse_line
from tests.crash.mailbox_world import FastDisk, World, memory_folder
from tests.integration.mailbox_desk import (
    Desk,
    box_files,
    copied,
    flip,
    message_file,
    state_log,
)

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="penstock-damage-", dir=memory_folder()))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def store(folder: Path) -> Path:
    """A box `x` with three messages, cleanly closed."""
    with Desk(folder / "store") as desk:
        desk.put("x", "m1", "m2", "m3")
    return folder / "store"


def records(root: Path) -> list[tuple[int, int]]:
    """From where to where the records of the only file of three messages are."""
    size = (message_file(root).stat().st_size - HEADER_SIZE) // 3
    starts = [HEADER_SIZE + n * size for n in range(3)]
    return [(start, start + size) for start in starts]


def test_a_whole_folder_is_clean(store: Path) -> None:
    with Desk(store) as desk:
        found = desk.verify()
        assert (found.mailboxes, found.messages, found.findings) == (1, 3, [])
        assert desk.verify("x").is_clean
        assert desk.verify("nobody").is_clean
        assert desk.repair("x").findings == []
        assert desk.ids("x") == ["m1", "m2", "m3"]


def test_a_flipped_bit_anywhere_is_found_and_costs_its_own_message_only(
    store: Path, folder: Path
) -> None:
    """Row 5: at each byte of a cleanly closed file of three records. verify finds it and changes
    nothing; the box stops or works, and never shows another content; repair keeps all the others,
    with a gap in place of the one, and leaves nothing to find."""
    size = message_file(store).stat().st_size
    spans = records(store)
    for offset in range(size):
        root = copied(store, folder / "damaged")
        flip(message_file(root), offset, offset % 8)
        damaged = message_file(root).read_bytes()
        before = box_files(root)
        with Desk(root) as desk:
            assert desk.verify("x").findings, f"byte {offset}"
            assert box_files(root) == before, f"byte {offset}: verify has changed something"
            hit = next((n for n, (start, end) in enumerate(spans) if start <= offset < end), None)
            if hit is None:
                assert desk.ids("x") == ["m1", "m2", "m3"], f"byte {offset}: the header is twice"
            else:
                with pytest.raises(MailboxCorrupt):
                    desk.mails("x")
                with pytest.raises(MailboxCorrupt):
                    desk.put("x", "m4")
                assert box_files(root) == before, f"byte {offset}"
                assert desk.heard("mailbox_damaged")
            expected = ["m1", "m2", "m3"]
            if hit is not None:
                expected[hit] = "[gap 1]"
            mended = desk.repair("x")
            assert (mended.kept, mended.lost) == (3 - expected.count("[gap 1]"), hit is not None)
            assert desk.ids("x") == expected, f"byte {offset}"
            assert desk.verify().is_clean, f"byte {offset}"
            kept = [(root / path).read_bytes() for path in mended.quarantine]
            assert damaged in kept
            desk.put("x", "m4")
        with Desk(root) as desk:
            assert desk.verify().is_clean
            assert desk.drain("x") == [*expected, "m4"]


def test_a_flipped_bit_in_the_state_log_repeats_at_worst(store: Path, folder: Path) -> None:
    """Row 8, at each byte: no message is lost or stops, and verify finds it."""
    with Desk(store) as desk:
        desk.ack("x")
        desk.ack("x")
    for offset in range(state_log(store).stat().st_size):
        root = copied(store, folder / "damaged")
        flip(state_log(root), offset, offset % 8)
        with Desk(root) as desk:
            assert desk.verify().findings, f"byte {offset}"
            assert desk.ids("x") in (["m3"], ["m2", "m3"], ["m1", "m2", "m3"]), f"byte {offset}"
            desk.repair("x")
            assert desk.verify().is_clean, f"byte {offset}"
            desk.put("x", "m4")
            assert desk.drain("x")[-2:] == ["m3", "m4"]
        with Desk(root) as desk:
            assert desk.ids("x") == []


def test_a_flipped_bit_in_a_commit_log_is_found(folder: Path) -> None:
    """At each byte that was written: the log is the only place where some of it is on disk."""
    with Desk(folder / "store") as desk:
        desk.put("x", "m1")
        desk.put("y", "m2")
        desk.ack("x")
        desk.folder.flush()
        [log] = (folder / "store" / "commits").glob("*.a.log")
        whole = log.read_bytes()
        end, _ = desk.folder.log_end(str(log))
        assert end is not None
        assert desk.verify().is_clean
        for offset in range(end):
            flip(log, offset, offset % 8)
            [finding] = desk.verify().findings
            assert finding.file == f"commits/{log.name}", f"byte {offset}"
            assert finding.start <= offset
            log.write_bytes(whole)
        assert desk.verify().is_clean


def test_a_flipped_bit_in_anothers_commit_log_is_found_if_more_follows(folder: Path) -> None:
    """How far another process has written is not known: damage at the very end looks like it."""
    with Desk(folder / "store") as desk, Desk(folder / "store") as other:
        desk.put("x", "m1")
        [log] = (folder / "store" / "commits").glob("*.a.log")
        end, _ = desk.folder.log_end(str(log))
        desk.put("x", "m2")
        whole = log.read_bytes()
        assert other.verify().is_clean
        for offset in range(end or 0):
            flip(log, offset, offset % 8)
            assert other.verify().findings, f"byte {offset}"
            log.write_bytes(whole)


def test_a_record_cut_off_at_any_byte_is_dropped_and_those_before_are_kept(
    store: Path, folder: Path
) -> None:
    """Row 3: what a killed process leaves of its last write."""
    file = message_file(store)
    header = Header.decode(file.read_bytes())
    assert header is not None
    offset = file.stat().st_size
    torn = encode_record(Type.MESSAGE, 4, 1, header.salt, offset, b"m4", body=b"never promised")
    for size in range(1, len(torn)):
        root = copied(store, folder / "torn")
        with message_file(root).open("ab") as end:
            end.write(torn[:size])
        with Desk(root) as desk:
            [finding] = desk.verify().findings
            assert finding.is_harmless
            assert desk.ids("x") == ["m1", "m2", "m3"], f"{size} bytes"
            assert message_file(root).stat().st_size == offset
            assert desk.verify().is_clean
            desk.put("x", "m5")
            assert desk.ids("x") == ["m1", "m2", "m3", "m5"]
    root = copied(store, folder / "whole")
    with message_file(root).open("ab") as end:
        end.write(torn)
    with Desk(root) as desk:
        assert desk.ids("x") == ["m1", "m2", "m3", "m4"], "what is whole is taken"


@pytest.mark.parametrize("size", [1, 3, 39, 40, 512, 5000])
def test_zeros_at_the_end_are_dropped(store: Path, size: int) -> None:
    """Row 4: the file system knew the new size, and not the content."""
    before = message_file(store).read_bytes()
    message_file(store).write_bytes(before + bytes(size))
    with Desk(store) as desk:
        assert desk.ids("x") == ["m1", "m2", "m3"]
        assert message_file(store).read_bytes() == before
        desk.put("x", "m4")
        assert desk.ids("x") == ["m1", "m2", "m3", "m4"]


def test_a_file_that_was_never_finished_is_removed(folder: Path) -> None:
    """Rows 3 and 4 for a whole file: empty, zeros, or a header that was cut off."""
    for content in (b"", bytes(100), bytes(4096), b"PMBX" + bytes(40)):
        root = folder / f"{len(content)}"
        with Desk(root) as desk:
            place = desk.path("x")
        place.mkdir(parents=True)
        (place / "messages.0000000000000001.log").write_bytes(content)
        with Desk(root) as desk:
            assert desk.ids("x") == []
            desk.put("x", "m1")
            assert desk.ids("x") == ["m1"]


def test_a_file_shorter_than_it_was_said_to_be_stops_the_box(store: Path, folder: Path) -> None:
    """Row 7, and cut files: at each byte. What was on disk and is not is damage, not a cut end."""
    whole = message_file(store).read_bytes()
    spans = records(store)
    for size in range(HEADER_SIZE, len(whole)):
        root = copied(store, folder / "short")
        message_file(root).write_bytes(whole[:size])
        kept = sum(end <= size for _, end in spans)
        with Desk(root) as desk:
            assert desk.verify().findings, f"{size} bytes"
            with pytest.raises(MailboxCorrupt):
                desk.mails("x")
            assert (desk.repair("x").kept, desk.verify().findings) == (kept, [])
            gap = f"[gap {3 - kept}]"
            assert desk.ids("x") == [*["m1", "m2", "m3"][:kept], gap], f"{size} bytes"


def test_a_record_in_another_place_is_no_record(store: Path, folder: Path) -> None:
    """Row 6: copied within its file, it has the right checksum for the wrong place."""
    content = message_file(store).read_bytes()
    spans = records(store)
    for source in range(3):
        for target in range(3):
            if source == target:
                continue
            root = copied(store, folder / "moved")
            moved = bytearray(content)
            moved[slice(*spans[target])] = content[slice(*spans[source])]
            message_file(root).write_bytes(moved)
            with Desk(root) as desk:
                with pytest.raises(MailboxCorrupt):
                    desk.mails("x")
                desk.repair("x")
                expected = ["m1", "m2", "m3"]
                expected[target] = "[gap 1]"
                assert desk.ids("x") == expected


def test_a_record_of_another_file_is_no_record(folder: Path) -> None:
    """Row 6: copied from the same place of another box's file."""
    with Desk(folder / "store") as desk:
        desk.put("x", "m1", "m2")
        desk.put("y", "n1", "n2")
        x, y = (Path(desk.path(box)) / desk.files(box)[0] for box in "xy")
    content, foreign = bytearray(x.read_bytes()), y.read_bytes()
    assert len(content) == len(foreign)
    content[HEADER_SIZE : HEADER_SIZE + 40] = foreign[HEADER_SIZE : HEADER_SIZE + 40]
    x.write_bytes(content)
    with Desk(folder / "store") as desk:
        with pytest.raises(MailboxCorrupt):
            desk.mails("x")
        desk.repair("x")
        assert desk.ids("x") == ["[gap 1]", "m2"]
        assert desk.ids("y") == ["n1", "n2"]


def test_a_file_of_another_box_is_not_read(folder: Path) -> None:
    """Row 6, whole files: nobody gets another's messages."""
    with Desk(folder / "store") as desk:
        desk.put("x", "m1", "m2")
        desk.put("y", "n1", "n2")
        x, y = (Path(desk.path(box)) / desk.files(box)[0] for box in "xy")
    foreign = y.read_bytes()
    x.write_bytes(foreign)
    with Desk(folder / "store") as desk:
        assert desk.verify("x").findings
        with pytest.raises(MailboxCorrupt):
            desk.mails("x")
        mended = desk.repair("x")
        assert (mended.kept, mended.lost) == (0, 2)
        assert desk.ids("x") == ["[gap 2]"]
        assert desk.ids("y") == ["n1", "n2"]
        assert foreign in [(folder / "store" / path).read_bytes() for path in mended.quarantine]


def test_an_older_state_log_repeats_messages_and_loses_none(store: Path) -> None:
    """Row 7: a stale state log, put back."""
    old = state_log(store).read_bytes()
    with Desk(store) as desk:
        desk.ack("x")
        desk.put("x", "m4")
    state_log(store).write_bytes(old)
    with Desk(store) as desk:
        assert desk.ids("x") == ["m1", "m2", "m3", "m4"]
        assert desk.put("x", "m5")[0].seq == 5


def test_an_older_message_file_is_noticed(store: Path) -> None:
    """Row 7: a stale message file, put back, lacks what was promised since."""
    old = message_file(store).read_bytes()
    with Desk(store) as desk:
        desk.put("x", "m4")
    message_file(store).write_bytes(old)
    with Desk(store) as desk:
        with pytest.raises(MailboxCorrupt):
            desk.mails("x")
        desk.repair("x")
        assert desk.ids("x") == ["m1", "m2", "m3", "[gap 1]"]


def test_a_state_log_cut_off_anywhere_repeats_at_worst(store: Path, folder: Path) -> None:
    """Row 8 and property 12: the last valid line holds, and a new line does not stick to what is
    left of a broken one."""
    with Desk(store) as desk:
        desk.ack("x")
        desk.ack("x")
    whole = state_log(store).read_bytes()
    for size in range(len(whole)):
        root = copied(store, folder / "cut")
        state_log(root).write_bytes(whole[:size])
        with Desk(root) as desk:
            assert desk.ids("x") in (["m3"], ["m2", "m3"], ["m1", "m2", "m3"]), f"{size} bytes"
            expected = desk.ids("x")[1:]
            desk.ack("x")
        state, is_whole = last_state(state_log(root).read_bytes())
        assert state is not None
        assert is_whole
        with Desk(root) as desk:
            assert desk.ids("x") == expected, f"{size} bytes"


@pytest.mark.parametrize("content", [None, b"", b"\n\n\n", b"garbage", bytes(5000), b"v1 n=1\n"])
def test_without_a_state_log_all_messages_come_again(store: Path, content: bytes | None) -> None:
    """Row 8: lost state means redelivery, never loss."""
    with Desk(store) as desk:
        desk.ack("x")
    for history in state_log(store).parent.glob("queue.*"):
        history.unlink()
    if content is not None:
        (message_file(store).parent / "queue.log").write_bytes(content)
    with Desk(store) as desk:
        assert desk.ids("x") == ["m1", "m2", "m3"]
        desk.put("x", "m4")
        assert desk.drain("x") == ["m1", "m2", "m3", "m4"]


def test_an_older_state_log_stands_in_for_the_last(store: Path) -> None:
    """M3, M8: what compaction kept is used when the current one is of no use."""
    with Desk(store) as desk:
        desk.ack("x")
        lines = state_log(store).read_bytes()
    log = state_log(store)
    (log.parent / "queue.00000000000000000001.log").write_bytes(lines)
    log.write_bytes(b"garbage")
    with Desk(store) as desk:
        assert desk.ids("x") == ["m2", "m3"]


@pytest.fixture
def two_files(folder: Path) -> Path:
    """m5 in the first file, m6 to m8 in the second; m1 to m4 acknowledged."""
    with Desk(folder / "store", mailbox_messages_max=5, mailbox_file_messages_max=6) as desk:
        desk.put("x", "m1", "m2", "m3", "m4", "m5")
        for _ in range(4):
            desk.ack("x")
        desk.put("x", "m6")
        desk.put("x", "m7", "m8")
        assert len(desk.files("x")) == 2
    return folder / "store"


def test_without_the_file_to_read_there_is_a_gap_and_the_box_goes_on(store: Path) -> None:
    """Property 17, row 9: with a gap and a report, where the reference server says nothing."""
    message_file(store).unlink()
    with Desk(store) as desk:
        assert desk.verify().findings[0].missing == 3
        assert desk.ids("x") == ["[gap 3]"]
        assert desk.heard("mailbox_damaged")
        desk.put("x", "m4")
        assert desk.drain("x") == ["[gap 3]", "m4"]
        assert desk.verify().is_clean
    with Desk(store) as desk:
        assert desk.put("x", "m5")[0].seq == 5
        assert desk.ids("x") == ["m5"]


def test_without_the_first_of_two_files_reading_goes_on_in_the_second(two_files: Path) -> None:
    """Property 18."""
    message_file(two_files, 0).unlink()
    for _ in range(2):
        with Desk(two_files) as desk:
            assert desk.ids("x") == ["[gap 2]", "m7", "m8"]
    with Desk(two_files) as desk:
        desk.put("x", "m9")
        assert desk.drain("x") == ["[gap 2]", "m7", "m8", "m9"]
        assert desk.verify().is_clean


def test_without_the_second_file_the_first_is_read_and_then_written_on(two_files: Path) -> None:
    """Property 19."""
    message_file(two_files, 1).unlink()
    for _ in range(2):
        with Desk(two_files) as desk:
            assert desk.ids("x") == ["m5", "m6", "[gap 2]"]
            assert len(desk.files("x")) == 2
    with Desk(two_files) as desk:
        assert desk.put("x", "m9")[0].seq == 9
        assert desk.drain("x") == ["m5", "m6", "[gap 2]", "m9"]
        assert desk.verify().is_clean


def test_without_any_file_there_is_a_gap_and_the_box_goes_on(two_files: Path) -> None:
    """Property 20."""
    message_file(two_files, 1).unlink()
    message_file(two_files, 0).unlink()
    for _ in range(2):
        with Desk(two_files) as desk:
            assert desk.ids("x") == ["[gap 4]"]
    with Desk(two_files) as desk:
        assert desk.put("x", "m9")[0].seq == 9
        assert desk.drain("x") == ["[gap 4]", "m9"]


def test_a_gap_that_is_missing_stays_one_when_repaired(two_files: Path) -> None:
    """The gap that was told from memory is in the file then."""
    message_file(two_files, 0).unlink()
    with Desk(two_files) as desk:
        assert desk.repair("x").lost == 2
        assert desk.verify().is_clean
        assert desk.ids("x") == ["[gap 2]", "m7", "m8"]


def test_both_headers_lost_all_messages_are_kept_by_repair(two_files: Path) -> None:
    """One bad sector has both. What the checksums began with can be found out."""
    for number in (0, 1):
        content = message_file(two_files, number).read_bytes()
        message_file(two_files, number).write_bytes(bytes(HEADER_SIZE) + content[HEADER_SIZE:])
    with Desk(two_files) as desk:
        assert desk.verify("x").findings
        with pytest.raises(MailboxCorrupt):
            desk.mails("x")
        mended = desk.repair("x")
        assert (mended.kept, mended.lost) == (4, 0)
        assert desk.ids("x") == ["m5", "m6", "m7", "m8"]
        assert desk.verify().is_clean


def test_one_header_lost_nothing_stops(store: Path) -> None:
    content = message_file(store).read_bytes()
    message_file(store).write_bytes(bytes(COPY_SIZE) + content[COPY_SIZE:])
    with Desk(store) as desk:
        [finding] = desk.verify().findings
        assert finding.is_harmless
        assert desk.put("x", "m4")
        assert desk.ids("x") == ["m1", "m2", "m3", "m4"]


def test_damage_among_what_was_acknowledged_takes_nothing(store: Path, folder: Path) -> None:
    """At each byte of the acknowledged messages: the others are read, and put to."""
    with Desk(store) as desk:
        desk.ack("x")
        desk.ack("x")
    (start, _), (_, end) = records(store)[:2]
    for offset in range(start, end):
        root = copied(store, folder / "damaged")
        flip(message_file(root), offset, offset % 8)
        with Desk(root) as desk:
            [finding] = desk.verify().findings
            assert finding.is_harmless, f"byte {offset}"
            assert desk.ids("x") == ["m3"], f"byte {offset}"
            desk.put("x", "m4")
        with Desk(root) as desk:
            assert desk.ids("x") == ["m3", "m4"], f"byte {offset}"


def test_damage_while_it_is_used_is_noticed_when_it_is_read(folder: Path) -> None:
    """Also before anything was written down: what a living process wrote cannot have holes."""
    with Desk(folder / "store") as desk:
        desk.put("x", "m1", "m2", "m3")
        flip(message_file(folder / "store"), HEADER_SIZE + 10)
        for _ in range(2):
            with pytest.raises(MailboxCorrupt):
                desk.mails("x")
        with pytest.raises(MailboxCorrupt):
            desk.put("x", "m4")
        desk.repair("x")
        assert desk.ids("x") == ["[gap 1]", "m2", "m3"]


def test_a_hole_in_what_another_process_wrote_is_damage(folder: Path) -> None:
    """The power was not lost since: what it wrote cannot have been lost in part."""
    with Desk(folder / "store") as desk, Desk(folder / "store") as other:
        desk.put("x", "m1", "m2", "m3")
        flip(message_file(folder / "store"), HEADER_SIZE + 10)
        with pytest.raises(MailboxCorrupt):
            other.mails("x")
        assert other.repair("x").lost == 1
        assert desk.ids("x") == ["[gap 1]", "m2", "m3"]


def test_damage_is_not_hidden_by_a_log_that_is_replayed(folder: Path) -> None:
    """A message that was on disk is damaged, the process dies, and its log has those behind: they
    are kept, and the damage is not taken for a message that nobody was promised."""
    with World(folder) as world:
        a = world.start()
        a.send("x", "m1", "m2")
        a.checkpoint()
        a.send("x", "m3")
        a.die()
    root = Path(world.root)
    flip(message_file(root), HEADER_SIZE + 44 + 10)
    with Desk(root, disk=FastDisk()) as desk:
        assert desk.folder.recovered == 1
        with pytest.raises(MailboxCorrupt):
            desk.mails("x")
        assert desk.repair("x").lost == 1
        assert desk.ids("x") == ["m1", "[gap 1]", "m3"]


def test_a_log_that_is_replayed_mends_what_it_has(folder: Path) -> None:
    """Damage to what was not checkpointed yet: the log has it as it was."""
    with World(folder) as world:
        a = world.start()
        a.send("x", "m1", "m2")
        a.die()
    root = Path(world.root)
    flip(message_file(root), HEADER_SIZE + 10)
    with Desk(root) as desk:
        assert desk.verify().is_clean
        assert desk.ids("x") == ["m1", "m2"]


def test_damage_to_the_first_message_is_a_gap_whatever_was_written_down(folder: Path) -> None:
    with Desk(folder / "store") as desk:
        desk.put("x", "m1")
        desk.ack("x")
        desk.put("x", "m2", "m3")
        start = message_file(folder / "store").stat().st_size - 2 * 44
        flip(message_file(folder / "store"), start + 10)
        with pytest.raises(MailboxCorrupt):
            desk.mails("x")
        assert desk.repair("x").lost == 1
        assert desk.ids("x") == ["[gap 1]", "m3"]


def test_repair_keeps_markers_gaps_and_numbers(folder: Path) -> None:
    """M4, M14: a full box is full afterwards, too; a second repair knows the first one's gap."""
    with Desk(folder / "store") as desk:
        desk.put("x", "m1", "m2", "m3", "m4", "m5")
        assert desk.put_all({"x": []}) == [[]]
        with pytest.raises(Exception, match="full"):
            desk.put("x", "m6")
        ids = desk.ids("x")
    assert ids == ["m1", "m2", "m3", "m4", "m5", "[quota]"]
    for offset, expected in (
        (HEADER_SIZE + 10, ["[gap 1]", "m2", "m3", "m4", "m5", "[quota]"]),
        (HEADER_SIZE + RANGE_SIZE + 10, ["[gap 1]", "[gap 1]", "m3", "m4", "m5", "[quota]"]),
    ):
        flip(message_file(folder / "store"), offset)
        with Desk(folder / "store") as desk:
            desk.repair("x")
            assert desk.ids("x") == expected
            with pytest.raises(Exception, match="full"):
                desk.put("x", "m6")
    with Desk(folder / "store") as desk:
        assert desk.drain("x") == expected
        assert desk.put("x", "m7")[0].seq == 7
        assert len(list((desk.path("x") / "quarantine").iterdir())) == 2


def test_those_who_use_the_box_go_on_when_it_is_repaired(store: Path) -> None:
    """Decision 10: repair takes the box's lock and tells the others."""
    flip(message_file(store), records(store)[1][0] + 10)
    with Desk(store) as desk, Desk(store) as other:
        for one in (desk, other):
            with pytest.raises(MailboxCorrupt):
                one.mails("x")
        desk.repair("x")
        assert other.ids("x") == ["m1", "[gap 1]", "m3"]
        other.put("x", "m4")
        assert desk.drain("x") == ["m1", "[gap 1]", "m3", "m4"]
        assert other.ids("x") == []


def test_repair_while_others_put_takes_nothing_from_them(store: Path) -> None:
    """One whose file was replaced writes to the new one."""
    with Desk(store) as desk, Desk(store) as other:
        other.put("x", "m4")
        flip(message_file(store), 5)
        assert desk.repair("x").kept == 4
        other.put("x", "m5")
        other.ack("x")
        assert desk.ids("x") == ["m2", "m3", "m4", "m5"]
        assert desk.verify().is_clean


def test_a_line_of_state_that_a_kill_has_cut_off_is_no_damage(store: Path, folder: Path) -> None:
    """Row 18: who comes next goes on behind it. A whole line that is damaged stays damage."""
    with Desk(store) as desk:
        desk.ack("x")
    lines = state_log(store).read_bytes().splitlines(keepends=True)
    assert len(lines) >= 2
    for size in range(1, len(lines[-1])):
        root = copied(store, folder / "cut")
        state_log(root).write_bytes(b"".join(lines[:-1]) + lines[-1][:size])
        with Desk(root) as desk:
            assert desk.drain("x")[-2:] == ["m2", "m3"]
            assert desk.verify().is_clean, f"cut off behind {size} bytes"
    root = copied(store, folder / "damaged")
    flip(state_log(root), len(b"".join(lines[:-1])) + 5, 0)
    with Desk(root) as desk:
        assert desk.drain("x")[-2:] == ["m2", "m3"]
        assert [finding.reason for finding in desk.verify().findings] == ["a line is damaged"]


def test_lines_of_state_say_what_they_say(store: Path) -> None:
    """M2: readable, by name, with a checksum."""
    with Desk(store) as desk:
        desk.ack("x")
    line = state_log(store).read_bytes().splitlines()[-1]
    state = parse_line(line)
    assert state is not None
    assert (state.read_file, state.read_msg, state.read_seq) == (1, 1, 2)
    assert (state.write_file, state.write_msg, state.write_seq, state.size) == (1, 3, 4, 2)
    assert b" read_seq=2 " in line
    assert parse_line(line.replace(b"read_seq=2", b"read_seq=1")) is None
