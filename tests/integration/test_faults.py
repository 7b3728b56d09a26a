"""Bad input and faults: a typed error with a hint, and nothing half-written."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.errors import (
    ForeignConnection,
    HubClosed,
    InvalidInput,
    InvalidPayload,
    InvalidTopic,
    InvalidURL,
    NotADatabase,
    OutcomeUnknown,
    PayloadTooLarge,
    PenstockError,
    SchemaTooNew,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReplaced,
    StoreUnavailable,
)
from tests.factories import hub_on, payloads
from tests.faults import FaultyDisk, faulty_disk
from tests.processes import Child
from tests.waiting import SOON, wait_until

OpenHub = Callable[..., penstock.Hub]


@pytest.fixture
def used(hub: penstock.Hub) -> penstock.Hub:
    """A hub with three messages, to see that bad input adds none."""
    hub.topics.publish_many("t", range(3))
    return hub


def assert_unchanged(hub: penstock.Hub) -> None:
    assert hub.topics.position().offset == 3
    assert [topic.name for topic in hub.topics.list()] == ["t"]


# Names and payloads


@pytest.mark.parametrize(
    "topic",
    [
        "",
        "x" * 256,
        "ü" * 128,
        "a\nb",
        "a\x00b",
        "a\x7f",
        "a\u2028b",
        "a*",
        "a?",
        "\ud800",
        "penstock.x",
    ],
    ids=ascii,
)  # fmt: skip
def test_a_name_that_is_none_is_refused(used: penstock.Hub, topic: str) -> None:
    for use in (
        lambda: used.topics.publish(topic, 1),
        lambda: used.topics.publish_many(topic, [1]),
        lambda: used.topics.publish(topic, 1, key="k", conflate=True),
        lambda: used.topics.create(topic),
    ):
        with pytest.raises(InvalidTopic) as caught:
            use()
        assert caught.value.hint
    assert_unchanged(used)


@pytest.mark.parametrize("topic", [None, 7, b"t", ["t"], {"t": 1}], ids=repr)
def test_a_name_that_is_no_text_is_refused(used: penstock.Hub, topic: object) -> None:
    for use in (
        lambda: used.topics.publish(topic, 1),
        lambda: used.topics.read(topic),
        lambda: used.topics.get(topic),
        lambda: used.topics.subscribe(topic),
    ):
        with pytest.raises(InvalidTopic):
            use()
    assert_unchanged(used)


@pytest.mark.parametrize("topic", ["x" * 255, "a b", "ünï", "a/b:c", "."])
def test_a_name_within_the_limits_is_taken(memory: penstock.Hub, topic: str) -> None:
    memory.topics.publish(topic, 1)

    assert payloads(memory.topics.read(topic)) == [1]


def nested(depth: int) -> list:
    inner: list = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("payload", "format"),
    [
        (object(), None),
        ({1, object()}, None),
        ("\ud800", None),
        (10**400, "msgpack"),
        ("text", "bytes"),
        ({"a": 1}, "bytes"),
        ({"a": 1}, "xml"),
        (nested(100_000), None),
    ],
    ids=["object", "inside", "surrogate", "huge number", "text", "dict", "format", "deep"],
)
def test_a_payload_that_cannot_be_encoded_is_refused(
    used: penstock.Hub, payload: object, format: str | None
) -> None:
    with pytest.raises(InvalidPayload) as caught:
        used.topics.publish("t", payload, format=format)
    assert caught.value.hint
    assert_unchanged(used)


@pytest.mark.parametrize("format", ["json", "msgpack", "bytes"])
def test_a_payload_over_the_limit_is_refused(used: penstock.Hub, format: str) -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        used.topics.publish("t", b"x" * (1024 * 1024 + 1), format=format)
    assert caught.value.hint
    assert_unchanged(used)


def test_a_payload_of_the_limit_is_taken(memory: penstock.Hub) -> None:
    largest = os.urandom(1024 * 1024)
    memory.topics.publish("t", largest)

    assert payloads(memory.topics.read("t")) == [largest]


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": -1},
        {"ttl": 0},
        {"ttl": float("nan")},
        {"ttl": float("inf")},
        {"ttl": "5"},
        {"type": ""},
        {"type": "a\nb"},
        {"type": 7},
        {"type": ["t"]},
        {"key": 7},
        {"key": "\ud800"},
        {"key": "k" * 5_000_000},
        {"headers": {"a": 1}},
        {"headers": {1: "a"}},
        {"headers": {"a": "\ud800"}},
        {"headers": ["a"]},
        {"headers": {"a": "x" * 20_000}},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 256},
        {"idempotency_key": 7},
    ],
    ids=lambda options: ascii(options)[:30],
)
def test_an_option_that_makes_no_sense_is_refused(
    used: penstock.Hub, options: dict[str, object]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        used.topics.publish("t", 1, **options)
    assert caught.value.hint
    assert_unchanged(used)


# Where the hub is


@pytest.mark.parametrize(
    "url",
    ["", "penstock.db", "mysql://host/db", "sqlite:", "sqlite://", "sqlite:///", "sqlite://host/db",
     "sqlite:///a.db?mode=ro", "memory:x", "sqlite:///a%00b"],
    ids=repr,
)  # fmt: skip
def test_a_url_that_is_not_understood_is_refused_before_anything_is_opened(url: object) -> None:
    with pytest.raises(InvalidURL) as caught:
        penstock.connect(url)
    assert caught.value.hint


def test_connecting_opens_nothing(path: Path) -> None:
    hub_on(path).close()

    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"hello", b"not a database, but long enough\n" * 100], ids=["short", "long"]
)
def test_a_file_that_is_no_database_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    with pytest.raises(NotADatabase) as caught:
        hub_on(path).topics.publish("t", 1)
    assert caught.value.hint
    assert path.read_bytes() == content


def test_a_folder_is_no_database(path: Path) -> None:
    path.mkdir()

    with pytest.raises(NotADatabase):
        hub_on(path).topics.publish("t", 1)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        hub_on(tmp_path / "none" / "hub.db").topics.publish("t", 1)
    assert "mkdir" in caught.value.hint
    assert not (tmp_path / "none").exists()


def test_an_empty_file_becomes_a_hub(path: Path) -> None:
    path.touch()
    with hub_on(path) as hub:
        assert hub.topics.publish("t", 1).id == 1


def test_a_database_of_the_users_own_gets_topics_beside_its_tables(path: Path) -> None:
    with apsw.Connection(str(path)) as own:
        own.execute("CREATE TABLE mine (id INTEGER); INSERT INTO mine VALUES (7)")
    own.close()
    with hub_on(path) as hub:
        hub.topics.publish("t", 1)
        with hub.connection() as connection:
            assert connection.execute("SELECT id FROM mine") == [(7,)]


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    with hub_on(path) as hub:
        hub.topics.publish("t", 1)
    make_newer(path, readable_from=99)

    with pytest.raises(SchemaTooNew) as caught:
        hub_on(path).topics.read("t")
    assert caught.value.hint
    sqlite3.connect(path).close()  # The file that was refused is nobody's here.


def test_a_file_of_the_next_version_is_used_if_it_says_that_it_can_be(path: Path) -> None:
    with hub_on(path) as hub:
        hub.topics.publish("t", 1)
    make_newer(path, readable_from=1)
    with hub_on(path) as hub:
        hub.topics.publish("t", 2)
        assert payloads(hub.topics.read("t")) == [1, 2]


def make_newer(path: Path, *, readable_from: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO penstock_schema VALUES (99, 'future', ?, 0)", (readable_from,))
    connection.close()


READ_ONLY = """
    import os, sys
    sys.path[:0] = sys.argv[3:]
    import penstock, penstock.stores.sqlite.store  # while everything can still be read
    folder, mode = sys.argv[1], sys.argv[2]
    os.chdir(folder)
    if os.getuid() == 0:
        os.setgid(65534); os.setuid(65534)
    try:
        penstock.connect("sqlite:///hub.db").topics.publish("t", 2)
    except penstock.PenstockError as error:
        print(error.code, bool(error.hint))
    else:
        print("published")
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_cannot_be_written_is_refused(open_folder: Path, what: str) -> None:
    """As another user, because root may write everything."""
    folder = open_folder
    with hub_on(folder / "hub.db") as hub:
        hub.topics.publish("t", 1)
    for file in folder.iterdir():
        file.chmod(0o444 if what == "file" else 0o666)
    folder.chmod(0o777 if what == "file" else 0o555)
    before = (folder / "hub.db").read_bytes()
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READ_ONLY), folder, what, *sys.path],
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.stdout.split() == ["store_read_only", "True"], found.stderr
    assert (folder / "hub.db").read_bytes() == before


