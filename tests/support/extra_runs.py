"""Extra runs of schedules, for tests of what a worker does with them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from psched.client.access import insert
from psched.client.collection import ScheduleCollection
from psched.core.columns import parse_options
from psched.core.model import Row
from psched.core.operations.extra_runs import QUEUE, extra_key, schedule_of
from support.run_log import Run

LONG_AGO = 1_000_000_000
"""Unix seconds; a row of this time is due."""


def extra_row(schedule: Row, number: int = 0, *, at: int, overlap: str = QUEUE, **more: Any) -> Row:
    """The row of an extra run that is due at an instant."""
    options = {**parse_options(schedule.options), "schedule": schedule.key, "overlap": overlap}
    return Row(
        key=extra_key(schedule.key, f"{number:016d}"),
        type=schedule.type,
        data=schedule.data,
        timezone=schedule.timezone,
        alive_time=schedule.alive_time,
        options=json.dumps({**options, **more}),
        next_time=at,
        next_run_time=at,
    )


def add_extra_runs(
    schedules: ScheduleCollection,
    key: str,
    count: int = 1,
    *,
    at: int = LONG_AGO,
    first: int = 0,
    overlap: str = QUEUE,
    **more: Any,
) -> Sequence[str]:
    """Add extra runs of a schedule; their keys."""
    schedule = schedules.read(key).row
    numbers = range(first, first + count)
    rows = [extra_row(schedule, each, at=at, overlap=overlap, **more) for each in numbers]
    insert(schedules.access, rows)
    return [row.key for row in rows]


def by_schedule(runs: Iterable[Run]) -> list[Run]:
    """The runs, each with the key of its schedule, also those of extra runs."""
    return [replace(run, key=schedule_of(run.key) or run.key) for run in runs]
