"""Writes tasks' output to the service's standard output, line by line, and never waits for it."""

import os
import select
import socket
import stat
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from psched.base.log_lines import is_journal

MOST_WAITING = 2**20
"""The most bytes that wait until standard output accepts them. Further lines are dropped."""

ONCE = select.PIPE_BUF
"""The most bytes of one write. Other processes' lines do not mix with a write of so few bytes. If
poll(2) calls a pipe writable, the pipe accepts so many bytes."""


class _Line(NamedTuple):
    """Text that waits to be written."""

    text: bytes  # one line, or the rest of several
    # How many lines are missing if it is not written. A note about dropped lines counts for all of
    # them.
    lines: int


class ServiceOutput:
    """The service's standard output, to which other processes write, too.

    The descriptor stays in blocking mode, because all processes that have it would see the change.
    A pipe or a terminal is opened a second time if possible, in non-blocking mode. If standard
    output is a log that was renamed, ``follow`` replaces the file before lines are written.
    """

    def __init__(self, descriptor: int, follow: Callable[[], object] = lambda: None) -> None:
        self._descriptor = descriptor
        self._follow = follow
        self._in_journal = is_journal(descriptor)
        self._waiting: deque[_Line] = deque()
        # Whether the last line that was written is incomplete.
        self._in_line = False
        self._size = 0
        self.dropped = 0  # how many lines were dropped since the last note about dropped lines
        self._socket: socket.socket | None = None
        # An error here means that standard output is closed, or belongs to another user.
        with suppress(OSError):
            mode = os.fstat(descriptor).st_mode
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(descriptor))
            elif stat.S_ISFIFO(mode) or os.isatty(descriptor):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._descriptor = os.open(f"/proc/self/fd/{descriptor}", flags)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._descriptor

    @property
    def waits(self) -> bool:
        """Whether lines wait until standard output accepts them."""
        return bool(self._waiting)

    def moment(self) -> bytes:
        """What a line begins with: the time, in UTC as in the log, and a space.

        In systemd's journal it is empty, because the journal records the time itself.
        """
        if self._in_journal:
            return b""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()).encode()

    def write(self, line: bytes) -> None:
        """Have `flush` write a line; drop the line if too many wait."""
        if self._size + len(line) > MOST_WAITING:
            self.dropped += 1
            return
        self._note_dropped()
        self._append(line, 1)

    def flush(self) -> None:
        """Write the waiting lines as far as standard output accepts them without waiting."""
        if not self._waiting:
            return
        self._follow()
        if self._write_waiting() and self.dropped and not self._waiting:
            # Perhaps no line follows that could tell it.
            self._note_dropped()
            self._write_waiting()

    def _write_waiting(self) -> bool:
        """Write the waiting lines as far as possible; return whether the last write succeeded."""
        written = 0
        while self._waiting and self._accepts():
            lines = [self._waiting.popleft()]
            size = len(lines[0].text)
            while self._waiting and size + len(self._waiting[0].text) <= ONCE:
                lines.append(self._waiting.popleft())
                size += len(lines[-1].text)
            self._size -= size
            piece = b"".join(line.text for line in lines)
            try:
                written = self._send(piece[:ONCE])
            except BlockingIOError:
                written = 0
            except OSError:
                # Standard output is closed, or its disk is full.
                self.dropped += sum(line.lines for line in lines)
                written = 0
                continue
            if written:
                self._in_line = piece[written - 1 : written] != b"\n"
            if rest := piece[written:]:
                self._waiting.appendleft(_Line(rest, rest.count(b"\n")))
                self._size += len(rest)
            if not written:
                break
        return written > 0

    def _note_dropped(self) -> None:
        """Append a line that says how many were dropped, if some were."""
        if self.dropped:
            # After a full disk, the beginning of a line can be there without its end.
            end = b"\n" if self._in_line and not self._waiting else b""
            text = b"%spsched: %d lines of output are left out here\n" % (end, self.dropped)
            self._append(text, self.dropped)
            self.dropped = 0

    def _append(self, text: bytes, lines: int) -> None:
        self._waiting.append(_Line(text, lines))
        self._size += len(text)

    def _accepts(self) -> bool:
        waiter = select.poll()
        waiter.register(self._descriptor, select.POLLOUT)
        return bool(waiter.poll(0))

    def _send(self, piece: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(piece, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return os.write(self._descriptor, piece)
