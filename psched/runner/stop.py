"""The end of a task inside its runner: TERM stops it, or its process ends as programs do.

TERM raises an exception, or calls the handler's ``kill``. It cancels a handler that runs in an
event loop: see `psched.runner.coroutines`.

Python calls some functions from which no exception can propagate: the hooks of
`os.register_at_fork`, ``__del__``, callbacks of weak references and of the garbage collector. If
such a function raises an exception, Python passes it to `sys.unraisablehook`, and then ignores it.
So if TERM arrives in such a function, its exception does not stop the handler. `Stop` therefore
watches that hook: if the hook receives the exception, a timer sends TERM to this process again,
until the exception can propagate. If the handler has caught the exception, it is not interrupted
again, because it is cleaning up.
"""

import atexit
import gc
import io
import logging
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from psched.base.errors import ProcessStopError
from psched.base.log import Log
from psched.process import fork_hooks
from psched.process.deadman import Timer, library
from psched.process.signals import is_received, receive
from psched.runner.shared_memory import Reason, StopFlags

_AGAIN = 0.05
"""Seconds after which TERM is sent again, if the exception that it raised could not propagate."""

_MARK = "_psched_stop"
"""The attribute that marks an exception which TERM has raised."""

_FILE: type = io.IOBase.__mro__[1]
"""The class in C from which all file objects are derived; unlike `io.IOBase`, it is no ABC."""

_EXECUTORS = "concurrent.futures.thread", "concurrent.futures.process"
"""The modules of executors, whose threads never end by themselves."""


