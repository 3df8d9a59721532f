"""The socket on which a master receives hints that rows may be due.

It is a datagram socket of its own, because the one of ``psched status`` belongs to the service's
user alone, and this one may be used by the service's group: a program that pushes tasks need not
run as the service's user. A hint carries no data, so the worst that a sender can do is to make a
worker look in vain; `psched.master.waking.looks` limits how often.
"""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from psched.base.clock import Clock
from psched.master.kept_socket import CHECK_INTERVAL, KeptSocket
from psched.master.waking.hints import HINT, socket_name, sockets
from psched.process.signals import Waitable

_log = logging.getLogger("psched.master")

_UMASK = 0o117
"""The owner and the group of the socket may send to it."""

_MOST_AT_ONCE = 256
"""The most datagrams that one call of `WakeSocket.take` reads. Without a limit, a process that
sends without a pause could keep the master from everything else."""


class WakeSocket:
    """A master's socket for hints."""

    def __init__(self, folders: list[Path], clock: Clock) -> None:
        self._folders = folders
        self._clock = clock
        self._code: str | None = None
        self._socket = KeptSocket(socket.SOCK_DGRAM, umask=_UMASK)
        self._next_check = 0.0
        self._failed = False

    @property
    def links(self) -> list[Waitable]:
        """The socket, if there is one. When it is ready, the master calls `take`."""
        return self._socket.links

    def keep(self, code: str | None) -> None:
        """Make sure that the socket exists under the name that senders look for."""
        now = self._clock.monotonic()
        if code != self._code:
            self.close()
            self._code = code
        elif now < self._next_check:
            return
        self._next_check = now + CHECK_INTERVAL
        if code is None:
            return
        if self._socket.opened is None:
            self._create(code)
        else:
            self._socket.check()

    def take(self) -> bool | None:
        """Read what has arrived; return whether there was a hint, None if nothing has arrived."""
        hinted: bool | None = None
        if self._socket.opened is not None:
            with suppress(OSError):  # there are no more
                for _ in range(_MOST_AT_ONCE):
                    received = self._socket.opened.recv(len(HINT) + 1)
                    hinted = received == HINT or bool(hinted)
        return hinted

    def close(self) -> None:
        """Close the socket, and remove it from its folder."""
        self._code = None
        self._socket.close()

    def _create(self, code: str) -> None:
        name = socket_name(os.getpid(), code)
        problems = self._socket.create(self._folders, name, _sockets_of_masters)
        if problems and not self._failed:
            # Log this only once, because it is tried again.
            _log.warning("what is pushed on this host wakes no worker: %s", problems)
            self._failed = True


def _sockets_of_masters(folder: Path) -> Iterator[tuple[int, Path]]:
    return ((pid, path) for pid, _, path in sockets(folder))
