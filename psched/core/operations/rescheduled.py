"""What a change by hand does to the next runs of a schedule."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any, NamedTuple

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.columns import decode, parse_options
from psched.core.declare import FIELDS, alive_time_of
from psched.core.definition import parse_row
from psched.core.history.records import Skipped
from psched.core.model import PAUSED, WAITING, Row
from psched.core.preview import UpcomingTime, upcoming_occurrences


class Changed(NamedTuple):
    """The change of a field of a schedule's definition; None means the default, or no value."""

    old: Any
    new: Any


def changes_of(old: Row, new: Row, settings: Config) -> dict[str, Changed]:
    """The fields in which two rows of a schedule differ, by their names.

    ``next_time`` is among them if the schedule runs only once.
    """
    before, after = fields_of(old, settings), fields_of(new, settings)
    if new.cron is None:
        before["next_time"], after["next_time"] = old.next_time, new.next_time
    return {
        name: Changed(before.get(name), value)
        for name, value in after.items()
        if not is_same(before.get(name), value)
    }


def fields_of(row: Row, settings: Config) -> dict[str, Any]:
    """All fields of a row; a field without a value has its default.

    Data that cannot be decoded are returned as they are stored.
    """
    options = _options(row)
    fields = {name: getattr(row, name, options.get(name)) for name in FIELDS}
    fields["data"] = _readable("data", row.data)
    fields["timezone"] = row.timezone or settings.timezone
    if row.alive_time == alive_time_of(row.type, settings):
        fields["alive_time"] = None
    return fields


def _options(row: Row) -> Mapping[str, Any]:
    try:
        return parse_options(row.options)
    except InvalidError:
        return {}


def _readable(name: str, stored: str | bytes | None) -> dict[str, Any] | str | bytes:
    try:
        return decode(name, stored) if stored else {}
    except InvalidError:
        return stored or {}


def is_same(one: object, other: object) -> bool:
    """Whether two values are equal as JSON. Python's == is not used, because True == 1 there."""
    return _canonical(one) == _canonical(other)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=repr)


SHOWN = 3
"""The number of the next runs that `Rescheduled` has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescheduled:
    """What a change does to a schedule; what it would do, if nothing was changed (``dry_run``).

    Attributes:
        key: the key of the schedule.
        status: its status after the change, see `psched.core.schedule`.
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
