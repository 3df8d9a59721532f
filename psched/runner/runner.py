"""The code that runs inside a runner: a forked process that runs tasks, one at a time.

A runner does not settle leases itself. It sends a task's requests about the lease over a link to
its worker, which answers whether the lease is still held. The worker settles the lease when all
processes of the task have ended.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

from typing_extensions import override

from psched.application.dispatch import Dispatch, call_handler
from psched.application.task import Holder, Task
from psched.base.compression import LARGEST
from psched.base.errors import (
    InvalidError,
    LoadError,
    NoRoomError,
    PreemptedError,
    StoreUnavailableError,
    UnknownOutcomeError,
    described,
    text_of,
)
from psched.base.log import Log
from psched.core.columns import encode, payload_text
from psched.core.model import Decision, Finish, Release, Retry
from psched.core.schedule import Schedules
from psched.process import kernel
from psched.process.child import reap
from psched.process.kernel import set_title
from psched.process.link import Link, packed
from psched.process.signals import is_received
from psched.process.spawn import flush_output, threads
from psched.runner.coroutines import run_in_loop
from psched.runner.failures import failed, lacks_room
from psched.runner.messages import NONE, PIPE, RAW, TO_RUNNER, ProgramEnd
from psched.runner.shared_memory import StopFlags, StopFlagTable, pack
from psched.runner.stop import PythonExit, Stop

_MICROSECONDS = 1_000_000


class Usage:
    """Measures one task after another in this process, by getrusage(2).

    The figures contain this process, and those children and further descendants that have ended and
    for which their parents have waited.
    """

    def __init__(self) -> None:
        self._cpu = 0.0
        self._peak = 0

    def begin(self, *, first: bool) -> None:
        """Note that a task begins."""
        self._cpu, peak = _totals()
        self._peak = 0 if first else peak

    def end(self, peak_of_program: int | None) -> tuple[int, int | None]:
        """The CPU time in microseconds and the peak of memory in KiB of the task that has ended.

        The kernel tells only the peak of a process's whole life. So the peak of a task is None if
        an earlier task of this process has used as much.
        """
        cpu, peak = _totals()
        used = max(0, round((cpu - self._cpu) * _MICROSECONDS))
        if peak_of_program is not None:
            return used, peak_of_program
        return used, peak if peak > self._peak else None


def _totals() -> tuple[float, int]:
    """The CPU time in seconds and the peak in KiB, since this process was forked."""
    own, children = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return cpu, max(own.ru_maxrss, children.ru_maxrss)


_log = logging.getLogger("psched.task")

_NO_PROGRAM = ProgramEnd(None, None)

_LONGEST_EXIT = 5
"""Seconds after which a process that ends between two tasks is killed."""

_LOOKS, _MOMENT = 20, 0.001
"""How often a process with further threads is looked at again, and the seconds between."""

_USUAL: list[dict[str, object]] = [
    {
        "done": None,
        "error": None,
        "exit": (status, None),
        "used": None,
        "last": True,
        "store": False,
        "result": None,
    }
    for status in (None, 0)
]
"""The messages that report the usual end of a task: it has succeeded, and the runner exits. The
second one is that of a program."""

_USUAL_PACKED = [packed(message) for message in _USUAL]
"""`_USUAL` in packed form. It is packed before the fork, because packing it in each runner would
copy 15 memory pages."""


class _Holder(Holder):
    """Sends the requests of one task to the worker, which holds the task's lease."""

    def __init__(
        self,
        link: Link,
        stop: Stop,
        open_schedules: Callable[[], Schedules],
        *,
        data_limit: int,
        tell_progress: Callable[[bytes], object],
    ) -> None:
        self.result: str | None = None
        self._link = link
        self._stop = stop
        self._tell_progress = tell_progress
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

    @override
    def progress(self, percent: float | None, text: str) -> None:
        # A process that the handler has forked may do this, too, because it shares the memory.
        if not self._over:
            self._tell_progress(pack(percent, text))

    @override
    def keep_result(self, result: str | None) -> None:
        self._refuse_other_process()
        self.result = result

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
        """Refuse further requests, because the task has ended, and close `schedules`."""
        with self._turn:
            self._over = True
        if self._collection is not None:
            with suppress(Exception):
                self._collection.close()

    def _ask(self, data: bytes = b"", **question: object) -> None:
        self._refuse_other_process()
        # TERM is held back only in the main thread, because it can interrupt no other thread.
        in_main_thread = threading.current_thread() is threading.main_thread()
        with self._stop.guarded() if in_main_thread else nullcontext(), self._turn:
            if self._over:
                raise PreemptedError("the task is over")
            self._link.send(question, data)
            answer = self._link.wait() or {}  # empty if the worker has died
        if "unavailable" in answer:
            raise StoreUnavailableError(answer["unavailable"])
        if "unanswered" in answer:
            raise UnknownOutcomeError(answer["unanswered"])
        if "invalid" in answer:
            raise InvalidError(*answer["invalid"])
        # If "held" is missing, the lease counts as lost. Then the worker has died, or a child of
        # the task has used this link, so that the answer belongs to another question.
        if not answer.get("held"):
            raise PreemptedError("the lease is over or another worker's")

    def _refuse_other_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError("a process that a handler has forked cannot speak for the task")


