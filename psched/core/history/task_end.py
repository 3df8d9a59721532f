"""How a task has ended, in the API for programs."""

from dataclasses import dataclass
from typing import Any

from psched.core.history.run import Run
from psched.core.model import Row


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
