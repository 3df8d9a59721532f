"""Tells the master when runs begin and end whose schedules have a ping; the monitor sends pings."""

import uuid
from collections import deque
from typing import Any

from psched.base.texts import brief
from psched.core.history.records import Outcome
from psched.core.model import Occurrence
from psched.core.operations.extra_runs import schedule_key
from psched.process.link import Link, packed
from psched.worker.running_task import RunningTask

_MOST_BYTES = 2**18
"""The most bytes that wait for a master that reads slowly. If more come, the oldest messages are
dropped, and counted."""

_NAMESPACE = uuid.UUID("2f0b1c55-0b87-5a58-9f1d-0d8f4f2a6c11")
"""Of the ids of runs."""

_FAILURES = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST, Outcome.CANCELLED})
"""How an attempt ends that counts as a failure. Of the other ends, a run that was released or
preempted is run again, and this next attempt tells whether it succeeds."""


class RunReporter:
    """Reports the attempts of schedules that have a ping. All other attempts cost nothing.

    Attributes:
        has_news: whether there is something to `flush`.
    """

    def __init__(self, link: Link) -> None:
        self.has_news = False
        self._link = link
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._lost = 0

    def started(self, task: RunningTask) -> None:
        """Report that a task was started."""
        self._add(task, "start", f"{task.occurrence}: started, attempt {task.row.attempt}")

    def ended(self, task: RunningTask, *, counts: bool) -> None:
        """Report that a task has ended, after the end of its lease."""
        attempt = task.attempt
        what, status, how = "log", None, str(attempt.outcome)
        if not counts:
            how = "preempted, so what it did counts for nothing"
        elif attempt.outcome is Outcome.FINISHED:
            what = "success"
        elif attempt.outcome in _FAILURES:
            what = "fail"
            # The status 0 would tell the ping server that the run has succeeded.
            status = attempt.exit_status or None
        text = f"{task.occurrence}: {how} after {task.ended - task.started:.3f} s"
        text += f", attempt {task.row.attempt}"
        if what == "fail" and attempt.reason:
            text += f": {attempt.reason}"
        limit = task.definition.settings.ping_output
        tail = task.output.tail[-limit:] if limit and task.is_kept else b""
        self._add(task, what, text, status, tail)

    def flush(self) -> None:
        """Send the master what it accepts now."""
        link = self._link
        while self._waiting and not link.unsent:
            message = self._waiting.popleft()
            self._size -= len(message)
            link.send(message)
        if self._lost and not link.unsent:
            link.send({"lost_pings": self._lost})
            self._lost = 0
        self.has_news = bool(self._waiting or self._lost)

    def _add(
        self, task: RunningTask, what: str, text: str, status: int | None = None, tail: bytes = b""
    ) -> None:
        message: dict[str, Any] = {
            "ping": task.definition.settings.ping,
            "key": schedule_key(task.row.key),
            "run": run_id(task.occurrence, task.row.attempt, task.row.owner),
            "what": what,
            "exit": status,
            "text": brief(text),
        }
        if tail:
            message["tail"] = True
        self.has_news = True
        made = packed(message, tail)
        self._waiting.append(made)
        self._size += len(made)
        while self._size > _MOST_BYTES:
            self._size -= len(self._waiting.popleft())
            self._lost += 1


def run_id(occurrence: Occurrence, attempt: int, owner: str | None) -> str:
    """The id of an attempt: a UUID that is the same at its start and at its end."""
    return str(uuid.uuid5(_NAMESPACE, f"{occurrence}/{attempt}/{owner}"))