class _StandardStreams:
    """Switches standard output and standard error between the places that tasks want.

    The fork server calls `save`; each runner calls `use` before each task. A runner begins with the
    pipe. If it has none, because no descriptor was left, it has the service's streams, and the
    worker never sends `PIPE`.

    Args:
        reused: whether the runner runs several tasks. Then `use` restores the streams that a task
            has closed or redirected.
    """

    def __init__(self, *, reused: bool) -> None:
        self._is_reused = reused
        self._service = (1, 2)
        self._pipe = -1
        self._place = PIPE

    def save(self) -> tuple[int, int]:
        """Keep the service's streams, because runners replace them by a pipe; return them."""
        if self._service == (1, 2):
            self._service = os.dup(1), os.dup(2)
        return self._service

    def use(self, place: str) -> None:
        """Switch the streams of this process."""
        # If nothing was saved, no output is collected, and the streams are the service's own.
        if self._service == (1, 2) or (place == self._place and not self._is_reused):
            return
        if self._pipe < 0:
            self._pipe = os.dup(1)
        if place == NONE:
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            self._switch(null, null)
            if null not in {1, 2}:  # a task can have closed these
                os.close(null)
        elif place == RAW:
            self._switch(*self._service)
        else:
            # A task, or a program that it has started, can have set the mode of the pipe itself.
            os.set_blocking(self._pipe, True)  # it takes no keywords
            self._switch(self._pipe, self._pipe)
        self._place = place

    @staticmethod
    def _switch(output: int, error: int) -> None:
        os.dup2(output, 1)
        os.dup2(error, 2)


