"""A leased occurrence from the start of its task to the end of its lease."""

import logging
from dataclasses import dataclass
from typing import Any

from psched.core import attempts
from psched.core.definition import Definition
from psched.core.model import Decision, Finish, Occurrence, Quarantine, Release, Retry
from psched.core.settling import Ending
from psched.process.kill_ladder import KillLadder
from psched.runner.runner_child import RunnerChild
from psched.runner.stop_flags import Reason
from psched.worker.lease import Lease

_log = logging.getLogger("psched.worker")


@dataclass(slots=True, kw_only=True)
class RunningTask(Lease):
    """One lease, and the task that runs on it.

    `TaskTable` keeps all of them. Others read the attributes, and call a method when something
    has happened.

    Attributes:
        definition: what the row means.
        occurrence: the occurrence that is run.
        runner: the process that runs it.
        started: when it was started, seconds of the monotonic clock.
        decision: how the task wants its lease to end.
        failure: what went wrong, in one line, once the run is over.
        over: the handler has returned or raised, or its process has ended.
        ended: when the run was over, seconds of the monotonic clock.
        empty: no process of the task's tree is left.
        begun: the runner has taken the task up, or was killed because it had not.
        lost_server: the run is over because the runner's fork server died.
        stopping: why the task is being stopped.
        ladder: the signals that stop it.
    """

    definition: Definition
    occurrence: Occurrence
    runner: RunnerChild
    started: float
    decision: Decision | None = None
    failure: str | None = None
    over: bool = False
    ended: float = 0.0
    empty: bool = False
    begun: bool = False
    lost_server: bool = False
    stopping: Reason = Reason.NONE
    ladder: KillLadder | None = None

    def taken_up(self) -> None:
        """Note that the runner has begun, or was killed because it had not."""
        self.begun = True

    def decided(self, decision: Decision) -> None:
        """Note how the task wants its lease to end."""
        self.decision = decision

    def stop(self, reason: Reason, ladder: KillLadder) -> None:
        """Stop the task by this ladder; only the first call counts.

        If the run is over already, the ladder is for the processes that it has left behind.
        """
        if self.ladder is not None:
            return
        self.ladder = ladder
        if not self.over:
            self.stopping = reason
            self.runner.stop_flags.write(reason)

    def run_over(self, failure: str | None, now: float) -> None:
        """Note that the run is over; only the first call counts."""
        if not self.over:
            self.over, self.failure, self.ended = True, failure, now

    def server_died(self, now: float) -> None:
        """Note that the runner died with its fork server; that fails only a run in progress."""
        if not self.over:
            self.lost_server = True
            self.run_over("its fork server died", now)

    def tree_gone(self) -> None:
        """Note that no process of the task's tree is left."""
        self.empty = True

    @property
    def conclusion(self) -> Decision:
        """How the lease is to be settled.

        The task's own decision stands. A task that has returned is finished, even if it was being
        stopped. Any other end is a failed attempt only if the task itself is at fault.
        """
        if self.decision is not None:
            return self.decision
        if self.failure is None:
            return Finish()
        if self.stopping is Reason.TIMEOUT:
            return Retry(reason="stopped at its time limit")
        if self.stopping is not Reason.NONE:
            return Release()
        if self.lost_server:
            # The wait is that of a task whose worker died; see `Store.recover`.
            retry_wait = self.definition.settings.retry_wait
            wait = attempts.wait_after_death(self.row.attempt, retry_wait)
            return Retry(wait, self.failure)
        return Retry(reason=self.failure)

    @property
    def ending(self) -> Ending:
        """The end of the lease, as it is written to the store."""
        return Ending(self.row, self.conclusion, 0.0 if self.lost else self.deadlines.end)

    def report(self, mono: float, boot: float) -> dict[str, Any]:
        """What `psched status` shows of the task, as a message.

        Args:
            mono: now, seconds of the monotonic clock.
            boot: now, seconds of the boot-time clock.
        """
        state = self.stopping.name.lower() if self.ladder else "running"
        return {
            "occurrence": str(self.occurrence),
            "type": self.definition.type,
            "attempt": self.row.attempt,
            "pid": self.runner.pid,
            "running_for": mono - self.started,
            "lease_left": self.deadlines.end - boot,
            "state": "ended" if self.over else state,
        }

    def log(self, text: str, *values: object, level: int = logging.INFO) -> None:
        """Log a line about the task."""
        _log.log(level, text, *values, extra={"subject": self.occurrence})

    def log_end(self) -> None:
        """Log how the task has ended."""
        took = self.ended - self.started
        match self.conclusion:
            case Finish():
                self.log("finished in %.3f s", took)
            case Quarantine(reason):
                self.log("quarantined: %s", reason, level=logging.WARNING)
            case Release():
                self.log("released after %.3f s", took, level=logging.WARNING)
            case Retry(_, reason) if attempts.is_exhausted(self.row, self.definition):
                text = "failed after %.3f s, for the last time (attempt %d): %s"
                self.log(text, took, self.row.attempt, reason, level=logging.ERROR)
            case Retry(wait, reason):
                if wait is None:
                    wait = attempts.retry_delay(self.row, self.definition)
                what = "released" if self.lost_server else "failed"
                when = f"again in {wait:.3g} s" if wait else "again at once"
                text = "%s after %.3f s, %s: %s"
                self.log(text, what, took, when, reason, level=logging.WARNING)