# Another SQLite in the same process


def test_the_stdlibs_sqlite_is_kept_away_from_an_open_hub(used: penstock.Hub, path: Path) -> None:
    for name in (str(path), path, os.fsencode(path), f"file:{path}?mode=ro"):
        with pytest.raises(ForeignConnection) as caught:
            sqlite3.connect(name, uri=str(name).startswith("file:"))
        assert "hub.transaction()" in caught.value.hint
    assert_unchanged(used)


IMPORTED_LATER = """
    import sys

    sys.path[:] = sys.argv[2:]
    import penstock
    from penstock.stores.sqlite.guard import guard

    with penstock.connect(f"sqlite:///{sys.argv[1]}") as hub:
        hub.topics.publish("t", 1)
        assert "_sqlite3" not in sys.modules
        assert not guard._is_listening, "all that Python does would be slower"
        import sqlite3

        try:
            sqlite3.connect(sys.argv[1])
        except penstock.PenstockError as error:
            print(error.code)
"""


def test_the_stdlibs_sqlite_is_kept_away_also_if_it_is_imported_later(path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(IMPORTED_LATER), path, *sys.path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() == ["foreign_connection"], found.stderr


def test_the_stdlibs_sqlite_may_open_other_files(used: penstock.Hub, tmp_path: Path) -> None:
    for name in (":memory:", str(tmp_path / "other.db")):
        sqlite3.connect(name).close()


def test_a_file_that_the_stdlibs_sqlite_has_open_is_refused(path: Path) -> None:
    own = sqlite3.connect(path)
    own.execute("CREATE TABLE mine (id INTEGER)")
    with pytest.raises(ForeignConnection):
        hub_on(path).topics.publish("t", 1)
    own.close()
    with hub_on(path) as hub:
        hub.topics.publish("t", 1)


def test_after_the_hub_is_closed_the_stdlibs_sqlite_may_come(path: Path) -> None:
    hub = hub_on(path)
    hub.topics.publish("t", 1)
    hub.close()
    own = sqlite3.connect(path)

    assert own.execute("SELECT count(*) FROM penstock_messages").fetchone() == (1,)
    own.close()


# The file goes away


def move(path: Path, to: Path) -> None:
    for file in path.parent.iterdir():
        if file.name.startswith(path.name):
            file.rename(to.with_name(to.name + file.name.removeprefix(path.name)))


def test_a_deleted_database_acknowledges_nothing(used: penstock.Hub, path: Path) -> None:
    path.unlink()

    for use in (lambda: used.topics.publish("t", 1), lambda: used.topics.read("t")):
        with pytest.raises(StoreReplaced) as caught:
            use()
        assert caught.value.hint
    assert not path.exists()


def test_a_database_that_is_moved_away_and_back_is_used_again(
    used: penstock.Hub, path: Path
) -> None:
    (path.parent / "aside").mkdir()
    move(path, path.parent / "aside" / "hub.db")
    with pytest.raises(StoreReplaced):
        used.topics.publish("t", "away")
    move(path.parent / "aside" / "hub.db", path)

    used.topics.publish("t", "back")
    assert payloads(used.topics.read("t")) == [0, 1, 2, "back"]


def test_a_replaced_database_is_noticed_by_writers_readers_and_subscribers(
    used: penstock.Hub, path: Path, tmp_path: Path
) -> None:
    with used.topics.subscribe("t") as live:
        assert live.get(0) is None
        (tmp_path / "new").mkdir()
        with hub_on(tmp_path / "new" / "hub.db") as other:
            other.topics.publish("t", "other")
        for file in (f"{path}-wal", f"{path}-shm"):
            Path(file).unlink(missing_ok=True)
        (tmp_path / "new" / "hub.db").rename(path)

        with pytest.raises(PenstockError) as caught:
            live.get(SOON)
        assert caught.value.code in {"epoch_changed", "store_replaced"}
    wait_until(lambda: _reads(used) == ["other"])
    used.topics.publish("t", "more")
    assert payloads(used.topics.read("t")) == ["other", "more"]


def _reads(hub: penstock.Hub) -> object:
    try:
        return payloads(hub.topics.read("t"))
    except StoreReplaced:
        return None


# The disk and the lock


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDisk]:
    with faulty_disk(monkeypatch) as disk:
        yield disk


