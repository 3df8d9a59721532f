"""Inside a runner: the forked process that runs tasks, one at a time. It holds no store.

What a task wants to do to its lease is a question to the worker, over their link. The answer tells
whether the lease is still held. How the task ends is written when its processes are gone.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

from typing_extensions import override

from psched.application.task import Holder, Task
from psched.base.compression import LARGEST
from psched.base.errors import (
    CommandError,
    InvalidError,
    LoadError,
    NotAllowedError,
    PreemptedError,
    ProcessStopError,
    StoreUnavailableError,
    UnfinishedError,
    UnknownOutcomeError,
    described,
    text_of,
)
from psched.base.log import Log
from psched.core.columns import encode, payload_text
from psched.core.model import Decision, Finish, Release, Retry
from psched.core.schedule import Schedules
from psched.process.child import reap
from psched.process.link import Link, packed
from psched.process.spawn import flush_output, threads
from psched.process.titles import set_title
from psched.runner.messages import TO_RUNNER
from psched.runner.stop import Stop
from psched.runner.stop_flags import StopFlags

_log = logging.getLogger("psched.task")

_OWN_ERRORS = (LoadError, CommandError, NotAllowedError, UnfinishedError)
"""Errors that are logged without a traceback, because it would show only psched's own code."""

_USUAL = {"done": None, "last": True, "store": False}
"""The report of most runners at the end of their task."""

_USUAL_PACKED = packed(_USUAL)
"""The same, packed before the fork: packing in each runner would copy 15 memory pages."""


class _Holder(Holder):
    """The task's side of its lease: sends requests to the worker, which holds the lease."""

    def __init__(
        self,
        link: Link,
        stop: Stop,
        open_schedules: Callable[[], Schedules],
        *,
        data_limit: int,
    ) -> None:
        self._link = link
        self._stop = stop
        self._open_schedules = open_schedules
        self._data_limit = data_limit
        self._collection: Schedules | None = None
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._over = False

    @override
    def decide(self, decision: Decision) -> None:
        match decision:
            case Finish():
                self._ask(decide="finish")
            case Release():
                self._ask(decide="release")
            case Retry(wait, reason):
                self._ask(retry=reason, wait=wait)

    @override
    def extend(self) -> None:
        self._ask(extend=True)

    @override
    def update_data(self, data: Mapping[str, Any]) -> None:
        text = encode("data", data, most=self._data_limit)
        self._ask(text.encode(), update_data=True)

    @property
    @override
    def schedules(self) -> Schedules:
        if self._collection is None:
            self._collection = self._open_schedules()
        return self._collection

    @property
    def has_opened(self) -> bool:
        """Whether the task has opened the collection of schedules."""
        return self._collection is not None

    def close(self) -> None:
        """Refuse further requests, because the task is over, and close what it has opened."""
        with self._turn:
            self._over = True
        if self._collection is not None:
            with suppress(Exception):
                self._collection.close()

    def _ask(self, data: bytes = b"", **question: object) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("a process that a handler has forked cannot speak for the task")
        # Only in the main thread is TERM held back, because only there can it interrupt this.
        in_main_thread = threading.current_thread() is threading.main_thread()
        with self._stop.guarded() if in_main_thread else nullcontext(), self._turn:
            if self._over:
                raise PreemptedError("the task is over")
            self._link.send(question, data)
            answer = self._link.wait() or {}  # nothing: the worker has died
        if "unavailable" in answer:
            raise StoreUnavailableError(answer["unavailable"])
        if "unanswered" in answer:
            raise UnknownOutcomeError(answer["unanswered"])
        if "invalid" in answer:
            raise InvalidError(*answer["invalid"])
        # An answer to another question has no such field: another process reads our line, too.
        if not answer.get("held"):
            raise PreemptedError("the lease is over or another worker's")


