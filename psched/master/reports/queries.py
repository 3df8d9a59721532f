"""Asks masters for their status, or the output of a task, as clients of their `status_socket`."""

import json
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from psched.master.messages import LONGEST_PIECE, STATUS, TO_READER
from psched.master.runtime_folders import short_address, sockets
from psched.process.link import Link

_TIMEOUT = 5.0  # the usual time limit in seconds for the answers of all masters together


def ask_all(
    folders: list[Path], timeout: float | None = None
) -> Iterator[tuple[int, Mapping[str, Any] | OSError]]:
    """Yield, for each master whose socket is in the folders, its pid and its answer or an error.

    All masters are asked at once, so that a master that does not answer does not use up the time
    limit of the others.
    """
    asked: list[tuple[int, _Query | OSError]] = []
    for folder in folders:
        with suppress(OSError):
            for pid, path in sockets(folder):
                try:
                    asked.append((pid, _Query(path)))
                except ConnectionRefusedError:
                    pass  # no process listens, because the socket's master was killed
                except OSError as error:
                    asked.append((pid, error))
    _receive([query for _, query in asked if isinstance(query, _Query)], timeout or _TIMEOUT)
    for pid, query in asked:
        try:
            yield pid, query.answer() if isinstance(query, _Query) else query
        except OSError as error:
            yield pid, error


class _Query:
    """A connection to a master, and its answer; it is checked, as any process could send it."""

    def __init__(self, path: Path) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._connection.setblocking(False)  # noqa: FBT003  # setblocking takes no keywords
        self._received = bytearray()
        # Why no answer was received. None if no error has occurred.
        self.failure: OSError | None = None
        try:
            with short_address(path) as address:
                self._connection.connect(address)
        except BaseException:
            self._connection.close()
            raise

    def fileno(self) -> int:
        """The file descriptor of the connection, for a poller."""
        return self._connection.fileno()

    def receive(self) -> bool:
        """Read the data that have arrived; return False at the end of the answer or on an error."""
        try:
            chunk = self._connection.recv(1 << 16)
        except OSError as error:
            self.failure = error
            return False
        self._received += chunk
        if len(self._received) > STATUS.longest:
            self.failure = OSError(f"it has sent more than {STATUS.longest} bytes")
            return False
        return bool(chunk)

    def answer(self) -> Mapping[str, Any]:
        """Close the connection, and return the document that was received."""
        self._connection.close()
        if self.failure is not None:
            raise self.failure
        try:
            document = json.loads(self._received)
        except (ValueError, RecursionError):
            raise ConnectionResetError("it has hung up") from None
        if (fault := STATUS.fault(document)) is not None:
            text = f"it has sent {fault}; is it of another release of psched?"
            raise ConnectionAbortedError(text)
        answered: Mapping[str, Any] = document
        return answered


def _receive(queries: list[_Query], timeout: float) -> None:
    """Receive the answers; a query without one after so many seconds gets a ``failure``."""
    until = time.monotonic() + timeout
    poller = select.poll()
    waiting = {query.fileno(): query for query in queries}
    for number in waiting:
        poller.register(number, select.POLLIN)
    while waiting:
        left = until - time.monotonic()
        if left <= 0:
            for query in waiting.values():
                query.failure = TimeoutError("timed out")
            return
        for number, _ in poller.poll(left * 1000):
            if not waiting[number].receive():
                poller.unregister(number)
                del waiting[number]


_SILENCE = 1.0  # the most seconds between two messages that the caller gets


def follow(path: Path, key: str, patience: float) -> Iterator[Mapping[str, Any]]:
    """Yield a master's messages about the output of a running task, see `TO_READER`.

    The first one is "follows" or "over", and the last one is "over". Between them are empty
    ones, at least each second, so that the caller can give up a master that hangs.
    """
    until = time.monotonic() + patience
    link = _asked(path, key)
    try:
        yield from _messages(link, until)
    finally:
        link.close()


def _asked(path: Path, key: str) -> Link:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    # Otherwise, to connect to a master that accepts nobody would take forever.
    connection.setblocking(False)  # noqa: FBT003  # its parameter has no name
    try:
        # By the address, the master knows that this client sends a request. The kernel chooses the
        # address, in the abstract namespace: unix(7), "Autobind feature".
        connection.bind("")
        with short_address(path) as address:
            connection.connect(address)
    except BaseException:
        connection.close()
        raise
    link = Link(connection)
    link.expects, link.data_limit = TO_READER, LONGEST_PIECE
    link.send({"follow": key})
    return link


def _messages(link: Link, until: float) -> Iterator[Mapping[str, Any]]:
    """Yield the messages until "over"; the first one must arrive until then."""
    begun = False
    waiter = select.poll()
    waiter.register(link, select.POLLIN)
    while not link.closed:
        waiter.poll((_SILENCE if begun else max(0, until - time.monotonic())) * 1000)
        if begun:
            yield {}
        for message in link.receive():
            begun = True
            yield message
            if "over" in message:
                return
        if not begun and time.monotonic() > until:
            raise TimeoutError("the master does not answer")
    if begun:
        what = f"the master has sent {link.fault}" if link.fault else "the master has hung up"
        raise ConnectionResetError(what)
    # A master of an older version sends its status, or hangs up.
    raise ConnectionAbortedError(
        "the master refuses the request; if it is of another release of psched, restart the service"
    )
