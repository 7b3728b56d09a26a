"""What went wrong in Spark, in one line (S10). No JVM."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from penstock.errors import DataLost, InvalidInput, PipelineFailed, SinkReused
from penstock.spark.failures import explain

STACK = """
\tat py4j.Protocol.getReturnValue(Protocol.java:476)
\tat org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink.callBatchWriter(F.scala:56)
\t... 34 more
"""
CRASHED = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 34.0 "
    "failed 1 times, most recent failure: Lost task 0.0 in stage 34.0 (TID 60) (127.0.0.1 "
    "executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly "
    f"(crashed){STACK}"
)


def streamed(text: str) -> StreamingQueryException:
    return StreamingQueryException(
        f"[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {text} "
        "SQLSTATE: XXKST"
    )


def test_an_error_of_ours_is_itself() -> None:
    error = InvalidInput("no")
    assert explain(error) is error


def test_an_error_of_ours_is_found_in_a_traceback_that_came_through_the_jvm() -> None:
    original = DataLost("Rows of orders were removed.")
    found = explain(
        streamed(
            "An exception was raised by the Python Proxy. Return Message: Traceback (most recent "
            f'call last):\n  File "x.py", line 1, in f\n    g()\n'
            f"penstock.errors.DataLost: {original}\n{STACK}"
        )
    )
    assert isinstance(found, DataLost)
    assert (found.message, found.hint) == (original.message, original.hint)


def test_the_last_of_several_is_the_cause() -> None:
    text = (
        "penstock.errors.StagingDamaged: first\n\nThe above exception was the direct cause\n\n"
        "penstock.errors.SinkReused: second"
    )
    assert isinstance(explain(streamed(text)), SinkReused)


def test_a_users_error_in_a_task_is_told_by_its_last_line() -> None:
    text = (
        "Job aborted due to stage failure: Task 0 in stage 7.0 failed 1 times, most recent "
        "failure: Lost task 0.0 in stage 7.0 (TID 9) (127.0.0.1 executor driver): "
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        '  File "/shop.py", line 18, in boom\n'
        '    def boom(x): raise ValueError("kaboom")\n'
        "ValueError: kaboom\n" + STACK
    )
    found = explain(streamed(text))
    assert type(found) is PipelineFailed
    assert found.message == "ValueError: kaboom"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[UNRESOLVED_COLUMN] No column `nope`. SQLSTATE: 42703;\n'Project ['nope]\n+- Relation",
            "[UNRESOLVED_COLUMN] No column `nope`.;",
        ),
        (
            CRASHED,
            "SparkException: Python worker exited unexpectedly (crashed)",
        ),
        ("", "no message"),
    ],
)
def test_an_error_of_spark_is_told_without_its_way_through_java(text: str, message: str) -> None:
    assert explain(PySparkException(text)).message == message


def test_an_error_in_the_users_own_module_says_where() -> None:
    def breaks() -> None:
        raise KeyError("customer")

    with pytest.raises(KeyError) as raised:
        breaks()
    found = explain(raised.value)
    assert found.message == "KeyError: 'customer'"
    assert "In breaks," in found.hint


def test_a_long_text_is_cut() -> None:
    assert len(explain(PySparkException("x" * 10_000)).message) < 600