class Runner:
    """Runs what its worker sends, until it has run enough tasks or the worker has exited.

    One is made before any runner is forked, because what is made in a child costs time in each
    child. Each runner calls `run` on its own copy, which alone has a link, a process and a `Stop`.

    Args:
        find: the handler of a type; None: there is none.
        log: this process's log.
        open_schedules: opens a collection on the store that the tasks come from.
        judge: judges a row whose trigger is of a user's own; see `psched.core.remote_policy`.
        tasks: how many tasks it runs before it exits.
    """

    _link: Link
    _process: int
    _stop: Stop

    def __init__(
        self,
        *,
        find: Callable[[str], Any],
        log: Log,
        open_schedules: Callable[[], Schedules],
        judge: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        tasks: int,
    ) -> None:
        self._find = find
        self._log = log
        self._open_schedules = open_schedules
        self._judge = judge
        self._tasks = tasks

    def run(self, link: Link, stop_flags: StopFlags) -> int:
        """A runner's life, in its own process; returns the exit status.

        Args:
            link: to the worker.
            stop_flags: tell why TERM was sent.
        """
        self._link = link
        # A payload that is stored as text may have more bytes in UTF-8 than it has characters.
        link.expects, link.data_limit = TO_RUNNER, 4 * LARGEST
        self._process = os.getpid()
        self._stop = Stop(stop_flags)
        self._log.process = "task"
        set_title("runner: idle")
        left = self._tasks
        while left and (message := link.wait()) is not None:
            stop_flags.begun = True
            if "judge" in message:
                # A process that asks triggers never runs a task.
                if not self._answer(message["judge"]):
                    return 0
                continue
            if left < self._tasks:
                # The worker has killed what the last task had left behind; its zombies are reaped
                # here.
                for _ in reap():
                    pass
            if "run" not in message:
                break  # an answer that the last task did not wait for
            end = self._perform(message["run"], message["data"])
            left = left - 1 if left > 1 and _is_clean() else 0
            end["last"] = not left
            link.deliver(_USUAL_PACKED if end == _USUAL else end)
            if left:
                set_title("runner: idle")
        return 0

    def _perform(self, assignment: Mapping[str, Any], stored: bytes) -> dict[str, object]:
        """Run one task; return the message that reports its end."""
        limit = assignment["data_limit"]
        holder = _Holder(self._link, self._stop, self._open_schedules, data_limit=limit)
        try:
            task = Task({**assignment, "data": payload_text(stored, limit)}, holder)
        except InvalidError as error:
            return {"quarantine": text_of(error)}
        occurrence = str(task.occurrence)
        set_title(f"runner: {task.type} {occurrence} attempt {task.attempt}")
        # The task's output must go into the log file that is open now, not the one at the fork.
        self._log.follow()
        self._log.subject = occurrence
        failure = None
        try:
            try:
                self._stop.begin()
                self._call(task, on_return=assignment["on_return"])
            finally:
                self._stop.end()
        except BaseException as error:
            if os.getpid() != self._process:
                raise  # a child that the handler has forked ends like any program that raises
            failure = _told(error)
            _report(task, error, failure)
        if os.getpid() != self._process:
            # This is a child that the handler has forked: it must not speak for the task.
            sys.exit()
        flush_output()
        holder.close()
        self._log.subject = ""
        return {"done": failure, "last": True, "store": holder.has_opened}

    def _answer(self, question: Mapping[str, Any]) -> bool:
        """Judge a row by its trigger; return whether this process can be used again."""
        set_title("trigger helper")
        self._log.follow()
        failed = False
        try:
            answer = self._judge(question)
        except BaseException as error:  # noqa: BLE001  # whatever a user's code raises
            failed, answer = True, {"failed": described(error)}
        if os.getpid() != self._process:
            # This is a child that the trigger has forked: it must not answer for the trigger.
            sys.exit()
        flush_output()
        last = failed or not _is_clean()
        self._link.deliver({**answer, "last": last})
        return not last

    def _call(self, task: Task, *, on_return: str) -> None:
        handler: Any = self._find(task.type)
        if handler is None:
            raise LoadError(
                f"no handler for the type {task.type!r}; add it to the routes of your Dispatch"
            )
        if isinstance(handler, type):
            make: Callable[[Task], Any] = handler
            run = make(task)
            if callable(getattr(run, "kill", None)):
                self._stop.offer(run.kill)
            run.run()
        else:
            handler(task)
        must_finish = on_return == "retry" and not getattr(handler, "finishes_by_returning", False)
        if must_finish and not task.settled:
            raise UnfinishedError("returned without finish(), and on_return is retry")


def _told(error: BaseException) -> str:
    """What went wrong in a task, in one line."""
    if isinstance(error, ProcessStopError):
        return f"stopped: {text_of(error) or type(error).__name__}"
    if isinstance(error, _OWN_ERRORS):
        return text_of(error) or type(error).__name__
    return described(error)


def _report(task: Task, error: BaseException, failure: str) -> None:
    if isinstance(error, ProcessStopError):
        _log.warning("%s", failure)
    elif isinstance(error, _OWN_ERRORS):
        _log.error("%s", failure)
    else:
        _log.error("the handler of %r raised", task.type, exc_info=error)


def _is_clean() -> bool:
    """Whether no thread is left that would go on working beside the next task."""
    try:
        return threads() == 1
    except OSError:  # no descriptor is left either
        return False
