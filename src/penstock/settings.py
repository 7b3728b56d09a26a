"""Settings: TOML file < environment (`PENSTOCK_*`) < arguments. Frozen once made.

Every limit of the program is a field here, with its unit in its name. `load()` refuses unknown
names and names the nearest one. `penstock doctor --settings` prints them.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from penstock.errors import InvalidSettings

DEFAULT_URL = "sqlite:///penstock.db"
DEFAULT_FILE = "penstock.toml"
ENVIRONMENT_PREFIX = "PENSTOCK_"
# Read elsewhere than here: where the settings file is, and switches of other programs.
NOT_SETTINGS = frozenset({"PENSTOCK_CONFIG", "PENSTOCK_READ_URL", "PENSTOCK_TOKEN"})

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str = DEFAULT_URL
    """Where the hub is: sqlite:///file.db, sqlite:////absolute/file.db or memory:."""
    profile: Literal["default", "low-latency", "high-throughput"] = "default"
    """A named set of defaults for what follows."""
    durability: Literal["full", "os"] = "full"
    """full: acknowledged means fsynced. os: survives a killed process, not a power loss."""
    migrate: Literal["auto", "off"] = "auto"
    """Whether opening an older database upgrades its schema."""
    name: str = ""
    """What this process is called in listings and as producer. Default: host:pid."""

    # Writing
    write_queue_max: Count = 20_000
    """Writes that may wait for the committer before QueueFull."""
    commit_group_max: Count = 1_000
    """Messages in one transaction of the committer."""
    commit_bytes_max: Bytes = 4 * 1024 * 1024
    """Payload bytes in one transaction of the committer."""
    lock_timeout_seconds: Positive = 5.0
    """How long a writer waits for the database before StoreBusy."""
    transaction_limit_seconds: Positive = 1.0
    """How long hub.transaction() may stay open before it is rolled back."""
    payload_bytes_max: Annotated[int, Meta(ge=1, le=256 * 1024 * 1024)] = 1024 * 1024
    """The largest payload, before compression."""
    headers_bytes_max: Bytes = 16 * 1024
    """The largest set of headers, encoded."""
    compress_above_bytes: Annotated[int, Meta(ge=0)] = 4096
    """Payloads above this size are compressed with zstd."""
    idempotency_seconds: Positive = 300.0
    """How long an idempotency key is remembered."""

    # Mailboxes
    mailboxes: str = ""
    """The folder of the mailboxes. Default: beside the database, its name with .mailboxes."""
    mailbox_durability: Literal["durable", "interval", "os"] = "durable"
    """durable: fsynced before put returns. interval: within mailbox_interval_ms. os: survives a
    killed process, not a power loss."""
    mailbox_interval_ms: Positive = 1_000.0
    """With mailbox_durability = "interval": how much of the last time a power loss may take."""
    mailbox_messages_max: Count = 128
    """Unacknowledged messages of one mailbox; then it is full until all of them are read."""
    mailbox_file_messages_max: Count = 256
    """Messages after which a mailbox begins a new file. More than mailbox_messages_max."""
    mailbox_ttl_seconds: Positive = 21 * 86_400.0
    """How long a message waits for its recipient before the sweep removes it."""
    mailbox_sweep_seconds: Positive = 3_600.0
    """How often old messages are looked for."""
    mailbox_scrub: Literal["file", "drained", "ack"] = "file"
    """When the bytes of acknowledged messages go: with their file, when the box is empty, or at
    once."""
    mailbox_ack_ms: Positive = 50.0
    """Acknowledgements are on disk within this time; a power loss before repeats messages."""
    mailbox_checkpoint_seconds: Positive = 5.0
    """How often the boxes' own files are synced, and the commit log is emptied."""
    mailbox_log_bytes: Annotated[int, Meta(ge=64 * 1024)] = 16 * 1024 * 1024
    """The size of a process's commit log; there are two."""
    mailbox_reserve_bytes: Annotated[int, Meta(ge=0)] = 1024 * 1024
    """Space kept back, so that messages can still be acknowledged when the disk is full."""
    mailbox_open_files_max: Annotated[int, Meta(ge=4)] = 512
    """Message files kept open by this process."""
    mailbox_cached_max: Count = 200_000
    """Mailboxes whose state is kept in memory by this process."""
    mailbox_depth: Annotated[int, Meta(ge=0, le=8)] | None = None
    """Levels of folders above the mailboxes', of a new store: 1 if not said."""
    mailbox_history_min: Annotated[int, Meta(ge=0)] = 2
    """Old state logs that are kept however old they are."""
    mailbox_history_seconds: NotNegative = 14 * 86_400.0
    """How long others are kept."""

    # Delivery in this process
    poll_active_ms: Positive = 50.0
    """Safety net behind the bell while messages flow."""
    poll_idle_ms: Positive = 200.0
    """Safety net behind the bell when nothing happens."""
    tail_batch_max: Count = 500
    """Messages the tail reads at once."""
    local_delivery: bool = True
    """Hand messages to subscribers of the publishing process without reading them back."""
    subscriber_buffer_max: Count = 10_000
    """Messages waiting in memory for one subscriber; beyond it, it is served from the log."""
    follow_batch_max: Count = 500
    """Messages a follower gets, and commits, at once."""
    consumer_lease_seconds: Positive = 30.0
    """How long a stalled follower keeps its consumer."""
    conflate_interval_ms: Positive = 200.0
    """How often conflated messages are written."""
    conflate_keys_max: Count = 10_000
    """Keys that may wait per topic before a flush is made at once."""

    # Delivery over the network
    batch_max: Count = 10
    """Messages that make a batch full, so that it is sent before batch_ms have passed."""
    batch_ms: NotNegative = 20.0
    """How long a message may wait for others after a batch was sent. 0: never."""
    frame_messages_max: Count = 500
    """Messages in one frame, when a backlog is sent."""
    frame_payload_bytes_max: Bytes = 256 * 1024
    """Bytes after which a frame gets no further message."""
    mailbox_window_max: Count = 100
    """Messages of a mailbox that a client may have unacknowledged."""
    recent_messages_max: Count = 1_000
    """Messages a channel keeps in memory for clients that resume."""
    recent_bytes_max: Bytes = 1024 * 1024
    """Bytes of them."""
    slow_policy: Literal["catch_up", "disconnect", "drop_oldest"] = "catch_up"
    """What happens to a client that reads too slowly, where the topic does not say."""
    socket_buffer_bytes_max: Bytes = 64 * 1024
    """Bytes that wait in memory for one socket before its client counts as slow."""
    stats_seconds: NotNegative = 1.0
    """How often delivery statistics are published to penstock.delivery. 0: never."""
    presence_ms: Positive = 200.0
    """How often joins and leaves are written and told, at most."""
    presence_members_max: Count = 1_000
    """Members that are listed for one topic."""
    presence_info_bytes_max: Bytes = 1024
    """The largest information a client can join with."""

    # The server
    bind_host: str = "127.0.0.1"
    """The address the server listens on. Anything but loopback needs tokens."""
    bind_port: Annotated[int, Meta(ge=0, le=65_535)] = 8400
    """Its port; 0 takes a free one."""
    tokens_file: str = ""
    """API keys and their rights, as TOML."""
    jwt_key_file: str = ""
    """The secret or public key that tokens are signed with."""
    jwt_algorithm: Literal["HS256", "RS256", "ES256", "EdDSA"] = "HS256"
    """The one algorithm that is accepted."""
    jwt_audience: str = "penstock"
    """What a token's aud must name."""
    jwt_issuer: str = ""
    """What a token's iss must be, if anything."""
    origins: tuple[str, ...] = ()
    """Web pages that may connect, beside the server's own: https://app.example.com."""
    trusted_proxies: tuple[str, ...] = ()
    """Proxies whose X-Forwarded-For is believed."""
    connections_max: Count = 50_000
    """Sockets open at once."""
    connections_per_client_max: Count = 2_000
    """Sockets open at once from one address or under one token's subject."""
    subscriptions_max: Count = 100
    """Subscriptions of one socket."""
    frame_bytes_max: Bytes = 2 * 1024 * 1024
    """The largest frame or request body that is accepted."""
    request_head_bytes_max: Bytes = 32 * 1024
    """The largest head of an HTTP request: its line and its headers."""
    publish_rate_max: Count = 20_000
    """Messages one client may publish in a second, averaged over a few."""
    subscribe_rate_max: Count = 500
    """Subscriptions one socket may open in a second, averaged over a few."""
    connect_seconds: Positive = 10.0
    """How long a new socket may take to send its connect command."""
    ping_seconds: Positive = 25.0
    """How often an idle socket is pinged."""
    pong_seconds: Positive = 10.0
    """How long its answer may take."""
    request_seconds: Positive = 30.0
    """How long an HTTP client may take to send its request, and take none of its answer."""
    drain_seconds: Positive = 10.0
    """How long stopping may take."""

    # The remote client
    client_timeout_seconds: Positive = 10.0
    """How long a call waits for a server that cannot be reached or does not answer."""
    client_buffer_bytes_max: Bytes = 16 * 1024 * 1024
    """Bytes waiting in memory for one remote subscriber; beyond it, the server has to wait."""
    reconnect_seconds_max: Positive = 20.0
    """The longest pause before a server is tried again."""

    # Jobs
    job_attempts_max: Count = 3
    """Attempts of a job where nothing else is said."""
    job_lease_seconds: Positive = 30.0
    """How long a worker that has stopped answering keeps its jobs."""
    job_result_seconds: Positive = 86_400.0
    """How long a result is kept."""
    job_keep_completed_seconds: Positive = 7 * 86_400.0
    """How long completed jobs and their history are kept; inf: for ever."""
    job_keep_failed_seconds: Positive = 7 * 86_400.0
    """How long dead letters are kept; inf: for ever."""
    job_keep_cancelled_seconds: Positive = 7 * 86_400.0
    """How long cancelled jobs are kept; inf: for ever."""
    job_wait_warning_seconds: Positive = 300.0
    """How long a ready job may wait for a worker before health warns."""
    worker_stop_seconds: Positive = 30.0
    """How long a worker that stops waits for what runs."""

    # The ledger
    ledger_seconds: Positive = 7 * 86_400.0
    """How long the ledger remembers, where neither the call nor the scope says; inf: for ever."""
    ledger_memory_max: Count = 100_000
    """Keys remembered in memory while the ledger cannot be asked."""

    # Pipelines
    lake: str = ""
    """The folder of the lake. Default: beside the database, its name with .lake."""
    lake_file_bytes: Bytes = 128 * 1024 * 1024
    """Files of the lake below this size are merged when there are several."""
    lake_replaced_seconds: Positive = 7 * 86_400.0
    """How long files that were merged stay: for readers at work, and for backups that name them."""
    checkpoints: str = ""
    """The folder of the pipelines' checkpoints. Default: beside the database, in its name with
    .pipelines."""
    spark_master: str = ""
    """Where pipelines run: local[2], spark://host:7077, yarn. Default: $SPARK_MASTER, then all
    cores of this machine."""
    pipeline_modules: tuple[str, ...] = ()
    """Modules with pipelines of your own, which commands then find by their names alone."""
    pipeline_trigger_seconds: Positive = 10.0
    """How often a pipeline looks for what is new, where nothing else is said."""
    pipeline_lease_seconds: Positive = 30.0
    """How long a runner that hangs keeps others from running its pipeline."""

    # Keeping
    retention_seconds: Positive = 86_400.0
    """How long messages are kept where the topic does not say."""
    sweep_interval_seconds: Positive = 30.0
    """How often retention looks."""
    sweep_batch_max: Count = 2_000
    """Messages removed in one transaction."""
    hold_seconds_max: Positive = 7 * 86_400.0
    """How long consumers in hold_for can keep messages beyond the topic's limits."""
    hold_bytes_max: Bytes = 10 * 1024**3
    """How many bytes of one topic they can keep."""
    wal_bytes_max: Bytes = 64 * 1024 * 1024
    """The write-ahead log is cut back when it grows beyond this."""
    instance_seconds: Positive = 10.0
    """How often a process with a tail reports its position."""
    instance_dropped_seconds: Positive = 300.0
    """When a process that stopped reporting is dropped."""

    # Health
    lag_warning_messages: Count = 1_000
    """From so many messages behind, a consumer is a warning."""
    lag_critical_messages: Count = 5_000
    """Beyond so many, it is critical."""
    lag_warning_seconds: Positive = 10.0
    """From this age of the oldest message it has not committed, a consumer is a warning."""
    lag_critical_seconds: Positive = 30.0
    """Beyond this age, it is critical."""

    def __post_init__(self) -> None:
        if self.poll_idle_ms < self.poll_active_ms:
            raise InvalidSettings("poll_idle_ms is below poll_active_ms.")
        if self.lag_critical_messages < self.lag_warning_messages:
            raise InvalidSettings("lag_critical_messages is below lag_warning_messages.")
        if self.lag_critical_seconds < self.lag_warning_seconds:
            raise InvalidSettings("lag_critical_seconds is below lag_warning_seconds.")
        if self.pong_seconds > self.ping_seconds:
            raise InvalidSettings("pong_seconds is above ping_seconds.")


