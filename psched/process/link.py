"""The link between a process and its parent: it carries messages and shows when one side dies.

Each child has one socketpair. A message begins with two numbers: the length of a JSON object and
the length of the data, in bytes. The object and the data follow; the data can be empty. A process
that reads the end of the stream knows that the other side is dead, because no third process holds
the other end.

A receiver does not trust the sender. It checks the lengths of each message, and compares the
message with the shapes that it has declared. After an invalid message the receiver reads nothing
more: it treats the link as closed, and `Link.fault` describes the invalid message.
"""

import json
import select
import socket
import struct
from collections.abc import Mapping
from typing import Any, Self

from psched.process.message_shapes import ANY

_LENGTHS = struct.Struct("!II")
"""The lengths of the JSON object and of the data, in bytes."""

_CHUNK = 1 << 16

_MOST_AT_ONCE = 16 * _CHUNK
"""The most bytes that one call of `Link.receive` reads. Without this limit, the call would not
return while the other side sends without a pause."""

_encoded = json.JSONEncoder(separators=(",", ":")).encode
_decoded = json.JSONDecoder().raw_decode

Message = Mapping[str, Any] | bytes
"""A JSON object, or the result of `packed` for it. Pack a message that many processes send once,
before these processes are forked."""


def packed(message: Mapping[str, Any], data: bytes = b"") -> bytes:
    """The bytes to send for a message and its data: two lengths, the JSON object, the data."""
    text = _encoded(message).encode()
    return _LENGTHS.pack(len(text), len(data)) + text + data


class Link:
    """One end of the link.

    A parent never waits for a child: `send` stores the bytes that the socket does not accept,
    `flush` sends them when the socket is writable again, and `receive` returns the messages that
    have arrived. Only a child waits for its parent, in `wait` and `deliver`.

    Args:
        end: the socket object, not the number of its descriptor. A user's handler can close all
            descriptors and then open a file that gets this number. send(2) on the socket object
            then fails, whereas write(2) to the number would write into that file.

    Attributes:
        expects: the messages that this side accepts.
        data_limit: the most bytes of data that a received message can carry.
        closed: True if the other side is dead, has sent an invalid message, or `close` was called.
        fault: a description of the invalid message that the other side has sent; None if it has
            sent no invalid message.
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
        """The two ends of a new link."""
        one, other = socket.socketpair()
        return cls(one), cls(other)

    @classmethod
    def pairs(cls, count: int) -> list[tuple[Self, Self]]:
        """Create ``count`` links, or fewer if there are not enough descriptors.

        If descriptors run out, the method closes about half of the links that it has created, and
        returns the rest, because the processes at the other ends need descriptors, too.
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
        """The number of the socket's descriptor, for select.poll."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """Whether bytes are stored that the socket has not accepted yet; `flush` sends them."""
        return bool(self._outgoing) and not self.closed

    @property
    def halfway(self) -> bool:
        """Whether a message has arrived in part, but not yet completely."""
        return bool(self._incoming)

    def send(self, message: Message, data: bytes = b"") -> None:
        """Send a message, now or by calls of `flush`. If the other side is dead, do nothing."""
        self.store(message, data)
        self.flush()

    def store(self, message: Message, data: bytes = b"") -> None:
        """Have the next call of `flush` send a message."""
        self._outgoing += message if isinstance(message, bytes) else packed(message, data)

    def flush(self) -> None:
        """Send the stored bytes, as far as the socket accepts them now."""
        while self._outgoing and not self.closed:
            try:
                sent = self._socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:
                # The other side is dead. Do not close the link here, because the messages that the
                # other side sent before its death can still be read.
                self._outgoing.clear()
                return
            del self._outgoing[:sent]

    def receive(self, *, at_most: int = _MOST_AT_ONCE) -> list[Any]:
        """The messages that have arrived; this also sets `closed` at the end of the stream.

        First it sends the stored bytes, as `flush` does.
        """
        if self._outgoing:
            self.flush()
        self._fill(at_most)
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def receive_all(self) -> list[Any]:
        """The messages that the other side sent before its death and that are still unread."""
        # Let the limit allow one message of the greatest length.
        return self.receive(at_most=_MOST_AT_ONCE + self.expects.longest + self.data_limit)

    def cut(self, fault: str) -> None:
        """Close the link for messages in both directions after an invalid message."""
        self._incoming.clear()
        self._outgoing.clear()
        self.fault = self.fault or fault
        self.closed = True

    def wait(self) -> Any | None:  # noqa: ANN401  # a JSON value
        """Wait for one message, and return it; None if the link is closed.

        Call this only in a child, because a parent must not wait for a child.
        """
        waiter = select.poll()
        while (message := self._next()) is None and not self.closed:
            waiter.register(self, select.POLLIN | (select.POLLOUT if self.unsent else 0))
            waiter.poll()
            self.flush()
            self._fill(_MOST_AT_ONCE)
        return message

    def deliver(self, message: Message) -> None:
        """Send a message, and wait until the socket has accepted all of it.

        Call this only in a child that exits afterwards.
        """
        self.send(message)
        while self.unsent:
            waiter = select.poll()
            waiter.register(self, select.POLLOUT)
            waiter.poll()
            self.flush()

    def close(self) -> None:
        """Close this end, so that the other side reads the end of the stream."""
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
                # Do not call recv again, because a short chunk means that nothing more has arrived.
                return
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
            # Use raw_decode, because JSONDecoder.decode takes longer: it also skips spaces, by
            # regular expressions.
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
