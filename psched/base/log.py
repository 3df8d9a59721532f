"""The log: whole lines, in a file that can be renamed while psched writes to it.

`psched.base.log_lines` describes the lines. Messages that a task or a library sends to `logging`
are written the same way. Each message is one write(2) to a descriptor opened for appending, so that
the lines of several processes never mix. A long message is cut. Control characters are escaped, so
that no payload can forge a line.

A worker gathers its lines for a moment (`Log.gathering`), so that those of one step of its work
need one write. A worker that is killed meanwhile loses them: at most what it has logged since its
last request to the store, its last sleep, or its last warning.

Tasks can write to the log's folder. A task that replaces the log file can neither block the log nor
redirect it by a link: psched removes a FIFO, a socket or a symbolic link, and creates a new file.
psched follows a link only if root owns it.

If the log is a pipe, a socket or a terminal, its reader can stand still. Then lines are left out,
and counted, because a process that waited for the reader would start no task and extend no lease.
"""

import faulthandler
import logging
import os
import select
import signal
import socket
import stat
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from typing_extensions import override

from psched.base import regular_files
from psched.base.errors import ProcessStopError
from psched.base.log_lines import COPIED, is_journal, journal_lines, json_line, text_line
from psched.base.texts import traceback_of, visible

_log = logging.getLogger("psched")

STANDARD = {"/dev/stdout": 1, "/dev/stderr": 2}
"""For each path that means standard output or standard error: the number of its descriptor.

These descriptors are used directly, because such a path cannot be opened if the descriptor is a
socket.
"""

_REMEMBERED = 10
"""The largest number of warnings and errors in `Log.recent`."""

_LONGEST_REMEMBERED = 500
"""The largest number of characters of a text in `Log.recent`; the rest is cut off."""

_LONGEST_WAIT = 0.1
"""Seconds that a line waits for a reader of the log. While the reader stands still, only the first
line waits. If the reader reads a little, the line waits again, half as long."""

_SHORTEST_WAIT = 0.001
"""A line waits no more when its next wait would be shorter than so many seconds."""

_PIECE = select.PIPE_BUF
"""The most bytes of one write to a reader. A pipe accepts so many at once or none of them, so that
lines of several processes do not mix."""

