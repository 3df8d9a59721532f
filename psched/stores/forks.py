"""What becomes of an open connection when its process forks.

A child must neither use nor close a connection to a server that it has inherited. Two processes
that use one connection read each other's answers. If the child closes it, some drivers send a
goodbye to the server, which then ends the parent's session.

A database file must not be open during a fork. SQLite's locks belong to a process, and a child does
not inherit them, but the child's copy of SQLite believes that it holds them: when the parent closes
the file, SQLite deletes the write-ahead log, and what the child writes to that log afterwards is
lost (https://www.sqlite.org/howtocorrupt.html, section 2.6). So each file that psched has opened is
closed before the fork. If a request is using the file just then, the file stays open, and the child
refuses to use it.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from typing_extensions import override

from psched.base.errors import StoreError

_LONGEST_WAIT = 1.0
"""Seconds for which a fork waits until another thread's request has ended."""

_KEPT: list[object] = []
"""Inherited connections, kept because the driver would close one that nobody refers to."""


class Ownership:
    """Tells whether this process is the one that has opened the present connection."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def take(self) -> None:
        """Note that this process is about to open a connection."""

    def drop(self) -> None:
        """Note that the connection is closed, or could not be opened."""

    def in_use(self) -> AbstractContextManager[None]:
        """Keep the connection open within the block, even if this process forks."""
        return nullcontext()

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

    The object of the method ``close`` may be deleted before this one.
    """

    def __init__(self, file: str, close: Callable[[], object]) -> None:
        super().__init__()
        self._path = file
        self._close = weakref.WeakMethod(close)
        self.file = ""
        self.is_open = self.is_busy = False
        self.lock = threading.RLock()
        with _FORKING:
            _FILES.add(self)

    @override
    def take(self) -> None:
        self.file = os.path.realpath(self._path)
        with _FORKING:
            if self.file in _INHERITED:
                raise StoreError(
                    f"{self.file}: SQLite cannot use this file in this process, because another"
                    " thread was using it when this process was forked; fork before threads use"
                    " psched, or while they do not"
                )
            self.is_open = True

    @override
    def drop(self) -> None:
        self.is_open = False

    @override
    @contextmanager
    def in_use(self) -> Iterator[None]:
        with self.lock:
            # The lock does not stop a signal handler of this thread, which may fork.
            before, self.is_busy = self.is_busy, True
            try:
                yield
            finally:
                self.is_busy = before

    def close(self) -> None:
        """Close the connection."""
        close = self._close()
        if close is not None:
            # If it cannot be closed, it is not dropped, and the child refuses the file.
            with suppress(Exception):
                close()


_FORKING = threading.RLock()
"""Held during a fork, so that no other thread opens a connection then."""

_FILES: weakref.WeakSet[FileOwnership] = weakref.WeakSet()

_HELD: list[FileOwnership] = []
"""Those whose lock the thread that forks holds."""

_INHERITED: set[str] = set()
"""Files that were open when this process was forked."""


def _before_fork() -> None:
    _FORKING.acquire()
    for each in [*_FILES]:
        if each.is_open and each.lock.acquire(timeout=_LONGEST_WAIT):
            _HELD.append(each)
            if not each.is_busy:
                each.close()


def _after_in_parent() -> None:
    while _HELD:
        _HELD.pop().lock.release()
    _FORKING.release()


def _after_in_child() -> None:
    _HELD.clear()
    for each in [*_FILES]:
        if each.is_open:
            _INHERITED.add(each.file)
        # A thread of the parent may have held the lock, and will not release it here.
        each.lock, each.is_busy = threading.RLock(), False
    _FORKING.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
