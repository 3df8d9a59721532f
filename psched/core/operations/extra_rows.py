"""The rows of extra runs, made from the row of their schedule.

The row of an extra run copies the schedule's type, data, time zone, ``alive_time`` and options. It
runs once, and does not expire unless the schedule itself runs only once, because an occurrence of a
schedule with a trigger does not expire either.
"""

from collections.abc import Mapping
from dataclasses import replace as changed
from datetime import UTC, datetime
from typing import Any

from psched.base import payload
from psched.base.errors import AlreadyFinishedError, InvalidError, NotFoundError
from psched.config import Config
from psched.core.columns import encode, parse_options, payload_text
from psched.core.declare import derive
from psched.core.definition import parse_row
from psched.core.model import BEING_DELETED, ENDING, MIGRATING, QUARANTINED, Row
from psched.core.operations.extra_runs import (
    OVERLAP_OPTION,
    SCHEDULE_OPTION,
    extra_key,
    schedule_of,
)

_ID_OF_INSTANT = "%Y%m%dT%H%M%SZ"


def id_of_instant(instant: int) -> str:
    """The identifier of the extra run that repeats a scheduled time, such as 20261125T023000Z."""
    return datetime.fromtimestamp(instant, UTC).strftime(_ID_OF_INSTANT)


def refuse_extra_runs(seen: Row) -> None:
    """Refuse a row of which there can be no extra runs."""
    key = seen.key
    if (schedule := schedule_of(key)) is not None:
        raise InvalidError(
            "key",
            f"{key!r} is an extra run of {schedule!r}; name {schedule!r}, or requeue the extra run"
            " when it has ended",
        )
    if seen.status in BEING_DELETED:
        raise NotFoundError(f"the schedule {key!r} is being deleted")
    if seen.status == QUARANTINED:
        why = f": {seen.reason}" if seen.reason else ""
        raise InvalidError(
            "key", f"{key!r} is quarantined{why}; correct the schedule, or requeue it, first"
        )
    if seen.status == MIGRATING:
        raise InvalidError("key", f"{key!r} is being moved here by psched migrate")
    if seen.status in ENDING:
        raise AlreadyFinishedError(
            f"{key!r} has no extra runs, because it is {seen.status}; requeue runs it again"
        )


def extra_row(
    seen: Row,
    id_: str,
    settings: Config,
    *,
    overlap: str,
    scheduled_time: int,
    run_at: int,
    data: Mapping[str, Any] | None = None,
    least_retention: int = 0,
) -> Row:
    """Create the row of an extra run."""
    fields: dict[str, Any] = {}
    if data is not None:
        fields |= {"data": data, payload.OPTION: None}
    if seen.cron is not None:
        fields["expire"] = 0
    row = derive(extra_key(seen.key, id_), seen, fields, settings)
    options = parse_options(row.options)
    if parse_row(row, settings).settings.retention_time < least_retention:
        options["retention_time"] = least_retention
    options |= {SCHEDULE_OPTION: seen.key, OVERLAP_OPTION: overlap}
    return changed(
        row,
        # The store compresses the text again if it is large.
        data=payload_text(row.data, settings.data_limit) if row.data else row.data,
        options=encode("options", options),
        next_time=scheduled_time,
        next_run_time=run_at,
    )
