"""The link between a process and its parent: it carries messages and shows when one side dies.

Each child has one socketpair. A message is a JSON object, optionally followed by bytes; the lengths
of both precede it. The end of the stream means that the other side is dead, whatever killed it,
because no other process holds that end.

A receiver trusts nothing that arrives. It checks the lengths before it keeps anything, and compares
each message with the shapes that it has declared. After anything else it receives no more: the link
counts as closed, and `Link.fault` says why.
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
"""Bytes that one call of `Link.receive` reads, so that an endless sender does not hold us up."""

_encoded = json.JSONEncoder(separators=(",", ":")).encode
_decoded = json.JSONDecoder().raw_decode

Message = Mapping[str, Any] | bytes
"""A JSON object, or its bytes: `packed` once, before the processes that send it are forked."""


def packed(message: Mapping[str, Any], data: bytes = b"") -> bytes:
    """A message as it is sent."""
    text = _encoded(message).encode()
    return _LENGTHS.pack(len(text), len(data)) + text + data


class Link:
    """One end of the link.

    A parent never waits for a child: `send` keeps what the socket does not accept, `flush` sends
    it when the socket is writable again, and `receive` returns what has arrived. Only a child
    waits for its parent, in `wait` and `deliver`.

    Args:
        end: a stream's socket, not its number. A handler may close all descriptors and then open
            a file that gets the number: send(2) refuses that file, write(2) would write into it.

    Attributes:
        expects: the messages that this side accepts.
        data_limit: the most bytes of data that a message may carry.
        closed: the other side is dead, or nothing is received from it any more.
        fault: the invalid message that the other side has sent; None: it has sent none.
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
        """Make ``count`` links, or fewer if there are not enough descriptors.

        In that case, half of the links that could be made are returned, because the processes at
        the other ends need descriptors of their own.

        Raises:
            OSError: not even one could be made.
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
        """Whether data wait until the socket accepts them."""
        return bool(self._outgoing) and not self.closed

    @property
    def halfway(self) -> bool:
        """Whether part of a message has arrived."""
        return bool(self._incoming)

    def send(self, message: Message, data: bytes = b"") -> None:
        """Send a message, now or by later calls of `flush`. If the other side is dead, do nothing.

        Args:
            message: one that the other side accepts.
            data: the other side finds it in the message's field ``data``.
        """
        self._outgoing += message if isinstance(message, bytes) else packed(message, data)
        self.flush()

    def flush(self) -> None:
        """Send what the socket accepts."""
        while self._outgoing and not self.closed:
            try:
                sent = self._socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:
                # The other side is dead. What it had sent before can still be read.
                self._outgoing.clear()
                return
            del self._outgoing[:sent]

    def receive(self, *, at_most: int = _MOST_AT_ONCE) -> list[Any]:
        """The messages that have arrived; at the end of the stream, `closed` is set.

        Args:
            at_most: bytes to read; the next call reads the rest.
        """
        self._fill(at_most)
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def receive_all(self) -> list[Any]:
        """The messages that a dead side had sent."""
        # This reads one message of the greatest length, which is enough for every caller.
        return self.receive(at_most=_MOST_AT_ONCE + self.expects.longest + self.data_limit)

    def cut(self, fault: str) -> None:
        """Receive nothing more, because of what the other side has sent."""
        self._incoming.clear()
        self._outgoing.clear()
        self.fault = self.fault or fault
        self.closed = True

    def wait(self) -> Any | None:  # noqa: ANN401  # a JSON value
        """Wait for one message; None at the end of the stream. Only for a child."""
        waiter = select.poll()
        while (message := self._next()) is None and not self.closed:
            waiter.register(self, select.POLLIN | (select.POLLOUT if self.unsent else 0))
            waiter.poll()
            self.flush()
            self._fill(_MOST_AT_ONCE)
        return message

    def deliver(self, message: Message) -> None:
        """Send a message and wait until it is sent. Only for a child, which exits after that."""
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
                return  # nothing more has arrived; another call would only cost time
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
            # JSONDecoder.decode would cost more: it also skips spaces, by regular expressions.
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
