"""Requests the status of the masters on this host, as a client of their `status_socket`."""

import json
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from psched.master.messages import STATUS
from psched.master.runtime_folders import short_address, sockets

_TIMEOUT = 5.0
"""The usual time limit in seconds for the answers of all masters together."""


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
    """A connection to a master, with the part of the answer that has arrived.

    A process might impersonate a master, so the answer is checked.
    """

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
    """Receive the answers until all are complete or ``timeout`` seconds have passed.

    Each query whose answer is not complete by then receives a ``failure``.
    """
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
