"""Converts records of output to texts in Redis, and these texts to records.

A text is a JSON object, a line feed and the output, which is compressed if the field ``is_gzip`` is
true. The layout of the data is described in ``lua/prelude.lua``.
"""

import json
from collections.abc import Iterator
from typing import Any

from psched.base.compression import compress, decompress
from psched.core.output.records import OutputRecord, RunningAttempt
from psched.stores.redis.encoding import Argument, text, whole

_PLAIN = 1000
"""Output of at most so many bytes is not compressed, so that redis-cli can show it."""

_RECORD = 550
"""About the bytes that a record takes in the server's memory besides its text and its key."""


def arguments(record: OutputRecord) -> Iterator[Argument]:
    """The arguments of the script `scripts.WRITE_OUTPUT` for one record."""
    key = text(record.key)
    packed = compress(record.output, above=_PLAIN, form=bytes)
    output = text(packed) if isinstance(packed, str) else packed
    # The script `scripts.OUTPUT_PAGE` expects that the attempt is the first field, and
    # `scripts.WRITE_OUTPUT` that `is_live` is written without spaces.
    head = {
        "attempt": record.attempt,
        "ended": record.ended,
        "dropped": record.dropped,
        "is_live": record.is_live,
        "is_gzip": packed is not record.output,
    }
    stored = b"%b\n%b" % (text(json.dumps(head, separators=(",", ":"))), output)
    yield key
    yield attempt_argument(record)
    yield record.ended
    yield len(stored) + len(key) + _RECORD
    yield stored


def attempt_argument(of: OutputRecord | RunningAttempt) -> bytes:
    """What identifies an attempt of a key: the scheduled time and the owner."""
    return text(f"{of.scheduled_time} {of.owner}")


def decode(key: str, number: bytes, attempt: bytes, stored: bytes) -> OutputRecord | None:
    """The record in an answer of `scripts.OUTPUT_PAGE`.

    Returns:
        The record; None if it cannot be read.
    """
    time, _, owner = attempt.decode(errors="replace").partition(" ")
    head, _, output = stored.partition(b"\n")
    try:
        found: dict[str, Any] = json.loads(head)
        unpacked: Any = decompress(output) if found["is_gzip"] else output
        return OutputRecord(
            key=key,
            scheduled_time=int(time),
            owner=owner,
            attempt=found["attempt"],
            ended=found["ended"],
            output=unpacked,
            dropped=found["dropped"],
            is_live=found["is_live"],
            id=whole(number),
        )
    except (ValueError, TypeError, KeyError):
        return None