PROFILES: dict[str, dict[str, Any]] = {
    "default": {},
    "low-latency": {
        "poll_active_ms": 20.0,
        "poll_idle_ms": 50.0,
        "conflate_interval_ms": 100.0,
        "local_delivery": True,
        "commit_group_max": 200,
    },
    "high-throughput": {
        "poll_active_ms": 200.0,
        "poll_idle_ms": 500.0,
        "conflate_interval_ms": 500.0,
        "local_delivery": False,
        "commit_group_max": 5_000,
        "commit_bytes_max": 16 * 1024 * 1024,
        "tail_batch_max": 2_000,
        "follow_batch_max": 2_000,
    },
}

FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}


def load(
    url: str | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    **arguments: Any,
) -> Settings:
    """The settings in force, from all sources. Arguments that are None count as not given."""
    given: dict[str, Any] = {}
    for source, values in _layers(url, file, environ, arguments):
        for name, value in values.items():
            _check_known(name, source)
            given[name] = _convert(name, value, source)
    profile = given.get("profile", "default")
    return _build({**PROFILES[profile], **given})


def sources(
    url: str | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    **arguments: Any,
) -> dict[str, str]:
    """Where each setting's value comes from, when `load` is called like this."""
    settings = load(url, file=file, environ=environ, **arguments)
    found = dict.fromkeys(FIELDS, "default")
    found.update(dict.fromkeys(PROFILES[settings.profile], f"profile {settings.profile}"))
    for source, values in _layers(url, file, environ, arguments):
        found.update(dict.fromkeys(values, source))
    return found


