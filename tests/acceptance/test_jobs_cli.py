"""`penstock jobs …` and `penstock schedules …` on a real mess (J6, J7, J8; done means: explain,
dead and retry work on it)."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.job import State, Worker
from tests.acceptance.terminal import Terminal
from tests.servers import Server
from tests.waiting import wait_until


class Mess:
    """Jobs in every kind of trouble, in a hub with workers that are still running."""

    def __init__(self, hub: penstock.Hub) -> None:
        self.hub = hub
        self.broken = threading.Event()
        self.broken.set()
        self.stuck_entered = threading.Event()
        self.release = threading.Event()

        @hub.job(queue="mails", name="send", max_attempts=1)
        def send(payload: dict[str, Any]) -> str:
            if self.broken.is_set():
                raise ConnectionError(f"{payload['host']} is down")
            return "sent"

        @hub.job(queue="slow", name="crawl")
        def crawl(payload: int, job: Any) -> None:
            job.progress(3, 4, "pages")
            self.stuck_entered.set()
            assert self.release.wait(60)

        @hub.job(queue="flaky", name="fetch", max_attempts=9)
        def fetch(payload: int) -> None:
            raise TimeoutError("no answer\nat all")

        hub.jobs.limit("slow", concurrency=1)
        hub.jobs.pause("frozen")
        many = [{"host": f"mx{n % 2}", "n": n} for n in range(6)]
        self.dead = [one.id for one in send.enqueue_many(many)]
        self.stuck = hub.jobs.enqueue("slow", "crawl", 1).id
        self.flaky = hub.jobs.enqueue("flaky", "fetch", 1, max_attempts=9).id
        self.workers = hub.start_workers({"mails": 3, "slow": 3, "flaky": 1, "frozen": 1})
        hub.jobs.wait_all(self.dead, timeout=60)
        assert self.stuck_entered.wait(60)
        wait_until(lambda: hub.jobs.get(self.stuck).progress)
        wait_until(lambda: hub.jobs.get(self.flaky).state == State.SCHEDULED)
        self.behind = hub.jobs.enqueue("slow", "crawl", 2).id
        self.paused = hub.jobs.enqueue("frozen", "send", {"host": "x"}).id
        self.waiting = hub.jobs.enqueue("slow", "crawl", 3, after=[self.paused]).id
        self.alone = hub.jobs.enqueue("nobody", "send", {"host": "x"}).id
        self.later = hub.jobs.enqueue("mails", "send", {"host": "x"}, delay=3600).id
        hub.jobs.limit("typo", concurrency=9)

    def close(self) -> None:
        self.release.set()
        self.workers.stop()


@pytest.fixture
def mess(hub: penstock.Hub) -> Iterator[Mess]:
    mess = Mess(hub)
    yield mess
    mess.close()


def test_every_job_of_a_mess_is_explained(terminal: Terminal, mess: Mess) -> None:
    for job, code, word in (
        (mess.dead[0], "failed", "ConnectionError: mx0 is down"),
        (mess.stuck, "running", "75 % (pages)"),
        (mess.flaky, "backing_off", "of 9 failed (TimeoutError: no answer)"),
        (mess.behind, "concurrency", f"job {mess.stuck} on "),
        (mess.paused, "paused", "'frozen' is paused"),
        (mess.waiting, "waiting", f"job {mess.paused} (pending)"),
        (mess.alone, "no_worker", "'nobody'"),
        (mess.later, "scheduled", "scheduled for"),
    ):
        found = terminal.done("jobs", "explain", job, "--json").json
        assert found["reasons"][0]["code"] == code, found
        assert found["answer"] == found["reasons"][0]["text"]
        assert word in found["answer"]
    shown = terminal.done("jobs", "explain", mess.waiting).out
    assert f"Job {mess.waiting} (slow, crawl) is waiting." in shown
    assert f"penstock jobs explain {mess.paused}" in shown
    missing = terminal.run("jobs", "explain", 999)
    assert missing.code == 1
    assert "error: There is no job 999." in missing.err


def test_jobs_on_their_way_to_a_worker_are_explained(terminal: Terminal, hub: penstock.Hub) -> None:
    """Between enqueueing and starting: ready for a worker that is there, and in its hands."""
    runtime = hub._open()
    runtime.start_reading()
    instance, now = runtime.instance, runtime.clock.now()
    assert instance is not None
    worker = Worker(instance.id, "w-1", {"q": 1}, now, types=("t",))
    runtime.committer.run(lambda tx: tx.jobs.enter(worker, lease_seconds=600, now=now)).wait()
    claimed, ready = (hub.jobs.enqueue("q", "t", n).id for n in range(2))
    runtime.committer.run(lambda tx: tx.jobs.claim(instance, {"q": 1}, now=now)).wait()

    shown = terminal.done("jobs", "explain", claimed).out
    assert f"Job {claimed} (q, t) is processing." in shown
    assert "w-1 has it since" in shown
    assert "not started" in shown
    assert "the next free slot takes it" in terminal.done("jobs", "explain", ready).out


def test_dead_letters_are_listed_and_brought_back_by_filter(terminal: Terminal, mess: Mess) -> None:
    """J8"""
    listed = terminal.done("jobs", "dead")
    assert [int(line.split()[0]) for line in listed.lines[2:]] == mess.dead[::-1]
    assert "ConnectionError: mx1 is down" in listed.out
    found = terminal.done("jobs", "dead", "--error", "mx1", "--json").json
    assert [job["payload"]["n"] for job in found] == [5, 3, 1]
    assert "Traceback" in found[0]["failure"]["traceback"]

    mess.broken.clear()
    asked = terminal.run("jobs", "retry", "--queue", "mails", "--error", "mx1")
    assert asked.code == 1
    assert "--yes" in asked.err
    assert len(mess.hub.jobs.dead("mails")) == 6
    done = terminal.done("jobs", "retry", "--queue", "mails", "--error", "mx1", "--yes")
    assert done.out == "3 jobs ready again.\n"
    mess.hub.jobs.wait_all(mess.dead[1::2], timeout=60)
    one = terminal.done("jobs", "retry", mess.dead[0], mess.dead[2], "--json").json
    assert one == {"changed": 2, "jobs": [mess.dead[0], mess.dead[2]]}
    mess.hub.jobs.wait_all([mess.dead[0], mess.dead[2]], timeout=60)
    assert [job.id for job in mess.hub.jobs.dead()] == [mess.dead[4]]
    history = terminal.done("jobs", "history", mess.dead[0], "--json").json
    assert [event["kind"] for event in history] == [
        *("enqueued", "started", "died", "retried", "started", "completed")
    ]
    shown = terminal.done("jobs", "history", mess.dead[0], "--tracebacks").out
    assert "Traceback" in shown
    assert "ConnectionError: mx0 is down" in shown


def test_what_cannot_be_done_is_said(terminal: Terminal, mess: Mess) -> None:
    running = terminal.run("jobs", "retry", mess.stuck)
    assert running.code == 1
    assert f"Not in a state for that: {mess.stuck}." in running.out
    for wrong in (
        ("jobs", "retry"),
        ("jobs", "retry", mess.stuck, "--queue", "slow"),
        ("jobs", "list", "--state", "lost"),
        ("jobs", "prune", "--state", "pending", "--older-than", "1s", "--yes"),
    ):
        assert terminal.run(*wrong).code == 1, wrong
    nothing = terminal.done("jobs", "retry", "--queue", "none")
    assert nothing.out == "0 jobs ready again.\n"


def test_a_job_that_runs_is_asked_to_stop(terminal: Terminal, mess: Mess) -> None:
    done = terminal.done("jobs", "cancel", mess.stuck, mess.later, "--reason", "enough")
    assert done.out == "2 jobs cancelled, or asked to stop.\n"
    wait_until(lambda: mess.hub.jobs.get(mess.stuck).state == State.CANCELLED)
    assert "enough" in terminal.done("jobs", "explain", mess.stuck).out
    assert mess.hub.jobs.get(mess.later).state == State.CANCELLED
    rest = terminal.done("jobs", "cancel", "--queue", "frozen", "--yes", "--json").json
    assert rest == {"changed": 1}
    assert mess.hub.jobs.get(mess.waiting).state == State.CANCELLED, "its parent will not complete"
    assert "enough" in terminal.done("jobs", "history", mess.later).out


def test_stats_list_and_show(terminal: Terminal, mess: Mess) -> None:
    """J7"""
    stats = terminal.done("jobs", "stats", "--json").json
    assert stats["overall"]["failed"] == 6
    assert stats["overall"]["pending"] == 3
    assert stats["workers"] == 1
    assert stats["unattended"] == ["nobody"]
    by_name = {queue["queue"]: queue for queue in stats["queues"]}
    assert (by_name["slow"]["processing"], by_name["slow"]["waiting"]) == (1, 1)
    shown = terminal.done("jobs", "stats").out
    rows = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "paused" in rows["frozen"]
    assert "no worker" in rows["nobody"]
    assert "1 at once" in rows["slow"]
    assert "all" in rows
    one = terminal.done("jobs", "stats", "--queue", "mails", "--json").json
    assert (one["overall"]["queue"], one["overall"]["failed"]) == ("mails", 6)

    listed = terminal.done("jobs", "list", "--queue", "slow", "--json").json
    assert [job["id"] for job in listed] == [mess.waiting, mess.behind, mess.stuck]
    assert listed[2]["progress"] == {"done": 3.0, "total": 4.0, "note": "pages"}
    assert "75 % pages" in terminal.done("jobs", "list", "--queue", "slow").out
    page = terminal.run("jobs", "list", "--type", "send", "--state", "failed", "-n", 2)
    assert f"--before {mess.dead[-2]}" in page.err
    assert terminal.done("jobs", "list", "--until", "1d", "--json").json == []
    assert len(terminal.done("jobs", "list", "--since", "1d", "--json").json) == 13

    show = terminal.done("jobs", "show", mess.dead[0]).out
    for word in ("mails", "failed", "1/1", '{"host":"mx0","n":0}', "Traceback"):
        assert word in show
    worker = terminal.done("jobs", "workers", "--json").json[0]
    assert worker["types"] == ["crawl", "fetch", "send"]
    assert worker["name"] in terminal.done("jobs", "workers").out


def test_queues_are_paused_resumed_and_limited(terminal: Terminal, mess: Mess) -> None:
    assert terminal.done("jobs", "pause", "mails").out == "mails is paused.\n"
    assert mess.hub.jobs.stats("mails")[0].limits.is_paused
    terminal.done("jobs", "limit", "mails", "--rate", 100, "--per", "1m", "--concurrency", 4)
    limits = mess.hub.jobs.stats("mails")[0].limits
    assert (limits.rate_max, limits.rate_seconds, limits.concurrency_max, limits.is_paused) == (
        *(100, 60, 4),
        True,
    )
    assert terminal.done("jobs", "resume", "mails").out == "mails goes on.\n"
    assert terminal.done("jobs", "limit", "mails", "--none").out == "mails: no limits.\n"
    assert terminal.run("jobs", "limit", "mails").code == 2


def test_pruning_asks_and_removes(terminal: Terminal, mess: Mess) -> None:
    assert terminal.done("jobs", "prune").out == "0 jobs removed.\n"
    assert terminal.run("jobs", "prune", "--older-than", "0s").code == 1
    assert len(mess.hub.jobs.dead()) == 6
    pruned = terminal.done(
        *("jobs", "prune", "--older-than", "0s", "--state", "failed", "--yes", "--json")
    )
    assert pruned.json == {"removed": 6}
    assert mess.hub.jobs.dead() == []


def test_jobs_go_in_from_the_command_line(terminal: Terminal, hub: penstock.Hub) -> None:
    """J6"""
    first = terminal.done("jobs", "enqueue", "mails", "send", '{"to": 1}', "--json").json
    assert hub.jobs.get(first["id"]).payload == {"to": 1}
    options = ("--delay", "1h", "--priority", -5, "--max-attempts", 7, "--timeout", "2m")
    second = terminal.done(
        *("jobs", "enqueue", "mails", "send", "plain text", *options),
        *("--unique-key", "k", "--after", first["id"], "--json"),
    ).json
    job = hub.jobs.get(second["id"])
    assert (job.payload, job.priority, job.max_attempts, job.timeout, job.state) == (
        *("plain text", -5, 7, 120_000_000),
        State.WAITING,
    )
    taken = terminal.run("jobs", "enqueue", "mails", "send", "--unique-key", "k")
    assert taken.code == 1
    same = terminal.done(
        *("jobs", "enqueue", "mails", "send", "--unique-key", "k", "--on-conflict", "return")
    )
    assert same.out == f"It is there already: job {second['id']} is waiting.\n"
    lines = "".join(f'{{"n":{n}}}\n' for n in range(2_500))
    many = terminal.done("jobs", "enqueue", "bulk", "t", "-", "--json", given=lines)
    assert many.json == {"enqueued": 2_500}
    assert hub.jobs.stats("bulk")[0].pending == 2_500


def test_enqueue_can_wait_for_the_result(terminal: Terminal, hub: penstock.Hub) -> None:
    @hub.job(queue="sums", name="add")
    def add(payload: list[int]) -> int:
        if not payload:
            raise ValueError("nothing to add")
        return sum(payload)

    with hub.start_workers({"sums": 1}):
        assert terminal.done("jobs", "enqueue", "sums", "add", "[1,2]", "--wait").out == "3\n"
        failed = terminal.run(
            *("jobs", "enqueue", "sums", "add", "[]", "--wait", "--max-attempts", 1)
        )
    assert failed.code == 1
    assert "nothing to add" in failed.err


def test_watch_looks_again_and_again(terminal: Terminal, hub: penstock.Hub) -> None:
    hub.jobs.enqueue("q", "t")
    watching = terminal.start("jobs", "watch", "--every", "50ms", "--json")
    assert json.loads(watching.line())["overall"]["pending"] == 1
    hub.jobs.enqueue("q", "t")
    wait_until(lambda: json.loads(watching.line())["overall"]["pending"] == 2)
    assert watching.signal(signal.SIGINT).code == 130
    twice = terminal.done("jobs", "watch", "--every", "1ms", "--count", 2)
    assert twice.out.count("queue") == 2


def test_schedules_from_the_command_line(terminal: Terminal, hub: penstock.Hub) -> None:
    assert "No schedules yet" in terminal.done("schedules", "list").out
    terminal.done(
        *("schedules", "add", "nightly", "0 3 * * *", "reports", "build", '{"a":1}'),
        *("--timezone", "Europe/Vienna", "--missed", "skip"),
    )
    made = hub.schedules.get("nightly")
    assert (made.timezone, made.missed, made.payload) == ("Europe/Vienna", "skip", {"a": 1})
    assert "nightly" in terminal.done("schedules", "list").out
    assert terminal.done("schedules", "pause", "nightly", "--json").json["is_paused"]
    assert "paused" in terminal.done("schedules", "list").out
    ran = terminal.done("schedules", "run-now", "nightly", "--json").json
    assert hub.jobs.get(ran["id"]).schedule == "nightly"
    assert not terminal.done("schedules", "resume", "nightly", "--json").json["is_paused"]
    assert terminal.run("schedules", "remove", "nightly").code == 1
    terminal.done("schedules", "remove", "nightly", "--yes")
    assert hub.schedules.list() == []
    wrong = terminal.run("schedules", "add", "x", "often", "q", "t")
    assert wrong.code == 1
    assert "cron" in wrong.err


def test_the_same_commands_on_a_server(terminal: Terminal, mess: Mess) -> None:
    """J7, J8 by URL: what a local command says, a remote one says, too."""
    local = {
        command: terminal.done("jobs", *command, "--json").json
        for command in (
            ("list", "--queue", "slow"),
            ("dead", "--error", "mx1"),
            ("show", str(mess.dead[0])),
            ("history", str(mess.dead[0])),
            ("explain", str(mess.behind)),
            ("workers",),
        )
    }
    with Server(terminal.file) as server:
        terminal.environment["PENSTOCK_URL"] = server.url
        for command, said in local.items():
            assert terminal.done("jobs", *command, "--json").json == said, command
        assert terminal.done("jobs", "stats", "--json").json["overall"]["failed"] == 6
        mess.broken.clear()
        done = terminal.done("jobs", "retry", "--error", "mx0", "--yes").out
        assert done == "3 jobs ready again.\n"
        mess.hub.jobs.wait_all(mess.dead[::2], timeout=60)
        terminal.done("jobs", "cancel", "--queue", "frozen", "--yes")
        assert mess.hub.jobs.get(mess.paused).state == State.CANCELLED
        terminal.done("schedules", "add", "n", "0 3 * * *", "q", "t")
        assert [one.name for one in mess.hub.schedules.list()] == ["n"]


def test_text_of_others_does_not_command_the_terminal(
    terminal: Terminal, hub: penstock.Hub
) -> None:
    evil = "\x1b[31mred\x07"

    @hub.job(queue="q", name="fail", max_attempts=1)
    def fail(payload: str) -> None:
        raise ValueError(payload)

    added = fail.enqueue(evil)
    with hub.start_workers({"q": 1}):
        hub.jobs.wait_all([added], timeout=60)
    for command in ("show", "history", "explain"):
        assert "\x1b" not in terminal.done("jobs", command, added.id).out
    assert "\x1b" not in terminal.done("jobs", "dead").out
