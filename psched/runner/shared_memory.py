"""Memory that a worker shares with a runner: stop reason, whether the task has begun, its progress.

The first byte is the reason. It is not sent as a message over the link between the two processes,
because TERM can interrupt the runner while it reads from that link. If TERM arrives while the byte
contains no reason, the worker has not sent it. Then the task is not stopped, because TERM was sent
to every process of the service, as ``systemctl kill`` does.

The second byte tells whether the runner has begun its task. A message would tell this as well, but
it would wake the worker, and would have to be delayed if a loop reports its progress often. So the
further bytes are the task's progress. To write them takes about 2 µs, and they are read only if
somebody asks for the status. A runner can write at any time, also while its worker reads, and the
code of a task can write anything. So a checksum shows whether the bytes belong together, and
`unpack` trusts nothing.
"""

import mmap
import os
import struct
from enum import IntEnum
from math import nan
from typing import NamedTuple
from zlib import crc32

from psched.base.texts import brief

LONGEST = 100
"""The most characters of a text that are kept."""

HIGHEST = 100
"""The percent of a task that is done."""

_CHECKSUM = struct.Struct("!I")
_HEAD = struct.Struct("!dH")
"""The percent, which is not a number if it is unknown, and the length of the text in bytes."""

LONGEST_PROGRESS = _CHECKSUM.size + _HEAD.size + 4 * LONGEST
"""The most bytes that `pack` returns: a character has at most four."""

NOTHING = bytes(_CHECKSUM.size)
"""These bytes at the beginning mean that no progress was reported."""


class Progress(NamedTuple):
    """How far a task is, as it has said.

    Attributes:
        percent: from 0 to 100; None if the task has given a text only.
        text: in one line that is safe to show; can be empty.
    """

    percent: float | None
    text: str

    def __str__(self) -> str:
        if self.percent is None:
            return self.text
        # The number is rounded down, because 99.99 % is not all.
        percent = f"{int(self.percent * 10) / 10:g} %"
        return f"{percent} {self.text}" if self.text else percent


def pack(percent: float | None, text: str) -> bytes:
    """The bytes for a percent from 0 to 100, or None, and a text, of which the rest is cut off."""
    encoded = text[:LONGEST].encode(errors="replace")
    body = _HEAD.pack(nan if percent is None else percent, len(encoded)) + encoded
    return _CHECKSUM.pack(crc32(body)) + body


def unpack(stored: bytes) -> Progress | None:
    """The progress in that many bytes or more; None if there is none, or if they are not valid."""
    (checksum,) = _CHECKSUM.unpack_from(stored)
    percent, length = _HEAD.unpack_from(stored, _CHECKSUM.size)
    start = _CHECKSUM.size + _HEAD.size
    if length > 4 * LONGEST or crc32(stored[_CHECKSUM.size : start + length]) != checksum:
        return None
    known = 0 <= percent <= HIGHEST  # this is False if the percent is not a number
    text = stored[start : start + length].decode(errors="replace")[:LONGEST]
    return Progress(percent if known else None, brief(text))


_PROGRESS = 2
"""The position of the progress, after the two flags."""

_SIZE = _PROGRESS + LONGEST_PROGRESS

_READS = 3
"""How often the progress is read if it is not valid, because the runner writes it just then."""


class Reason(IntEnum):
    """Why a task is asked to stop; a handler receives the name in lower case."""

    NONE = 0
    TIMEOUT = 1
    """The task has run for ``kill_timeout``."""
    SHUTDOWN = 2
    """The task's worker must exit."""
    DELETED = 3
    """The task's schedule was deleted."""
    LEASE = 4
    """The task's lease cannot be extended."""
    CANCELLED = 5
    """The task was cancelled, or finished by force."""


class StopFlagTable:
    """The flags of all runners of one fork server, in memory that these processes share.

    Create the table before the fork server is forked.

    Args:
        count: the number of slots.
        descriptor: that of a table, which a server that was executed has received.

    Attributes:
        descriptor: is sent to such a server.
    """

    def __init__(self, count: int = 0, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("psched", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, count * _SIZE)
        self.descriptor = descriptor
        self._page = mmap.mmap(descriptor, 0)  # all of it

    def close(self) -> None:
        """Close the descriptor; the memory stays."""
        os.close(self.descriptor)

    def at(self, place: int) -> "StopFlags":
        """The flags of the runner that has this slot number."""
        return StopFlags(self._page, place * _SIZE)


class StopFlags:
    """The flags of one runner; without a page, those of a runner that is no process."""

    def __init__(self, page: mmap.mmap | None = None, offset: int = 0) -> None:
        self._page: mmap.mmap | bytearray = bytearray(_SIZE) if page is None else page
        self._offset = offset

    def write(self, reason: Reason) -> None:
        """Set the reason for stopping the task; NONE removes it. Only the worker calls this."""
        self._page[self._offset] = reason

    def read(self) -> Reason:
        """Read the reason for stopping the task; NONE if the worker has set no reason."""
        value = self._page[self._offset]
        # The usual value, 0, is not converted, because a conversion costs a runner time.
        return Reason(value) if value else Reason.NONE

    @property
    def begun(self) -> bool:
        """Whether the runner has begun a task since the worker has last set this to False."""
        return bool(self._page[self._offset + 1])

    @begun.setter
    def begun(self, value: bool) -> None:
        self._page[self._offset + 1] = value

    def write_progress(self, packed: bytes) -> None:
        """Set the task's progress, a result of `pack`; `NOTHING` removes it."""
        start = self._offset + _PROGRESS
        self._page[start : start + len(packed)] = packed

    @property
    def progress(self) -> Progress | None:
        """The task's progress; None if it has reported none."""
        start = self._offset + _PROGRESS
        for _ in range(_READS):
            stored = bytes(self._page[start : start + LONGEST_PROGRESS])
            if (found := unpack(stored)) is not None:
                return found
        return None

    def close(self) -> None:
        """Detach from the shared memory, because another runner can get the slot.

        After this, `write` has no effect on that runner.
        """
        self._page, self._offset = bytearray(_SIZE), 0
