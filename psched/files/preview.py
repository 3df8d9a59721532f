"""Computes the next runs of a schedule, before and after a change. Reads no clock."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.declare import TRIGGER_FIELDS
from psched.core.definition import parse_row
from psched.core.model import QUARANTINED, STOPPING, WAITING, Row
from psched.files.plan import Item
from psched.triggers import trigger as triggers

COUNT = 3
"""The number of runs that are shown."""

_RESTARTING = TRIGGER_FIELDS | {"next_time"}
"""Changing one of these fields recomputes the next run; see `psched.core.declare.redeclare`."""


class NextRuns(NamedTuple):
    """The next runs of a schedule in Unix seconds, or why there are none."""

    instants: Sequence[int]
    problem: str = ""


def before(item: Item, settings: Config) -> NextRuns | None:
    """The next runs of an existing schedule; None if the schedule does not exist yet."""
    row = item.found
    if row is None:
        return None
    if row.status not in {WAITING, STOPPING} or row.next_time is None:
        return NextRuns([], "none: it is " + row.state)
    return _next_runs(row, row.next_time, settings)


def after(item: Item, settings: Config, now: float) -> NextRuns | None:
    """The next runs after a plan has been applied; None if the schedule is no longer declared."""
    wanted, found = item.wanted, item.found
    if wanted is None:
        return None
    restarts = not _RESTARTING.isdisjoint(change.field for change in item.changes)
    if found is not None and not restarts:
        if found.status == QUARANTINED and item.changes and found.next_time is not None:
            # Show runs from the stored time on, because the change ends the quarantine.
            return _next_runs(wanted, found.next_time, settings)
        return before(item, settings)
    start = item.fields.get("next_time", ceil(now)) if found is None else ceil(now)
    if wanted.cron is None and wanted.next_time is not None:
        start = wanted.next_time
    if not isinstance(start, int):
        start = ceil(start.timestamp())
    return _next_runs(wanted, start, settings)


def _next_runs(row: Row, start: int, settings: Config) -> NextRuns:
    """The next runs at or after ``start``, in Unix seconds; at most `COUNT` runs."""
    try:
        definition = parse_row(row, settings)
    except InvalidError as error:
        return NextRuns([], f"unknown: {error}")
    trigger = definition.trigger
    if trigger is None:
        return NextRuns([start])
    instants = list[int]()
    instant = triggers.first(trigger, start)
    while instant is not None and len(instants) < COUNT:
        instants.append(instant)
        instant = trigger.next_after(instant)
    return NextRuns(instants, "none")