_tasks = logging.getLogger("psched.task")

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Log(logging.Handler):
    """Writes log lines to a file or to standard error.

    Args:
        path: the file, ``/dev/stdout`` or ``/dev/stderr``; None means standard error.
        process: the name of this process on each line, in one or two words.
        descriptor: that of the file, if it is open already.

    Attributes:
        json: whether each message is written as a JSON object; otherwise it is written as text.
        subject: the occurrence that each line shows, as text; if empty, lines show no occurrence.
        recent: the last warnings and errors, one text line each, for ``psched status``.
        is_on_terminal: whether the lines are written to a terminal.
        copies_to: a descriptor to which each line is written as well, as text after `COPIED`; None
            if there is none. A task's captured output contains its log lines in this way.
        followers: descriptors that are switched with the log, if they are the same file.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path | None, process: str, descriptor: int | None = None) -> None:
        super().__init__()
        self._path, self._descriptor = _place(path)
        if self._path is not None:
            self._descriptor = open_file(self._path) if descriptor is None else descriptor
        self._note_kind()
        self._dumps = False
        self.json = False
        self.process = process
        self.subject = ""
        self.recent: deque[str] = deque(maxlen=_REMEMBERED)
        self.copies_to: int | None = None
        self.followers = {1, 2}
        self._gathered: list[bytes] = []
        self._gathers_in = 0  # the pid; a process that is forked from it does not gather
        self._reader_stands_still = False
        self._left_out = self._counted_by = 0
        self._is_torn = False

    @property
    def path(self) -> Path:
        """The log's file, or a path of `STANDARD`."""
        if self._path is not None:
            return Path(self._path)
        # A copy of standard output or standard error has another number.
        return Path("/dev/stdout" if self._descriptor == STANDARD["/dev/stdout"] else "/dev/stderr")

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that a forked child must keep open to log.

        Empty if the log is standard output or standard error, which every child keeps open.
        """
        return [] if self._path is None else [self._descriptor]

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message. Write errors are ignored: a full disk must not stop the scheduler."""
        try:
            text = self.format(record)
            line = text.encode(errors="backslashreplace")
            if record.levelno >= logging.WARNING:
                plain = text
                if self.json or self._in_journal:
                    plain = text_line(record, self.process, self._subject(record))
                self.recent.append(plain.partition("\n")[0][:_LONGEST_REMEMBERED])
        except ProcessStopError:
            raise  # it must stop the user's handler that logs this message
        except Exception:  # noqa: BLE001  # wrong arguments or a user's __str__ can raise anything
            self.handleError(record)
            return
        if self._gathers_in == os.getpid():
            self._gathered.append(line)
            if record.levelno >= logging.WARNING:
                self.flush()
        else:
            self._write([line])
        if self.copies_to is not None:
            self._copy(record, self.copies_to)

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Within the block, keep each line until `flush` is called, or a warning or an error."""
        self._gathered.clear()
        self._gathers_in = os.getpid()
        try:
            yield
        finally:
            self.flush()
            self._gathers_in = 0

    @override
    def flush(self) -> None:
        """Write the lines that were gathered; call this before each step that can take long."""
        if self._gathered and self._gathers_in == os.getpid():
            lines, self._gathered = self._gathered, []
            self._write(lines)

    def _write(self, lines: Sequence[bytes]) -> None:
        self.follow()
        with suppress(OSError):
            if self._has_reader:
                for piece in _pieces(lines):
                    self._write_to_reader(piece)
            else:
                self._write_to_file(lines)

    def _write_to_reader(self, lines: Sequence[bytes]) -> None:
        """Write lines to a pipe, socket or terminal; leave them out if the reader stands still."""
        text = b"".join([self._note_of_loss("its reader stands still"), *lines])
        wait = 0.0 if self._reader_stands_still else _LONGEST_WAIT
        whole = _write_in_time(self._descriptor, text, wait, terminal=self.is_on_terminal)
        self._reader_stands_still = not whole
        self._left_out = 0 if whole else self._left_out + len(lines)

    def _write_to_file(self, lines: Sequence[bytes]) -> None:
        """Write lines to a file; leave out those for which the file has no room."""
        note = self._note_of_loss("they could not be written") if self._left_out else b""
        if note and self._is_torn:
            note = b"\n" + note
        text = b"".join([note, *lines])
        try:
            written = os.write(self._descriptor, text)
        except OSError:
            self._counted_by = os.getpid()
            self._left_out += len(lines)
            raise
        if written == len(text):
            self._left_out, self._is_torn = 0, False
            return
        self._counted_by, self._is_torn = os.getpid(), not self._end_torn_line()
        # If the note was written, the lines that it has counted are told.
        untold = 0 if note and written >= len(note) else self._left_out
        ends = accumulate(map(len, lines), initial=len(note))
        self._left_out = untold + sum(end > written for end in [*ends][1:])

    def _end_torn_line(self) -> bool:
        """End a line of which only a part was written, so that others begin a new one.

        Its last byte is replaced, because there is no room for a further one. If another process
        has written a line meanwhile, its newline is replaced by a newline. Return whether the line
        has ended.
        """
        with suppress(OSError):
            end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            # With O_APPEND, as the log is opened, pwrite would append.
            own = os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                return os.pwrite(own, b"\n", end - 1) == 1
            finally:
                os.close(own)
        return False

    def _note_of_loss(self, why: str) -> bytes:
        """The line that says how many lines were left out; empty if none were."""
        if self._counted_by != os.getpid():
            # What the process that has forked this one has left out, it tells itself.
            self._counted_by, self._left_out = os.getpid(), 0
        if not self._left_out:
            return b""
        text = f"{self._left_out} lines of the log are left out here: {why}"
        fields = {"name": _log.name, "levelno": logging.WARNING, "levelname": "WARNING"}
        return self.format(logging.makeLogRecord({**fields, "msg": text})).encode()

    def _copy(self, record: logging.LogRecord, descriptor: int) -> None:
        """Write a message, as text, to a further descriptor."""
        with suppress(OSError, ValueError):
            lines = text_line(record, self.process, "").encode(errors="backslashreplace")
            marked = b"".join(COPIED + line for line in lines.splitlines(keepends=True))
            os.write(descriptor, marked)

    def format(self, record: logging.LogRecord) -> str:
        """The line of a message; as text, it is followed by the lines of the traceback."""
        subject = self._subject(record)
        if self.json:
            return json_line(record, self.process, subject, for_journal=self._in_journal)
        if self._in_journal:
            return journal_lines(record, self.process, subject)
        return text_line(record, self.process, subject)

    def _subject(self, record: logging.LogRecord) -> str:
        return str(getattr(record, "subject", self.subject))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Report on standard error that a message cannot be formatted, and where it was logged.

        This overrides the method of `logging.Handler`.
        """
        error = sys.exc_info()[1]
        if error is not None:
            with suppress(Exception):  # the process might have no standard error
                place = f"{record.pathname}:{record.lineno}"
                text = f"--- Logging error at {place} ---\n{traceback_of(error)}"
                print(visible(text, lines=True), file=sys.stderr)  # noqa: T201

    def reopen(self) -> None:
        """Open the log's path again, and write the next lines to the file that is there now.

        No line is lost or torn, because the descriptor is switched from the old file to the new one
        atomically. If standard output or standard error is the old file, it is redirected to the
        new file.
        """
        if self._path is None:
            return
        try:
            fresh = open_file(self._path)
        except OSError as error:
            where = "standard error" if self._leave_deleted_file() else "the same place as before"
            text = "cannot reopen the log %s: %s; the next lines go to %s"
            _log.error(text, self._path, error.strerror or error, where)
            return
        self._switch_to(fresh)

    def follow(self) -> None:
        """Write the next lines to the file at the log's path, if the open file was renamed.

        This is called before each write, because a runner gets no signal when the log is renamed.
        """
        if self._path is None:
            return
        # We do not use `suppress` and `Path.stat`, because each additional function call costs
        # time on every line.
        try:
            there, ours = os.stat(self._path), os.fstat(self._descriptor)  # noqa: PTH116
            if not os.path.samestat(there, ours):
                self._switch_to(open_file(self._path))
        except OSError:
            return

    def _leave_deleted_file(self) -> bool:
        """Go on with standard error if the file is deleted; return whether it does.

        Nobody could find the next lines. A daemon has no other standard error than its log, and so
        stays in the deleted file.
        """
        with suppress(OSError):
            ours = os.fstat(self._descriptor)
            if ours.st_nlink == 0 and not os.path.samestat(ours, os.fstat(2)):
                self._switch_to(os.dup(2))
                return True
        return False

    def _switch_to(self, fresh: int) -> None:
        old = os.fstat(self._descriptor)
        for follower in self.followers:
            with suppress(OSError):
                if os.path.samestat(os.fstat(follower), old):
                    os.dup2(fresh, follower, inheritable=os.get_inheritable(follower))
        os.dup2(fresh, self._descriptor, inheritable=False)
        os.close(fresh)
        self._note_kind()

    def _note_kind(self) -> None:
        """Note whether the descriptor is a journal, a terminal, or another one with a reader."""
        self._in_journal = is_journal(self._descriptor)
        self.is_on_terminal = os.isatty(self._descriptor)
        self._has_reader = _has_reader(self._descriptor)

    def redirect(self, path: Path | None) -> None:
        """Write the next lines to another file.

        If the path leads to a folder or a device, the log reports this and stays in the present
        file: a task may have put the folder or device there, and must not prevent a start.
        """
        name, fresh = _place(path)
        if (name, fresh) == (self._path, self._descriptor):
            return
        if name and name == self._path and regular_files.is_same(Path(name), self._descriptor):
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
        self._note_kind()
        if self._dumps:
            self.dump_crashes()
        if self._path is not None:
            os.close(before)
        self._path = name

    def leave_standard_streams(self) -> None:
        """Write to a copy of standard output or standard error, because these will be replaced."""
        if self._path is None and self._descriptor in STANDARD.values():
            self._descriptor = os.dup(self._descriptor)
            if self._dumps:
                self.dump_crashes()

    def dump_crashes(self) -> None:
        """Make `faulthandler` write the stack to this log if the process crashes."""
        self._dumps = True
        # faulthandler stores the descriptor's number, which `_switch_to` does not change.
        faulthandler.enable(self._descriptor)


