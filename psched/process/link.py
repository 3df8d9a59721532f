"""The messages between the processes of psched, and the connections that carry them.

A `Link` connects a process with its parent, and shows when one side dies. Each child has one
socketpair. A message begins with two numbers: the length of a JSON object and the length of the
data, in bytes. The object and the data follow; the data can be empty. A process that reads the end
of the stream knows that the other side is dead, because no third process holds the other end.

A `Channel` connects a worker with its fork server or its collector: its messages can carry
descriptors.

A receiver does not trust the sender: a task's code can take over the process that runs it, and send
arbitrary messages. So each receiver declares the `Shapes` of the messages that it accepts, and its
`Link` or `Channel` checks the length and the shape of every message before the receiver reads a
field. After an invalid message the receiver reads nothing more: it treats the connection as closed,
and ``fault`` describes the invalid message. Fields that no shape names are ignored, so that a newer
version of psched can add fields to the messages that it sends to an older version.
"""

import json
import os
import select
import socket
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from psched.base.texts import LONGEST_BRIEF

# --- What is accepted -------------------------------------------------------------------------

Check = Callable[[Any], bool]
"""A function that returns whether the receiver accepts a field's value, as decoded from JSON."""

_LARGEST = 2**63 - 1
"""The greatest whole number that a column of a table can store."""

LONGEST_TIME = 1e12
"""Seconds. The limit for times in messages: no clock's time, and no difference between the times of
two clocks, is greater."""

_LONGEST_LINE = 1100
"""The most characters of a text such as a key, a type or a log line in a message."""


class Shapes(NamedTuple):
    """The messages that one side of a link accepts.

    Attributes:
        kinds: the kinds of messages that are accepted. The key is the name of the field by which a
            message of the kind is recognized; the value maps each field that such a message must
            have to its check. If there are no kinds, any object is accepted.
        longest: the most bytes of a message's JSON text; a longer message is invalid.
    """

    kinds: Mapping[str, Mapping[str, Check]]
    longest: int

    def fault(self, message: object) -> str | None:
        """A description of the mistake in a message, for a log line; None if it is accepted."""
        if type(message) is not dict:
            return "a message that is no object"
        known = not self.kinds
        for kind in message:
            # Check a message that has the marking fields of several kinds as each of these kinds.
            if (fields := self.kinds.get(kind)) is not None:
                known = True
                for name, accepts in fields.items():
                    if name not in message:
                        return f"the message {kind!r} without {name!r}"
                    if not accepts(message[name]):
                        return f"the message {kind!r} with an impossible {name!r}"
        return None if known else "a message of no known kind"


ANY = Shapes({}, longest=2**16)
"""Accepts any object. A link has these shapes until its owner sets `Link.expects`."""


def flag(value: object) -> bool:
    """Check that a value is True or False."""
    return value is True or value is False


def text(most: int) -> Check:
    """Check that a value is a text of at most ``most`` characters, without NUL and surrogates.

    Such a text can be stored in every file and every database.
    """

    def accepts(value: object) -> bool:
        if type(value) is not str or len(value) > most or "\0" in value:
            return False
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)

    return accepts


def attached(value: object) -> bool:
    """Check that a value is bytes: the data that a message carries. `Link` limits their length."""
    return type(value) is bytes


def whole(least: int = 0, most: int = _LARGEST) -> Check:
    """Check that a value is a whole number from ``least`` to ``most``, neither True nor False."""
    return lambda value: type(value) is int and least <= value <= most


any_whole = whole(-_LARGEST - 1)
"""A whole number that a column of a table can store."""


def number(least: float = 0, most: float = LONGEST_TIME) -> Check:
    """Check that a value is a number from ``least`` to ``most``; refuse True, False and NaN."""
    return lambda value: type(value) in (int, float) and least <= value <= most


def maybe(accepts: Check) -> Check:
    """Check that a value is None, or that ``accepts`` accepts the value."""
    return lambda value: value is None or accepts(value)


def one_of(*values: str) -> Check:
    """Check that a value is one of these texts."""
    return lambda value: type(value) is str and value in values


def listed(accepts: Check, most: int) -> Check:
    """Check that a value is a list of at most ``most`` values that ``accepts`` accepts."""
    return lambda value: type(value) is list and len(value) <= most and all(map(accepts, value))


def each(*checks: Check) -> Check:
    """Check that a value is a list with one item for each check, which accepts this item."""

    def accepts(value: object) -> bool:
        if type(value) is not list or len(value) != len(checks):
            return False
        return all(accepts(one) for accepts, one in zip(checks, value, strict=True))

    return accepts


def record(**fields: Check) -> Check:
    """Check that a value is an object with at least these fields, each accepted by its check."""

    def accepts(value: object) -> bool:
        return type(value) is dict and all(
            name in value and accepts(value[name]) for name, accepts in fields.items()
        )

    return accepts


def extended(accepts: Check, **fields: Check) -> Check:
    """An object that another check accepts, and that may have these fields.

    The fields may be absent, because older versions do not send them.
    """

    def accepts_both(value: object) -> bool:
        return (
            accepts(value)
            and type(value) is dict
            and all(check(value[name]) for name, check in fields.items() if name in value)
        )

    return accepts_both


line = text(_LONGEST_LINE)


brief_text = text(LONGEST_BRIEF)
"""Checks that a value is a text no longer than `texts.brief` returns."""


pid = whole(2, 2**31 - 1)
"""Checks that a value can be a pid of a child. 1 is refused, because it is the init process."""


# --- Between a parent and a child -------------------------------------------------------------

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


# --- With descriptors -------------------------------------------------------------------------

MOST_DESCRIPTORS = 16
"""The most descriptors that one message can carry."""

_FLAGS = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT

_ROOM = socket.CMSG_LEN(MOST_DESCRIPTORS * array("i").itemsize)


class Channel:
    """One end of a connection whose messages can carry descriptors.

    Unlike a `Link`, a `Channel` buffers nothing: `send` returns when the kernel has accepted the
    whole message. Each message is one packet, so descriptors always arrive together with their
    text.

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
        """Receive the next message, and the descriptors that it carries, which are closed on exec.

        None if no message has arrived; if `closed` is True then, none will arrive later.
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