def test_a_full_disk_fails_the_publish_and_nothing_else(disk: FaultyDisk, path: Path) -> None:
    with hub_on(path) as hub:
        hub.topics.publish_many("t", range(3))
        disk.is_full = True
        for use in (
            lambda: hub.topics.publish("t", "lost"),
            lambda: hub.topics.publish_many("t", [b"x" * 100_000] * 50),
        ):
            with pytest.raises(StoreFull) as caught:
                use()
            assert caught.value.hint
            assert caught.value.retryable
        assert payloads(hub.topics.read("t")) == [0, 1, 2]
        disk.is_full = False
        hub.topics.publish("t", 3)

        assert payloads(hub.topics.read("t")) == [0, 1, 2, 3]
        assert hub.topics.get("t").messages == 4


def test_a_full_disk_rolls_a_transaction_back(disk: FaultyDisk, path: Path) -> None:
    with hub_on(path) as hub:
        hub.topics.publish_many("t", range(3))

        def fill(tx: object) -> None:
            tx.publish("t", "lost")
            disk.is_full = True

        with pytest.raises(StoreError), hub.transaction() as tx:
            fill(tx)
        disk.is_full = False

        assert hub.topics.publish("t", 3).id == 4
        assert payloads(hub.topics.read("t")) == [0, 1, 2, 3]


