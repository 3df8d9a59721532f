"""Starts a worker's tasks in runners, watches them, and stops them; `execution` settles them.

Tasks are stopped at time limits and before their leases end, even if the store does not answer.
"""

import logging
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from psched.base.clock import Clock
from psched.base.errors import (
    InvalidError,
    NoRoomError,
    TransientStoreError,
    UnknownOutcomeError,
    text_of,
)
from psched.base.fault_log import FaultLog
from psched.base.texts import brief
from psched.config import Config
from psched.core.model import Finish, Occurrence, Quarantine, Release, Retry
from psched.core.policy import Run
from psched.handlers.exec import Command, find_command, refused_text
from psched.output.captured import UNKNOWN, CapturedOutput, LiveOutput, Pipe, Whose
from psched.process.child import KillLadder
from psched.process.kernel import title_of
from psched.process.signals import Waitable
from psched.runner.messages import NONE, PIPE, RAW, ProgramEnd
from psched.runner.runner_pool import RunnerChild, RunnerPool
from psched.runner.shared_memory import Reason
from psched.worker.context import Context, KillTimer
from psched.worker.run_reporter import RunReporter
from psched.worker.running_task import EndReport, Lease, RunningTask

if TYPE_CHECKING:
    from psched.process.link import Link
    from psched.worker.store_gateway import StoreGateway

_log = logging.getLogger("psched.worker")
_task_log = logging.getLogger("psched.task")

FORK_PAUSE = 1
"""If no process could be forked: seconds until the next claim, or until a postponed row is due."""

IMMEDIATE = 2.0
"""Seconds from TERM to KILL if the master orders an immediate stop."""

_LONGEST_EXIT = 5.0
"""If a runner must exit after its task has ended, it is killed after this many seconds."""

_ENDS = {"done", "quarantine", "no_room"}
"""The messages with which a runner tells the end of a task."""

_SHORTEST_WAIT = 1.0
"""Seconds until a task is started again that found no room for its process; each further time twice
as many, but no more than ``retry_wait``."""

_SCARCE = 60.0
"""For how many seconds processes count as scarce after the next start of a task that has found no
room for one."""

_MOST_REFUSED = 1000
"""The most occurrences for which it is known that they found no room. Others may have run them."""

_PLACES = {"raw": RAW, "none": NONE}
"""For the values of the setting ``output`` by which nothing is collected: where the output goes."""


