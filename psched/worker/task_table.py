"""A worker's running tasks: the side of them that is processes. The store's side: `leaser`."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from psched.application.task import assignment
from psched.base.clock import Clock
from psched.base.errors import InvalidError, StoreUnavailableError, text_of
from psched.base.fault_log import FaultLog
from psched.base.lease_times import Deadlines
from psched.base.texts import brief
from psched.core.model import Finish, Occurrence, Quarantine, Release, Retry, Row
from psched.core.policy import Run
from psched.process.signals import Waitable
from psched.runner.pool import RunnerPool
from psched.runner.stop_flags import Reason
from psched.worker.running_task import RunningTask, tell
from psched.worker.task_guard import TaskGuard

_log = logging.getLogger("psched.worker")


class LeaseWriter(Protocol):
    """Writes for a running task."""

    def extend_now(self, slot: RunningTask) -> bool:
        """Extend its lease; whether it was still held.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...

    def update_data(self, slot: RunningTask, data: str) -> bool:
        """Replace its schedule's payload; whether its lease was still held.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...


class TaskTable:
    """Starts tasks in runners, hears what they say, and knows when nothing of them is left.

    Args:
        runners: where tasks run.
        guard: stops them when they must stop.
        clock: this host's clocks.

    Attributes:
        slots: the leases that have a task, by key.
        started: how many tasks have been started so far.
        no_forks: that there is no process to be had.
    """

    def __init__(self, runners: RunnerPool, guard: TaskGuard, clock: Clock) -> None:
        self.slots: dict[str, RunningTask] = {}
        self.started = 0
        self.no_forks = FaultLog("cannot fork", _log, clock)
        self._runners = runners
        self._guard = guard
        self._clock = clock

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[RunningTask]:
        return iter([*self.slots.values()])

    @property
    def running(self) -> bool:
        """Whether anything of any task may still be alive."""
        return any(not slot.empty for slot in self)

    @property
    def runners(self) -> RunnerPool:
        """Where tasks run."""
        return self._runners

    @property
    def links(self) -> list[Waitable]:
        """The lines to all runners."""
        return self._runners.links

    def prepare(self, count: int = 1, *, unused: bool = False) -> None:
        """Have a runner waiting; see `RunnerPool.prepare`.

        Raises:
            OSError: the system has no process or memory left; it has been logged.
        """
        if unused or not self._runners.waiting:
            self.brace()
        try:
            self._runners.prepare(count, unused=unused)
        except OSError as error:
            self.no_forks.failed(error)
            raise
        self.no_forks.passed()

    def dismiss(self) -> None:
        """No task will follow: let the waiting runners go."""
        self._runners.dismiss()

    def start(self, row: Row, run: Run, deadlines: Deadlines) -> None:
        """Start the task of a leased row, in a runner that `prepare` has made."""
        runner = self._runners.take()
        slot = RunningTask(
            row=row,
            definition=run.definition,
            occurrence=Occurrence(row.key, run.scheduled_time),
            deadlines=deadlines,
            runner=runner,
            started=self._clock.monotonic(),
        )
        self.slots[row.key] = slot
        self.started += 1
        tell(slot, "started, %s, attempt %d", run.definition.type, row.attempt)
        self._guard.begin(slot)
        runner.link.data_limit = run.definition.settings.data_limit
        message = {"run": assignment(row, run.definition, run.scheduled_time)}
        runner.link.send(message, _stored(row.data))

    def hear(self, lessor: LeaseWriter) -> None:
        """Take what runners say, answer what they ask, and see which have ended."""
        for slot in self:
            if slot.empty:
                continue  # its runner may have another's task by now
            link = slot.runner.link
            link.flush()
            self._take(slot, link.receive(), lessor)
            if self._runners.cut_off(slot.runner):
                slot.end(f"its process has sent {link.fault}", self._clock.monotonic())
        self._reap(lessor)

    def _reap(self, lessor: LeaseWriter) -> None:
        """See which runners have ended, and of which nothing is left."""
        by_runner = {slot.runner: slot for slot in self if not slot.empty}
        for runner in self._runners.reap():
            slot_or_none = by_runner.get(runner)
            if slot_or_none is not None:
                self._take(slot_or_none, runner.last_words, lessor)
                if runner.died_with_server and not slot_or_none.over:
                    slot_or_none.lost_server = True
                    slot_or_none.end("its fork server died", self._clock.monotonic())
                slot_or_none.end(f"its process {runner.exit}", self._clock.monotonic())
        for runner in self._runners.cleared():
            if runner in by_runner:
                by_runner[runner].empty = True
        for runner, what in self._runners.late():
            if runner in by_runner:
                text = "it has ended, but what it has started does not die: %s"
                tell(by_runner[runner], text, what, level=logging.WARNING)

    def brace(self) -> None:
        """Watch what runs, before something holds us up: the store or a fork may, for as long."""
        if self.slots:
            self.watch()

    def watch(self) -> float:
        """See `TaskGuard.watch`."""
        return min(self._guard.watch(self.slots.values()), self._runners.wakes)

    def stop(self, slot: RunningTask, reason: Reason, limit: float | None = None) -> None:
        """See `TaskGuard.stop`."""
        self._guard.stop(slot, reason, limit)

    def _take(
        self, slot: RunningTask, messages: Sequence[Mapping[str, Any]], lessor: LeaseWriter
    ) -> None:
        """Do what a runner says; it waits for the answer before it says anything else."""
        if not messages:
            return
        if len(messages) > 1 or slot.over or slot.runner.link.unsent:
            slot.runner.link.cut("a message out of turn")
            return
        message = messages[0]
        if "done" in message or "quarantine" in message:
            if "quarantine" in message:
                slot.decision = Quarantine(message["quarantine"])
            slot.end(message.get("done"), self._clock.monotonic())
            if message.get("store"):
                self._runners.renew()
            if not message["last"]:
                slot.empty = self._runners.give_back(slot.runner)
            return
        # Until the deadline nobody else can have it, whether or not the store answers.
        held = not slot.lost and self._clock.boottime() < slot.deadlines.end
        answer: dict[str, object] = {"held": held}
        if held:
            try:
                answer["held"] = _obey(slot, message, lessor)
            except StoreUnavailableError as error:
                answer = {"unavailable": text_of(error)}
            except InvalidError as error:
                answer = {"invalid": [error.field, brief(error.problem)]}
        slot.runner.link.send(answer)


def _obey(slot: RunningTask, message: Mapping[str, Any], lessor: LeaseWriter) -> bool:
    if "extend" in message:
        return lessor.extend_now(slot)
    if "update_data" in message:
        return lessor.update_data(slot, _payload(message["data"]))
    if "retry" in message:
        slot.decision = Retry(message["wait"], message["retry"])
    else:
        slot.decision = Finish() if message["decide"] == "finish" else Release()
    return True


def _stored(data: str | bytes | None) -> bytes:
    """A payload as the row holds it; the runner unpacks and parses it."""
    if isinstance(data, str):
        # Half a surrogate pair is no text; the runner says so.
        data = data.encode(errors="surrogatepass")
    return data or b"{}"


def _payload(data: bytes) -> str:
    """A payload that a runner wants to be stored.

    It was checked in the runner, which may lie. A row that is no JSON is quarantined when it is
    due again; what no column can hold must not reach the store.

    Raises:
        InvalidError: it is not the text of an object.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.startswith("{") or not text.endswith("}") or "\0" in text:
        raise InvalidError("data", "must be a JSON object in UTF-8")
    return text
