"""What attempts have printed: the records, what programs get of them, and the part of a store."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from psched.triggers.zone import find_zone

KEPT = frozenset({"both", "history"})
"""The values of the setting ``output`` with which the store keeps what tasks print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAttempt:
    """An attempt that runs, whose output somebody may ask for.

    Attributes:
        key: the key of the schedule.
        scheduled_time: the scheduled time of the occurrence, in Unix seconds.
        owner: the owner of the lease, see `psched.core.model.Token`.
        attempt: the number of the attempt, from 1.
    """

    key: str
    scheduled_time: int
    owner: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecord:
    """What one attempt has printed; its fields are the columns of ``<table>_output``.

    Key, ``scheduled_time`` and ``owner`` identify the attempt, as in the run history.

    Attributes:
        key: the key of the schedule.
        scheduled_time: the scheduled time of the occurrence, in Unix seconds.
        owner: the owner of the lease, see `psched.core.model.Token`.
        attempt: the number of the attempt, from 1.
        ended: when the attempt ended, in milliseconds of the store's clock. For the output so far
            of a running attempt: when it was written.
        output: the last bytes of standard output and standard error, in their order.
        dropped: the number of bytes before these; None if output was lost.
        is_live: whether the attempt was running when this was written.
        id: the number that the store gave the record; later records have larger numbers. None
            before it is stored.
    """

    key: str
    scheduled_time: int
    owner: str
    attempt: int
    ended: int
    output: bytes
    dropped: int | None = 0
    is_live: bool = False
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """What one attempt has printed: the end of its standard output and standard error, in order.

    It contains what the programs that it started have printed, and what was logged in its process.
    ``ended`` is a time of the store's clock. No value is redacted.

    Attributes:
        record: all fields of the record, in their stored form.
        zone: the time zone of ``scheduled_at``.
    """

    record: OutputRecord
    zone: str = field(default="UTC", compare=False)

    def __repr__(self) -> str:
        # What was printed is not shown, because this text is logged.
        occurrence = f"{self.key}.{self.scheduled_time}"
        return f"<Output {occurrence} attempt={self.attempt} bytes={len(self.raw)}>"

    @property
    def key(self) -> str:
        """The key of the schedule, which may have been deleted since."""
        return self.record.key

    @property
    def scheduled_time(self) -> int:
        """The scheduled time of the occurrence, in Unix seconds."""
        return self.record.scheduled_time

    @property
    def scheduled_at(self) -> datetime:
        """``scheduled_time`` as an aware datetime.

        It is in the time zone of the settings, because the record does not contain that of the
        schedule, which may have been deleted or changed since.
        """
        return find_zone(self.zone).at(self.scheduled_time)

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return self.record.attempt

    @property
    def ended(self) -> float:
        """When the attempt ended, in Unix seconds; if ``is_live``, when this was written."""
        return self.record.ended / 1000

    @property
    def is_live(self) -> bool:
        """Whether the attempt was running when this was written, so that more may follow."""
        return self.record.is_live

    @property
    def dropped(self) -> int | None:
        """The number of bytes before these that were not kept; None if the output is lost."""
        return self.record.dropped

    @property
    def raw(self) -> bytes:
        """The bytes that were printed."""
        return self.record.output

    @property
    def text(self) -> str:
        """The bytes as UTF-8 text. What is not UTF-8 is replaced by U+FFFD."""
        return self.raw.decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSelection:
    """The records that `KeepsOutput.outputs` returns: those that fulfil everything.

    Attributes:
        key: the key of the schedule.
        scheduled_time: the scheduled time of the occurrence; None means every occurrence.
        attempt: the number of the attempt; None means every attempt.
        limit: the largest number of records; None means no limit.
    """

    key: str
    scheduled_time: int | None = None
    attempt: int | None = None
    limit: int | None = None


class KeepsOutput(Protocol):
    """The attribute ``output`` of a `psched.core.store_protocol.Store`: what attempts have printed.

    Every method can raise the exceptions of the methods of a store. If `problem` returns a problem,
    the workers call no other method of this protocol, and the others may raise a
    `psched.errors.SchemaError`.
    """

    def problem(self) -> str | None:
        """Why no output is kept, for example because the table does not exist; None if it is."""
        ...

    def write_output(self, records: Sequence[OutputRecord]) -> None:
        """Insert records. A record of the same attempt is replaced."""
        ...

    def outputs(self, selection: OutputSelection) -> Iterator[OutputRecord]:
        """The records of a selection, the newest first.

        Those of running attempts that contain no output are left out.
        """
        ...

    def output_of(self, attempt: RunningAttempt) -> OutputRecord | None:
        """The record of one attempt, also if it contains no output.

        Returns:
            The record; None if nothing was written. A request for output is no record.
        """
        ...

    def ask_for_output(self, attempt: RunningAttempt, *, now: int, until: int) -> bool:
        """Ask the worker that runs an attempt to write what it prints, by `write_live_output`.

        It has no effect if `write_output` has written the attempt's record already.

        Args:
            attempt: the attempt.
            now: the time of the store's clock, in milliseconds.
            until: until when the output is read, in milliseconds of the store's clock. An earlier
                request that ends later stays.

        Returns:
            Whether the output was asked for already at this time.
        """
        ...

    def asked_output(
        self, attempts: Sequence[RunningAttempt], now: int
    ) -> AbstractSet[RunningAttempt]:
        """Those of these attempts whose output somebody reads now.

        Workers call this every few seconds while tasks run, so it must be cheap.

        Args:
            attempts: the attempts, at most as many as one worker runs.
            now: the time of the store's clock, in milliseconds.
        """
        ...

    def write_live_output(self, records: Sequence[OutputRecord]) -> None:
        """Write what running attempts have printed so far. Requests stay as they are.

        Only output that was asked for is written; a record that `write_output` has written for the
        same attempt stays.
        """
        ...

    def trim_output(self, *, before: int, budget: int, limit: int) -> int:
        """Delete the oldest records.

        Args:
            before: those that ended before this time are deleted, in milliseconds.
            budget: as many of the oldest are deleted that the others take at most about this many
                bytes.
            limit: the largest number of records to delete in one call.

        Returns:
            The number of deleted records.
        """
        ...
