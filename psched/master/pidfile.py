"""A pid file, whose lock keeps a second master from starting.

The kernel releases the lock when the master that holds it dies. So a pid file that a dead master
has left does not keep the next master from starting.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from psched.base import regular_files


class AlreadyRunningError(Exception):
    """Another process has locked the pid file."""


class PidFile:
    """A file that contains the pid of this process and that this process locks until it exits.

    The lock is a POSIX record lock. Child processes do not inherit it, unlike a lock of flock(2),
    so a child that outlives this process cannot hold the lock. Closing any descriptor of the file
    releases the lock, so no other part of this process is allowed to open the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> None:
        """Lock the file and write the pid."""
        while True:
            try:
                descriptor = regular_files.open_file(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except regular_files.NotRegularError:
                # The path leads to a folder, a FIFO or another object, which a task might have
                # created. Remove it, because a task must not keep the service from starting.
                regular_files.discard(self._path)
                continue
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.read(descriptor, 32).decode(errors="replace").strip()
                os.close(descriptor)
                known = holder if holder.isdecimal() else "unknown"
                raise AlreadyRunningError(
                    f"{self._path} is held by a running psched-master, pid {known}"
                ) from None
            if regular_files.is_same(self._path, descriptor):
                break
            # The previous owner has removed the file after we opened it and before we locked it. A
            # lock on a removed file is useless, so try again with a new file.
            os.close(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Remove the file and release its lock. If another file is at the path now, leave it."""
        if self._descriptor >= 0:
            if regular_files.is_same(self._path, self._descriptor):
                with suppress(OSError):
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1