def _pieces(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group lines so that a reader's pipe accepts each group at once, but for longer lines."""
    piece, size = list[bytes](), 0
    for line in lines:
        if piece and size + len(line) > _PIECE:
            yield piece
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield piece


def _has_reader(descriptor: int) -> bool:
    """Whether a descriptor is a pipe, a socket or a terminal, whose reader can stand still."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


def _write_in_time(descriptor: int, text: bytes, wait: float, *, terminal: bool) -> bool:
    """Write to a pipe, a socket or a terminal, but wait only a limited time for its reader.

    Return whether all was written. If a part was written, the rest is lost.

    A terminal would send TTOU to a process in the background after ``stty tostop``. psched handles
    TTOU, so Python would repeat the write without end. While TTOU is blocked, the terminal sends
    none and accepts the write.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU]) if terminal else None
    try:
        while text:
            if written := _write_at_once(descriptor, text[:_PIECE]):
                text = text[written:]
            elif wait > _SHORTEST_WAIT and _wait_for_room(descriptor, wait):
                wait /= 2
            else:
                return False
        return True
    finally:
        if before is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _write_at_once(descriptor: int, piece: bytes) -> int:
    """Write as much as is accepted at once; return how many bytes that is.

    The descriptor stays in blocking mode, because other processes that have it would see a change.
    """
    try:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            # A copy, because the object closes its descriptor, even if a signal interrupts this.
            with socket.socket(fileno=os.dup(descriptor)) as end:
                return end.send(piece, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            own = os.open(f"/proc/self/fd/{descriptor}", flags)
        except OSError:
            # It belongs to another user, or no descriptor is left. This can wait after all, if
            # another process writes at the same moment.
            return os.write(descriptor, piece) if _wait_for_room(descriptor, 0) else 0
        try:
            return os.write(own, piece)
        finally:
            os.close(own)
    except BlockingIOError:
        return 0


def _wait_for_room(descriptor: int, seconds: float) -> bool:
    """Wait until a descriptor can be written to; return whether it can."""
    waiter = select.poll()
    waiter.register(descriptor, select.POLLOUT)
    return bool(waiter.poll(seconds * 1000))


def start(path: Path | None, level: str, process: str) -> Log:
    """Send everything that this process logs to one file."""
    log = Log(path, process)
    root = logging.getLogger()
    for handler in [*root.handlers]:
        root.removeHandler(handler)
    root.addHandler(log)
    root.setLevel(_LEVELS[level])
    return log


def allow_basic_config(log: Log) -> None:
    """Have `logging.basicConfig` work for user code that names a file, although there is a log."""
    configure = logging.basicConfig

    def basic_config(**given: Any) -> None:  # noqa: ANN401  # what users give
        if given.keys() & {"filename", "stream", "handlers", "force"}:
            logging.getLogger().removeHandler(log)
            try:
                configure(**given)
            finally:
                attach(log)

    logging.basicConfig = basic_config


def attach(log: Log) -> None:
    """Have psched's lines logged, whatever user code has configured in `logging`."""
    logging.getLogger().addHandler(log)  # this has no effect if it is there
    for name, known in logging.root.manager.loggerDict.items():
        if isinstance(known, logging.Logger) and f"{name}.".startswith("psched."):
            known.disabled = False


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


def _place(path: Path | None) -> tuple[str | None, int]:
    """The file's name and -1; or for a path in `STANDARD`, None and the descriptor.

    A path of None means standard error.
    """
    name = "/dev/stderr" if path is None else str(path)
    return (None, STANDARD[name]) if name in STANDARD else (name, -1)


def open_file(name: str) -> int:
    """Open a log file; the file is created if it does not exist.

    A FIFO, a socket, a symbolic link that does not belong to root, or an empty folder at the path
    is removed first, because a task may have put it there.
    """
    flags, mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640
    try:
        return regular_files.open_file(name, flags, mode, devices=True)
    except regular_files.NotRegularError as error:
        if _is_link_of_roots(name):
            return regular_files.open_file(os.path.realpath(name), flags, mode, devices=True)
        regular_files.discard(name)
        descriptor = regular_files.open_file(name, flags, mode, devices=True)
        # The warning is logged after the file was opened, because this file can be the log's own.
        _log.warning("%s %s: it is removed, and made anew", name, error.strerror)
        return descriptor


def _is_link_of_roots(name: str) -> bool:
    try:
        found = os.lstat(name)
    except FileNotFoundError:
        return False
    return stat.S_ISLNK(found.st_mode) and found.st_uid == 0
