"""Requests the status of the masters on this host: the client's side of `status_socket`."""

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
"""Seconds until all masters together must have answered."""


def ask_all(folders: list[Path]) -> Iterator[tuple[int, Mapping[str, Any] | OSError]]:
    """Yield the pid and the answer of each master whose socket is found, or an error instead.

    All masters are asked at once, so that one that does not answer takes no time from the others.
    """
    asked: list[tuple[int, _Query | OSError]] = []
    for folder in folders:
        with suppress(OSError):
            for pid, path in sockets(folder):
                try:
                    asked.append((pid, _Query(path)))
                except ConnectionRefusedError:
                    pass  # the socket of a master that was killed
                except OSError as error:
                    asked.append((pid, error))
    _receive([query for _, query in asked if isinstance(query, _Query)])
    for pid, query in asked:
        try:
            yield pid, query.answer() if isinstance(query, _Query) else query
        except OSError as error:
            yield pid, error


class _Query:
    """A connection to a master, or to a process that impersonates a master.

    Attributes:
        failure: why no answer was received; None: no error has occurred.

    Raises:
        OSError: no process listens at the path.
    """

    def __init__(self, path: Path) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._connection.setblocking(False)  # noqa: FBT003  # its parameter has no name
        self._received = bytearray()
        self.failure: OSError | None = None
        try:
            with short_address(path) as address:
                self._connection.connect(address)
        except BaseException:
            self._connection.close()
            raise

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._connection.fileno()

    def receive(self) -> bool:
        """Read the data that have arrived; return whether more may follow."""
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
        """The document that was received.

        Raises:
            OSError: no valid document was received.
        """
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


def _receive(queries: list[_Query]) -> None:
    """Receive the answers until all are complete or `_TIMEOUT` has passed."""
    until = time.monotonic() + _TIMEOUT
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
