"""The options of `format("penstock")`: known by name, of the right kind, and not at odds.

Spark hands options over as text and without regard to case. One that is not known here, or that
says nothing where it stands, is refused: an option that is silently ignored is found out too late.
"""

from __future__ import annotations

import difflib
import urllib.parse
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import msgspec

from penstock.clock import Micros
from penstock.errors import InvalidInput, InvalidOption, PenstockError
from penstock.figures import TOPICS as PIPELINE_TOPICS
from penstock.job import OnConflict
from penstock.model import Pattern, Position, as_micros, check_name, check_topic
from penstock.settings import Settings
from penstock.settings import load as load_settings
from penstock.stores import check_url
from penstock.topics.publishing import check_publishable

ROWS_PER_TRIGGER = 100_000
# A publisher beside the sink waits for a transaction of the sink's: some 20 ms.
ROWS_PER_TRANSACTION = 5_000
ROWS_PER_TRANSACTION_MAX = 20_000
INLINE_BYTES = 1024 * 1024
TRIGGER_DELAY_SECONDS = 900.0
VALUE_FORMATS = ("raw", "json")
WRITTEN_FORMATS = ("json", "text", "bytes", "msgpack")

# Spark itself puts these among a sink's or a source's options.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})


class Start(msgspec.Struct, frozen=True):
    """Where to begin or to end: 'earliest', 'latest', after an id, or at a time."""

    word: str = ""
    after: int | None = None
    epoch: str | None = None
    at: Micros | None = None


EARLIEST = Start("earliest")
LATEST = Start("latest")


class SourceOptions(msgspec.Struct, frozen=True):
    """What a reader was told. The settings are the driver's, wherever it reads."""

    settings: Settings
    entity: str = "messages"
    topics: tuple[str, ...] | None = None
    """Names and globs. None: all but penstock's own."""
    starting: Start | None = None
    ending: Start | None = None
    rows_max: int | None = ROWS_PER_TRIGGER
    bytes_max: int | None = None
    rows_min: int | None = None
    delay_max_seconds: float = TRIGGER_DELAY_SECONDS
    partitions_min: int | None = None
    fail_on_loss: bool = True
    group: str | None = None
    include_headers: bool = False
    include_expired: bool = False
    pushdown: bool = False
    as_json: bool = False
    given: frozenset[str] = frozenset()
    """The options that were given, by name."""


class SinkOptions(msgspec.Struct, frozen=True):
    """What a writer was told. The settings are the driver's, wherever it writes."""

    settings: Settings
    entity: str = "messages"
    topic: str | None = None
    queue: str | None = None
    type: str | None = None
    value_format: str | None = None
    app: str | None = None
    version: int | None = None
    staging: str | None = None
    inline_bytes_max: int = INLINE_BYTES
    rows_max: int = ROWS_PER_TRANSACTION
    fail_on_mismatch: bool = True
    on_conflict: OnConflict = "return"


def parse_source(options: Mapping[str, str], entities: Mapping[str, Any]) -> SourceOptions:
    """The options of a source; raises `InvalidOption`."""
    given = _Given(options, SOURCE)
    entity = given.choice("entity", tuple(entities), "messages")
    is_log = entities[entity].is_log
    topics = _topics(given)
    if entity != "messages":
        given.refuse(
            ("subscribe", "subscribePattern", "group", "includeHeaders", "includeExpired"),
            f"is for messages, not for {entity}",
        )
    if not is_log:
        given.refuse(
            (*STREAM_ONLY, *PLACES, "failOnDataLoss"), f"is for what has offsets; {entity} has none"
        )
    if not entities[entity].has_payload:
        given.refuse(("valueFormat",), f"is for payloads, and {entity} has none")
    starting = _place(given, "starting")
    ending = _place(given, "ending")
    rows_max = given.count("maxOffsetsPerTrigger", ROWS_PER_TRIGGER)
    rows_min = given.count("minOffsetsPerTrigger", None)
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise InvalidOption(
            f"minOffsetsPerTrigger ({rows_min:,}) is above maxOffsetsPerTrigger ({rows_max:,}).",
            hint="No batch could ever be made.",
        )
    if "maxTriggerDelay" in given and rows_min is None:
        raise InvalidOption(
            "maxTriggerDelay needs minOffsetsPerTrigger.",
            hint="It says how long to wait for that many.",
        )
    return SourceOptions(
        settings=_settings(given),
        entity=entity,
        topics=topics,
        starting=starting,
        ending=ending,
        rows_max=rows_max,
        bytes_max=given.count("maxBytesPerTrigger", None),
        rows_min=rows_min,
        delay_max_seconds=given.duration("maxTriggerDelay", TRIGGER_DELAY_SECONDS),
        partitions_min=given.count("minPartitions", None),
        fail_on_loss=given.flag("failOnDataLoss", True),
        group=given.name("group"),
        include_headers=given.flag("includeHeaders", False),
        include_expired=given.flag("includeExpired", False),
        pushdown=given.flag("pushdown", False),
        as_json=given.choice("valueFormat", VALUE_FORMATS, "raw") == "json",
        given=given.names,
    )


