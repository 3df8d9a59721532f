"""The log: whole lines, in a file that may be renamed under us.

A line is ``time [pid] level process [key.scheduled_time] message``. What a task or a library
logs through `logging` is written the same way. Each event is one write(2) to a descriptor opened
for appending, so that the lines of several processes never mix; what is long is cut, and characters
that a terminal obeys are escaped, so that no payload can forge a line.

Tasks can write wherever the log is. What a task puts in the place of the log file is not waited for
and not followed: a FIFO, a socket or a symbolic link is removed, and a new file is made. Only links
that belong to root are followed.
"""

import faulthandler
import logging
import os
import stat
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from psched.base import regular_files
from psched.base.errors import ProcessStopError
from psched.base.texts import LONGEST_MESSAGE, cut, traceback_of, visible

_log = logging.getLogger("psched")

STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
"""Names of descriptors: what these lead to cannot be opened if it is a socket or a pipe."""

_REMEMBERED = 10
"""Warnings and errors."""

_LONGEST_REMEMBERED = 500
"""Characters of each."""

_tasks = logging.getLogger("psched.task")

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Log(logging.Handler):
    """Writes events for people to a file or to standard error.

    Args:
        path: the file, ``/dev/stdout`` or ``/dev/stderr``; None: standard error.
        process: what this process is, in a word or two.

    Attributes:
        subject: the occurrence that stands on every line, if not empty.
        recent: the last warnings and errors, a line each, for ``psched status``.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path | None, process: str) -> None:
        super().__init__()
        self._path, self._descriptor = _place(path)
        if self._path is not None:
            self._descriptor = open_file(self._path)
        self._dumps = False
        self.process = process
        self.subject = ""
        self.recent: deque[str] = deque(maxlen=_REMEMBERED)

    @property
    def descriptors(self) -> list[int]:
        """What a forked child must keep open to go on logging."""
        return [] if self._path is None else [self._descriptor]

    def emit(self, record: logging.LogRecord) -> None:
        """Write one event; a full disk or a closed pipe must not stop the scheduler."""
        try:
            text = self.format(record)
            line = text.encode(errors="backslashreplace")
        except ProcessStopError:
            raise  # the task that logs is to stop
        except Exception:  # noqa: BLE001  # arguments that do not fit, a __str__ of the user's
            self.handleError(record)
            return
        if record.levelno >= logging.WARNING:
            self.recent.append(text.partition("\n")[0][:_LONGEST_REMEMBERED])
        self.follow()
        with suppress(OSError):
            os.write(self._descriptor, line)

    def format(self, record: logging.LogRecord) -> str:
        """The event's line, or lines if it carries a traceback."""
        seconds, millis = divmod(int(record.created * 1000), 1000)
        subject = getattr(record, "subject", self.subject)
        subject = f" [{subject}]" if subject else ""
        text = cut(record.getMessage(), LONGEST_MESSAGE)
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + traceback_of(record.exc_info[1])
        time_ = f"{_moment(seconds)}.{millis:03}Z"
        line = f"{time_} [{os.getpid()}] {record.levelname:<7} {self.process}{subject} {text}"
        return visible(line, lines=True).replace("\n", "\n    ") + "\n"

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Say on standard error where an event was logged that cannot be written."""
        error = sys.exc_info()[1]
        if error is not None:
            with suppress(Exception):  # there may be no standard error
                place = f"{record.pathname}:{record.lineno}"
                text = f"--- Logging error at {place} ---\n{traceback_of(error)}"
                print(visible(text, lines=True), file=sys.stderr)  # noqa: T201

    def reopen(self) -> None:
        """Go on in the file that has the name now; nothing is lost or torn on the way.

        The new file replaces the old one under the same descriptor, in one step; standard
        output and error follow if they went to the old one.
        """
        if self._path is None:
            return
        try:
            fresh = open_file(self._path)
        except OSError:
            _log.exception("cannot reopen the log; going on in the old file")
            return
        self._go_on_in(fresh)

    def follow(self) -> None:
        """Go on in the new file, if there is one: a runner is not told when the log is renamed."""
        if self._path is None:
            return
        # Without `suppress`, `Path.stat` and the like: a runner pays for each function.
        try:
            there, ours = os.stat(self._path), os.fstat(self._descriptor)  # noqa: PTH116
            if not os.path.samestat(there, ours):
                self._go_on_in(open_file(self._path))
        except OSError:
            return

    def _go_on_in(self, fresh: int) -> None:
        old = os.fstat(self._descriptor)
        for standard in (1, 2):
            with suppress(OSError):
                if os.path.samestat(os.fstat(standard), old):
                    os.dup2(fresh, standard)
        os.dup2(fresh, self._descriptor, inheritable=False)
        os.close(fresh)

    def redirect(self, path: Path | None) -> None:
        """Go on in another file; None: in standard error.

        In the place of the file may stand a folder or a device. A task can have put it there, and
        is not to keep the service down by it: that is logged, and the log goes on where it is.

        Raises:
            OSError: it cannot be opened.
        """
        name, fresh = _place(path)
        if (name, fresh) == (self._path, self._descriptor) or (name and name == self._path):
            return
        if name is not None:
            try:
                fresh = open_file(name)
            except regular_files.NotRegularError as error:
                _log.error("cannot log to %s, which %s", name, error.strerror)
                return
        if name is not None and self._path is not None:
            self._go_on_in(fresh)
            self._path = name
            return
        before, self._descriptor = self._descriptor, fresh
        if self._dumps:
            self.dump_crashes()
        if self._path is not None:
            os.close(before)
        self._path = name

    def dump_crashes(self) -> None:
        """Have the stack written here if this process crashes; see `faulthandler`."""
        self._dumps = True
        # It keeps the number, by which a file that is reopened goes on.
        faulthandler.enable(self._descriptor)


def start(path: Path | None, level: str, process: str) -> Log:
    """Send everything that is logged in this process to one place.

    Args:
        path: the file; None: standard error.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        process: what this process is, in a word or two.

    Raises:
        OSError: the file cannot be opened.
    """
    log = Log(path, process)
    root = logging.getLogger()
    for handler in [*root.handlers]:
        root.removeHandler(handler)
    root.addHandler(log)
    root.setLevel(_LEVELS[level])
    return log


def log_uncaught() -> None:
    """Log the errors of threads and finalizers, which Python writes to standard error uncut.

    For processes that run code of the user's; what they fork does the same.
    """

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            name = args.thread.name if args.thread is not None else "that has ended"
            logging.getLogger("psched.task").error(
                "thread %s raised", name, exc_info=args.exc_value
            )

    def of_finalizer(args: "sys.UnraisableHookArgs") -> None:
        where = getattr(args.object, "__qualname__", type(args.object).__name__)
        text = "an exception that nobody can catch was raised in %s"
        _tasks.error(text, where, exc_info=args.exc_value)

    threading.excepthook = of_thread
    sys.unraisablehook = of_finalizer


@lru_cache(maxsize=1)
def _moment(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _place(path: Path | None) -> tuple[str | None, int]:
    """The name of the file that is meant; or None, and the descriptor that is."""
    name = "/dev/stderr" if path is None else str(path)
    return (None, STANDARD[name]) if name in STANDARD else (name, -1)


def open_file(name: str) -> int:
    """Open the file of a log, which is created if need be.

    What a task can have put in its place is removed: a FIFO, a socket, a symbolic link that is not
    root's, an empty folder.

    Raises:
        NotRegularError: it is something else, or what root's link leads to is no file.
        OSError: it cannot be opened.
    """
    flags, mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640
    try:
        return regular_files.open_file(name, flags, mode, devices=True)
    except regular_files.NotRegularError as error:
        if _is_link_of_roots(name):
            return regular_files.open_file(os.path.realpath(name), flags, mode, devices=True)
        regular_files.discard(name)
        descriptor = regular_files.open_file(name, flags, mode, devices=True)
        # When there is a log again: this may be said in it.
        _log.warning("%s %s: it is removed, and made anew", name, error.strerror)
        return descriptor


def _is_link_of_roots(name: str) -> bool:
    try:
        found = os.lstat(name)
    except FileNotFoundError:
        return False
    return stat.S_ISLNK(found.st_mode) and found.st_uid == 0
