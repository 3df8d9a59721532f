"""The arguments of a collection's methods: their checks, conversions, and most likely mistakes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from psched.base.errors import InvalidError
from psched.base.quantities import DURATIONS, as_seconds
from psched.client.access import stored_key
from psched.core.columns import LATEST_TIME
from psched.core.model import DEFAULT_TYPE
from psched.core.operations.extra_runs import random_id
from psched.core.schedule import Since

_LONGEST_AGE = 10**9
"""A number from here on is a time in Unix seconds; a smaller one is an age of up to 31 years."""

_PUSHED = {"run_at": "next_time", "timeout": "alive_time"}
"""For each argument of `ScheduleCollection.push` that has a name from PerfectQueue: the field of
the schedule that the argument sets."""

_FIELD = re.compile(r"(?P<task>schedules\[(?P<number>[0-9]+)\]\.)?(?P<field>\w+)")
"""The ``field`` of an error about a task, which may be one of several."""

_RECURRING = frozenset({"cron", "every", "trigger"})
"""Arguments that only `ScheduleCollection.add` accepts."""

_SPECIAL = _RECURRING | {*_PUSHED}

WITHOUT_TYPE = (
    f"no type is given, so the task's type is {DEFAULT_TYPE!r}, and the settings name no handler"
    " for it (dispatch, exec or script); give the type of a handler, as in push('KEY', 'TYPE',"
    f" data={{…}}), or {DEFAULT_TYPE!r} if a handler has this type"
)
"""The warning about a task without a type. It does not name the task, so that Python shows it once
for each line of a program, and not once for each task."""

_ID_LENGTH = 24
"""The length of the identifier in a key. 15 of its characters are random, so that none of a million
keys that are made in the same millisecond is made twice."""

_KEY_OF_TYPE = 200
"""How many characters of the type such a key begins with, so that it fits into its column."""


def earliest(since: Since, now: Callable[[], float]) -> int:
    """The earliest time that is meant by an argument ``since``, in Unix milliseconds."""
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise InvalidError(
                "since",
                "is a datetime without a zone; give it one: tzinfo=ZoneInfo('Europe/Paris')",
            )
        return round(since.timestamp() * 1000)
    seconds: Any = as_seconds(since)
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 <= seconds <= LATEST_TIME:
        raise InvalidError(
            "since",
            f"must be an age ({DURATIONS}, a timedelta, or a number of seconds), a datetime or"
            f" Unix seconds, not {since!r}",
        )
    if isinstance(since, str | timedelta) or seconds < _LONGEST_AGE:
        seconds = now() - seconds
    return int(seconds * 1000)


def chosen_key(key: str | None) -> str | None:
    """Return the argument ``key`` of a method that selects records; None means every key."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise InvalidError("key", f"must be a text, not {key!r}")
    return stored_key(key)


# --- of a push ------------------------------------------------------------------------------


def new_key(type_: object, now: float, nonce: str) -> str:
    """Make a key for a task that is pushed without one: its type and a new identifier.

    The keys of one type are sorted by the times of the pushes.
    """
    shown = str(DEFAULT_TYPE if type_ is None else type_)[:_KEY_OF_TYPE]
    return f"{shown}-{random_id(now, nonce, length=_ID_LENGTH)}"


def data_as_type(method: str, key: str | None, data: object) -> InvalidError:
    """The error about data where a method expects the type."""
    return InvalidError(
        "type",
        f"must be a text, not {type(data).__name__}; the type stands before the data:"
        f" {method}({key or 'KEY'!r}, 'TYPE', data={{…}})",
    )


def lacks_type(task: object) -> bool:
    """Whether a mapping of the arguments of `ScheduleCollection.push` gives no type."""
    return isinstance(task, Mapping) and task.get("type") is None


def fields_of_push(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert arguments of `ScheduleCollection.push` to arguments of `ScheduleCollection.add`."""
    if not isinstance(task, Mapping):
        return task  # `declare_all` refuses it, with an error that contains its number in the list
    if _SPECIAL.isdisjoint(task):
        return task
    given = {name for name, value in task.items() if value is not None}
    if recurring := given & _RECURRING:
        raise InvalidError(
            min(recurring), "is for schedules, which run repeatedly; call add, not push"
        )
    for argument, field in _PUSHED.items():
        if {argument, field} <= given:
            raise InvalidError(argument, f"and {field} say the same; leave one out")
    return {_PUSHED.get(name, name): value for name, value in task.items()}


@contextmanager
def naming_arguments(tasks: Sequence[object]) -> Iterator[None]:
    """Name in errors the argument that was given, and not the field that it sets."""
    try:
        yield
    except InvalidError as error:
        found = _FIELD.fullmatch(error.field)
        task = tasks[int(found["number"] or 0)] if found else None
        if found and isinstance(task, Mapping):
            for argument, field in _PUSHED.items():
                if field == found["field"] and task.get(argument) is not None:
                    name = f"{found['task'] or ''}{argument}"
                    raise InvalidError(name, error.problem) from None
        raise