def check_batch(options: SourceOptions) -> None:
    """Raises if an option says nothing in a batch."""
    for name in (*STREAM_ONLY, "group"):
        if name in options.given:
            raise InvalidOption(f"{name} is for streams.", hint="Use it with spark.readStream.")


def check_stream(options: SourceOptions) -> None:
    """Raises if an option says nothing in a stream."""
    for name in ("endingOffsets", "endingTimestamp"):
        if name in options.given:
            raise InvalidOption(
                f"{name} is for batches.", hint="Use it with spark.read; a stream has no end."
            )
    if "pushdown" in options.given:
        raise InvalidOption(
            "pushdown is for batches.", hint="Spark hands no filters down to a stream's source."
        )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """The options of a sink; raises `InvalidOption`."""
    given = _Given(options, SINK)
    topic, queue = given.get("topic"), given.get("queue")
    if topic is not None and queue is not None:
        raise InvalidOption("Both topic and queue are given.", hint="A sink writes to one of them.")
    entity = given.choice("entity", ("messages", "jobs"), "jobs" if queue else "messages")
    if entity == "messages":
        given.refuse(("queue", "onConflict"), "is for jobs; this sink writes messages")
    else:
        given.refuse(("topic",), "is for messages; this sink writes jobs")
    try:
        if topic is not None:
            # Pipelines publish what they find under penstock's own names.
            (check_topic if topic in PIPELINE_TOPICS else check_publishable)(topic)
        if queue is not None:
            check_name(queue, "queue name")
    except InvalidInput as error:
        raise InvalidOption(error.message, hint=error.hint) from error
    app, version = given.name("txnAppId"), given.whole("txnVersion")
    rows_max = given.count("maxRowsPerTransaction", ROWS_PER_TRANSACTION, ROWS_PER_TRANSACTION_MAX)
    assert rows_max is not None, "it has a default"
    return SinkOptions(
        settings=_settings(given),
        entity=entity,
        topic=topic,
        queue=queue,
        type=given.name("type"),
        value_format=given.choice("valueFormat", WRITTEN_FORMATS, None),
        app=app,
        version=version,
        staging=given.get("stagingDir"),
        inline_bytes_max=given.whole("maxInlineBytes", INLINE_BYTES) or 0,
        rows_max=rows_max,
        fail_on_mismatch=given.flag("failOnMismatch", True),
        on_conflict=given.choice("onConflict", get_args(OnConflict), "return"),
    )


STREAM_ONLY = (
    *("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"),
    "maxTriggerDelay",
)
PLACES = ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp")
SOURCE = (
    *("url", "entity", "subscribe", "subscribePattern"),
    *PLACES,
    *STREAM_ONLY,
    *("minPartitions", "failOnDataLoss", "group", "includeHeaders", "includeExpired"),
    *("pushdown", "valueFormat"),
)
SINK = (
    *("url", "entity", "topic", "queue", "type", "valueFormat", "txnAppId", "txnVersion"),
    *("stagingDir", "maxInlineBytes", "maxRowsPerTransaction", "failOnMismatch", "onConflict"),
)


class _Given:
    """Options as text, asked for by name."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        spelled = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() in spelled:
                self._values[spelled[name.lower()]] = value
            elif name.lower() not in SPARKS_OWN:
                raise _unknown(name, known)
        self.names = frozenset(self._values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise InvalidOption(f"{name} is empty.")
        return value

    def name(self, name: str) -> str | None:
        value = self.get(name)
        return None if value is None else _translated(name, lambda: check_name(value, name))

    def choice(self, name: str, choices: tuple[str, ...], default: Any) -> Any:
        value = self.get(name)
        if value is None:
            return default
        found = next((choice for choice in choices if choice.lower() == value.lower()), None)
        if found is None:
            raise InvalidOption(
                f"{name} is not {value!r}.", hint=f"It is one of {', '.join(choices)}."
            )
        return found

    def flag(self, name: str, default: bool) -> bool:
        found: str = self.choice(name, ("true", "false"), str(default).lower())
        return found == "true"

    def whole(self, name: str, default: int | None = None) -> int | None:
        value = self.get(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            number = -1
        if number < 0:
            raise InvalidOption(f"{name} is a whole number from 0 up, not {value!r}.")
        return number

    def count(self, name: str, default: int | None, most: int | None = None) -> int | None:
        number = self.whole(name, default)
        if number == 0 or (most is not None and number is not None and number > most):
            limit = "" if most is None else f" to {most:,}"
            raise InvalidOption(f"{name} is a number from 1{limit}, not {number:,}.")
        return number

    def duration(self, name: str, default: float) -> float:
        """In seconds, from Spark's way to write it: 15m, 30s, 500ms, 1h."""
        value = self.get(name)
        if value is None:
            return default
        text = value.strip().lower()
        for unit in sorted(UNITS, key=len, reverse=True):
            number = text.removesuffix(unit).strip()
            if text.endswith(unit) and number.replace(".", "", 1).isdigit():
                return float(number) * UNITS[unit]
        raise InvalidOption(f"{name} is a time such as 30s, 15m or 1h, not {value!r}.")

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if name in self._values:
                raise InvalidOption(f"{name} {why}.")


