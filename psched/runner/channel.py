"""The line between a worker and its fork server: messages, some of which carry descriptors.

Unlike a `Link` it buffers nothing: `send` returns when the kernel has the whole message. Each
message is one packet, so that descriptors cannot be separated from the text about them.
"""

import json
import os
import select
import socket
from array import array
from collections.abc import Sequence
from typing import Any, Self

from psched.process.message_shapes import Shapes

MOST_DESCRIPTORS = 8
"""How many descriptors one message can carry."""

_FLAGS = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT

_ROOM = socket.CMSG_LEN(MOST_DESCRIPTORS * array("i").itemsize)


class Channel:
    """One end of the line.

    Args:
        end: a socket of packets.
        expects: the messages that this side accepts.

    Attributes:
        closed: the other side has exited, or is ignored because of what it has sent.
        fault: the invalid message that the other side has sent; None: it has sent none.
        unsent: always false, because nothing is buffered; see `signals.Waitable`.
    """

    unsent = False

    def __init__(self, end: socket.socket, expects: Shapes) -> None:
        self._socket = end
        self._expects = expects
        self.closed = False
        self.fault: str | None = None

    @classmethod
    def pair(cls, one_expects: Shapes, other_expects: Shapes) -> tuple[Self, Self]:
        """The two ends of a new line."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one, one_expects), cls(other, other_expects)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message.

        Args:
            message: a JSON object.
            descriptors: the other side gets copies of these with the message.

        Raises:
            OSError: the other side has exited, which sets `closed`, or there is no memory left.
        """
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors)
        except ConnectionError:
            self.closed = True
            raise

    def receive(self, *, wait: float = 0) -> tuple[dict[str, Any], list[int]] | None:
        """The next message, and the descriptors that it carries, which no program inherits.

        Args:
            wait: for so many seconds, if there is no message yet.

        Returns:
            None: there is no message. If `closed` is set, there will be no other.
        """
        if self.closed:
            return None
        if wait:
            waiter = select.poll()
            waiter.register(self._socket, select.POLLIN)
            waiter.poll(wait * 1000)
        try:
            # socket.recv_fds is not used, because it does not pass on the flags.
            text, ancillary, flags, _ = self._socket.recvmsg(self._expects.longest, _ROOM, _FLAGS)
        except BlockingIOError:
            return None
        except OSError:
            text, ancillary, flags = b"", [], 0
        if not text:
            self.closed = True
            return None
        descriptors = [*array("i", b"".join(data for _, _, data in ancillary))]
        try:
            message: Any = None if flags & socket.MSG_TRUNC else json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if (fault := self._expects.fault(message)) is not None:
            for descriptor in descriptors:
                os.close(descriptor)
            self.cut(fault)
            return None
        return message, descriptors

    def cut(self, fault: str) -> None:
        """Ignore the other side from now on, because of what it has sent."""
        self.fault = self.fault or fault
        self.closed = True

    def close(self) -> None:
        """Close this end: the other side reads the end of the stream."""
        self.closed = True
        self._socket.close()
