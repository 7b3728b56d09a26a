"""A replay: messages that were, written again, each once, however often it is run.

First its rows are looked up and set down in files, in order, and what it is to do is entered in
the store. From then on it is fixed: what is published or removed meanwhile changes nothing. Then
the rows are written in chunks under the replay's name; a chunk that was written is known.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as fn

from penstock import codec
from penstock.clock import SECOND, Clock, Micros, SystemClock
from penstock.errors import InvalidOption, StagingDamaged
from penstock.model import check_name, check_topic
from penstock.ports import Store
from penstock.ports.lake import Replay
from penstock.settings import Settings
from penstock.spark import staging
from penstock.spark.commit import Batch, Committer
from penstock.spark.encoder import DIGEST_MAX
from penstock.spark.failures import explain
from penstock.spark.lake_files import digest_of, sync_file, sync_folders
from penstock.spark.lake_folder import writing
from penstock.spark.options import SinkOptions
from penstock.spark.sink import stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHUNK_ROWS = 10_000
CHUNKS_PER_SECOND = 4
"""With a rate, a chunk is so much of a second's rows: it is written evenly."""
JSON = codec.CONTENT_TYPES[codec.JSON]
BYTES = codec.CONTENT_TYPES[codec.BYTES]

Step = Callable[[str], None]
Progress = Callable[[int, int], None]
"""Told of the number of a chunk and its rows."""

_check_json = msgspec.json.Decoder(msgspec.Raw).decode


class Target(msgspec.Struct, frozen=True):
    """Where a replay goes: a topic or a queue."""

    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Target:
        kind, _, name = text.partition(":")
        if kind not in ("topic", "queue") or not name:
            raise InvalidOption(
                f"A replay cannot go to {text!r}.", hint="Such as topic:orders-again or queue:work."
            )
        if kind == "topic":
            check_topic(name)
        else:
            check_name(name, "queue name")
        return cls(kind, name)


class Plan(msgspec.Struct, frozen=True):
    """What a replay is told. The same words are the same replay."""

    topics: tuple[str, ...]
    to: str
    source: str
    where: str | None = None
    schema: str | None = None
    since: str | None = None
    until: str | None = None
    type: str | None = None
    keep_ids: bool = False

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def id(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]


class Staged(msgspec.Struct, frozen=True):
    """Where the rows of a replay lie until they are written."""

    folder: str
    files: list[tuple[str, int, str]]
    """Name, rows and digest of each, in the order of the messages."""
    chunk_rows: int


def choose(rows: DataFrame, plan: Plan) -> DataFrame:
    """The rows that are meant, as the sink takes them, with their offsets. A pure function."""
    if plan.where is not None:
        try:
            rows = rows.where(plan.where)
        except (AnalysisException, ParseException) as error:
            raise InvalidOption(
                f"The condition {plan.where!r} is not understood: {explain(error).message}",
                hint="It is SQL over the columns of a message: \"type = 'paid' AND offset > 99\".",
            ) from error
    type_of = fn.col("type") if plan.type is None else fn.lit(plan.type)
    if plan.to.startswith("queue:"):
        # A job has a type; one that the message does not name is its topic's.
        return rows.select(
            "offset",
            fn.col("value").alias("payload"),
            "content_type",
            fn.coalesce(type_of, fn.col("topic")).alias("type"),
        )
    columns = [fn.col(name) for name in ("offset", "value", "content_type", "key", "headers")]
    if plan.keep_ids:
        columns.append(fn.col("message_id"))
    return rows.select(*columns, type_of.alias("type"))