UNITS = {
    "ms": 0.001,
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
}


def _unknown(name: str, known: tuple[str, ...]) -> InvalidOption:
    spelled = {option.lower(): option for option in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1)
    if near:
        hint = f"Did you mean {spelled[near[0]]}?"
    elif name.lower() == "path":
        hint = "Name the store with .option('url', 'sqlite:///file.db'), and load() or save()."
    else:
        hint = f"There are {', '.join(known)}."
    return InvalidOption(f"There is no option {name!r} here.", hint=hint)


def _settings(given: _Given) -> Settings:
    return settings_of(given.get("url"))


def settings_of(url: str | None) -> Settings:
    """The settings in force here, for a store of which Spark's other processes know as well.

    With an absolute path: executors have folders of their own. Raises `InvalidOption`.
    """
    settings: Settings = _translated("url", load_settings, url)
    scheme, path = _translated("url", check_url, settings.url)
    if scheme == "memory":
        raise InvalidOption(
            "A memory: store is its process's own.", hint="Spark needs a file: sqlite:///file.db."
        )
    # Quoted as it was: the path may have characters that mean something in a URL.
    absolute = urllib.parse.quote(str(Path(path).absolute()))
    return msgspec.structs.replace(settings, url=f"sqlite:///{absolute}")


def _topics(given: _Given) -> tuple[str, ...] | None:
    names, globs = given.get("subscribe"), given.get("subscribePattern")
    if names is not None and globs is not None:
        raise InvalidOption(
            "Both subscribe and subscribePattern are given.",
            hint="subscribePattern takes names, too.",
        )
    if names is not None:
        return tuple(_translated("subscribe", check_topic, name) for name in _listed(names))
    if globs is not None:
        return tuple(
            _translated("subscribePattern", Pattern.parse, text).text for text in _listed(globs)
        )
    return None


def _listed(text: str) -> list[str]:
    """Names with commas between them, or a JSON list where a name has a comma in it."""
    if text.lstrip().startswith("["):
        try:
            names = msgspec.json.decode(text, type=list[str])
        except msgspec.MsgspecError as error:
            raise InvalidOption(f"{text!r} is not a JSON list of names: {error}.") from error
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InvalidOption("The list of topics is empty.", hint="Leave it out for all topics.")
    return sorted(set(names))


def _place(given: _Given, which: str) -> Start | None:
    offsets, at = given.get(f"{which}Offsets"), given.get(f"{which}Timestamp")
    if offsets is not None and at is not None:
        raise InvalidOption(f"Both {which}Offsets and {which}Timestamp are given.")
    if at is not None:
        return Start(at=_time(f"{which}Timestamp", at))
    if offsets is None:
        return None
    word = offsets.strip().lower()
    if word in ("earliest", "latest"):
        if which == "ending" and word == "earliest":
            raise InvalidOption("endingOffsets cannot be 'earliest'.")
        return Start(word)
    if word.isdigit() and len(word) <= 18:
        # As Kafka counts: the first offset that is read, and the first that is not.
        return Start(after=max(0, int(word) - 1))
    try:
        position = Position.parse(offsets.strip())
    except InvalidInput:
        raise InvalidOption(
            f"{which}Offsets is not {offsets!r}.",
            hint="It is 'earliest', 'latest', an offset such as 42, or a position: 'epoch:42'.",
        ) from None
    return Start(after=position.offset, epoch=position.epoch)


def _time(name: str, text: str) -> Micros:
    text = text.strip()
    try:
        if text.isdigit():
            return as_micros(int(text) / 1000)
        return as_micros(datetime.fromisoformat(text))
    except (ValueError, InvalidInput):
        raise InvalidOption(
            f"{name} is not {text!r}.",
            hint="It is milliseconds since 1970, or a time with its zone: 2026-01-31T12:00:00Z.",
        ) from None


def _translated(name: str, check: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return check(*arguments)
    except PenstockError as error:
        raise InvalidOption(f"{name}: {error.message}", hint=error.hint) from error