class Runner:
    """Runs the tasks that its worker sends, until it has run enough tasks or the worker has exited.

    One `Runner` is created before the first fork, because creating it in each child would cost
    time. Each forked process calls `run` on its own copy; `run` sets the attributes that differ
    between processes.

    Args:
        find: returns the handler of a type of task, or None if the type has no handler.
        log: the log of this process.
        open_schedules: opens a collection on the store that contains the tasks' schedules.
        judge: decides what to do with a row whose trigger a user has written; see
            `psched.core.remote_policy`.
        tasks: how many tasks the process runs before it exits.
        hooks: has the hooks of each process.
        stop: receives TERM in each process.
    """

    _link: Link
    _process: int
    _stop_flags: StopFlags

    def __init__(
        self,
        *,
        find: Callable[[str], Any],
        log: Log,
        open_schedules: Callable[[], Schedules],
        judge: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        tasks: int,
        hooks: Dispatch,
        stop: Stop,
    ) -> None:
        self._find = find
        self._hooks = hooks
        self._has_begun = False
        self._stop = stop
        self._exit = PythonExit(hooks.before_exit)
        self._log = log
        self._open_schedules = open_schedules
        self._judge = judge
        self._tasks = tasks
        self._streams = _StandardStreams(reused=tasks > 1)
        # If each task has a process of its own, the fork server reads what the process has used.
        # Measuring it here, too, would copy 30 memory pages.
        self._usage = None if tasks == 1 and kernel.TELLS_USAGE else Usage()

    def before_fork(self, *, collects: bool) -> None:
        """Prepare the fork server for a fork; ``collects`` tells whether output is collected."""
        self._log.follow()
        self._exit.prepare()
        if collects:
            # They can be the log's file, which is replaced when the log is renamed.
            self._log.followers.update(self._streams.save())
            self._log.leave_standard_streams()

    def run(self, table: StopFlagTable, place: int, link: Link) -> int:
        """Run tasks in this process until it must exit; return the exit status.

        Its flags have this place in the table of its fork server.
        """
        self._link, stop_flags = link, table.at(place)
        # A stored payload can have `LARGEST` characters, but this limit counts bytes, and a
        # character can need four bytes in UTF-8.
        link.expects, link.data_limit = TO_RUNNER, 4 * LARGEST
        self._process = os.getpid()
        self._stop_flags = stop_flags
        self._stop.receive(stop_flags)
        self._log.process = "task"
        set_title("runner: idle")
        left = self._tasks
        while left and (message := link.wait()) is not None:
            stop_flags.begun = True
            if "judge" in message:
                # The rest of the loop is skipped, because a process that calls users' triggers
                # never runs a task.
                if not self._answer(message["judge"]):
                    break
                continue
            if left < self._tasks:
                # Zombies are reaped before each further task, because the worker has killed the
                # processes that the last task had left behind.
                for _ in reap():
                    pass
            if "run" not in message:
                break  # exit, because the message answers a request of an earlier task
            ProgramEnd.last = None
            if self._usage is not None:
                self._usage.begin(first=left == self._tasks)
            end = self._perform(message["run"], message["data"], more=left > 1)
            left = 0 if end["last"] else left - 1
            link.deliver(_USUAL_PACKED[_USUAL.index(end)] if end in _USUAL else end)
            if left:
                set_title("runner: idle")
        if self._has_begun and not self._exit.is_over:
            self._leave()
        return 0

    def _perform(
        self, assignment: Mapping[str, Any], stored: bytes, *, more: bool
    ) -> dict[str, object]:
        """Run one task, which ``more`` may follow; return the message that reports its end."""
        limit = assignment["data_limit"]
        holder = _Holder(
            self._link,
            self._stop,
            self._open_schedules,
            data_limit=limit,
            tell_progress=self._stop_flags.write_progress,
        )
        try:
            task = Task({**assignment, "data": payload_text(stored, limit)}, holder)
        except InvalidError as error:
            return {"quarantine": text_of(error), "last": not (more and _is_clean())}
        self._introduce(task, assignment["output"])
        failure = text = lacks = None
        last = True
        try:
            try:
                self._stop.begin()
                if (raised := self._raised_by(task, assignment)) is not None:
                    with self._stop.guarded():  # an exception must not replace the handler's
                        if isinstance(raised, NoRoomError):
                            lacks = text_of(raised)
                        else:
                            failure, text = failed(raised, f"the handler of {task.type!r}")
                last = self._end_program(more=more)
            finally:
                self._stop.end()
        except BaseException as error:
            if os.getpid() != self._process:
                raise  # in a child that the handler has forked, which ends with a traceback
            if failure is None:
                failure, text = failed(error, "the end of its process")
                failure = f"at the end of its process: {failure}"
        if os.getpid() != self._process:
            # This process is a child that the handler has forked. It exits, because it must not
            # send messages for the task.
            sys.exit()
        flush_output()
        holder.close()
        self._log.subject = ""
        if lacks is not None:
            return {"no_room": lacks, "last": last}
        program = ProgramEnd.last or _NO_PROGRAM
        return {
            "done": failure,
            "error": text,
            "exit": (program.status, program.signal),
            "used": None if self._usage is None else self._usage.end(program.peak_kb),
            "last": last,
            "store": holder.has_opened,
            "result": holder.result,
        }

    def _raised_by(self, task: Task, assignment: Mapping[str, Any]) -> BaseException | None:
        """Call the handler of a task; return what it has raised."""
        is_called = False
        try:
            self._begin()
            handler = self._handler_of(task.type)
            is_called = True
            call_handler(
                handler,
                task,
                assignment,
                offer_kill=self._stop.offer,
                run_awaitable=partial(run_in_loop, stop=self._stop),
            )
        except BaseException as error:
            if os.getpid() != self._process:
                raise
            if not is_called and lacks_room(error):
                return NoRoomError(text_of(error))
            return error
        return None

    def _handler_of(self, type_: str) -> Any:  # noqa: ANN401  # users' objects
        if (handler := self._find(type_)) is None:
            raise LoadError(
                f"no handler for the type {type_!r}; add it to the routes of your Dispatch"
            )
        return handler

    def _end_program(self, *, more: bool) -> bool:
        """Do what Python does at the end of a program; return whether this process ends, too."""
        if more and self._has_begun:
            self._exit.pause()
            if _is_clean():
                return False
        self._exit.end(self._stop)
        return True

    def _introduce(self, task: Task, output: str) -> None:
        """Name a task in the title, in the log and to its own code."""
        occurrence = str(task.occurrence)
        set_title(f"runner: {task.type} {occurrence} attempt {task.attempt}")
        with suppress(OSError):  # earlier tasks have left no descriptor; the streams stay
            self._streams.use(output)
        self._log.copies_to = 2 if output == PIPE else None
        if output != PIPE:
            # The streams can be the log file, which can have been replaced since the fork.
            self._log.follow()
        self._log.subject = occurrence
        # By these, the client knows its own task, also in a program that the handler starts.
        os.environb[b"PSCHED_KEY"] = task.key.encode()
        os.environb[b"PSCHED_FENCE"] = b"%d" % task.fence

    def _answer(self, question: Mapping[str, Any]) -> bool:
        """Answer what to do with a row whose trigger a user has written.

        Return whether this process can answer further questions.
        """
        set_title("trigger helper")
        with suppress(OSError):
            self._streams.use(RAW)
        self._log.follow()
        try:
            self._begin()
        except BaseException as error:  # noqa: BLE001  # a user's code may raise anything
            # The trigger is asked nevertheless: a fault of it would set the schedule aside.
            _log.error("after_fork raised %s", described(error))
        last = True
        try:
            answer = self._judge(question)
            last = not _is_clean()
        except BaseException as error:  # noqa: BLE001  # as above
            answer = {"failed": described(error)}
        if os.getpid() != self._process:
            # This process is a child that the trigger has forked. It exits, because it must not
            # send an answer.
            sys.exit()
        flush_output()
        self._link.deliver({**answer, "last": last})
        return not last

    def _begin(self) -> None:
        """Prepare this process for users' code, unless it has run some."""
        if not self._has_begun:
            # Python itself seeds the generator of `random` after a fork.
            if (numpy := sys.modules.get("numpy.random")) is not None:
                with suppress(TypeError):  # the user has replaced its generator
                    numpy.seed()
            self._hooks.after_fork()
            self._has_begun = True

    def _leave(self) -> None:
        """End this process between two tasks, where no time limit applies to exit functions."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_LONGEST_EXIT)
        try:
            self._exit.end(self._stop)
        except BaseException as error:  # noqa: BLE001  # an exit function may raise anything
            failed(error, "the end of a process of tasks")


def _is_clean() -> bool:
    """Whether the next task can run in this process.

    It must have no second thread, which could disturb the task. It must still receive TERM: asyncio
    restores the default action after a handler has called ``loop.add_signal_handler``.
    """
    try:
        for _ in range(_LOOKS):
            if threads() == 1:
                return is_received(signal.SIGTERM)
            # The kernel lists a thread for a moment after it was joined.
            time.sleep(_MOMENT)
    except OSError:  # threads cannot be counted, for example because no descriptor is left
        pass
    return False
