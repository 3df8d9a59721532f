"""The log: whole lines, in a file that may be renamed while we write to it.

A line is ``time [pid] level process [key.scheduled_time] message``. Messages that a task or a
library sends to `logging` are written the same way. Each message is one write(2) to a descriptor
opened for appending, so that the lines of several processes never mix. A long message is cut, and
control characters are escaped, so that no payload can forge a line.

Tasks can write to the log's folder. If a task replaces the log file, the log neither blocks nor
follows a link: a FIFO, a socket or a symbolic link is removed, and a new file is created. Only
links that belong to root are followed.
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
"""Paths that stand for descriptors: they cannot be opened if the descriptor is a socket."""

_REMEMBERED = 10
"""The number of warnings and errors in `Log.recent`."""

_LONGEST_REMEMBERED = 500
"""Characters of a warning or error that are kept there."""

_tasks = logging.getLogger("psched.task")

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Log(logging.Handler):
    """Writes log lines to a file or to standard error.

    Args:
        path: the file, ``/dev/stdout`` or ``/dev/stderr``; None: standard error.
        process: the name of this process on each line, in a word or two.

    Attributes:
        subject: the occurrence that is named on each line, if not empty.
        recent: the last warnings and errors, one line each, for ``psched status``.

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
        """The descriptors that a forked child must keep open to log."""
        return [] if self._path is None else [self._descriptor]

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message. Errors are ignored: a full disk must not stop the scheduler."""
        try:
            text = self.format(record)
            line = text.encode(errors="backslashreplace")
        except ProcessStopError:
            raise  # the handler that logs is being stopped: pass the exception on
        except Exception:  # noqa: BLE001  # arguments that do not fit, a user's __str__
            self.handleError(record)
            return
        if record.levelno >= logging.WARNING:
            self.recent.append(text.partition("\n")[0][:_LONGEST_REMEMBERED])
        self.follow()
        with suppress(OSError):
            os.write(self._descriptor, line)

    def format(self, record: logging.LogRecord) -> str:
        """The line of a message, or the lines if it has a traceback."""
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
        """Report on standard error where a message was logged that cannot be formatted."""
        error = sys.exc_info()[1]
        if error is not None:
            with suppress(Exception):  # the process may have no standard error
                place = f"{record.pathname}:{record.lineno}"
                text = f"--- Logging error at {place} ---\n{traceback_of(error)}"
                print(visible(text, lines=True), file=sys.stderr)  # noqa: T201

    def reopen(self) -> None:
        """Continue in the file that is at the path now; no line is lost or torn.

        The new file replaces the old one under the same descriptor, atomically. Standard output
        and error are redirected, too, if they were the old file.
        """
        if self._path is None:
            return
        try:
            fresh = open_file(self._path)
        except OSError:
            _log.exception("cannot reopen the log; going on in the old file")
            return
        self._switch_to(fresh)

    def follow(self) -> None:
        """Continue in the new file if the log was renamed; a runner gets no signal for that."""
        if self._path is None:
            return
        # `suppress` and `Path.stat` are avoided, because each function costs a runner time.
        try:
            there, ours = os.stat(self._path), os.fstat(self._descriptor)  # noqa: PTH116
            if not os.path.samestat(there, ours):
                self._switch_to(open_file(self._path))
        except OSError:
            return

    def _switch_to(self, fresh: int) -> None:
        old = os.fstat(self._descriptor)
        for standard in (1, 2):
            with suppress(OSError):
                if os.path.samestat(os.fstat(standard), old):
                    os.dup2(fresh, standard)
        os.dup2(fresh, self._descriptor, inheritable=False)
        os.close(fresh)

    def redirect(self, path: Path | None) -> None:
        """Continue in another file; None: on standard error.

        If there is a folder or a device in the file's place, that is logged, and the log continues
        where it is: a task may have put it there, and must not prevent a start by that.

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
            self._switch_to(fresh)
            self._path = name
            return
        before, self._descriptor = self._descriptor, fresh
        if self._dumps:
            self.dump_crashes()
        if self._path is not None:
            os.close(before)
        self._path = name

    def dump_crashes(self) -> None:
        """Have `faulthandler` write the stack here if this process crashes."""
        self._dumps = True
        # faulthandler stores the descriptor's number, which `_switch_to` does not change.
        faulthandler.enable(self._descriptor)


def start(path: Path | None, level: str, process: str) -> Log:
    """Send everything that this process logs to one place.

    Args:
        path: the file; None: standard error.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        process: the name of this process on each line, in a word or two.

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
    """Log uncaught errors of threads and finalizers, which Python prints to standard error, uncut.

    For processes that run users' code; their children inherit it.
    """

    def of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit and args.exc_value is not None:
            name = args.thread.name if args.thread is not None else "that has ended"
            _tasks.error("thread %s raised", name, exc_info=args.exc_value)

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
    """The name of the file, or None and a standard descriptor."""
    name = "/dev/stderr" if path is None else str(path)
    return (None, STANDARD[name]) if name in STANDARD else (name, -1)


def open_file(name: str) -> int:
    """Open a log file, which is created if it does not exist.

    What a task may have put in its place is removed: a FIFO, a socket, a symbolic link that does
    not belong to root, or an empty folder.

    Raises:
        NotRegularError: it is something else, or root's link does not lead to a regular file.
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
        # The removal is logged after the file is open, because this may be the file of the log
        # itself.
        _log.warning("%s %s: it is removed, and made anew", name, error.strerror)
        return descriptor


def _is_link_of_roots(name: str) -> bool:
    try:
        found = os.lstat(name)
    except FileNotFoundError:
        return False
    return stat.S_ISLNK(found.st_mode) and found.st_uid == 0