class TaskGuard:
    """Stops each task at its time limit, and before another worker can claim its row."""

    def __init__(
        self, settings: Config, pool: RunnerPool, clock: Clock, deadman: KillTimer
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._clock = clock
        self._deadman = deadman
        self._deadline: float | None = inf  # what ``deadman`` is set to; the first call sets it

    def begin(self, task: RunningTask) -> None:
        """Make sure that ``deadman`` fires in time for a task that is about to be started."""
        at = task.deadlines.deadman
        self._deadline = at if self._deadline is None else min(at, self._deadline)
        self._deadman.hasten(at)

    def watch(self, tasks: Iterable[RunningTask]) -> float:
        """Send the signals that are due, and set the timer that kills this process if it hangs.

        Call this at the returned time of the monotonic clock, when the next signal is due, and
        before every call that can block for long: a request to the store, or a fork.
        """
        mono, boot = self._clock.monotonic(), self._clock.boottime()
        running = [task for task in tasks if not task.empty]
        wakes = inf
        for task in running:
            self._limit(task, mono)
            self._guard_lease(task, boot)
            # The clock is read again, because the calls above can begin a stop whose first signal
            # is due now, which is later than ``mono``.
            self._climb(task, self._clock.monotonic())
            wakes = min(wakes, self._wakes(task, mono, boot))
        # Tasks whose processes do not die on KILL are not counted: this process need not be killed
        # because of such a task, because its death would not end the task either.
        deadmen = [task.deadlines.deadman for task in running if not task.runner.stuck]
        deadline = min(deadmen, default=None)
        if deadline != self._deadline:
            self._deadline = deadline
            self._deadman.set(deadline)
        return wakes

    def stop(self, task: RunningTask, reason: Reason, limit: float | None = None) -> None:
        """Begin to stop a task; if the task is being stopped already, bring its KILL forward."""
        now, settings = self._clock.monotonic(), self._settings
        limit = settings.graceful_kill_limit if limit is None else limit
        if task.ladder is not None:
            task.ladder.hasten(now, limit)
            return
        if limit and not task.over:
            task.log("stopping it: %s", reason.name.lower(), level=logging.WARNING)
        task.stop(reason, KillLadder(now, task.definition.settings.kill_interval, limit))

    def _limit(self, task: RunningTask, mono: float) -> None:
        limit = task.definition.settings.kill_timeout
        if limit and task.ladder is None and not task.over and mono >= task.started + limit:
            self.stop(task, Reason.TIMEOUT)
        if not task.begun and mono >= task.started + self._settings.start_timeout:
            # A runner that has not begun its task by now is killed, because it might hang in a
            # function that was registered with os.register_at_fork.
            if not (task.over or task.runner.stop_flags.begun):
                task.log("killing it: its process does not begin", level=logging.ERROR)
                self._pool.kill(task.runner)
            task.taken_up()

    def _guard_lease(self, task: RunningTask, boot: float) -> None:
        """Kill the task before its lease can be granted to another worker."""
        deadlines = task.deadlines
        if task.is_lost or boot >= deadlines.kill:
            self.stop(task, Reason.LEASE, 0)
        elif boot >= deadlines.warn:
            self.stop(task, Reason.LEASE, deadlines.kill - boot)

    def _climb(self, task: RunningTask, mono: float) -> None:
        """Send the signal that is due on the task's kill ladder."""
        if task.over and task.runner.exit is None and mono >= task.ended + _LONGEST_EXIT:
            self._pool.kill(task.runner)
        if task.ladder is None:
            return
        killing = task.ladder.killing
        if (number := task.ladder.due(mono)) is None:
            return
        if number is signal.SIGKILL:
            if not killing:
                self._log_kill(task)
            self._pool.kill(task.runner)
        elif not task.over:
            task.runner.send(number)

    def _log_kill(self, task: RunningTask) -> None:
        """Log the first KILL of a task, if the lease is the reason.

        A ladder that the lease began says KILL at the end of the lease, too, and can be due
        before `_guard_lease` notices the end: the clocks are read one after the other, and rounded.
        """
        if task.is_lost:
            what = "its lease is lost" if task.lost else "its schedule is not held any more"
            task.log(f"killing it: {what}", level=logging.ERROR)
        elif task.stopping is Reason.LEASE or self._clock.boottime() >= task.deadlines.kill:
            task.log("killing it: its lease could not be extended", level=logging.ERROR)

    def _wakes(self, task: RunningTask, mono: float, boot: float) -> float:
        limit = task.definition.settings.kill_timeout
        deadlines = task.deadlines
        moments = [mono + deadline - boot for deadline in (deadlines.warn, deadlines.kill)]
        if task.ladder is not None:
            moments.append(task.ladder.wakes)
        elif limit:
            moments.append(task.started + limit)
        if task.over:
            moments.append(task.ended + _LONGEST_EXIT)
        if not task.begun:
            moments.append(task.started + self._settings.start_timeout)
        return min((moment for moment in moments if moment > mono), default=mono + 1)


class TaskTable:
    """Owns the running tasks: starts them in runners, and records what their runners report.

    Attributes:
        running: the tasks whose leases have not ended, by the keys of their rows; read only.
        holding: the extra runs that hold their schedule, by the schedule's key; read only.
        reporter: tells the master when runs begin and end; None if nobody wants to know.
        started: how many tasks have been started so far.
        no_forks: logs failed forks; ``ongoing`` is True from a failed fork until none has failed
            for some seconds.
        is_read: whether there may be output, or its end, for readers.
        no_fork: why the last call of `prepare` has failed; None if it has succeeded.
        scarce_until: until when no runner may be forked ahead of need, because a task has found no
            room for a process; seconds of the monotonic clock.
    """

    def __init__(self, context: Context, *, flush_log: Callable[[], object] = lambda: None) -> None:
        self.running: dict[str, RunningTask] = {}
        self.holding: dict[str, RunningTask] = {}
        self.reporter = None
        if context.settings.monitor:
            self.reporter = RunReporter(context.link)
        self.started = 0
        self.no_forks = FaultLog("cannot fork", _log, context.clock)
        self.no_fork: str | None = None
        self.scarce_until = -inf
        # How long each occurrence has waited last that found no room for its process.
        self._refused: dict[Occurrence, float] = {}
        self._flush_log = flush_log
        # The links to runners by which `send_starts` sends tasks.
        self._starting: list[Link] = []
        self._pool = context.pool
        self._clock = context.clock
        self._recorder = context.recorder
        self._handlers, self._program = context.handlers, context.program
        self._output = context.output
        self._guard = TaskGuard(context.settings, context.pool, context.clock, context.deadman)
        self._printing: dict[int, RunningTask] = {}
        self._readers: dict[int, RunningTask] = {}
        self._read_all: list[int] = []
        self.is_read = False
        if self._output is not None:
            self._output.whose = self._whose

    def holder_of(self, key: str) -> str | None:
        """What identifies the run, or the extra run, of a schedule that is running here.

        None if there is none.
        """
        task = self.running.get(key) or self.holding.get(key)
        return None if task is None else str(task.row.token)

    @property
    def alive(self) -> bool:
        """Whether a process of any task can still be alive."""
        return any(not task.empty for task in self.running.values())

    @property
    def links(self) -> Sequence[Waitable]:
        """The connections to all runners and their fork servers."""
        return self._pool.links

    def prepare(self, count: int = 1, *, unused: bool = False) -> None:
        """Make sure that a runner waits for a task; see `RunnerPool.prepare`."""
        if unused or not self._pool.waiting:
            self.guard_before_blocking()
        try:
            self._pool.prepare(count, unused=unused)
        except OSError as error:
            self.no_fork = str(error)
            self.no_forks.failed(error)
            raise
        self.no_fork = None
        if self.no_forks.ongoing:
            self.no_forks.passed()

    def close(self) -> None:
        """Let the collector write the output that it has read, because no task is left."""
        if self._output is not None:
            self._output.stop()

    def start(self, lease: Lease, run: Run) -> None:
        """Start the task of a leased row in a waiting runner; `prepare` must be called before.

        The runner gets it by the next call of `send_starts`.
        """
        row, hold = lease.row, lease.hold
        place = _PLACES.get(run.definition.settings.output, PIPE)
        fields, stored = run.definition.assignment(row, run.scheduled_time), _stored(row.data)
        runner = command = None
        collects = place != RAW or self._output is None
        handler = self._handlers.get(run.definition.type, self._program)
        if collects and handler is not None:
            command = find_command(handler, fields, stored)
        if command is not None:
            runner = self._pool.acquire_for_program()
        if runner is None:
            runner, command = self._pool.acquire(), None
        task = RunningTask(
            row=row,
            definition=run.definition,
            occurrence=Occurrence(row.key, run.scheduled_time),
            deadlines=lease.deadlines,
            hold=hold,
            runner=runner,
            command=command,
            started=self._clock.monotonic(),
            store_clock=self._recorder.clock,
            started_at=self._recorder.clock.reading(),
        )
        self.running[row.key] = task
        if hold is not None:
            self.holding[hold.key] = task
        if runner.pipe is None or self._output is None:
            place = RAW if place == PIPE else place
        elif place == PIPE:
            self._printing[runner.pipe.number] = task
            self._output.begin(runner.pipe)
        self.started += 1
        if row.next_run_time:  # else it was inserted without a time, and is not late
            late = task.started_at.milliseconds / 1000 - row.next_run_time
            self._recorder.counts.started(late)
        task.log("started, %s, attempt %d", run.definition.type, row.attempt)
        if self.reporter is not None and task.is_pinged:
            self.reporter.started(task)
        self._guard.begin(task)
        if command is not None:
            runner.stop_flags.begun = True
            title = f"runner: {run.definition.type} {task.occurrence} attempt {row.attempt}"
            runner.link.store(command.packed(title_of(title), quiet=place == NONE))
        else:
            runner.link.data_limit = run.definition.settings.data_limit
            runner.link.store({"run": {**fields, "output": place}}, stored)
        self._starting.append(runner.link)

    def send_starts(self) -> None:
        """Write the lines of the log, and then send tasks to their runners.

        In this order, because a task can log something at once. `guard` and `guard_before_blocking`
        call this, so that nothing waits while this process sleeps or is blocked.
        """
        self._flush_log()
        for link in self._starting:
            link.flush()
        self._starting.clear()

    def remove(self, key: str) -> RunningTask:
        """Forget a task whose lease has ended, and return it."""
        task = self.running.pop(key)
        if task.hold is not None:
            del self.holding[task.hold.key]
        return task

    def receive(self, gateway: "StoreGateway") -> None:
        """Record the reports of runners, answer their requests, and note who has ended."""
        for task in [*self.running.values()]:
            if task.empty:
                continue  # skipped, because the runner might run another task by now
            link = task.runner.link
            self._handle(task, link.receive(), gateway)
            if link.fault is not None and self._pool.cut_off(task.runner):
                task.run_over(f"its process has sent {link.fault}", self._clock.monotonic())
        self._reap(gateway)
        self._take_output()

    def _reap(self, gateway: "StoreGateway") -> None:
        """Note which runners have ended, and which of them have left no process behind."""
        by_runner = {task.runner: task for task in self.running.values() if not task.empty}
        for runner in self._pool.reap():
            if (task := by_runner.get(runner)) is not None:
                self._handle(task, runner.last_words, gateway)
                if runner.died_with_server:
                    task.server_died(self._clock.monotonic())
                self._end(task, f"its process {runner.exit}", EndReport.of_exit(runner.exit))
        for runner in self._pool.cleared():
            task = by_runner.get(runner)
            if task is None:
                self._forget_output(runner)
            elif not task.awaits_output:
                self._tree_gone(task)
        for runner, what in self._pool.late():
            if runner in by_runner:
                text = "it has ended, but what it has started does not die: %s"
                by_runner[runner].log(text, what, level=logging.WARNING)

    def guard(self) -> float:
        """Send the signals that are due; see `TaskGuard.watch`.

        Return when to call this and `receive` again, seconds of the monotonic clock.
        """
        self.send_starts()
        wakes = min(self._guard.watch(self.running.values()), self._pool.wakes)
        return wakes if self._output is None else min(wakes, self._output.wakes)

    def guard_before_blocking(self) -> None:
        """Send the signals that are due; call this before a request or a fork, which can block."""
        self.send_starts()
        if self.running:
            self._guard.watch(self.running.values())

    def stop(self, task: RunningTask, reason: Reason, limit: float | None = None) -> None:
        """Begin to stop a task; see `TaskGuard.stop`."""
        self._guard.stop(task, reason, limit)

    def stop_all(self, reason: Reason, limit: float | None = None) -> None:
        """Begin to stop all tasks; see `TaskGuard.stop`."""
        for task in self.running.values():
            self._guard.stop(task, reason, limit)

    def peek(self, task: RunningTask) -> None:
        """Ask for what a running task has printed so far; `peeked` returns it soon."""
        if self._output is not None and task.runner.pipe is not None:
            self._output.peek(task.runner.pipe)

    def peeked(self) -> Iterator[tuple[RunningTask, CapturedOutput]]:
        """Yield each task for which `peek` was called, when its output has arrived."""
        if self._output is None:
            return
        for number, output in self._output.take_peeked().items():
            if (task := self._printing.get(number)) is not None:
                yield task, output

    def follow(self, key: str, reader: int) -> RunningTask | None:
        """Have the output of a running task sent to a reader, until it ends.

        Return the task; None if none with this key runs, or if it has no process any more.
        """
        task = self.running.get(key)
        if task is None or task.empty or task.awaits_output:
            return None
        if self._output is not None and task.is_collected and task.runner.pipe is not None:
            self._readers[reader] = task
            self._output.follow(task.runner.pipe, reader)
            self.is_read = True
        return task

    def unfollow(self, reader: int) -> None:
        """Send a reader nothing more."""
        if self._readers.pop(reader, None) is not None and self._output is not None:
            self._output.unfollow(reader)

    def live_output(self) -> tuple[Sequence[LiveOutput], Sequence[int]]:
        """Return the output that has arrived for readers, and the readers that have all of it."""
        if self._output is None:
            return (), ()
        ended, self._read_all = self._read_all, []
        return self._output.take_live(), ended

    def go_on(self) -> None:
        """Say that what `live_output` has returned was passed on."""
        if self._output is not None:
            self._output.go_on()
            self.is_read = bool(self._readers or self._read_all)

    def _end(self, task: RunningTask, failure: str | None, told: EndReport) -> None:
        """Note that a run has ended; no effect if it had ended before."""
        if not task.over:
            task.run_over(failure, self._clock.monotonic(), told)
            if told.was_killed:
                task.judge_memory(self._pool.oom_kills())

    def _tree_gone(self, task: RunningTask) -> None:
        """Note that no process of a task is left; ask for its output if it has printed some."""
        runner = task.runner
        if self._output is None or runner.pipe is None or runner.pipe.number not in self._printing:
            task.tree_gone()
            return
        output = self._output.end(runner.pipe)
        if output is None:
            task.awaits_output = True
            self._pool.hold(runner)
        else:
            self._output_arrived(task, output)

    def _take_output(self) -> None:
        """Note the output that has arrived from the collector."""
        if self._output is None:
            return
        for number, output in self._output.take().items():
            if (task := self._printing.get(number)) is not None and task.awaits_output:
                self._output_arrived(task, output)
                self._pool.unhold(task.runner)

    def _output_arrived(self, task: RunningTask, output: CapturedOutput) -> None:
        """Note the output of a task whose processes have ended; its lease can end now."""
        task.tree_gone(output)
        if task.runner.pipe is not None:
            del self._printing[task.runner.pipe.number]
        for reader in [each for each, read in self._readers.items() if read is task]:
            self.unfollow(reader)
            self._read_all.append(reader)
        if task.runner.exit is not None:
            self._forget_output(task.runner)

    def _forget_output(self, runner: RunnerChild) -> None:
        """Close the pipe of a runner that has ended."""
        if self._output is not None and runner.pipe is not None:
            self._output.forget(runner.pipe)

    def _whose(self, pipe: Pipe) -> Whose:
        """Whose output a pipe carries now, and what is to be done with it."""
        task = self._printing.get(pipe.number)
        if task is None:
            return UNKNOWN
        settings = task.definition.settings
        keep = settings.output_limit if task.is_kept else 0
        return Whose(task.row.key, keep, forward=settings.output in {"both", "service"})

    def _handle(
        self, task: RunningTask, messages: Sequence[Mapping[str, Any]], gateway: "StoreGateway"
    ) -> None:
        """Act on a runner's message.

        If a runner sends a second message before the first was answered, its link is cut, because
        psched's own code in a runner never does this.
        """
        if not messages:
            return
        if len(messages) > 1 or task.over or task.runner.link.unsent:
            task.runner.link.cut("a message out of turn")
            return
        message = messages[0]
        if task.command is not None:
            message = _end_of_program(task, task.command, message)
            if "no_room" in message:
                self._pool.kill(task.runner)  # it takes up room itself
        if not message.keys().isdisjoint(_ENDS):
            self._handle_end(task, message)
            return
        # A lease that has not reached its deadline counts as held without a request to the store,
        # because no other worker can claim the row before that deadline.
        held = not task.is_lost and self._clock.boottime() < task.deadlines.end
        answer: dict[str, object] = {"held": held}
        if held:
            try:
                answer["held"] = _obey(task, message, gateway)
            except TransientStoreError as error:
                unknown = isinstance(error, UnknownOutcomeError)
                answer = {"unanswered" if unknown else "unavailable": text_of(error)}
            except InvalidError as error:
                answer = {"invalid": [error.field, brief(error.problem)]}
        task.runner.link.send(answer)

    def _handle_end(self, task: RunningTask, message: Mapping[str, Any]) -> None:
        """Act on the message with which a runner tells the end of a task."""
        waited = self._refused.pop(task.occurrence, 0)
        if "quarantine" in message:
            task.decided(Quarantine(message["quarantine"]))
        if "no_room" in message:
            if len(self._refused) >= _MOST_REFUSED:
                self._refused.clear()
            wait = max(_SHORTEST_WAIT, min(2 * waited, task.definition.settings.retry_wait))
            self._refused[task.occurrence] = wait
            task.decided(Release(wait, f"no room for a process: {message['no_room']}"))
            # Idle runners could take up the very places that the task needs, for ever.
            self._pool.make_room()
            self.scarce_until = self._clock.monotonic() + wait + _SCARCE
        told = EndReport.of_message(message) if "done" in message else EndReport()
        self._end(task, message.get("done"), told)
        if message.get("store"):
            self._pool.renew()
        # If the runner cannot be used again, `RunnerPool.cleared` returns it.
        if not message["last"] and self._pool.give_back(task.runner):
            self._tree_gone(task)


def _obey(task: RunningTask, message: Mapping[str, Any], gateway: "StoreGateway") -> bool:
    """Carry out a task's request; return whether the task's lease is held."""
    if "extend" in message:
        return gateway.extend_now(task)
    if "update_data" in message:
        return gateway.update_data(task, _payload(message["data"]))
    if "retry" in message:
        task.decided(Retry(message["wait"], message["retry"]))
    else:
        task.decided(Finish() if message["decide"] == "finish" else Release())
    return True


def _end_of_program(
    task: RunningTask, command: Command, message: Mapping[str, Any]
) -> dict[str, Any]:
    """The message with which a runner would tell what a program runner has told."""
    failure, how, used = None, (None, None), None
    if "exited" in message:
        how, used = message["exited"][:2], message["exited"][2:]
        failure = command.failure_of(ProgramEnd(*how))
    elif "refused" in message:
        failure = refused_text(command.user, message["refused"])
    else:
        number, what = message["unstarted"]
        of = () if not what else (command.arguments[0] if what == 1 else command.folder,)
        error = command.start_failure(OSError(number, os.strerror(number), *of))
        failure = text_of(error)
        if isinstance(error, NoRoomError):
            return {"no_room": failure, "last": True}
    if failure is not None:
        _task_log.error("%s", failure, extra={"subject": task.occurrence})
    end = {"done": failure, "error": None, "exit": how, "used": used}
    return {**end, "last": False, "store": False, "result": None}


def _stored(data: str | bytes | None) -> bytes:
    """The bytes of a stored payload; those of an empty JSON object if there is no payload.

    The bytes are not decompressed or parsed here, because the runner does this.
    """
    if isinstance(data, str):
        # Lone surrogates do not raise an error here, so that the runner reports the invalid text.
        data = data.encode(errors="surrogatepass")
    return data or b"{}"


def _payload(data: bytes) -> str:
    """The text of a payload that a runner asks to store.

    psched's code in the runner has checked the payload, but a handler can make its process send any
    bytes. So text that a column cannot hold is refused here. Other invalid JSON is accepted here,
    because a row with invalid JSON is quarantined when it is due again.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.startswith("{") or not text.endswith("}") or "\0" in text:
        raise InvalidError("data", "must be a JSON object in UTF-8")
    return text
