"""A stream's group: how far it has come, noted in the store as a consumer's watermark.

Nothing reads it back: the checkpoint decides. It shows the stream's lag beside those of all other
consumers, and a topic whose retention holds for the group keeps what the stream has not read.
"""

from __future__ import annotations

from penstock.clock import Clock, SystemClock
from penstock.settings import Settings
from penstock.spark.offsets import Offset
from penstock.spark.options import SourceOptions, settings_of
from penstock.stores import open_store


def note_group(options: SourceOptions, offset: Offset, clock: Clock) -> None:
    """Note that the stream of these options has read up to the offset."""
    assert options.group is not None
    _advance(options.settings, options.group, options.topics, offset, clock)


def advance_group(
    url: str,
    group: str,
    topics: tuple[str, ...] | None,
    offset: Offset,
    clock: Clock | None = None,
) -> None:
    """Move the group's watermark up, on each of its subscriptions; never down.

    Spark commits a batch when it plans the next, so the last one of a run is left to whoever
    runs the query: with the end offset of its last progress.
    """
    _advance(settings_of(url), group, topics, offset, clock or SystemClock())


def _advance(
    settings: Settings, group: str, topics: tuple[str, ...] | None, offset: Offset, clock: Clock
) -> None:
    store = open_store(settings, clock)
    try:
        log = store.log()
        offset.check(log.epoch, log.last_id)
        writer = store.open_writer()
        try:
            with writer.transaction() as transaction:
                for subscription in topics or ("*",):
                    transaction.consumers.note(
                        group, subscription, position=offset.id, now=clock.now()
                    )
        finally:
            writer.close()
    finally:
        store.close()