def test_a_disk_that_does_not_sync_leaves_the_outcome_unknown(disk: FaultyDisk, path: Path) -> None:
    """And the same idempotency key resolves it: the message is there once."""
    with hub_on(path) as hub:
        hub.topics.publish("t", 0)
        disk.fails_syncs = True
        with pytest.raises(OutcomeUnknown) as caught:
            hub.topics.publish("t", 1, idempotency_key="k")
        assert caught.value.retryable
        assert "idempotency_key" in caught.value.hint
        disk.fails_syncs = False
        hub.topics.publish("t", 1, idempotency_key="k")

        assert payloads(hub.topics.read("t")) == [0, 1]


def test_a_disk_that_does_not_write_is_told(disk: FaultyDisk, path: Path) -> None:
    with hub_on(path) as hub:
        hub.topics.publish("t", 0)
        disk.fails_writes = True
        with pytest.raises(StoreError):
            hub.topics.publish("t", 1, idempotency_key="k")
        disk.fails_writes = False
        hub.topics.publish("t", 1, idempotency_key="k")

        assert payloads(hub.topics.read("t")) == [0, 1]


LOCK = """
    import sys, apsw
    connection = apsw.Connection(sys.argv[1])
    connection.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    sys.stdin.readline()
    connection.execute("ROLLBACK")
    print("free", flush=True)
    sys.stdin.readline()
"""


def test_a_lock_held_for_too_long_is_told_and_got_over(open_hub: OpenHub, path: Path) -> None:
    hub = open_hub(lock_timeout_seconds=0.2)
    hub.topics.publish("t", 1)
    with Child(LOCK, path) as child:
        assert child.hear() == "locked"
        with pytest.raises(StoreBusy) as caught:
            hub.topics.publish("t", 2)
        assert caught.value.hint
        assert caught.value.retryable
        assert payloads(hub.topics.read("t")) == [1]
        child.tell()
        assert child.hear() == "free"
        hub.topics.publish("t", 3)

    assert payloads(hub.topics.read("t")) == [1, 3]


def test_a_tail_lives_through_a_lock(open_hub: OpenHub, path: Path) -> None:
    hub = open_hub(lock_timeout_seconds=0.2)
    with hub.topics.subscribe("t") as live, Child(LOCK, path) as child:
        assert live.get(0) is None
        assert child.hear() == "locked"
        with pytest.raises(StoreBusy):
            hub.topics.publish("t", 1)
        child.tell()
        assert child.hear() == "free"
        hub.topics.publish("t", 2)

        assert live.get(SOON).payload == 2


# The end


@pytest.mark.parametrize(
    "use",
    [
        lambda hub: hub.topics.publish("t", 1),
        lambda hub: hub.topics.read("t"),
        lambda hub: hub.topics.follow("t", consumer="c"),
        lambda hub: hub.transaction(),
        lambda hub: hub.health(),
        lambda hub: hub.topics.publish("t", 1, key="k", conflate=True),
    ],
    ids=["publish", "read", "follow", "transaction", "health", "conflate"],
)
def test_a_closed_hub_says_so(open_hub: OpenHub, use: Callable[[penstock.Hub], object]) -> None:
    hub = open_hub()
    hub.topics.publish("t", 1)
    hub.close()
    hub.close()

    with pytest.raises(HubClosed) as caught:
        use(hub)
    assert caught.value.hint


def test_numbers_of_processes_of_a_file_that_is_gone_are_passed_over(path: Path) -> None:
    """They live on, and hold what they were known by; the new file counts from the beginning."""
    with hub_on(path) as old:
        old._open().start_reading()
        number = old._open().store.register("old").id
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        with hub_on(path) as new, new.lock("l"):
            new.topics.publish("orders", 1)
            assert new._open().store.register("new").id != number
            with hub_on(path) as third:
                assert not third.lock("l").acquire(timeout=0.05)
