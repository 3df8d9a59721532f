"""What attempts have printed, in Redis, beside the rows.

A text is a JSON object, a line feed and the output, which is compressed if the field ``is_gzip`` is
true. The layout of the data is described in ``lua/prelude.lua``.
"""

import json
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from typing_extensions import override

from psched.base.compression import compress, decompress
from psched.config import Config
from psched.core.output import KeepsOutput, OutputRecord, OutputSelection, RunningAttempt
from psched.stores.pages import Page, Pages
from psched.stores.redis.connector import Connector
from psched.stores.redis.encoding import Argument, decoded, optional_number, text, whole
from psched.stores.redis.errors import MemoryFullError
from psched.stores.redis.side_store import TRIMMED, Losses, SideStore, batches

_PAGE = 20
"""The most records that one run of a script returns: few, because they can be large."""

_PLAIN = 1000
"""Output of at most so many bytes is not compressed, so that redis-cli can show it."""

_RECORD = 550
"""About the bytes that a record takes in the server's memory besides its text and its key."""


class RedisOutput(SideStore, KeepsOutput):
    """Keeps what attempts have printed, as `KeepsOutput` describes."""

    part = "output"

    def __init__(self, connector: Connector, settings: Config) -> None:
        super().__init__(connector)
        self._limits = (
            settings.output_keep,
            settings.history_keep_per_key,
            settings.output_budget,
        )
        self._losses = Losses("outputs of attempts")

    @override
    def write_output(self, records: Sequence[OutputRecord]) -> None:
        # The newest records of each key are kept, as many as the run history keeps. If the server's
        # memory is full, the records are lost. This is only logged, because an exception would make
        # a worker try again before it deletes old output.
        self._write_output(records, running=False)

    @override
    def write_live_output(self, records: Sequence[OutputRecord]) -> None:
        self._write_output(records, running=True)

    def _write_output(self, records: Sequence[OutputRecord], *, running: bool) -> None:
        for batch in batches(records, lambda record: len(record.output)):
            lost, reason = 0, b""
            try:
                self._connector.run(
                    "write_output",
                    *self._limits,
                    int(running),
                    *(each for record in batch for each in _arguments(record)),
                )
            except MemoryFullError as error:
                lost, reason = len(batch), str(error).encode()
            self._losses.note(lost, reason)

    @override
    def outputs(self, selection: OutputSelection) -> Iterator[OutputRecord]:
        key = text(selection.key)
        wanted = tuple(map(optional_number, (selection.scheduled_time, selection.attempt)))

        def read(place: Argument, most: int) -> Page[OutputRecord]:
            after, found = self._connector.run("output_page", key, place, most, *wanted)
            records = (_decode(selection.key, *each) for each in found)
            return Page([each for each in records if each and _is_shown(each)], after)

        return Pages(read, selection.limit, _PAGE, moves=True)

    @override
    def output_of(self, attempt: RunningAttempt) -> OutputRecord | None:
        named = text(attempt.key), _attempt_argument(attempt)
        found = self._connector.run("output_of", *named)
        return _decode(attempt.key, *found) if found else None

    @override
    def ask_for_output(self, attempt: RunningAttempt, *, now: int, until: int) -> bool:
        named = text(attempt.key), _attempt_argument(attempt)
        return bool(self._connector.run("ask_output", *named, now, until))

    @override
    def asked_output(
        self, attempts: Sequence[RunningAttempt], now: int
    ) -> AbstractSet[RunningAttempt]:
        if not attempts:
            return frozenset()
        named = (
            argument
            for attempt in attempts
            for argument in (text(attempt.key), _attempt_argument(attempt))
        )
        found = self._connector.run("asked_output", now, *named)
        return {attempts[place] for place in found}

    @override
    def trim_output(self, *, before: int, budget: int, limit: int) -> int:
        # The budget is at most a quarter of the server's ``maxmemory``. If `limit` is large, a call
        # deletes fewer records.
        most = min(limit, TRIMMED)
        return int(self._connector.run("trim_output", before, budget, most))


def _is_shown(record: OutputRecord) -> bool:
    return bool(record.output) or not record.is_live


def _arguments(record: OutputRecord) -> Iterator[Argument]:
    """The arguments of the script ``write_output`` for one record."""
    key = text(record.key)
    packed = compress(record.output, above=_PLAIN, form=bytes)
    output = text(packed) if isinstance(packed, str) else packed
    # The script ``output_page`` expects that the attempt is the first field, and
    # ``write_output`` that `is_live` is written without spaces.
    head = {
        "attempt": record.attempt,
        "ended": record.ended,
        "dropped": record.dropped,
        "is_live": record.is_live,
        "is_gzip": packed is not record.output,
    }
    stored = b"%b\n%b" % (text(json.dumps(head, separators=(",", ":"))), output)
    yield key
    yield _attempt_argument(record)
    yield record.ended
    yield len(stored) + len(key) + _RECORD
    yield stored


def _attempt_argument(of: OutputRecord | RunningAttempt) -> bytes:
    """What identifies an attempt of a key: the scheduled time and the owner."""
    return text(f"{of.scheduled_time} {of.owner}")


def _decode(key: str, number: bytes, attempt: bytes, stored: bytes) -> OutputRecord | None:
    """The record in an answer of ``output_page``; None if it cannot be read."""
    time, _, owner = decoded(attempt).partition(" ")
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
