"""What a change by hand does to the next runs of a schedule."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psched.core.history.records import Skipped
from psched.core.preview import UpcomingTime

SHOWN = 3
"""The number of the next runs that `Rescheduled` has."""


class Changed(NamedTuple):
    """The change of a field of a schedule's definition; None means the default, or no value."""

    old: Any
    new: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescheduled:
    """What a change does to a schedule; what it would do, if nothing was changed (``dry_run``).

    Attributes:
        key: the key of the schedule.
        before: its next three runs before the change, beginning with the one that is due or
            running. They are empty if they could not be computed.
        after: its next three runs after the change.
        changes: the fields of its definition that were changed, by their names.
        skipped: the occurrences that were skipped; None if none was.
    """

    key: str
    before: Sequence[UpcomingTime]
    after: Sequence[UpcomingTime]
    changes: Mapping[str, Changed] = field(default_factory=dict)
    skipped: Skipped | None = None
