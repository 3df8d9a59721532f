"""Ends the process of tasks as Python ends a program.

The process is a copy of its worker, and leaves by os._exit: Python itself would also do what the
worker has registered, and would clear all modules, which copies their memory. So the steps are done
here one by one, for what was registered, started and opened since the fork.
"""

import atexit
import gc
import io
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from psched.base.log import Log
from psched.process.deadman import library
from psched.runner.stop import Stop

_FILE: type = io.IOBase.__mro__[1]
"""The class in C from which all file objects are derived; unlike `io.IOBase`, it is no ABC."""

_EXECUTORS = "concurrent.futures.thread", "concurrent.futures.process"
"""The modules of executors, whose threads never end by themselves."""


class PythonExit:
    """The end of one process of tasks.

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
