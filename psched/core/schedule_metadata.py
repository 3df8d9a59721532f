"""The data of a schedule that a read returns, in the API for programs."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psched.base.compression import LARGEST
from psched.core.columns import note_of, parse_payload, raw_data
from psched.core.model import Row
from psched.triggers.zone import find_zone


@dataclass(frozen=True, slots=True)
class ScheduleMetadata:
    """The data of a schedule at the time when it was read.

    Attributes:
        row: all columns of the schedule, in their stored form.
        default_zone: the time zone of the settings.
    """

    row: Row
    default_zone: str = field(default="UTC", compare=False)

    def __repr__(self) -> str:
        # The payload is not shown, because this text is logged, and it can contain secrets.
        return f"<ScheduleMetadata {self.key} type={self.type!r} status={self.row.status}>"

    @property
    def key(self) -> str:
        """The schedule's unique name."""
        return self.row.key

    @property
    def type(self) -> str:
        """The type of the schedule's tasks, which selects their handler."""
        return self.row.type

    @property
    def data(self) -> dict[str, Any]:
        """The payload for the handler.

        Raises:
            InvalidError: the stored payload is not a JSON object.
        """
        return parse_payload(self.row.data, LARGEST)

    @property
    def raw_data(self) -> bytes:
        """The payload as it was submitted, byte for byte; see `Task.raw_data`.

        Raises:
            InvalidError: the stored payload is not a JSON object.
        """
        return raw_data(self.row)

    @property
    def cron(self) -> str | None:
        """The trigger's text; None if the schedule runs only once."""
        return self.row.cron

    @property
    def timezone(self) -> str | None:
        """The zone in which ``cron`` is interpreted; None means the zone in the settings."""
        return self.row.timezone

    @property
    def delay(self) -> int:
        """Seconds from an occurrence's scheduled time to its earliest run."""
        return self.row.delay

    @property
    def next_time(self) -> int | None:
        """The scheduled time in Unix seconds of the occurrence that runs now or next.

        None if there is none, or if no time has been computed yet.
        """
        return self.row.next_time

    @property
    def next_run_time(self) -> int | None:
        """The earliest instant in Unix seconds at which a worker can lease the schedule.

        While the task runs, this is the end of its lease; during a pause, the end of the pause.
        None if the schedule has no next run.
        """
        return self.row.next_run_time

    @property
    def next_scheduled_at(self) -> datetime | None:
        """``next_time`` as an aware datetime in the schedule's time zone.

        Raises:
            InvalidError: the stored time zone is unknown.
        """
        return self._local(self.next_time)

    @property
    def next_run_at(self) -> datetime | None:
        """``next_run_time`` as an aware datetime in the schedule's time zone.

        Raises:
            InvalidError: the stored time zone is unknown.
        """
        return self._local(self.next_run_time)

    def _local(self, instant: int | None) -> datetime | None:
        zone = find_zone(self.timezone or self.default_zone)
        return None if instant is None else zone.at(instant)

    @property
    def status(self) -> str:
        """The schedule's status.

        ``waiting`` or ``running``; ``finished``, ``cancelled``, ``expired`` or ``failed`` after its
        end; ``quarantined`` if it is invalid, or ``paused``; ``deleting``, ``cancelling`` or
        ``finishing`` while its task is being stopped; ``migrating`` during `psched migrate`.
        """
        return self.row.state

    @property
    def attempt(self) -> int:
        """The number of attempts so far for the occurrence that runs now or next."""
        return self.row.attempt

    @property
    def created_at(self) -> int | None:
        """When the schedule was added, in Unix seconds; None if plain SQL inserted no time."""
        return self.row.created_at

    @property
    def label(self) -> str | None:
        """The name of the schedule's owner, see `psched.files`; None if there is none."""
        return self.row.label

    @property
    def note(self) -> str | None:
        """Free text about the schedule; None if there is none."""
        return note_of(self.row)

    @property
    def reason(self) -> str | None:
        """Why the schedule has no next run, or what was last decided about it; None for no text."""
        return self.row.reason

    @property
    def reason_code(self) -> str | None:
        """The `psched.core.model.ReasonCode` of `reason`, for programs; None for no code."""
        return self.row.reason_code

    @property
    def paused_until(self) -> int | None:
        """When the schedule is resumed, in Unix seconds.

        None if it is not paused, or paused until somebody resumes it.
        """
        pause = self.row.pause
        return None if pause is None else pause.until
