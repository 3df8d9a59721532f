"""A leased occurrence from the claim to the settle: what is known of it, and what it comes to."""

import logging
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psched.base.lease_times import Deadlines
from psched.core import attempts
from psched.core.definition import Definition
from psched.core.model import Decision, Finish, Occurrence, Quarantine, Release, Retry, Row
from psched.process.child import Child, Exit
from psched.process.kill_ladder import KillLadder
from psched.process.link import Link
from psched.runner.messages import FROM_RUNNER
from psched.runner.stop_flags import Reason, StopFlags

if TYPE_CHECKING:
    from psched.process.cgroup import Cgroup

_log = logging.getLogger("psched.worker")


class RunnerChild(Child):
    """A runner as its worker sees it.

    Attributes:
        note: tells it why it is being stopped.
        cgroup: the one that it is in, if one could be made.
        lost_server: its fork server died before it.
        used: it has run a task.
    """

    def __init__(self, pid: int, link: Link, now: float, note: StopFlags) -> None:
        super().__init__(pid, link, now)
        link.expects = FROM_RUNNER
        self.note = note
        self.cgroup: Cgroup | None = None
        self.lost_server = False
        self.used = False

    @property
    def died_with_server(self) -> bool:
        """Whether the kernel has killed it because its fork server had died."""
        return self.lost_server and self.exit is not None and self.exit.signal == signal.SIGKILL

    def reaped(self, how: Exit) -> None:
        """See `Child.reaped`."""
        super().reaped(how)
        self.note.close()


@dataclass(slots=True, kw_only=True)
class RunningTask:
    """One lease, and the task that runs on it.

    Attributes:
        row: as it was claimed.
        definition: the row, understood.
        occurrence: what runs.
        deadlines: of the lease.
        runner: the process it runs in.
        started: when it was started, seconds of the monotonic clock.
        decision: what the task has said about its end.
        failure: what went wrong, in a line, once the run is over.
        over: the run is over: the handler has returned or raised, or its process has ended.
        ended: when that was, seconds of the monotonic clock.
        empty: nothing of the task's tree is left.
        begun: its runner has taken it up, or was killed for not doing so.
        lost: the lease is another worker's, or nobody's.
        lost_server: it ended because its runner's fork server died.
        stopping: why it is being stopped.
        ladder: the signals of that.
    """

    row: Row
    definition: Definition
    occurrence: Occurrence
    deadlines: Deadlines
    runner: RunnerChild
    started: float
    decision: Decision | None = None
    failure: str | None = None
    over: bool = False
    ended: float = 0.0
    empty: bool = False
    begun: bool = False
    lost: bool = False
    lost_server: bool = False
    stopping: Reason = Reason.NONE
    ladder: KillLadder | None = None

    def stop(self, reason: Reason, ladder: KillLadder) -> None:
        """Take the task down by this ladder; a later reason is no reason to begin anew.

        Of a run that is over only what it has left behind is taken down.
        """
        if self.ladder is not None:
            return
        self.ladder = ladder
        if not self.over:
            self.stopping = reason
            self.runner.note.write(reason)

    def end(self, failure: str | None, now: float) -> None:
        """The run is over; only the first to say so is right about it."""
        if not self.over:
            self.over, self.failure, self.ended = True, failure, now

    @property
    def conclusion(self) -> Decision:
        """How the lease is to be settled.

        What the task has decided stands, and what it has completed is done, also if it was to be
        stopped. Of the rest, only what is the task's own fault counts as a failed attempt.
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
            # As for a worker that died: see `Backend.recover`.
            retry_wait = self.definition.settings.retry_wait
            wait = attempts.wait_after_death(self.row.attempt, retry_wait)
            return Retry(wait, self.failure)
        return Retry(reason=self.failure)


def account(slot: RunningTask, mono: float, boot: float) -> dict[str, Any]:
    """What is to be known about a task from outside, as a message."""
    return {
        "occurrence": str(slot.occurrence),
        "type": slot.definition.type,
        "attempt": slot.row.attempt,
        "pid": slot.runner.pid,
        "running_for": mono - slot.started,
        "lease_left": slot.deadlines.end - boot,
        "state": "ended" if slot.over else slot.stopping.name.lower() if slot.ladder else "running",
    }


def tell(slot: RunningTask, text: str, *values: object, level: int = logging.INFO) -> None:
    """Log a line about a task."""
    _log.log(level, text, *values, extra={"subject": slot.occurrence})


def tell_end(slot: RunningTask) -> None:
    """Log how a task has ended."""
    took = slot.ended - slot.started
    match slot.conclusion:
        case Finish():
            tell(slot, "finished in %.3f s", took)
        case Quarantine(reason):
            tell(slot, "quarantined: %s", reason, level=logging.WARNING)
        case Release():
            tell(slot, "released after %.3f s", took, level=logging.WARNING)
        case Retry(_, reason) if attempts.is_exhausted(slot.row, slot.definition):
            text = "failed after %.3f s, for the last time (attempt %d): %s"
            tell(slot, text, took, slot.row.attempt, reason, level=logging.ERROR)
        case Retry(wait, reason):
            if wait is None:
                wait = attempts.retry_delay(slot.row, slot.definition)
            what = "released" if slot.lost_server else "failed"
            when = f"again in {wait:.3g} s" if wait else "again at once"
            tell(slot, "%s after %.3f s, %s: %s", what, took, when, reason, level=logging.WARNING)
