"""The arguments of `ScheduleCollection.push`: their conversion, and their most likely mistakes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from psched.base.errors import InvalidError
from psched.core.model import DEFAULT_TYPE
from psched.core.operations.extra_rows import random_id

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


def new_key(type_: object, now: float, nonce: str) -> str:
    """Make a key for a task that is pushed without one: its type and a new identifier.

    The keys of one type are sorted by the times of the pushes.
    """
    shown = str(DEFAULT_TYPE if type_ is None else type_)[:_KEY_OF_TYPE]
    return f"{shown}-{random_id(now, nonce, length=_ID_LENGTH)}"


def refuse_data_as_type(method: str, key: str | None, type_: object) -> None:
    """Refuse data where a method expects the type."""
    if isinstance(type_, Mapping):
        raise InvalidError(
            "type",
            f"must be a text, not {type(type_).__name__}; the type stands before the data:"
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
