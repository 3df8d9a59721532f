"""The line between a process and its parent: whole messages, and the news of a death.

One socketpair per child. A message is a JSON object, and perhaps some bytes beside it, after the
lengths of both. The end of the stream means that the other side is dead, whatever it died of:
nobody else holds its end.

A receiver trusts nothing that arrives: lengths are bounded before anything is kept, and each
message is compared with the shapes that the receiver declares. A peer that sends anything else is
not listened to any more: `Link.fault` says why, and the link counts as closed.
"""

import json
import select
import socket
import struct
from collections.abc import Mapping
from typing import Any, Self

from psched.process.message_shapes import ANY

_LENGTHS = struct.Struct("!II")
"""Bytes of the JSON object, and of what is beside it."""

_CHUNK = 1 << 16

_MOST_AT_ONCE = 16 * _CHUNK
"""Bytes that one call of `Link.receive` reads: who sends without end must not hold us up."""

_encoded = json.JSONEncoder(separators=(",", ":")).encode
_decoded = json.JSONDecoder().raw_decode

Message = Mapping[str, Any] | bytes
"""A JSON object, or its bytes, `packed` once before the forks of those who send it."""


def packed(message: Mapping[str, Any], data: bytes = b"") -> bytes:
    """A message as it is sent over the line."""
    text = _encoded(message).encode()
    return _LENGTHS.pack(len(text), len(data)) + text + data


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
        expects: the messages that this side accepts.
        data_limit: bytes that may be beside a message.
        closed: the other side is gone, or is not listened to any more.
        fault: what the other side has sent that it must not send, if it has.
    """

    def __init__(self, end: socket.SocketType) -> None:
        end.setblocking(False)  # noqa: FBT003  # its parameter has no name
        self._socket = end
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.expects = ANY
        self.data_limit = 0
        self.closed = False
        self.fault: str | None = None

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

    @property
    def halfway(self) -> bool:
        """Whether the beginning of a message has arrived, and its end has not."""
        return bool(self._incoming)

    def send(self, message: Message, data: bytes = b"") -> None:
        """Send a message, now or by later calls of `flush`; to a dead side: nothing happens.

        Args:
            message: what the other side expects.
            data: beside it; the other side finds it in the message's field ``data``.
        """
        self._outgoing += message if isinstance(message, bytes) else packed(message, data)
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

    def receive(self, *, at_most: int = _MOST_AT_ONCE) -> list[Any]:
        """The messages that have arrived; sets `closed` if there is only the end of the stream.

        Args:
            at_most: bytes to read; what is left can be received by the next call.
        """
        self._fill(at_most)
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def receive_all(self) -> list[Any]:
        """The messages that a dead side has left."""
        # More than one message of the greatest length cannot be of use.
        return self.receive(at_most=_MOST_AT_ONCE + self.expects.longest + self.data_limit)

    def cut(self, fault: str) -> None:
        """Listen to the other side no more, for what it has sent."""
        self._incoming.clear()
        self._outgoing.clear()
        self.fault = self.fault or fault
        self.closed = True

    def wait(self) -> Any | None:  # noqa: ANN401  # a JSON value
        """Wait for one message; None at the end of the stream. For a child."""
        waiter = select.poll()
        while (message := self._next()) is None and not self.closed:
            waiter.register(self, select.POLLIN | (select.POLLOUT if self.unsent else 0))
            waiter.poll()
            self.flush()
            self._fill(_MOST_AT_ONCE)
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

    def _fill(self, at_most: int) -> None:
        while not self.closed and at_most > 0:
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
            at_most -= len(chunk)

    def _next(self) -> Any | None:  # noqa: ANN401
        incoming = self._incoming
        if len(incoming) < _LENGTHS.size:
            return None
        length, beside = _LENGTHS.unpack_from(incoming)
        if length > self.expects.longest or beside > self.data_limit:
            self.cut(f"a message of {length + beside} bytes")
            return None
        middle = _LENGTHS.size + length
        if len(incoming) < middle + beside:
            return None
        try:
            text = incoming[_LENGTHS.size : middle].decode()
            # `decode` would look for spaces around the value as well, by patterns.
            message, end = _decoded(text)
        except (ValueError, RecursionError):
            text, message, end = "", None, -1
        if end != len(text):
            self.cut("a message that is not JSON")
            return None
        if beside and type(message) is dict:
            with memoryview(incoming) as view:
                message["data"] = bytes(view[middle : middle + beside])
        if (fault := self.expects.fault(message)) is not None:
            self.cut(fault)
            return None
        del incoming[: middle + beside]
        return message
