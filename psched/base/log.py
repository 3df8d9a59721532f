"""The log: whole lines, in a file that may be renamed while psched writes to it.

A line is ``time [pid] level process [key.scheduled_time] message``. Messages that a task or a
library sends to `logging` are written the same way. Each message is one write(2) to a descriptor
opened for appending, so that the lines of several processes never mix. A long message is cut.
Control characters are escaped, so that no payload can forge a line.

Tasks can write to the log's folder. A task that replaces the log file can neither block the log nor
redirect it by a link: psched removes a FIFO, a socket or a symbolic link, and creates a new file.
psched follows a link only if root owns it.
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
"""The paths that stand for descriptors, and the descriptors.

The descriptors are used directly, because such a path cannot be opened if the descriptor is a
socket.
"""

_REMEMBERED = 10
"""The largest number of warnings and errors in `Log.recent`."""

_LONGEST_REMEMBERED = 500
"""The number of characters of a warning or error that `Log.recent` keeps."""

_tasks = logging.getLogger("psched.task")

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Log(logging.Handler):
    """Writes log lines to a file or to standard error.

    Args:
        path: the file, ``/dev/stdout`` or ``/dev/stderr``; None: standard error.
        process: the name of this process on each line, in one or two words.

    Attributes:
        subject: the occurrence that is shown on each line; empty: no occurrence is shown.
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
        """Write one message. Write errors are ignored: a full disk must not stop the scheduler."""
        try:
            text = self.format(record)
            line = text.encode(errors="backslashreplace")
        except ProcessStopError:
            raise  # the exception stops the user's handler that logs this message
        except Exception:  # noqa: BLE001  # wrong arguments or a user's __str__ may raise anything
            self.handleError(record)
            return
        if record.levelno >= logging.WARNING:
            self.recent.append(text.partition("\n")[0][:_LONGEST_REMEMBERED])
        self.follow()
        with suppress(OSError):
            os.write(self._descriptor, line)

    def format(self, record: logging.LogRecord) -> str:
        """The line of a message, followed by the lines of the traceback if there is one."""
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
        """Report a message that cannot be formatted on standard error, with the place of the call.

        The base class calls this method by this name.
        """
        error = sys.exc_info()[1]
        if error is not None:
            with suppress(Exception):  # the process may have no standard error
                place = f"{record.pathname}:{record.lineno}"
                text = f"--- Logging error at {place} ---\n{traceback_of(error)}"
                print(visible(text, lines=True), file=sys.stderr)  # noqa: T201

    def reopen(self) -> None:
        """Continue in the file that is at the path now; no line is lost or torn.

        The new file replaces the old one under the same descriptor, atomically. If standard output
        or standard error is the old file, it is redirected to the new file.
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
        """Continue in the file at the path if the open file was renamed.

        This is checked before each line, because a runner gets no signal when the log is renamed.
        """
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
        """Continue in another file.

        If the path leads to a folder or a device, the log reports that and continues in the present
        file, because a task may have put it there, and must not be able to prevent a start.

        Args:
            path: the file, ``/dev/stdout`` or ``/dev/stderr``; None: standard error.

        Raises:
            OSError: the file cannot be opened.
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
        """Make `faulthandler` write the stack to this log if the process crashes."""
        self._dumps = True
        # faulthandler stores the descriptor's number, which `_switch_to` does not change.
        faulthandler.enable(self._descriptor)


def start(path: Path | None, level: str, process: str) -> Log:
    """Send everything that this process logs to one file.

    Args:
        path: the file; None: standard error.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        process: the name of this process on each line, in one or two words.

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
    """Log uncaught errors of threads and finalizers.

    By default, Python prints these errors to standard error without a limit on their length.
    Processes that run users' code call this function; their children inherit the hooks.
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
    """The name of a file to open and -1; or None and the descriptor if it is a standard one."""
    name = "/dev/stderr" if path is None else str(path)
    return (None, STANDARD[name]) if name in STANDARD else (name, -1)


def open_file(name: str) -> int:
    """Open a log file; the file is created if it does not exist.

    A FIFO, a socket, a symbolic link that does not belong to root, or an empty folder at the path
    is removed first, because a task may have put it there.

    Raises:
        NotRegularError: the path, or root's link at the path, leads to another kind of file.
        OSError: the file cannot be opened.
    """
    flags, mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640
    try:
        return regular_files.open_file(name, flags, mode, devices=True)
    except regular_files.NotRegularError as error:
        if _is_link_of_roots(name):
            return regular_files.open_file(os.path.realpath(name), flags, mode, devices=True)
        regular_files.discard(name)
        descriptor = regular_files.open_file(name, flags, mode, devices=True)
        # The warning is logged after the file is open, because the log itself may write to this
        # file.
        _log.warning("%s %s: it is removed, and made anew", name, error.strerror)
        return descriptor


def _is_link_of_roots(name: str) -> bool:
    try:
        found = os.lstat(name)
    except FileNotFoundError:
        return False
    return stat.S_ISLNK(found.st_mode) and found.st_uid == 0