def _layers(
    url: str | None,
    file: str | os.PathLike[str] | None,
    environ: Mapping[str, str] | None,
    arguments: dict[str, Any],
) -> list[tuple[str, dict[str, Any]]]:
    """What was said and where, the last word last."""
    environ = os.environ if environ is None else environ
    said = {**arguments, "url": url}
    return [
        ("file", _from_file(file or environ.get("PENSTOCK_CONFIG"))),
        ("environment", dict(_from_environment(environ))),
        ("arguments", {name: value for name, value in said.items() if value is not None}),
    ]


def _from_file(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    named = path is not None
    found = Path(path if path is not None else DEFAULT_FILE)
    if not named and not found.is_file():
        return {}
    try:
        content = tomllib.loads(found.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(
            f"The settings file {found} cannot be read: {error.strerror}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"The settings file {found} is not TOML: {error}.") from error
    return content


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in NOT_SETTINGS
    }


def _check_known(name: str, source: str) -> None:
    if name in FIELDS:
        return
    near = difflib.get_close_matches(name, FIELDS, n=1)
    shown = f"{ENVIRONMENT_PREFIX}{name.upper()}" if source == "environment" else name
    raise InvalidSettings(
        f"There is no setting {shown} ({source}).",
        hint=f"Did you mean {near[0]}?" if near else "'penstock doctor --settings' lists them.",
    )


def _convert(name: str, value: Any, source: str) -> Any:
    if source == "environment" and isinstance(FIELDS[name].default, tuple):
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(value, FIELDS[name].type, strict=source != "environment")
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"The setting {name} ({source}) is {value!r}: {error}.") from error


def _build(values: dict[str, Any]) -> Settings:
    return Settings(**values)
