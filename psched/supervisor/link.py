"""The line between a process and its parent: whole messages, and the news of a death.

One socketpair per child. A message is a JSON object after its length. The end of the stream
means that the other side is dead, whatever it died of: nobody else holds its end.
"""

import json
import select
import socket
import struct
from collections.abc import Mapping
from typing import Any, Self

_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 16

_encoded = json.JSONEncoder(separators=(",", ":")).encode
_decoded = json.JSONDecoder().raw_decode

Message = Mapping[str, Any] | bytes
"""A JSON object, or its bytes, `packed` once before the forks of those who send it."""


def packed(message: Mapping[str, Any]) -> bytes:
    """A message as it goes over the line."""
    text = _encoded(message).encode()
    return _LENGTH.pack(len(text)) + text


class Link:
    """One end of the line.

    A parent never waits for a child: `send` keeps what the socket does not take, `flush` goes
    on with it when the socket is writable again, and `receive` returns what there is. Only a
    child waits for its parent: `wait`.

    Args:
        end: a stream's socket; a mere number would not do. When a handler has closed everything,
            and a file of its own has the number now, send(2) refuses it, where write(2) would
            write into it.

    Attributes:
        closed: the other side is gone.
    """

    def __init__(self, end: socket.SocketType) -> None:
        end.setblocking(False)  # noqa: FBT003  # its parameter has no name
        self._socket = end
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.closed = False

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        """Two ends of a new line."""
        one, other = socket.socketpair()
        return cls(one), cls(other)

    @classmethod
    def pairs(cls, count: int) -> list[tuple[Self, Self]]:
        """So many lines; half as many as there can be, if there cannot be as many.

        Who is at their other ends needs a descriptor or two of its own.

        Raises:
            OSError: there cannot be one.
        """
        pairs: list[tuple[Self, Self]] = []
        try:
            while len(pairs) < count:
                pairs.append(cls.pair())
        except OSError:
            if not pairs:
                raise
            for _ in range((len(pairs) - 1) // 2):
                for end in pairs.pop():
                    end.close()
        return pairs

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether something waits for the socket to take it."""
        return bool(self._outgoing) and not self.closed

    def send(self, message: Message) -> None:
        """Send a message, now or by later calls of `flush`; to a dead side: nothing happens."""
        self._outgoing += message if isinstance(message, bytes) else packed(message)
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes."""
        while self._outgoing and not self.closed:
            try:
                sent = self._socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:
                # Dead; what it had sent before can still be read.
                self._outgoing.clear()
                return
            del self._outgoing[:sent]

    def receive(self) -> list[Any]:
        """The messages that have arrived; sets `closed` if there is only the end of the stream."""
        self._fill()
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def wait(self) -> Any | None:  # noqa: ANN401  # a JSON value
        """Wait for one message; None at the end of the stream. For a child."""
        waiter = select.poll()
        while (message := self._next()) is None and not self.closed:
            waiter.register(self, select.POLLIN | (select.POLLOUT if self.unsent else 0))
            waiter.poll()
            self.flush()
            self._fill()
        return message

    def deliver(self, message: Message) -> None:
        """Send a message and wait until the socket has taken it. For a child that then exits."""
        self.send(message)
        while self.unsent:
            waiter = select.poll()
            waiter.register(self, select.POLLOUT)
            waiter.poll()
            self.flush()

    def close(self) -> None:
        """Close this end: the other side reads the end of the stream."""
        self.closed = True
        self._socket.close()

    def _fill(self) -> None:
        while not self.closed:
            try:
                chunk = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self.closed = True
            self._incoming += chunk
            if len(chunk) < _CHUNK:
                return  # there was no more; to ask again costs as much as to read

    def _next(self) -> Any | None:  # noqa: ANN401
        if len(self._incoming) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._incoming)[0]
        if len(self._incoming) < end:
            return None
        received = self._incoming[_LENGTH.size : end]
        del self._incoming[:end]
        try:
            text = received.decode()
            # `decode` would look for spaces around the value as well, by patterns.
            message, length = _decoded(text)
            if length == len(text):
                return message
        except ValueError:
            pass
        # Somebody has written into the line past us: there is no telling what follows.
        self._incoming.clear()
        self.closed = True
        return None
