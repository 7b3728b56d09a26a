"""What a handler knows of the job it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.clock import micros
from penstock.errors import LeaseLost
from penstock.job import Claim, Progress

if TYPE_CHECKING:
    from penstock.jobs.run import Run
    from penstock.jobs.runtime import Runtime
    from penstock.ports import Transaction


class JobContext:
    """The second argument of a handler."""

    __slots__ = ("_claim", "_report", "_run", "_runtime", "_stop")

    def __init__(
        self,
        claim: Claim,
        report: Callable[[Claim, Progress], None],
        *,
        run: Run | None = None,
        runtime: Callable[[], Runtime] | None = None,
    ) -> None:
        self._claim = claim
        self._report = report
        self._run = run
        self._runtime = runtime
        self._stop = False

    @property
    def id(self) -> int:
        return self._claim.id

    @property
    def queue(self) -> str:
        return self._claim.queue

    @property
    def type(self) -> str:
        return self._claim.type

    @property
    def attempt(self) -> int:
        """From 1."""
        return self._claim.attempt

    @property
    def max_attempts(self) -> int:
        return self._claim.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        return self._claim.attempt >= self._claim.max_attempts

    @property
    def crashes(self) -> int:
        """How many of the attempts ended with their worker."""
        return self._claim.crashes

    @property
    def token(self) -> int:
        """Rises with each claim: a fence for systems that can refuse an older one."""
        return self._claim.token

    @property
    def is_cancelled(self) -> bool:
        """Whether the job was asked to stop, or is not this worker's any more."""
        return self._stop

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far it is. Written soon; never waits."""
        self._report(self._claim, Progress(done, total, note))

    def transaction(self, result: Any = None, *, limit_seconds: float | None = None) -> Any:
        """`with job.transaction() as tx` (`async with` in a coroutine): the writes, publishes and
        enqueues in the block and the completion of this job happen together, or not at all.

        Afterwards the job is done: what the handler returns or raises then changes nothing. If it
        is not this worker's any more, everything is rolled back with `LeaseLost`.
        """
        run, runtime = self._run, self._runtime
        assert run is not None, "the context of a worker"
        assert runtime is not None, "the context of a worker"
        assert run.entry is not None, "it runs"
        answer = run.entry.answer(self._claim, result)
        opened = runtime()

        def complete(transaction: Transaction) -> None:
            now = opened.clock.now()
            until = now + micros(opened.settings.job_result_seconds)
            if not transaction.jobs.complete([answer], now=now, result_until=until):
                raise LeaseLost(f"The job {self.id} is not this worker's any more.")

        def settled() -> None:
            run.is_settled = True

        return opened.open_transaction(
            limit_seconds,
            is_async=run.entry.handler.isolation == "async",
            before_commit=complete,
            after_commit=settled,
        )

    def stop(self) -> None:
        self._stop = True

    def __repr__(self) -> str:
        claim = self._claim
        return f"<job {claim.id} {claim.type} attempt {claim.attempt}>"