class Stop:
    """Receives TERM for the task that runs in this process.

    It is created before the fork, because that would cost time in each process. Call `receive` in a
    forked child that has inherited psched's signal handlers, which a `SignalInbox` has set. CHLD
    must have its default action, because a task's handler can wait for its own children. The other
    signals that psched receives, such as HUP and USR1, do not stop the task, because they might
    have been sent to every process of a service.
    """

    _stop_flags: StopFlags

    def __init__(self) -> None:
        self._kill: Callable[[str], object] | None = None
        self._cancel: Callable[[str], bool] | None = None
        self._running = False
        self._raised = False
        self._guarded = False
        self._forking = False
        self._pending = False
        self._timer: Timer | None = None
        self._hook: object = None
        self._mask: set[int] = set()
        fork_hooks.register(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._after_fork_in_child,
        )

    def receive(self, stop_flags: StopFlags) -> None:
        """Receive the signals of this process, whose flags these are, from now on."""
        self._stop_flags = stop_flags
        receive(self._arrived)

    def begin(self) -> None:
        """Note that a task begins."""
        self._kill, self._running, self._raised, self._pending = None, True, False, False
        self._act()

    def end(self) -> None:
        """Note that the task has ended."""
        self._running = False

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Delay the effect of TERM until the end of the ``with`` block.

        Without this, the exception of TERM could interrupt the reading of a message from the link,
        and the part that has been read would be lost.
        """
        self._guarded = True
        try:
            yield
        finally:
            self._guarded = False
            if self._pending:
                self._pending = False
                self._act()

    def offer(self, kill: Callable[[str], object]) -> None:
        """Have every TERM call the handler's own ``kill(reason)``, instead of raising an exception.

        If `offer` is not called, only the first TERM raises a `ProcessStopError`, because the
        handler is cleaning up after it and must not be interrupted.
        """
        self._kill = kill

    @contextmanager
    def cancelling(self, cancel: Callable[[str], bool]) -> Iterator[None]:
        """Within the ``with`` block, TERM calls ``cancel(reason)`` before it raises anything."""
        self._cancel = cancel
        try:
            yield
        finally:
            self._cancel = None

    def raise_again(self) -> None:
        """Let the next TERM raise an exception, although an earlier one has ended other code."""
        self._raised = False

    def call_exit_functions(self) -> None:
        """Call the exit functions of this process, and raise the first exception that one raises.

        Python ignores these exceptions. That of TERM ends only the function that runs.
        """
        failed: list[BaseException] = []
        before, own = sys.unraisablehook, self._hook

        def hook(unraisable: "sys.UnraisableHookArgs") -> None:
            error = unraisable.exc_value
            if error is None or "atexit callback" not in (unraisable.err_msg or ""):
                before(unraisable)
            elif not isinstance(error, SystemExit) or error.code:
                failed.append(error)

        self._hook = sys.unraisablehook = hook
        try:
            atexit._run_exitfuncs()  # noqa: SLF001  # there is no public way
        finally:
            self._hook, sys.unraisablehook = own, before
        if failed:
            raise failed[0]

    def _before_fork(self) -> None:
        """Block TERM while the task forks, because the child must not run psched's handler."""
        self._forking = True  # from now on, TERM raises no exception
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))

    def _after_fork(self) -> None:
        if not self._forking:
            return  # nothing to restore: TERM interrupted `_before_fork` before it blocked TERM
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        self._forking = False
        if self._pending:
            self._pending = False
            self._send_again()

    def _after_fork_in_child(self) -> None:
        """Restore TERM's default action in a child that a task has forked, so that TERM ends it."""
        if is_received(signal.SIGTERM):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._pending = False  # dropped, because the parent received this TERM
        self._after_fork()

    def _arrived(self, number: int) -> None:
        if number != signal.SIGTERM:
            return
        if self._guarded or self._forking:
            self._pending = True
        else:
            self._act()

    def _act(self) -> None:
        reason = self._stop_flags.read()
        if not self._running or reason is Reason.NONE:
            return  # ignored: TERM was not sent by the worker, or no task is running
        self._watch_unraisable()
        try:
            self._interrupt(reason.name.lower())
        except BaseException as error:
            setattr(error, _MARK, True)
            raise

    def _interrupt(self, reason: str) -> None:
        if self._kill is not None:
            self._kill(reason)
        elif self._cancel is not None and self._cancel(reason):
            return
        elif not self._raised:
            self._raised = True
            raise ProcessStopError(reason)

    def _watch_unraisable(self) -> None:
        """Install a hook that notices if Python ignores an exception that TERM has raised.

        The hook passes all other ignored exceptions to the previous hook.
        """
        before = sys.unraisablehook
        if before is self._hook:
            return

        def hook(unraisable: "sys.UnraisableHookArgs") -> None:
            if getattr(unraisable.exc_value, _MARK, False):
                self._was_ignored()
            else:
                before(unraisable)

        self._hook = sys.unraisablehook = hook

    def _was_ignored(self) -> None:
        """Have TERM sent again soon, because Python has ignored the exception of the last TERM."""
        guarded = self._guarded
        self._guarded = True  # TERM is held back, because no exception can propagate from here
        self._raised = self._pending = False
        self._send_again()
        self._guarded = guarded

    def _send_again(self) -> None:
        # A timer of the kernel sends TERM, because otherwise a thread would be needed. If the
        # system has no timer left, the error is ignored, because KILL will end the task.
        with suppress(OSError):
            if self._timer is None:
                self._timer = Timer(signal.SIGTERM)
            self._timer.set(time.clock_gettime(time.CLOCK_BOOTTIME) + _AGAIN)


