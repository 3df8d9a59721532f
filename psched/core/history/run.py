"""One record of the run history, and the end of a task, in the API for programs."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psched.base.errors import InvalidError
from psched.core.history.records import FOREVER, RunRecord
from psched.core.model import Row
from psched.triggers.zone import find_zone


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt, or what became of occurrences that did not run.

    ``started``, ``ended`` and ``due`` are times of the store's clock; `psched.core.history.records`
    says how exact they are. No value is redacted.

    Attributes:
        record: all fields of the record, in their stored form.
        zone: the time zone of ``scheduled_at``.
    """

    record: RunRecord
    zone: str = field(default="UTC", compare=False)

    def __repr__(self) -> str:
        # A traceback and a result are not shown, because this text is logged.
        words = [self.outcome, self.record.fate]
        shown = " ".join(word for word in words if word)
        return f"<Run {self.key}.{self.scheduled_time} attempt={self.attempt} {shown}>"

    @property
    def key(self) -> str:
        """The key of the schedule, which may have been deleted since."""
        return self.record.key

    @property
    def type(self) -> str:
        """The type that the schedule had."""
        return self.record.type

    @property
    def label(self) -> str | None:
        """The label that the schedule had; None if it had none."""
        return self.record.label

    @property
    def scheduled_time(self) -> int:
        """The scheduled time of the occurrence, or of the first one of a span, in Unix seconds."""
        return self.record.scheduled_time

    @property
    def scheduled_at(self) -> datetime:
        """``scheduled_time`` as an aware datetime.

        It is in the time zone of the settings, because the record does not contain that of the
        schedule. The run of a `TaskEnd` has the time zone of its task.
        """
        return find_zone(self.zone).at(self.scheduled_time)

    @property
    def until(self) -> int | None:
        """The scheduled time of the last occurrence of a span, in Unix seconds.

        None if the record is about one occurrence (``count`` is 1), or if the span has no end
        (``count`` is None).
        """
        return None if self.record.until == FOREVER else self.record.until

    @property
    def count(self) -> int | None:
        """The number of occurrences; None if they are more than were counted."""
        return self.record.count

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1; 0 if nothing ran."""
        return self.record.attempt

    @property
    def outcome(self) -> str | None:
        """How the attempt ended, a value of `psched.core.history.records.Outcome`.

        None if nothing ran.
        """
        return self.record.outcome

    @property
    def fate(self) -> str | None:
        """What became of the occurrences, a value of `psched.core.history.records.Fate`.

        None if the occurrence will be tried again.
        """
        return self.record.fate

    @property
    def due(self) -> float | None:
        """Since when a worker could have started it, in Unix seconds; None if not known."""
        return _seconds(self.record.due)

    @property
    def started(self) -> float | None:
        """When the attempt started, in Unix seconds; None if nothing ran, or if not known."""
        return _seconds(self.record.started)

    @property
    def ended(self) -> float:
        """When the attempt ended, or the decision was made, in Unix seconds."""
        return self.record.ended / 1000

    @property
    def took(self) -> float | None:
        """The seconds from start to end; None if nothing ran, or the start is not known."""
        return self.record.took

    @property
    def exit_status(self) -> int | None:
        """The exit status of the program or process that ran it; None if not known."""
        return self.record.exit_status

    @property
    def exit_signal(self) -> int | None:
        """The number of the signal that ended that program or process; None if none did."""
        return self.record.exit_signal

    @property
    def cpu_time(self) -> float | None:
        """The CPU time of all its processes, in seconds; None if not known."""
        return _seconds(self.record.cpu_ms)

    @property
    def peak_memory(self) -> int | None:
        """The most memory that it used at one time, in bytes; None if not known."""
        return None if self.record.peak_kb is None else self.record.peak_kb * 1024

    @property
    def out_of_memory(self) -> bool:
        """Whether it was probably killed because memory ran out."""
        return self.record.out_of_memory

    @property
    def host(self) -> str | None:
        """The name of the worker's host; None if not known."""
        return self.record.host

    @property
    def pid(self) -> int | None:
        """The id of the process that ran it; None if not known."""
        return self.record.pid

    @property
    def generation(self) -> int | None:
        """The number of the worker's generation; None if not known."""
        return self.record.generation

    @property
    def reason(self) -> str | None:
        """What went wrong, or why nothing ran, in one line; None if there is nothing to say."""
        return self.record.reason

    @property
    def reason_code(self) -> str | None:
        """The `psched.core.model.ReasonCode` of what was decided about the schedule, or None."""
        return self.record.reason_code

    @property
    def error(self) -> str | None:
        """The error with its traceback, which may have been cut; None if there was none."""
        return self.record.error

    @property
    def result(self) -> Any:  # noqa: ANN401  # of JSON
        """The value that the task has assigned to `Task.result`; None if there is none.

        Raises:
            InvalidError: the stored result is not JSON.
        """
        if self.record.result is None:
            return None
        try:
            return json.loads(self.record.result)
        except (ValueError, RecursionError) as error:
            raise InvalidError("result", f"is not JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """The end of a schedule that runs only once.

    Attributes:
        row: all columns of the schedule after its end, in their stored form.
        run: the record of its last attempt; None if nothing ran, or if the run history does not
            contain the attempt (see the setting ``history``) or cannot be read.
    """

    row: Row
    run: Run | None

    def __repr__(self) -> str:
        # Neither the payload nor a traceback is shown, because this text is logged, and they can
        # contain secrets.
        reason = f": {self.reason}" if self.reason else ""
        return f"<TaskEnd {self.row.key} {self.status}{reason}>"

    @property
    def status(self) -> str:
        """One of ``finished``, ``cancelled``, ``expired``, ``failed`` and ``quarantined``."""
        return self.row.status

    @property
    def reason(self) -> str | None:
        """Why the schedule has ended, or what was last decided about it; None for no text."""
        return self.row.reason

    @property
    def result(self) -> Any:  # noqa: ANN401  # of JSON
        """The result of the last attempt, see `psched.Task.result`; None if none is known.

        Raises:
            InvalidError: the stored result is not JSON.
        """
        return None if self.run is None else self.run.result


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
