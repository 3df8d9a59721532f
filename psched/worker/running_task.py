"""What a worker knows about a leased occurrence from the start of its task until its lease ends."""

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any, Self

from psched.base.lease_times import Deadlines
from psched.config.monitoring import NO_PING
from psched.core import attempts
from psched.core.definition import Definition
from psched.core.history.recording import NEVER, Reading, StoreClock
from psched.core.history.records import SERVER_DIED, Attempt, Outcome
from psched.core.model import Decision, Finish, Occurrence, Quarantine, Release, Retry, Row
from psched.core.output import KEPT, RunningAttempt
from psched.core.settling import Ending
from psched.handlers.exec import Command
from psched.output.captured import NO_OUTPUT, CapturedOutput
from psched.process.child import Exit, KillLadder
from psched.runner.runner_pool import RunnerChild
from psched.runner.shared_memory import Reason


@dataclass(slots=True)
class Hold:
    """A schedule that nobody else runs meanwhile, see `psched.core.store_protocol.HoldsSchedules`.

    Attributes:
        key: the key of the schedule.
        holder: the text that identifies the hold.
        lost: whether the store has answered that the schedule is not held any more.
    """

    key: str
    holder: str
    lost: bool = False


@dataclass(slots=True)
class Lease:
    """A worker's right to run one occurrence until the lease ends.

    Attributes:
        row: the row as it was claimed.
        deadlines: when to extend the lease, and when its task must have been killed.
        lost: whether the store has answered that this worker does not hold the lease any more.
        hold: what an extra run needs besides the lease; None for any other run. It is extended with
            the lease, and not later, so that it lasts at least as long.
    """

    row: Row
    deadlines: Deadlines
    lost: bool = False
    hold: Hold | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the lease or its hold is lost."""
        return self.lost or (self.hold is not None and self.hold.lost)

    def answered(self, sent: float, *, held: bool) -> None:
        """Note the store's answer to an extend that was sent at this time of the boot-time clock.

        A lease that was taken for lost is held again if the store has extended it.
        """
        self.lost = not held
        if held:
            self.deadlines = changed(self.deadlines, sent=sent)


_log = logging.getLogger("psched.worker")

_KILLED_IN_A_SHELL = 128 + signal.SIGKILL
"""The exit status of a shell whose last command was killed by SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    """How a task ended, and what it has used.

    Attributes:
        exit_status: the exit status of the program that ran the task, or of the runner, if the
            runner has exited within the task; None if there is none.
        exit_signal: the number of the signal that ended this program or the runner.
        cpu_us: the CPU time in microseconds; None if the runner has not measured it.
        peak_kb: the most memory that one of the processes has used, in KiB; None if the runner has
            not measured it.
        error: the exception with its traceback; None if there is no more than the failure's line.
        result: the result that the task has set, as JSON text; None if it has set none, or if the
            runner has ended without a message.
    """

    exit_status: int | None = None
    exit_signal: int | None = None
    cpu_us: int | None = None
    peak_kb: int | None = None
    error: str | None = None
    result: str | None = None

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> Self:
        """The report in a message ``done``."""
        (status, number), (cpu_us, peak_kb) = message["exit"], message["used"] or (None, None)
        return cls(
            exit_status=status,
            exit_signal=number,
            cpu_us=cpu_us,
            peak_kb=peak_kb,
            error=message["error"],
            result=message["result"],
        )

    @classmethod
    def of_exit(cls, how: Exit | None) -> Self:
        """What is known about a task whose runner has ended without a message."""
        if how is None:
            return cls()
        return cls(exit_status=how.status, exit_signal=how.signal)

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL has ended the runner, its program, or the last command of a shell."""
        return self.exit_signal == signal.SIGKILL or self.exit_status == _KILLED_IN_A_SHELL


_NOTHING_TOLD = EndReport()


_INTERRUPTED = {
    Reason.CANCELLED: Outcome.CANCELLED,
    Reason.DELETED: Outcome.CANCELLED,
    Reason.LEASE: Outcome.PREEMPTED,
}
"""The outcomes of attempts that were stopped for these reasons."""


@dataclass(slots=True, kw_only=True)
class RunningTask(Lease):
    """One lease, and the task that runs under this lease.

    `TaskTable` owns all running tasks. Other classes read the attributes, and call the methods to
    record events.

    Attributes:
        definition: the definition of the row's schedule.
        occurrence: the occurrence that is run.
        runner: the process that runs the task.
        command: what a program runner executes for it; None if a runner calls its handler.
        started: when the task was started, seconds of the monotonic clock.
        store_clock: the store's clock.
        started_at: when the task was started, as a reading of the store's clock.
        ended_at: when the run ended, milliseconds of the store's clock; 0 until then.
        decision: how the task wants its lease to end; None if it has not decided.
        failure: what went wrong in the run, in one line; None if the run has succeeded or has not
            ended.
        over: whether the run has ended: the handler has returned or raised, or its process has
            ended.
        ended: when the run ended, seconds of the monotonic clock; 0 until then.
        told: what the runner has told about the end of the run, or what its exit has told.
        out_of_memory: whether the run was probably ended because memory ran out.
        cpu_us: the CPU time in microseconds; None if it is not known.
        peak_kb: the most memory that one of its processes has used, in KiB; None if not known.
        empty: whether no process belongs to the task any more, and its output is known. The runner
            can then run another task.
        output: what the task has printed; known when ``empty`` is True.
        awaits_output: whether no process belongs to the task any more, but the collector was asked
            for its output and has not answered.
        begun: whether `TaskGuard` has checked that the runner has begun the task. `TaskGuard`
            checks this once, ``start_timeout`` seconds after the start.
        lost_server: whether the run has ended because the runner's fork server died.
        stopping: why the run is being stopped; NONE if it is not being stopped.
        ladder: the signals that stop the task's processes, and their times; None if the task is
            not being stopped.
    """

    definition: Definition
    occurrence: Occurrence
    runner: RunnerChild
    command: Command | None = None
    started: float
    store_clock: StoreClock
    started_at: Reading = NEVER
    ended_at: int = 0
    decision: Decision | None = None
    failure: str | None = None
    over: bool = False
    ended: float = 0.0
    told: EndReport = _NOTHING_TOLD
    out_of_memory: bool = False
    cpu_us: int | None = None
    peak_kb: int | None = None
    empty: bool = False
    output: CapturedOutput = NO_OUTPUT
    awaits_output: bool = False
    begun: bool = False
    lost_server: bool = False
    stopping: Reason = Reason.NONE
    ladder: KillLadder | None = None

    @property
    def is_collected(self) -> bool:
        """Whether its output is collected, by the setting ``output``."""
        return self.definition.settings.output not in {"raw", "none"}

    @property
    def is_pinged(self) -> bool:
        """Whether a ping server is told of its start and its end."""
        return self.definition.settings.ping != NO_PING

    @property
    def is_kept(self) -> bool:
        """Whether its output is kept in the store, by the setting ``output``."""
        return self.definition.settings.output in KEPT

    @property
    def is_printing(self) -> bool:
        """Whether it can still print something, as far as is known."""
        return not (self.empty or self.awaits_output)

    @property
    def running_attempt(self) -> RunningAttempt:
        """What identifies the attempt in the store's output."""
        return RunningAttempt(
            key=self.row.key,
            scheduled_time=self.occurrence.scheduled_time,
            owner=self.row.owner or "",
            attempt=self.row.attempt,
        )

    def taken_up(self) -> None:
        """Note that `TaskGuard` need not check any more that the runner has begun the task."""
        self.begun = True

    def decided(self, decision: Decision) -> None:
        """Note how the task wants its lease to end."""
        self.decision = decision

    def stop(self, reason: Reason, ladder: KillLadder) -> None:
        """Tell the runner to stop the task, and note the ladder; only the first call has an effect.

        `TaskGuard` sends the ladder's signals. If the run has ended already, the runner is not
        told, and the signals stop the processes that the run has left behind.
        """
        if self.ladder is not None:
            return
        self.ladder = ladder
        if not self.over:
            self.stopping = reason
            self.runner.stop_flags.write(reason)

    def run_over(self, failure: str | None, now: float, told: EndReport = _NOTHING_TOLD) -> None:
        """Note that the run has ended; only the first call has an effect.

        ``failure`` says in one line what went wrong; None: the handler has returned. ``told`` is
        what the runner, or its exit, has told about the end; ``now`` is of the monotonic clock.
        """
        if not self.over:
            self.over, self.failure, self.ended, self.told = True, failure, now, told
            self.ended_at = self.store_clock.after(self.started_at)

    def judge_memory(self, oom_kills: int | None) -> None:
        """Find out whether the run, which has ended, was probably ended because memory ran out.

        This is so if SIGKILL has ended its process or its program, psched has not sent this signal,
        and the kernel's counter has grown since the task was started. Otherwise a person or a
        program has sent the signal.

        A grown counter alone does not decide: it counts the processes of all tasks of the service.
        """
        runner = self.runner
        if self.told.was_killed and not (runner.killed or runner.lost_server):
            before = runner.oom_kills
            if before is not None and oom_kills is not None:
                self.out_of_memory = oom_kills > before

    def server_died(self, now: float) -> None:
        """Note that the runner died with its fork server; no effect if the run ended before."""
        if not self.over:
            self.lost_server = True
            self.run_over(SERVER_DIED, now, EndReport.of_exit(self.runner.exit))

    def tree_gone(self, output: CapturedOutput = NO_OUTPUT) -> None:
        """Note that no process belongs to the task any more, and what it has printed."""
        self.empty, self.output, self.awaits_output = True, output, False
        # The figures are copied, because the runner can run another task before this lease ends.
        runner = self.runner
        self.cpu_us, self.peak_kb = self.told.cpu_us, self.told.peak_kb
        if runner.exit is not None and not runner.used and runner.exit.cpu_us is not None:
            # The process has run only this task, so that all that it has used belongs to the task.
            self.cpu_us, self.peak_kb = runner.exit.cpu_us, runner.exit.peak_kb
        if runner.cpu_us is not None:
            # The figure of the cgroup is preferred, because it contains processes that have
            # outlived the handler.
            self.cpu_us = runner.cpu_us

    @property
    def conclusion(self) -> Decision:
        """How the lease is to be settled.

        If the task has decided how its lease ends, that decision applies. If the handler has
        returned, the task is finished, even if it was being stopped. If the task was stopped for a
        reason other than its time limit, the row is released. After any other end, the run is
        retried.
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
            # The next attempt is delayed in the same way as after the death of a worker; see
            # `Store.recover`.
            retry_wait = self.definition.settings.retry_wait
            wait = attempts.wait_after_death(self.row.attempt, retry_wait)
            return Retry(wait, self.failure)
        return Retry(reason=self.failure)

    @property
    def ending(self) -> Ending:
        """The end of the lease, as the store is to record it."""
        return Ending(
            self.row,
            self.conclusion,
            0.0 if self.lost else self.deadlines.end,
            attempt=self.attempt,
            history=self.definition.settings.history,
        )

    def ending_after(self, failures_before: Callable[[Row, Definition], int]) -> Ending:
        """The end of the lease; the failures before it are counted if they can pause the row."""
        ending, decision = self.ending, self.conclusion
        settings, trigger = self.definition.settings, self.definition.trigger
        if (
            settings.pause_after_failures
            and trigger is not None
            and isinstance(decision, Retry)
            and attempts.is_exhausted(self.row, self.definition)
        ):
            earlier = failures_before(self.row, self.definition)
            return changed(ending, decision=changed(decision, earlier=earlier))
        return ending

    @property
    def attempt(self) -> Attempt:
        """What the run history records about the attempt, which has ended."""
        decision = self.conclusion
        if isinstance(decision, Finish):
            outcome = Outcome.FINISHED
        elif isinstance(decision, Release):
            outcome = _INTERRUPTED.get(self.stopping, Outcome.RELEASED)
        elif self.stopping is Reason.TIMEOUT:
            outcome = Outcome.TIMED_OUT
        else:
            outcome = Outcome.LOST if self.lost_server else Outcome.FAILED
        return Attempt(
            outcome=outcome,
            pid=self.runner.pid,
            started=self.started_at.milliseconds,
            ended=self.ended_at,
            reason=None if isinstance(decision, Finish) else decision.reason,
            exit_status=self.told.exit_status,
            exit_signal=self.told.exit_signal,
            cpu_ms=None if self.cpu_us is None else round(self.cpu_us / 1000),
            peak_kb=self.peak_kb,
            out_of_memory=self.out_of_memory,
            error=self.told.error,
            result=self.told.result,
        )

    def report(self, mono: float, boot: float) -> dict[str, Any]:
        """What `psched status` shows about the task, as a part of a message to the master.

        The current times are those of the monotonic and of the boot-time clock.
        """
        state = self.stopping.name.lower() if self.ladder else "running"
        # When the run is over, the runner can run another task, whose progress the memory contains.
        progress = None if self.over else self.runner.stop_flags.progress
        return {
            "occurrence": str(self.occurrence),
            "type": self.definition.type,
            "attempt": self.row.attempt,
            "pid": self.runner.pid,
            "running_for": mono - self.started,
            "lease_left": self.deadlines.end - boot,
            "state": "ended" if self.over else state,
            "progress": None if progress is None else progress._asdict(),
        }

    def log(self, text: str, *values: object, level: int = logging.INFO) -> None:
        """Log a line about the task."""
        if _log.isEnabledFor(level):
            # `Logger.log` would also find out which line of the code has called it.
            about = {"subject": self.occurrence}
            name, code, line = _log.name, __file__, 0
            _log.handle(_log.makeRecord(name, level, code, line, text, values, None, extra=about))

    def log_preempted(self, *, unsure: bool) -> None:
        """Log that its lease was lost before its end; ``unsure``: an answer to its end was, too."""
        if unsure:
            text = "the store did not confirm its end before its lease ended or was taken over"
            text += ": nobody knows whether what it did counts"
        else:
            text = "preempted: what it did counts for nothing"
        self.log(text, level=logging.ERROR)

    def log_end(self) -> None:
        """Log how the task has ended."""
        took = self.ended - self.started
        memory = "; memory has probably run out" if self.out_of_memory else ""
        match self.conclusion:
            case Finish():
                self.log("finished in %.3f s", took)
            case Quarantine(reason):
                self.log("quarantined: %s", reason, level=logging.WARNING)
            case Release(_, None):
                self.log("released after %.3f s", took, level=logging.WARNING)
            case Release(wait, reason):
                text = "released after %.3f s, again in %.3g s: %s"
                self.log(text, took, wait, reason, level=logging.WARNING)
            case Retry(_, reason) if attempts.is_exhausted(self.row, self.definition):
                text = "failed after %.3f s, for the last time (attempt %d): %s"
                why = f"{reason}{memory}"
                self.log(text, took, self.row.attempt, why, level=logging.ERROR)
            case Retry(wait, reason):
                if wait is None:
                    wait = attempts.retry_delay(self.row, self.definition)
                what = "released" if self.lost_server else "failed"
                when = f"again in {wait:.3g} s" if wait else "again at once"
                text = "%s after %.3f s, %s: %s"
                self.log(text, what, took, when, f"{reason}{memory}", level=logging.WARNING)