class PythonExit:
    """The end of one process of tasks, as Python ends a program.

    The process is a copy of its worker, and leaves by os._exit: Python itself would also do what
    the worker has registered, and would clear all modules, which copies their memory. So the steps
    are done here one by one, for what was registered, started and opened since the fork.

    Create it when the handlers are loaded. This writes what is in the buffers of their files and
    log handlers, because each task would write it again.

    Attributes:
        is_over: whether `end` was called.
    """

    def __init__(self, before_exit: Callable[[], object]) -> None:
        self._before_exit = before_exit
        self.is_over = False
        self._flush_c = library().fflush
        # The files are found now, because the fork server hides its objects from `gc`.
        self._inherited = [weakref.ref(each) for each in _open_files()]
        # The files of the first task that are open still, if its objects are hidden, too.
        self._kept: list[weakref.ref[Any]] | None = None
        with suppress(Exception):
            self._flush_log_handlers()
            self._flush_files([])

    def prepare(self) -> None:
        """Forget what is to be done when the worker exits; the fork server calls this."""
        atexit._clear()  # noqa: SLF001  # there is no public way
        finalize: Any = weakref.finalize
        finalize._registered_with_atexit = False  # noqa: SLF001
        for each in [*finalize._registry]:  # noqa: SLF001
            each.atexit = False  # for example, that of a temporary folder that all tasks use
        atexit.register(_end_logging)
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            vars(sys.modules["multiprocessing.process"])["_children"].clear()
            atexit.register(vars(util)["_exit_function"])
        atexit.register(self._before_exit)

    def pause(self) -> None:
        """Wait for a task's threads, but those of executors, and write all buffers."""
        while threads := [each for each in _threads() if not _is_of_executor(each)]:
            threads[0].join()
        self._flush_log_handlers()
        if self._kept is None and gc.isenabled():
            # Later searches for files must not look at all that the first task has imported, which
            # can be a million objects. They are hidden only once, because `gc` never deletes a
            # hidden object that becomes garbage in a cycle.
            gc.collect()
            self._kept = [weakref.ref(each) for each in _open_files()]
            gc.freeze()
        self._flush_files(self._own_files())

    def end(self, stop: Stop) -> None:
        """Wait for the threads, call the exit functions, and write all buffers, once."""
        if self.is_over:
            return
        self.is_over = True
        first: BaseException | None = None
        for step in (_end_threads, stop.call_exit_functions, self._close_files):
            stop.raise_again()
            try:
                step()
            except BaseException as error:  # noqa: BLE001  # users' code may raise anything
                first = first or error
        if first is not None:
            raise first

    def _close_files(self) -> None:
        own = self._own_files()
        self._flush_files(own)
        # Files that are written in Python, such as compressed ones, write their end when they are
        # closed. Those of the worker are not closed, because other tasks use them, too.
        if written := [each for each in own if type(each).__module__ != _FILE.__module__]:
            _for_each(written, lambda file: file.close())
            self._flush_files(self._own_files())

    def _own_files(self) -> list[Any]:
        """The files that tasks of this process have opened."""
        return [*_living(self._kept or ()), *_open_files()]

    def _flush_files(self, own: list[Any]) -> None:
        """Write the buffers of the files of the worker, of this process, and of the C library."""
        self._flush_c(None)
        files = [*_living(self._inherited), *own]
        _for_each(files, lambda file: file.writable() and file.flush())

    @staticmethod
    def _flush_log_handlers() -> None:
        for reference in [*logging._handlerList]:  # type: ignore[attr-defined]  # noqa: SLF001
            if (handler := reference()) is not None:
                with suppress(OSError, ValueError):  # `logging` ignores these, too
                    handler.flush()


def _end_logging() -> None:
    """Do what `logging` does at the end of Python, unless there are only psched's own handlers."""
    handlers = [reference() for reference in logging._handlerList]  # type: ignore[attr-defined]  # noqa: SLF001
    if any(type(each) is not Log and each is not logging.lastResort for each in handlers):
        logging.shutdown()


def _open_files() -> list[Any]:
    # The classes are compared, because `isinstance` would ask proxy objects for their class.
    return [each for each in gc.get_objects() if issubclass(type(each), _FILE)]


def _living(files: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [file for each in files if (file := each()) is not None]


def _for_each(files: list[Any], write: Callable[[Any], object]) -> None:
    """Call a function for each file that is open; raise the first exception at the end."""
    first: Exception | None = None
    for file in files:
        try:
            if not file.closed:
                write(file)
        except (ValueError, AttributeError, ConnectionError):
            continue  # it was detached or never opened, or nobody reads it any more
        except Exception as error:  # noqa: BLE001  # that of a user's class may raise anything
            first = first or error
    if first is not None:
        raise first


def _end_threads() -> None:
    # `threading._shutdown` is not called, because some versions ignore what interrupts it.
    for end in reversed(vars(threading)["_threading_atexits"]):  # those of executors
        end()
    while threads := _threads():
        threads[0].join()


def _threads() -> list[threading.Thread]:
    """The threads for which Python waits at its exit, besides the main thread."""
    main = threading.main_thread()
    return [each for each in threading.enumerate() if not each.daemon and each is not main]


def _is_of_executor(thread: threading.Thread) -> bool:
    runs = type(thread), getattr(thread, "_target", None)
    return any(getattr(each, "__module__", None) in _EXECUTORS for each in runs)
