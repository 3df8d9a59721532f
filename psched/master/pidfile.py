"""A pid file that is never stale: what counts is the lock on it, and the kernel ends that."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from psched.base import regular_files


class AlreadyRunningError(Exception):
    """Another process holds the pid file."""


class PidFile:
    """The pid of this process, in a file that it holds as long as it lives.

    A POSIX record lock: unlike flock(2)'s it is not inherited by fork(2), so no orphan can keep
    it. It would be lost by closing any other descriptor of the file: nobody else opens it here.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def take(self) -> None:
        """Make it ours.

        Raises:
            AlreadyRunningError: another process holds it; the text names its pid.
            OSError: the file cannot be written.
        """
        while True:
            try:
                descriptor = regular_files.open_file(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except regular_files.NotRegularError:
                # A task may have put it there, and is not to keep the service down by it.
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
            # Its holder has removed it between our two calls: that lock holds nobody off.
            os.close(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Remove it, unless another file has the name by now."""
        if self._descriptor >= 0:
            if regular_files.is_same(self._path, self._descriptor):
                with suppress(OSError):
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1
