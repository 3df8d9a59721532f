"""What one attempt has printed, in the API for programs."""

from dataclasses import dataclass, field
from datetime import datetime

from psched.core.output.records import OutputRecord
from psched.triggers.zone import find_zone


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
