"""The capability of a store to keep what attempts have printed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from psched.core.output.records import OutputRecord


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


@runtime_checkable
class KeepsOutput(Protocol):
    """A capability of a `psched.core.store_protocol.Store`: it keeps what attempts have printed.

    Every method can raise the exceptions of the methods of a store. If `output_problem` returns a
    problem, the workers call no other method of this protocol, and the others may raise a
    `psched.errors.SchemaError`.
    """

    def output_problem(self) -> str | None:
        """Why no output is kept, for example because the table does not exist; None if it is."""
        ...

    def write_output(self, records: Sequence[OutputRecord]) -> None:
        """Insert records. A record of the same attempt is replaced."""
        ...

    def outputs(self, selection: OutputSelection) -> Iterator[OutputRecord]:
        """The records of a selection, the newest first."""
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
