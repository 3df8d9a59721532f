"""A pid file that is never stale: its lock counts, which the kernel releases at a death."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from psched.base import regular_files


class AlreadyRunningError(Exception):
    """Another process has locked the pid file."""


class PidFile:
    """The pid of this process, in a file that it keeps locked for as long as it lives.

    The lock is a POSIX record lock. A child does not inherit it, unlike a lock of flock(2), so no
    orphan can keep it. Closing any descriptor of the file releases the lock, so no other part of
    this process opens the file.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> None:
        """Lock the file and write the pid.

        Raises:
            AlreadyRunningError: another process has locked it; the text names its pid.
            OSError: the file cannot be written.
        """
        while True:
            try:
                descriptor = regular_files.open_file(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except regular_files.NotRegularError:
                # A task may have put it there, which must not keep the service from starting.
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
            # The file's owner removed it between our two calls; a lock on a removed file is
            # useless.
            os.close(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Remove the file, unless another file has the name by now."""
        if self._descriptor >= 0:
            if regular_files.is_same(self._path, self._descriptor):
                with suppress(OSError):
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1
