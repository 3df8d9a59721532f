"""The socket on which a master answers ``psched status`` and ``psched logs -f``.

The clients are in `queries`. A client whose socket has no address receives
one JSON document, then the end of the stream. A client whose socket has an address asks for the
output of a running task, and receives messages until the task has ended, see `output_relay`. The
master learns the address when it accepts the connection, so it knows which client will still send a
request. The master disconnects a client that sends anything else. So a client cannot change
anything, and the socket needs no protection beyond its file mode. The name of the socket contains
the master's pid, so that several masters can create their sockets in one folder.
"""

import json
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psched.base.clock import Clock
from psched.master.kept_socket import CHECK_INTERVAL, KeptSocket
from psched.master.messages import FROM_READER
from psched.master.runtime_folders import socket_name, sockets
from psched.process.link import Link
from psched.process.signals import Waitable

_log = logging.getLogger("psched.master")

_MOST_READERS = 32
"""The most clients that are connected at a time, so that they cannot use up the master's file
descriptors. When another one comes, the one is disconnected that was connected for longest, except
those that read output: a client that waits only for its document has it soon."""

_TIMEOUT = 5.0
"""Seconds after which a client that has not received its whole answer is disconnected."""

_ACCEPT_PAUSE = 1.0
"""Seconds for which no connection is accepted after the master has run out of file descriptors."""

_UMASK = 0o177  # only the owner of the socket may connect to it

_MOST_SOCKETS = 1000
"""The most sockets of other masters that a starting master examines. There is a limit because tasks
can create any number of files in the folder."""


class StatusReader:
    """A client that is connected, until a time of the monotonic clock; streams get no document."""

    def __init__(self, connection: socket.socket, until: float, *, streams: bool) -> None:
        self._connection = connection
        self._link = Link(connection)  # only receives
        self._link.expects = FROM_READER
        self._outgoing = bytearray()
        # The key of the task whose output the client has asked for, until somebody sets this to
        # None; None if there is no new request.
        self.asks_for: str | None = None
        self.streams = streams
        self._has_asked = False
        self._until = until
        # True after `answer` was called, even if not all of the answer is sent yet.
        self.answered = False
        # True if the client is disconnected, because it has received its whole answer, has closed
        # the connection, has sent what it may not send, or was too slow.
        self.closed = False

    def fileno(self) -> int:
        """The file descriptor of the connection, for the loop that waits for it."""
        return self._connection.fileno()

    @property
    def reads_output(self) -> bool:
        """Whether the client has asked for output, and its task goes on."""
        return self._has_asked and not self.answered

    @property
    def unsent(self) -> bool:
        """Whether a part of the answer is not sent yet."""
        return bool(self._outgoing)

    def answer(self, document: bytes) -> None:
        """Set the client's answer. Later calls of `advance` send it."""
        self._outgoing, self.answered = bytearray(document), True

    @property
    def waiting_bytes(self) -> int:
        """How many bytes the connection has not accepted yet."""
        return len(self._outgoing)

    def write(self, message: bytes) -> None:
        """Send a message after those before it. Later calls of `advance` send it."""
        self._outgoing += message

    def finish(self, until: float) -> None:
        """Disconnect the client when it has received everything, or at a time at the latest."""
        self.answered, self._until = True, until

    def advance(self, now: float) -> None:
        """Send as much of the answer as the connection accepts, or disconnect the client.

        A client is disconnected when it has received its whole answer, has closed the connection,
        has sent what it may not send, or is too slow.
        """
        if now > self._until:
            self.close()
            return
        try:
            self._receive()
            if self.closed:
                return
            if self._outgoing:
                del self._outgoing[: self._connection.send(self._outgoing)]
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if self.answered and not self._outgoing:
            self.close()

    def _receive(self) -> None:
        """Receive a request; disconnect others, which could wake the master again and again."""
        messages = self._link.receive()
        valid = not messages or (self.streams and not self._has_asked and len(messages) == 1)
        if self._link.closed or self._link.halfway or not valid:
            self.close()
        elif messages:
            self.asks_for, self._has_asked, self._until = messages[0]["follow"], True, float("inf")

    def close(self) -> None:
        """Disconnect the client."""
        self.closed = True
        self._connection.close()


class StatusSocket:
    """A master's listening socket, and the clients that are connected to it."""

    def __init__(self, folders: list[Path], clock: Clock) -> None:
        self._clock = clock
        self._next_check = 0.0
        self._accept_from = 0.0
        self._readers: list[StatusReader] = []
        self._listening = KeptSocket(socket.SOCK_STREAM, umask=_UMASK)
        if problems := self._listening.create(folders, socket_name(os.getpid()), _some_sockets):
            _log.warning("psched status will not find this master: %s", problems)

    @property
    def waiting(self) -> list[StatusReader]:
        """The clients that have not been given a document yet, and do not ask for output."""
        return [each for each in self._readers if not (each.answered or each.streams)]

    @property
    def asking(self) -> list[StatusReader]:
        """The clients that ask for the output of a task and whose request is new."""
        return [reader for reader in self._readers if reader.asks_for is not None]

    @property
    def links(self) -> list[Waitable]:
        """The sockets that the master waits for. When one is ready, the master calls `advance`."""
        if self._clock.monotonic() < self._accept_from:
            return [*self._readers]
        return [*self._listening.links, *self._readers]

    def advance(self) -> None:
        """Accept connections, and send as much of the answers as the connections accept."""
        now = self._clock.monotonic()
        if now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL
            self._listening.check()
        if self._listening.opened is not None and now >= self._accept_from:
            self._accept(self._listening.opened, now)
        for reader in self._readers:
            reader.advance(now)
        self._readers = [reader for reader in self._readers if not reader.closed]

    def answer(self, document: Mapping[str, Any]) -> None:
        """Send a document to all clients that have not been given an answer yet."""
        encoded = json.dumps(document).encode()
        for reader in self.waiting:
            reader.answer(encoded)
        self.advance()

    def close(self) -> None:
        """Close the listening socket, and remove it from its folder."""
        self._listening.close()

    def _accept(self, listening: socket.socket, now: float) -> None:
        try:
            # Accept only some connections per call, because signals and messages of workers wait
            # meanwhile. The next call accepts more.
            for _ in range(_MOST_READERS):
                connection, address = listening.accept()
                reader = StatusReader(connection, now + _TIMEOUT, streams=bool(address))
                self._readers.append(reader)
                if len(self._readers) > _MOST_READERS:
                    oldest = next((each for each in self._readers if not each.reads_output), reader)
                    oldest.close()
                    self._readers.remove(oldest)
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError:
            # No file descriptor is left. Do not wait for the socket for a while, because the client
            # stays in the socket's queue and would wake the master again at once.
            self._accept_from = now + _ACCEPT_PAUSE


def _some_sockets(folder: Path) -> list[tuple[int, Path]]:
    return sockets(folder)[:_MOST_SOCKETS]
