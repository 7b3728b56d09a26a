"""Letting a pipeline begin anew. Nothing is deleted: what it went on from is put aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.hub import Hub
from penstock.ports import Transaction
from penstock.ports.pipelines import PipelineRun
from penstock.settings import Settings
from penstock.spark import checkpoints
from penstock.spark.post import Post
from penstock.spark.registry import Pipeline
from penstock.spark.runner import checkpoint_of, lake_of
from penstock.spark.tables import table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def reset(settings: Settings, pipeline: Pipeline) -> list[str]:
    """Put its checkpoint and its tables aside, and let go of what it has written.

    Returns what was done, in sentences. Raises `PipelineBusy` while it runs.
    """
    checkpoint = checkpoint_of(settings, pipeline.name)
    done = []
    with Hub(settings) as hub:
        runtime = hub._open()
        run = PipelineRun(pipeline.name, pipeline.home, runtime.name, False, "", checkpoint)
        # Whoever holds the post, nobody runs it meanwhile.
        post = Post(
            runtime, run, lease_seconds=settings.pipeline_lease_seconds, on_lost=lambda: None
        )
        try:
            spark = _session_for(checkpoint, lake_of(settings))
            aside = checkpoints.set_aside(checkpoint, spark)
            done.append(
                f"There was no checkpoint in {checkpoint}."
                if aside is None
                else f"The checkpoint is now {aside}."
            )
            for table in pipeline.tables:
                moved = checkpoints.set_aside(table_of(lake_of(settings), table), spark)
                if moved is not None:
                    done.append(f"The table {table} is now {moved}.")
            for sink in pipeline.sinks:
                count = runtime.committer.run_now(_letting_go(sink))
                if count:
                    done.append(f"Let go of {count:,} batches written under {sink}.")
            if pipeline.on_reset is not None:
                done += pipeline.on_reset(settings)
        finally:
            post.end("stopped")

        def forget(tx: Transaction) -> bool:
            return tx.pipelines.forget(pipeline.name)

        runtime.committer.run_now(forget)
    done.append(f"{pipeline.name} begins anew with its next run.")
    return done


def _letting_go(sink: str) -> Callable[[Transaction], int]:
    return lambda tx: tx.sinks.forget(sink)


def _session_for(*places: str) -> SparkSession | None:
    """Spark, if it takes Spark to reach one of these."""
    if not any(checkpoints.is_remote(place) for place in places):
        return None
    from penstock.spark.sessions import session

    return session()
