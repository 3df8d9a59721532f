"""Inside a runner: the forked process that runs tasks, one at a time. It holds no store.

What a task does to its lease is a question to the worker over their link. The answer tells
whether the lease is still held; the write itself follows when the task's tree is gone.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from psched.application.task import Task
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
    described,
    text_of,
)
from psched.base.log import Log
from psched.core.columns import encode, payload_text
from psched.core.model import Decision, Finish, Release, Retry
from psched.process.child import reap
from psched.process.link import Link, packed
from psched.process.spawn import flush_output, threads
from psched.process.titles import set_title
from psched.runner.messages import TO_RUNNER
from psched.runner.stop import Stop
from psched.runner.stop_flags import StopFlags

if TYPE_CHECKING:
    from psched.client.collection import ScheduleCollection

_log = logging.getLogger("psched.task")

_OWN_ERRORS = (LoadError, CommandError, NotAllowedError, UnfinishedError)
"""Told without a traceback, which would be of psched's own code."""

_USUAL = {"done": None, "last": True, "store": False}
"""What most runners say at their end."""

_USUAL_PACKED = packed(_USUAL)
"""Packed before the fork: to do it costs each runner the copies of 15 pages."""


class _Holder:
    """Asks the worker, which holds the lease."""

    def __init__(
        self,
        link: Link,
        stop: Stop,
        open_schedules: "Callable[[], ScheduleCollection]",
        *,
        data_limit: int,
    ) -> None:
        self._link = link
        self._stop = stop
        self._open_schedules = open_schedules
        self._data_limit = data_limit
        self._collection: ScheduleCollection | None = None
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._over = False

    def decide(self, decision: Decision) -> None:
        """See `psched.application.task.Holder.decide`."""
        match decision:
            case Finish():
                self._ask(decide="finish")
            case Release():
                self._ask(decide="release")
            case Retry(wait, reason):
                self._ask(retry=reason, wait=wait)

    def extend(self) -> None:
        """See `psched.application.task.Holder.extend`."""
        self._ask(extend=True)

    def update_data(self, data: Mapping[str, Any]) -> None:
        """See `psched.application.task.Holder.update_data`."""
        text = encode("data", data, most=self._data_limit)
        self._ask(text.encode(), update_data=True)

    @property
    def schedules(self) -> "ScheduleCollection":
        """See `psched.application.task.Holder.schedules`."""
        if self._collection is None:
            self._collection = self._open_schedules()
        return self._collection

    @property
    def has_opened(self) -> bool:
        """Whether the task has asked for schedules."""
        return self._collection is not None

    def close(self) -> None:
        """The task is over: nobody speaks for it any more, and what it has opened is closed."""
        with self._turn:
            self._over = True
        if self._collection is not None:
            with suppress(Exception):
                self._collection.close()

    def _ask(self, data: bytes = b"", **question: object) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("a process that a handler has forked cannot speak for the task")
        # Signals are handled in the main thread: only there can one come in between.
        in_main_thread = threading.current_thread() is threading.main_thread()
        with self._stop.guarded() if in_main_thread else nullcontext(), self._turn:
            if self._over:
                raise PreemptedError("the task is over")
            self._link.send(question, data)
            answer = self._link.wait()
        if answer is not None and "unavailable" in answer:
            raise StoreUnavailableError(answer["unavailable"])
        if answer is not None and "invalid" in answer:
            raise InvalidError(*answer["invalid"])
        # An answer without it is one to another question: somebody reads our line beside us.
        if answer is None or not answer.get("held"):
            raise PreemptedError("the lease is over or another worker's")


class Runner:
    """Runs what its worker sends, until there has been enough or the worker is gone.

    Made once, before any runner is forked; each calls `run` on its own copy, which alone has a
    link, a process and a stop. What is made in a child costs each child.

    Args:
        find: the handler of a type; None: there is none.
        log: this process's log.
        open_schedules: opens a collection on the store that the tasks come from.
        judge: judges a row whose trigger is of a user's own; see `psched.core.remote_policy`.
        tasks: how many it runs before it exits.
    """

    _link: Link
    _process: int
    _stop: Stop

    def __init__(
        self,
        *,
        find: Callable[[str], Any],
        log: Log,
        open_schedules: "Callable[[], ScheduleCollection]",
        judge: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        tasks: int,
    ) -> None:
        self._find = find
        self._log = log
        self._open_schedules = open_schedules
        self._judge = judge
        self._tasks = tasks

    def run(self, link: Link, note: StopFlags) -> int:
        """Its life, in its own process; the exit status.

        Args:
            link: to the worker.
            note: why TERM comes.
        """
        self._link = link
        # In UTF-8, a payload that is stored as text may have more bytes than it has characters.
        link.expects, link.data_limit = TO_RUNNER, 4 * LARGEST
        self._process = os.getpid()
        self._stop = Stop(note)
        self._log.process = "task"
        set_title("runner: idle")
        left = self._tasks
        while left and (message := link.wait()) is not None:
            note.begun = True
            if "judge" in message:
                # A process that asks triggers runs no tasks, and never will.
                if not self._answer(message["judge"]):
                    return 0
                continue
            if left < self._tasks:
                # What the task before has left behind was killed, and is nobody's to wait for.
                for _ in reap():
                    pass
            if "run" not in message:
                break  # an answer to a question that a task has not waited for
            end = self._perform(message["run"], message["data"])
            left = left - 1 if left > 1 and _is_clean() else 0
            end["last"] = not left
            link.deliver(_USUAL_PACKED if end == _USUAL else end)
            if left:
                set_title("runner: idle")
        return 0

    def _perform(self, assignment: Mapping[str, Any], stored: bytes) -> dict[str, object]:
        """Run one task; what is to be said of its end."""
        limit = assignment["data_limit"]
        holder = _Holder(self._link, self._stop, self._open_schedules, data_limit=limit)
        try:
            task = Task({**assignment, "data": payload_text(stored, limit)}, holder)
        except InvalidError as error:
            return {"quarantine": text_of(error)}
        occurrence = str(task.occurrence)
        set_title(f"runner: {task.type} {occurrence} attempt {task.attempt}")
        # What it prints is to be where the log is now, not where it was at the fork.
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
                raise  # it ends as a program would that raised this
            failure = _told(error)
            _report(task, error, failure)
        if os.getpid() != self._process:
            # The handler has forked, and this is the child: it must not speak for the task.
            sys.exit()
        flush_output()
        holder.close()
        self._log.subject = ""
        return {"done": failure, "last": True, "store": holder.has_opened}

    def _answer(self, question: Mapping[str, Any]) -> bool:
        """Have a trigger asked; whether this process is fit to be asked again."""
        set_title("trigger helper")
        self._log.follow()
        failed = False
        try:
            answer = self._judge(question)
        except BaseException as error:  # noqa: BLE001  # whatever a user's code raises
            failed, answer = True, {"failed": described(error)}
        if os.getpid() != self._process:
            # The trigger has forked, and this is the child: it must not speak for it.
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
    """What went wrong, in a line."""
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
    """Whether no thread is left that would work on beside the next task."""
    try:
        return threads() == 1
    except OSError:  # no descriptor is left either
        return False
