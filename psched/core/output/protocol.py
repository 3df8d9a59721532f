"""The part of a store that keeps what attempts have printed."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from psched.core.output.records import OutputRecord, RunningAttempt


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
