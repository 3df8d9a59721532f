"""A Unix socket in a folder that tasks can write to, too."""

import logging
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from psched.base import regular_files
from psched.master.runtime_folders import LONGEST_ADDRESS, short_address
from psched.process import tree
from psched.process.signals import Waitable

_log = logging.getLogger("psched.master")

CHECK_INTERVAL = 1.0
"""Seconds between two checks that a socket still exists. Tasks can remove it, and the master then
creates it again."""


class KeptSocket:
    """A socket of a master, which is created again if a task removes or replaces it.

    The socket blocks nobody. Its name contains the master's pid.
    """

    def __init__(self, kind: socket.SocketKind, *, umask: int) -> None:
        self.opened: socket.socket | None = None  # the socket; None if there is none
        self._kind = kind
        self._umask = umask
        self._path: Path | None = None
        self._found: os.stat_result | None = None
        self._replaced = False

    @property
    def links(self) -> list[Waitable]:
        """The socket, if there is one, in the form that a loop can wait for."""
        return [] if self.opened is None else [_Waiting(self.opened)]

    def create(
        self,
        folders: Iterable[Path],
        name: str,
        sockets: Callable[[Path], Iterable[tuple[int, Path]]],
    ) -> str:
        """Create the socket in the first folder that allows it; remove those of killed masters."""
        problems = []
        for folder in folders:
            try:
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
                self._remove_stale(sockets(folder))
                self._open(folder / name)
            except OSError as error:
                problems.append(f"{folder}: {error.strerror}")
            else:
                return ""
        return "; ".join(problems)

    def check(self) -> None:
        """Create the socket again if a process, such as a task, has removed or replaced it."""
        if self._path is None or self._found is None or self.opened is None:
            return
        with suppress(OSError):
            if os.path.samestat(self._path.lstat(), self._found):
                return
        if not self._replaced:
            # Log this only once, because a task might remove the socket again and again.
            _log.warning("%s was removed or replaced: it is made again", self._path)
            self._replaced = True
        before = self.opened
        with suppress(OSError):
            self._open(self._path)
            before.close()

    def close(self) -> None:
        """Close the socket, and remove it from its folder."""
        if self.opened is not None and self._path is not None:
            self.opened.close()
            self.opened = None
            with suppress(OSError):
                regular_files.clear(self._path)

    def _open(self, path: Path) -> None:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        regular_files.clear(path)
        kind = self._kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        opened = socket.socket(socket.AF_UNIX, kind)
        before = os.umask(self._umask)
        try:
            self._bind(opened, path)
            if self._kind is socket.SOCK_STREAM:
                opened.listen()
            found = path.lstat()
        except OSError:
            opened.close()
            raise
        finally:
            os.umask(before)
        self._path, self.opened, self._found = path, opened, found

    def _bind(self, opened: socket.socket, path: Path) -> None:
        """Bind a socket by its whole path if that is short enough: the kernel lists it then."""
        whole = os.fsencode(path.absolute())
        if len(whole) <= LONGEST_ADDRESS:
            opened.bind(whole)
        else:
            with short_address(path) as address:
                opened.bind(address)

    def _remove_stale(self, sockets: Iterable[tuple[int, Path]]) -> None:
        """Remove the sockets of masters that were killed."""
        for pid, path in sockets:
            if tree.alive(pid):
                continue  # the process might be a master that is about to bind its socket
            with socket.socket(socket.AF_UNIX, self._kind) as probe, suppress(OSError):
                probe.setblocking(False)  # noqa: FBT003  # its parameter has no name
                try:
                    with short_address(path) as address:
                        probe.connect(address)
                except ConnectionRefusedError:
                    regular_files.clear(path)


class _Waiting:
    """A socket with the attributes of a `Waitable`, so that a loop can wait for it."""

    unsent = False
    closed = False

    def __init__(self, waiting: socket.socket) -> None:
        self._waiting = waiting

    def fileno(self) -> int:
        """The file descriptor of the socket, for the loop that waits for it."""
        return self._waiting.fileno()
