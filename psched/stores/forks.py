"""What becomes of an open connection when its process forks.

A child must neither use nor close a connection to a server that it has inherited. Two processes
that use one connection read each other's answers. If the child closes it, some drivers send a
goodbye to the server, which then ends the parent's session.

A database file must not be open at all during a fork. SQLite's locks belong to a process, and a
child does not inherit them, but the child's copy of SQLite believes that it holds them: when the
parent closes the file, the parent deletes the write-ahead log, and what the child writes to that
log afterwards is lost (https://www.sqlite.org/howtocorrupt.html, section 2.6). So the file is
closed before the fork. The thread that forks can close its own connections only, because another
thread may be in the middle of a request; a child that is forked then cannot use the file.
"""

import os
import threading
import weakref
from collections.abc import Callable

from typing_extensions import override

from psched.base.errors import StoreError

_KEPT: list[object] = []
"""Inherited connections, kept because the driver would close one that nobody refers to."""


class Ownership:
    """Tells whether this process is the one that has opened the present connection."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def take(self) -> None:
        """Note that this process is about to open a connection.

        Raises:
            StoreError: this process cannot open one.
        """

    def drop(self) -> None:
        """Note that this process has closed the connection."""

    @property
    def lost(self) -> bool:
        """Whether this process was forked since this object, or `leave`, noted the process."""
        return self._pid != os.getpid()

    def leave(self, connection: object) -> None:
        """Keep an inherited connection open and unused, and own the connections from now on."""
        self._pid = os.getpid()
        _KEPT.append(connection)


class FileOwnership(Ownership):
    """The ownership of a connection to a database file, which is closed before a fork.

    Args:
        file: the path of the file.
        close: a method that closes the connection; it is not called when its object is gone.
    """

    def __init__(self, file: str, close: Callable[[], object]) -> None:
        super().__init__()
        self.file = os.path.realpath(file)
        self.thread = 0
        self._close = weakref.WeakMethod(close)

    @override
    def take(self) -> None:
        if self.file in _INHERITED:
            raise StoreError(
                f"{self.file}: SQLite cannot use this file in this process, because another thread"
                " had it open when this process was forked; fork before threads use psched, or"
                " close their collections before the fork (close() of psched.App and of what"
                " psched.open returns)"
            )
        self.thread = threading.get_ident()
        _OPEN.add(self)

    @override
    def drop(self) -> None:
        _OPEN.discard(self)

    def close(self) -> None:
        """Close the connection."""
        close = self._close()
        if close is not None:
            close()


_OPEN: weakref.WeakSet[FileOwnership] = weakref.WeakSet()
"""Those whose connection is open in this process."""

_INHERITED: set[str] = set()
"""Files that were open when this process was forked."""


def _before_fork() -> None:
    for each in [*_OPEN]:
        if each.thread == threading.get_ident():
            each.close()


def _after_fork() -> None:
    _INHERITED.update(each.file for each in _OPEN)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
