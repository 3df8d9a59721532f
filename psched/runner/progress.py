"""The progress of a task, as bytes in memory that its runner shares with its worker.

A message would wake the worker, and would have to be delayed if a loop reports its progress often.
To write these bytes takes about 2 µs, and they are read only if somebody asks for the status.

A runner can write at any time, also while its worker reads, and the code of a task can write
anything. So a checksum shows whether the bytes belong together, and `unpack` trusts nothing.
"""

import struct
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

SIZE = _CHECKSUM.size + _HEAD.size + 4 * LONGEST
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
    """The progress in at least `SIZE` bytes; None if there is none, or if they are not valid."""
    (checksum,) = _CHECKSUM.unpack_from(stored)
    percent, length = _HEAD.unpack_from(stored, _CHECKSUM.size)
    start = _CHECKSUM.size + _HEAD.size
    if length > 4 * LONGEST or crc32(stored[_CHECKSUM.size : start + length]) != checksum:
        return None
    known = 0 <= percent <= HIGHEST  # this is False if the percent is not a number
    text = stored[start : start + length].decode(errors="replace")[:LONGEST]
    return Progress(percent if known else None, brief(text))
