"""`penstock pipeline …` (S8, S10). Most of it is refused before Spark would start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.acceptance.terminal import COMMAND, Terminal
from tests.factories import hub_on
from tests.waiting import is_readable

SHOP = '''
from typing import Annotated
from pyspark.sql import functions as F
from penstock.spark import pipeline

@pipeline("totals", source="orders", sink="topic:totals", mode="update")
def totals(messages, *, currency: Annotated[str, "Which currency."] = "EUR", top: int = 10):
    """What each customer has ordered."""
    order = F.from_json(F.col("value").cast("string"), "customer STRING, amount DOUBLE")
    return (
        messages.select(order.alias("order")).groupBy("order.customer")
        .agg(F.sum("order.amount").alias("sum"))
        .withColumn("currency", F.lit(currency))
        .select(F.to_json(F.struct("customer", "sum", "currency")).alias("value"))
    )

@pipeline("counted", source="orders", sink=None)
def counted(messages, batch_id):
    messages.write.mode("overwrite").parquet(f"counted-{batch_id}")
'''


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    shell = Terminal(tmp_path)
    (tmp_path / "shop.py").write_text(SHOP)
    yield shell
    shell.close()


@pytest.fixture
def hub(terminal: Terminal) -> Iterator[penstock.Hub]:
    with hub_on(terminal.file) as hub:
        yield hub


def test_the_list_has_the_built_in_pipelines_and_those_of_modules(terminal: Terminal) -> None:
    shown = terminal.done("pipeline", "list", "-m", "shop")
    [line] = [line for line in shown.lines if line.startswith("totals")]
    assert "What each customer has ordered" in line
    assert "shop:totals" in line
    assert any(line.startswith("drain") for line in shown.lines)

    found = {
        one["name"]: one for one in terminal.done("pipeline", "list", "-m", "shop", "--json").json
    }
    assert found["totals"]["options"][0] == {
        "name": "currency",
        "type": "str",
        "default": "EUR",
        "help": "Which currency.",
    }
    assert found["drain"]["home"] == "built in"
    assert "totals" not in {one["name"] for one in terminal.done("pipeline", "list", "--json").json}


def test_one_is_shown_with_its_options(terminal: Terminal) -> None:
    shown = terminal.done("pipeline", "list", "shop:totals")
    assert shown.lines[0] == "totals: What each customer has ordered (shop:totals)"
    [line] = [line for line in shown.lines if line.startswith("--currency")]
    assert line.split() == ["--currency", "EUR", "Which", "currency."]


def test_modules_can_be_a_setting(terminal: Terminal) -> None:
    (terminal.folder / "penstock.toml").write_text('pipeline_modules = ["shop"]\n')
    assert "totals" in {one["name"] for one in terminal.done("pipeline", "list", "--json").json}


@pytest.mark.parametrize(
    ("arguments", "text", "hint"),
    [
        (["totals"], "no pipeline 'totals'", "one of your own is MODULE:NAME"),
        (["drian"], "no pipeline 'drian'", "Did you mean drain?"),
        (["shop:total"], "no pipeline 'total'", "Did you mean shop:totals?"),
        (["shop:totals", "--curency", "USD"], "no option --curency", "Did you mean --currency?"),
        (["shop:totals", "--onec"], "no option --onec", "Did you mean --once?"),
        (["shop:totals", "--currency"], "--currency needs a value", "Which currency."),
        (["shop:totals", "--top", "many"], "--top is a whole number", ""),
        (["shop:totals", "--set", "x=1"], "no option --x", "--currency, --top"),
        (["shop:totals", "--set", "x"], "--set 'x' is no name and value", ""),
        (["shop:totals", "--conf", "x"], "--conf 'x' is no name and value", ""),
        (["shop:totals", "--once", "--top", "3", "stray"], "'stray' is not understood", ""),
        (["--top", "3"], "No pipeline is named before --top", ""),
        (["shop:totals", "shop:totals", "--url", "memory:"], "memory: store", "Spark needs a file"),
        (["shop:totals", "--url", "http://localhost:1"], "is a server", "where the database is"),
        (
            ["shop:totals", "--since", "2026-01-02", "--until", "2026-01-01"],
            "is not before until",
            "",
        ),
    ],
)
def test_a_wrong_command_is_one_line_and_a_hint(
    terminal: Terminal, arguments: list[str], text: str, hint: str
) -> None:
    ran = terminal.run("pipeline", "run", *arguments)
    assert ran.code == 1, ran
    assert ran.out == ""
    error, *rest = ran.err.splitlines()
    assert error.startswith("error: ")
    assert text in error
    assert hint in "".join(rest)
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    "arguments", [["shop:totals", "--trigger", "x"], ["shop:totals", "--from", "leak"], []]
)
def test_a_command_that_is_not_understood_ends_with_two(
    terminal: Terminal, arguments: list[str]
) -> None:
    ran = terminal.run("pipeline", "run", *arguments)
    assert ran.code == 2, ran
    assert "Traceback" not in ran.err


def test_without_java_it_says_so(terminal: Terminal) -> None:
    """S9: before anything is started."""
    program = (
        "import sys, penstock.spark.java as java\n"
        "java.find_java.__defaults__ = ({'PATH': '/nowhere'}, ())\n"
        "from penstock.cli import main\n"
        "sys.argv = ['penstock', 'pipeline', 'run', 'shop:totals', '--once']\n"
        "main()\n"
    )
    ran = run_program(terminal, program)
    assert ran.returncode == 1
    assert "error: Spark needs Java 17 or 21" in ran.stderr
    assert "hint: On Debian and Ubuntu: apt-get install openjdk-17" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("command", [["run", "shop:totals"], ["run", "drain"], ["list"]])
def test_without_spark_it_says_what_to_install(terminal: Terminal, command: list[str]) -> None:
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "from penstock.cli import main\n"
        f"sys.argv = ['penstock', 'pipeline', *{command!r}]\n"
        "main()\n"
    )
    ran = run_program(terminal, program)
    assert ran.returncode == 1
    assert "error: Pipelines need Spark, and pyspark is not installed here." in ran.stderr
    assert "hint: pip install 'penstock[spark]'" in ran.stderr
    assert "Traceback" not in ran.stderr


def run_program(terminal: Terminal, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=terminal.folder,
        env=terminal.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_status_needs_no_spark_and_says_when_there_is_nothing(terminal: Terminal) -> None:
    assert terminal.done("pipeline", "status").out.startswith("No pipeline has run yet")
    assert terminal.done("pipeline", "status", "--json").json == []
    ran = terminal.run("pipeline", "status", "nope")
    assert (ran.code, "'nope' has not run on this database" in ran.err) == (1, True)


def test_reset_asks_first(terminal: Terminal) -> None:
    ran = terminal.run("pipeline", "reset", "shop:totals")
    assert (ran.code, "Pass --yes" in ran.err) == (1, True)
    done = terminal.done("pipeline", "reset", "shop:totals", "--yes")
    assert done.lines[-1] == "totals begins anew with its next run."


def test_package_says_how_to_use_it(terminal: Terminal) -> None:
    done = terminal.done("pipeline", "package", "-m", "shop", "-o", "shop.zip")
    assert "--conf spark.submit.pyFiles=shop.zip" in done.out
    assert (terminal.folder / "shop.zip").is_file()


# With Spark: few, since each starts one.

PATIENCE_SECONDS = 240.0


class Command:
    """One that runs Spark, in the terminal's folder; as a process group of its own."""

    def __init__(self, terminal: Terminal, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "pipeline", *arguments],
            cwd=terminal.folder,
            # An environment that is not activated: nothing of ours is on the PATH.
            env={**terminal.environment, "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._heard = b""

    def event(self, *names: str) -> Any:
        """The next of these events, of lines of JSON."""
        while True:
            found = json.loads(self.line())
            if found["event"] in names:
                return found

    def line(self) -> str:
        out = self._process.stdout
        assert out is not None
        while b"\n" not in self._heard:
            assert is_readable(out, PATIENCE_SECONDS)
            piece = os.read(out.fileno(), 65536)
            assert piece, self.end()
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def interrupt(self) -> None:
        """As Ctrl-C does: to all processes of the terminal's foreground."""
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self) -> tuple[int, str, str]:
        out, err = self._process.communicate(timeout=PATIENCE_SECONDS)
        return self._process.returncode, out.decode(), err.decode()

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_two_pipelines_share_a_spark_go_on_and_end_with_ctrl_c(
    java_home: Path, terminal: Terminal, hub: penstock.Hub
) -> None:
    """S8, S10: from the program to what they wrote, the status, and the second runner's refusal."""
    hub.topics.publish_many("orders", [{"customer": f"c{n % 2}", "amount": n} for n in range(10)])
    names = ("shop:totals", "shop:counted", "--trigger", "200ms", "--currency", "USD")
    command = Command(terminal, "run", *names, "--master", "local[2]", "--json")
    try:
        batches = [command.event("batch") for _ in range(2)]
        assert {(one["pipeline"], one["rows"], one["lag"]) for one in batches} == {
            ("totals", 10, 0),
            ("counted", 10, 0),
        }
        shown = terminal.done("pipeline", "status")
        assert [line.split()[:2] for line in shown.lines if "running" in line] == [
            ["counted", "running"],
            ["totals", "running"],
        ]
        refused = terminal.run("pipeline", "run", "shop:totals", "--once")
        assert (refused.code, "The pipeline totals is being run by" in refused.err) == (1, True)
        hub.topics.publish("orders", {"customer": "c0", "amount": 100})
        assert {command.event("batch")["rows"] for _ in range(2)} == {1}
        command.interrupt()
        assert {command.event("stopped")["rows"] for _ in range(2)} == {11}
        code, _, err = command.end()
        assert (code, "Traceback" in err, "WARN" in err) == (130, False, False)
    finally:
        command.kill()
    last = {m.payload["customer"]: m.payload for m in hub.topics.read("totals")}
    assert last["c0"] == {"customer": "c0", "sum": 120.0, "currency": "USD"}
    found = {one["name"]: one for one in terminal.done("pipeline", "status", "--json").json}
    assert found["totals"]["state"] == "stopped"
    assert json.loads(found["totals"]["options"]) == {"currency": "USD", "top": 10}


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_one_that_fails_is_told_in_a_line_and_the_log_is_in_a_file(
    java_home: Path, terminal: Terminal, hub: penstock.Hub
) -> None:
    (terminal.folder / "broken.py").write_text(
        "from penstock.spark import pipeline\n"
        "@pipeline('broken', source='orders', sink='topic:x')\n"
        "def broken(messages): return messages.select('nope')\n"
    )
    hub.topics.publish("orders", 1)
    command = Command(terminal, "run", "-m", "broken", "broken", "--once", "--master", "local[1]")
    try:
        code, _, err = command.end()
    finally:
        command.kill()
    assert code == 1
    assert err.count("\n") == 2, err
    error, log = err.splitlines()
    assert error.startswith("error: [UNRESOLVED_COLUMN")
    assert log.startswith("Spark's log: ")
    assert Path(log.removeprefix("Spark's log: ")).is_file()
    shown = terminal.done("pipeline", "status")
    assert "broken" in shown.out
    assert "failed" in shown.out
    assert "UNRESOLVED_COLUMN" in shown.out
