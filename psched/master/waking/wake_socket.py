"""The socket on which a master receives hints that rows may be due.

It is a datagram socket of its own, because the one of ``psched status`` belongs to the service's
user alone, and this one may be used by the service's group: a program that pushes tasks need not
run as the service's user. A hint carries no data, so the worst that a sender can do is to make a
worker look in vain; `psched.master.waking.looks` limits how often.
"""

import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from psched.base import regular_files
from psched.base.clock import Clock
from psched.master.runtime_folders import short_address
from psched.master.waking.hints import HINT, socket_name, sockets
from psched.process import tree
from psched.process.signals import Waitable

_log = logging.getLogger("psched.master")

_UMASK = 0o117
"""The owner and the group of the socket may send to it."""

_MOST_AT_ONCE = 256
"""The most datagrams that one call of `WakeSocket.take` reads. Without a limit, a process that
sends without a pause could keep the master from everything else."""

_CHECK_INTERVAL = 1.0
"""Seconds between two checks that the socket still exists. Tasks can remove it, and the master then
creates it again."""


class WakeSocket:
    """A master's socket for hints.

    Args:
        folders: the folders to try, in this order. The socket is created in the first folder that
            can be written to. If there is no such folder, there is no socket.
        clock: measures when to check that the socket still exists.
    """

    def __init__(self, folders: list[Path], clock: Clock) -> None:
        self._folders = folders
        self._clock = clock
        self._code: str | None = None
        self._path: Path | None = None
        self._found: os.stat_result | None = None
        self._socket: socket.socket | None = None
        self._next_check = 0.0
        self._replaced = self._failed = False

    @property
    def links(self) -> list[Waitable]:
        """The socket, if there is one. When it is ready, the master calls `take`."""
        return [] if self._socket is None else [_Receiving(self._socket)]

    def keep(self, code: str | None) -> None:
        """Make sure that the socket exists under the name that senders look for.

        Args:
            code: the code of the table that the master serves; None if it wants no hints.
        """
        now = self._clock.monotonic()
        if code != self._code:
            self.close()
            self._code = code
            if code is not None:
                self._create(code)
        elif now >= self._next_check and self._socket is None and code is not None:
            self._create(code)
        elif now >= self._next_check:
            self._check()
        else:
            return
        self._next_check = now + _CHECK_INTERVAL

    def take(self) -> bool | None:
        """Read the datagrams that have arrived; those that are no hints are dropped.

        Returns:
            Whether there was a hint; None if nothing has arrived.
        """
        hinted: bool | None = None
        if self._socket is not None:
            with suppress(OSError):  # there are no more
                for _ in range(_MOST_AT_ONCE):
                    received = self._socket.recv(len(HINT) + 1)
                    hinted = received == HINT or bool(hinted)
        return hinted

    def close(self) -> None:
        """Close the socket, and remove it from its folder."""
        self._code = None
        if self._socket is not None and self._path is not None:
            self._socket.close()
            self._socket = None
            with suppress(OSError):
                regular_files.clear(self._path)

    def _create(self, code: str) -> None:
        problems = []
        for folder in self._folders:
            try:
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
                _remove_stale(folder)
                self._open(folder / socket_name(os.getpid(), code))
            except OSError as error:
                problems.append(f"{folder}: {error.strerror}")
            else:
                return
        if problems and not self._failed:
            # Log this only once, because it is tried again.
            _log.warning("what is pushed on this host wakes no worker: %s", "; ".join(problems))
            self._failed = True

    def _check(self) -> None:
        """Create the socket again if a process, such as a task, has removed or replaced it."""
        if self._path is None or self._found is None or self._socket is None:
            return
        with suppress(OSError):
            if os.path.samestat(self._path.lstat(), self._found):
                return
        if not self._replaced:
            # Log this only once, because a task might remove the socket again and again.
            _log.warning("%s was removed or replaced: it is made again", self._path)
            self._replaced = True
        before = self._socket
        with suppress(OSError):
            self._open(self._path)
            before.close()

    def _open(self, path: Path) -> None:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        regular_files.clear(path)
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        receiving = socket.socket(socket.AF_UNIX, kind)
        before = os.umask(_UMASK)
        try:
            with short_address(path) as address:
                receiving.bind(address)
            found = path.lstat()
        except OSError:
            receiving.close()
            raise
        finally:
            os.umask(before)
        self._path, self._socket, self._found = path, receiving, found


class _Receiving:
    """The socket with the attributes of a `Waitable`, so that a loop can wait for it."""

    unsent = False
    closed = False

    def __init__(self, receiving: socket.socket) -> None:
        self._socket = receiving

    def fileno(self) -> int:
        """The file descriptor of the socket, for the loop that waits for it."""
        return self._socket.fileno()


def _remove_stale(folder: Path) -> None:
    """Remove the sockets of masters that were killed."""
    for pid, _, path in sockets(folder):
        if tree.alive(pid):
            continue  # the process might be a master that is about to receive
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.setblocking(False)  # noqa: FBT003  # its parameter has no name
            try:
                with short_address(path) as address:
                    probe.connect(address)
            except ConnectionRefusedError:
                regular_files.clear(path)
