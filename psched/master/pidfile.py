"""A pid file that is never stale: its lock counts, and the kernel unlocks it if the owner dies."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from psched.base import regular_files


class AlreadyRunningError(Exception):
    """Another process has locked the pid file."""


class PidFile:
    """A file that contains the pid of this process and that this process locks until it exits.

    The lock is a POSIX record lock. Unlike a lock of flock(2), it is not inherited by a child, so
    no orphan can hold it. Closing any descriptor of the file releases the lock, so no other part
    of this process opens the file.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def acquire(self) -> None:
        """Lock the file and write the pid.

        Raises:
            AlreadyRunningError: another process has locked the file; the text contains its pid.
            OSError: the file cannot be written.
        """
        while True:
            try:
                descriptor = regular_files.open_file(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            except regular_files.NotRegularError:
                # Remove the other object, because it must not keep the service from starting: a
                # task may have created it.
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
            # The previous owner removed the file between the opening and the locking. A lock on a
            # removed file is useless, so try again with a new one.
            os.close(descriptor)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Remove the file and unlock it. A different file at the path is not removed."""
        if self._descriptor >= 0:
            if regular_files.is_same(self._path, self._descriptor):
                with suppress(OSError):
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = -1
