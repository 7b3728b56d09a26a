"""`python -m examples.killmails`: the remote side, a worker and the kills, all in one command."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

QUEUES = "remote:8,notify:4"
KILL_AFTER = 0.3
"""`--kill-worker` strikes when this share of the kills is announced."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.killmails", description=__doc__)
    parser.add_argument("--kills", type=int, default=40, help="how many to process (default: 40)")
    parser.add_argument("--kill-worker", action="store_true", help="kill -9 it in the middle")
    parser.add_argument("--keep", metavar="FILE", help="a database to keep and to go on with")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="killmails-") as folder:
        file = Path(options.keep) if options.keep else Path(folder) / "killmails.db"
        # Before the handlers are imported: their hub and their remote side come from here.
        os.environ["PENSTOCK_URL"] = f"sqlite:///{file.absolute()}"
        return run(options.kills, options.kill_worker)


def run(kills: int, kill_worker: bool) -> int:
    from examples.killmails.remote import Remote

    remote = Remote().start()
    os.environ["KILLMAILS_REMOTE"] = remote.url
    from examples.killmails import jobs, show

    with jobs.hub as hub:
        jobs.prepare()
        worker = start_worker()
        print(f"worker {worker.pid} started", flush=True)

        def strike(done: int) -> None:
            nonlocal worker, kill_worker
            if kill_worker and done >= KILL_AFTER * kills:
                kill_worker = False
                worker.kill()
                worker.wait()
                print(f"worker {worker.pid} killed with {done} of {kills} done", flush=True)
                worker = start_worker()
                print(f"worker {worker.pid} started", flush=True)

        try:
            jobs.receive(list(range(1, kills + 1)))
            jobs.receive(list(range(1, kills + 1)))  # Told twice, as happens; done once.
            show.watch(hub, kills, strike)
        finally:
            worker.terminate()
            worker.wait()
        print(summary(hub, remote.refused))
    return 0


def start_worker() -> subprocess.Popen[bytes]:
    work = ("work", "examples.killmails.jobs:hub", "--queues", QUEUES)
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", *work],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def summary(hub: object, refused: int) -> str:
    import penstock
    from penstock import State

    assert isinstance(hub, penstock.Hub)
    jobs = hub.jobs.list(limit=10_000)
    told = hub.topics.read("kills", limit=10_000)
    best = max(told, key=lambda message: message.payload["worth"]).payload
    unknown = sum(job.state is State.CANCELLED and job.type == "fetch" for job in jobs)
    retries = sum(max(0, job.attempts - 1) for job in jobs)
    return (
        f"{len(told)} kills announced, {len({message.payload['id'] for message in told})} of them "
        f"different; {unknown} unknown to the remote side\n"
        f"{retries} attempts repeated, {sum(job.crashes for job in jobs)} of them after a crash; "
        f"{sum(job.state is State.FAILED for job in jobs)} jobs given up; "
        f"asked too fast {refused} times\n"
        f"worth the most: {best['ship']} (kill {best['id']}) with {best['worth']:,} ISK"
    )


if __name__ == "__main__":
    raise SystemExit(main())