class Replayer:
    """Carries one replay out. `on_step` is told of each point where a crash can follow."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        id: str,
        plan: Plan,
        *,
        on_step: Step,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._id = id
        self._plan = plan
        self._on_step = on_step
        self._clock = clock or SystemClock()
        self.app = f"replay-{id}"

    def find(self) -> Replay | None:
        """The replay, if it was planned before. Raises if that was another one."""
        found = self._store.lake.replay(self._id)
        if found is not None and found.plan != self._plan.text:
            raise InvalidOption(
                f"The replay {self._id!r} was planned as {found.plan}.",
                hint="Choose another id for another replay.",
            )
        return found

    def plan(self, rows: DataFrame, *, rate: float | None) -> Replay:
        """Look the rows up and enter the replay."""
        folder = self.new_folder()
        choose(rows, self._plan).orderBy("offset").write.parquet(str(folder))
        self._on_step("looked up")
        return self.enter(folder, rate=rate)

    def new_folder(self) -> Path:
        """For the rows: Parquet files whose names are in the order of the messages."""
        return self._home() / uuid.uuid4().hex

    def enter(self, folder: Path, *, rate: float | None) -> Replay:
        """From now on the rows in this folder are the replay's."""
        files = sorted(folder.glob("*.parquet"))
        found = [(path.name, pq.read_metadata(path).num_rows, sync_file(path)) for path in files]
        top = self._home().parent
        sync_folders(top, [folder.relative_to(top)])
        chunk = CHUNK_ROWS if rate is None else round(rate / CHUNKS_PER_SECOND)
        staged = Staged(str(folder), found, min(max(1, chunk), CHUNK_ROWS))
        replay = Replay(
            self._id,
            self._plan.text,
            sum(rows for _, rows, _ in found),
            msgspec.json.encode(staged).decode(),
        )
        with writing(self._store) as transaction:
            known = transaction.lake.plan_replay(replay, now=self._clock.now())
        self._on_step("planned")
        return known

    def write(
        self,
        replay: Replay,
        *,
        rate: float | None,
        wait: Callable[[float], bool],
        progress: Progress,
    ) -> bool:
        """Write what is left, at most so many rows a second. Whether all of it is written.

        `wait` waits so many seconds, and tells whether to stop.
        """
        staged = msgspec.json.decode(replay.files, type=Staged)
        last = self._store.sinks.last(self.app)
        # The last one that is known may have been counted in the moment before a crash: it comes
        # again, and changes nothing.
        number = 0 if last is None else last.number
        began, rows = self._clock.monotonic(), 0
        for chunk in self._chunks(staged, skip=number):
            if wait(self._until(began, rows, rate)):
                return False
            self._commit(number, chunk)
            self._on_step(f"chunk {number}")
            progress(number, chunk.num_rows)
            rows += chunk.num_rows
            number += 1
        with writing(self._store) as transaction:
            transaction.lake.finish_replay(replay.id, now=self._clock.now())
        self._on_step("finished")
        self.clean()
        return True

    def clean(self) -> None:
        """Remove the rows of a replay that is finished."""
        shutil.rmtree(self._home(), ignore_errors=True)

    def _until(self, began: Micros, rows: int, rate: float | None) -> float:
        """Seconds until the next rows may be written, so many being written since it began."""
        if rate is None:
            return 0.0
        return max(0.0, rows / rate - (self._clock.monotonic() - began) / SECOND)

    def _commit(self, number: int, rows: pa.RecordBatch) -> None:
        target = Target.parse(self._plan.to)
        options = SinkOptions(
            self._settings,
            entity="messages" if target.kind == "topic" else "jobs",
            topic=target.name if target.kind == "topic" else None,
            queue=target.name if target.kind == "queue" else None,
            app=self.app,
            version=number,
        )
        made = stage(options, iter([as_they_are(rows)]))
        batch = Batch(self.app, number, "", (made.part,), made.digest % DIGEST_MAX)
        Committer(options, on_step=self._on_step).commit(batch)

    def _chunks(self, staged: Staged, *, skip: int) -> Iterator[pa.RecordBatch]:
        paths = []
        for name, _, digest in staged.files:
            path = Path(staged.folder) / name
            try:
                is_whole = digest_of(path) == digest
            except OSError:
                is_whole = False
            if not is_whole:
                raise StagingDamaged(
                    f"{path} is missing or damaged: the replay {self._id!r} cannot go on.",
                    hint="What was written stays. Replay the rest under another id.",
                )
            paths.append(path)
        yield from rechunk(paths, rows=staged.chunk_rows, skip=skip)

    def _home(self) -> Path:
        name = hashlib.sha256(self._id.encode()).hexdigest()[:16]
        return staging.folder_of(self._settings.url) / f"replay-{name}"


def rechunk(paths: Sequence[Path], *, rows: int, skip: int) -> Iterator[pa.RecordBatch]:
    """The files' rows in order, in chunks of so many, without the first `skip` chunks."""
    waiting: list[pa.RecordBatch] = []
    count, number = 0, 0
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=rows):
                while batch.num_rows:
                    piece = batch.slice(0, rows - count)
                    batch = batch.slice(piece.num_rows)
                    waiting.append(piece)
                    count += piece.num_rows
                    if count == rows:
                        if number >= skip:
                            yield _joined(waiting)
                        waiting, count, number = [], 0, number + 1
    if waiting and number >= skip:
        yield _joined(waiting)


def as_they_are(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without their offsets. What says it is JSON, and is not, goes on as bytes."""
    payload = "value" if "value" in rows.schema.names else "payload"
    types = [
        BYTES if type == JSON and not _is_json(value) else type
        for value, type in zip(
            rows.column(payload).to_pylist(), rows.column("content_type").to_pylist(), strict=True
        )
    ]
    place = rows.schema.get_field_index("content_type")
    rows = rows.set_column(place, "content_type", pa.array(types, type=pa.string()))
    return rows.drop_columns(["offset"])


def _is_json(value: bytes) -> bool:
    try:
        _check_json(value)
    except msgspec.DecodeError:
        return False
    return True


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
