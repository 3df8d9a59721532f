"""The connection between a worker and its fork server. Its messages can carry descriptors.

Unlike a `Link`, a `Channel` buffers nothing: `send` returns when the kernel has accepted the whole
message. Each message is one packet, so descriptors always arrive together with their text.
"""

import json
import os
import select
import socket
from array import array
from collections.abc import Sequence
from typing import Any, Self

from psched.process.message_shapes import Shapes

MOST_DESCRIPTORS = 16
"""The most descriptors that one message can carry."""

_FLAGS = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT

_ROOM = socket.CMSG_LEN(MOST_DESCRIPTORS * array("i").itemsize)


class Channel:
    """One end of the connection.

    Attributes:
        closed: whether the connection has ended, because this end was closed, the other side has
            exited, or the other side has sent an invalid message.
        fault: what is wrong with a message from the other side; None if all messages were valid.
        unsent: always False, because nothing is buffered; see `signals.Waitable`.
    """

    unsent = False

    def __init__(self, end: socket.socket, expects: Shapes) -> None:
        self._socket = end
        self._expects = expects
        self.closed = False
        self.fault: str | None = None

    @classmethod
    def pair(cls, one_expects: Shapes, other_expects: Shapes) -> tuple[Self, Self]:
        """Create a connection; return its two ends."""
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one, one_expects), cls(other, other_expects)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.fileno()

    def never_wait(self) -> None:
        """Have `send` raise a BlockingIOError if the other side has left many messages unread."""
        self._socket.setblocking(False)  # noqa: FBT003  # its parameter has no name

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message."""
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], descriptors)
        except ConnectionError:
            self.closed = True
            raise

    def receive(self, *, wait: float = 0) -> tuple[dict[str, Any], list[int]] | None:
        """Receive the next message.

        Returns:
            The message, and the descriptors that it carries, which are closed on exec. None if no
            message has arrived; if `closed` is True then, none will arrive later.
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
        """Ignore the other side from now on, because it has sent an invalid message."""
        self.fault = self.fault or fault
        self.closed = True

    def close(self) -> None:
        """Close this end; the other side then receives the end of the stream."""
        self.closed = True
        self._socket.close()
