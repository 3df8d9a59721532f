"""What a change by hand does to the next runs of a schedule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.definition import parse_row
from psched.core.history.records import Skipped
from psched.core.model import PAUSED, WAITING, Row
from psched.core.operations.changes.fields import Changed
from psched.core.preview import UpcomingTime, upcoming_occurrences

SHOWN = 3
"""The number of the next runs that `Rescheduled` has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescheduled:
    """What a change does to a schedule; what it would do, if nothing was changed (``dry_run``).

    Attributes:
        key: the key of the schedule.
        status: its status after the change, see `psched.core.schedule_metadata`.
        before: its next three runs before the change, beginning with the one that is due or
            running. They are empty if there are none, or if they could not be computed. Those of a
            paused schedule begin with the oldest one that was not decided before the pause.
        after: its next three runs after the change.
        changes: the fields of its definition that were changed, by their names.
        skipped: the occurrences that were skipped; None if none was.
    """

    key: str
    status: str
    before: Sequence[UpcomingTime]
    after: Sequence[UpcomingTime]
    changes: Mapping[str, Changed] = field(default_factory=dict)
    skipped: Skipped | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether the schedule is the same after the change."""
        return not self.changes and self.skipped is None and self.before == self.after


def next_runs(row: Row, settings: Config, now: float) -> Sequence[UpcomingTime]:
    """The next runs of a schedule, see `Rescheduled`."""
    try:
        definition = parse_row(row, settings)
        if row.status == PAUSED and row.owner is None and row.next_time is not None:
            # The attempt keeps the catch-up policy out, which is not applied during the pause.
            run_at = definition.first_run(row.next_time)
            row = changed(row, status=WAITING, next_run_time=run_at, attempt=1)
        return upcoming_occurrences(row, definition, SHOWN, now)
    except InvalidError:
        return ()
