"""A worker's running tasks: the side of them that is processes. The store's side: `leaser`."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from psched.clock import Clock
from psched.errors import InvalidError, StoreUnavailableError
from psched.guard import Guard
from psched.model import Decision, Finish, Occurrence, Release, Retry, Row
from psched.policy import Run
from psched.runners import Runners
from psched.slots import Slot, tell
from psched.supervisor.note import Reason
from psched.supervisor.signals import Waitable
from psched.task import assignment
from psched.timing import Deadlines


class Lessor(Protocol):
    """Writes for a running task."""

    def extend_now(self, slot: Slot) -> bool:
        """Extend its lease; whether it was still held.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...

    def update_data(self, slot: Slot, data: str) -> bool:
        """Replace its schedule's payload; whether its lease was still held.

        Raises:
            StoreUnavailableError: the store did not answer.
        """
        ...


class Tasks:
    """Starts tasks in runners, hears what they say, and knows when nothing of them is left.

    Args:
        runners: where tasks run.
        guard: stops them when they must stop.
        clock: this host's clocks.

    Attributes:
        slots: the leases that have a task, by key.
        started: how many tasks have been started so far.
    """

    def __init__(self, runners: Runners, guard: Guard, clock: Clock) -> None:
        self.slots: dict[str, Slot] = {}
        self.started = 0
        self._runners = runners
        self._guard = guard
        self._clock = clock

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter([*self.slots.values()])

    @property
    def running(self) -> bool:
        """Whether anything of any task may still be alive."""
        return any(not slot.empty for slot in self)

    @property
    def runners(self) -> Runners:
        """Where tasks run."""
        return self._runners

    @property
    def links(self) -> list[Waitable]:
        """The lines to all runners."""
        return self._runners.links

    def prepare(self, count: int = 1) -> None:
        """Have a runner waiting; see `Runners.prepare`.

        Raises:
            OSError: the system has no process or memory left.
        """
        if not self._runners.waiting:
            self.brace()
        self._runners.prepare(count)

    def dismiss(self) -> None:
        """No task will follow: let the waiting runners go."""
        self._runners.dismiss()

    def start(self, row: Row, run: Run, deadlines: Deadlines) -> None:
        """Start the task of a leased row, in a runner that `prepare` has made."""
        runner = self._runners.take()
        slot = Slot(
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
        runner.link.send({"run": assignment(row, run.definition, run.scheduled_time)})

    def hear(self, lessor: Lessor) -> None:
        """Take what runners say, answer what they ask, and see which have ended."""
        for slot in self:
            if slot.empty:
                continue  # its runner may have another's task by now
            slot.runner.link.flush()
            for message in slot.runner.link.receive():
                self._take(slot, message, lessor)
        self._reap(lessor)

    def _reap(self, lessor: Lessor) -> None:
        """See which runners have ended, and of which nothing is left."""
        by_runner = {slot.runner: slot for slot in self if not slot.empty}
        for runner in self._runners.reap():
            slot_or_none = by_runner.get(runner)
            if slot_or_none is not None:
                for message in runner.last_words:
                    self._take(slot_or_none, message, lessor)
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
        """See `Guard.watch`."""
        return min(self._guard.watch(self.slots.values()), self._runners.wakes)

    def stop(self, slot: Slot, reason: Reason, limit: float | None = None) -> None:
        """See `Guard.stop`."""
        self._guard.stop(slot, reason, limit)

    def _take(self, slot: Slot, message: Mapping[str, Any], lessor: Lessor) -> None:
        if "done" in message:
            slot.end(message["done"], self._clock.monotonic())
            if message["store"]:
                self._runners.preload()
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
                answer = {"unavailable": str(error)}
            except InvalidError as error:
                answer = {"invalid": [error.field, error.problem]}
        slot.runner.link.send(answer)


def _obey(slot: Slot, message: Mapping[str, Any], lessor: Lessor) -> bool:
    if "decide" in message:
        slot.decision = _decision(message)
        return True
    if "extend" in message:
        return lessor.extend_now(slot)
    return lessor.update_data(slot, message["update_data"])


def _decision(message: Mapping[str, Any]) -> Decision:
    match message["decide"]:
        case "finish":
            return Finish()
        case "release":
            return Release()
        case _:
            return Retry(message["wait"], message["reason"])
