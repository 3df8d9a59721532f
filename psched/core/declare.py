"""Declarations: conversion of the fields that a caller gives for a schedule into its row."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as changed
from functools import cache
from math import ceil, floor
from typing import Any, TypeGuard

from psched.base import payload
from psched.base.errors import ConfigError, InvalidError
from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.config import OVERRIDES, Config
from psched.core import shorthands
from psched.core.columns import (
    LATEST_TIME,
    check_name,
    check_number,
    check_payload_form,
    check_text,
    encode,
    parse_options,
    parse_payload,
)
from psched.core.definition import Definition, parse_row
from psched.core.model import ENDED, PAUSED, WAITING, Row
from psched.core.shorthands import SHORTHANDS, expand_shorthands
from psched.triggers import trigger as triggers

When = shorthands.When
"""An instant: Unix seconds, or an aware datetime."""

OTHER_OPTIONS = {"label": check_name, "note": check_text, payload.OPTION: check_payload_form}
"""Options that are not settings, and the functions that check them.

``label`` is the owner of a schedule, ``note`` is free text, and ``payload`` says how its data wrap
a payload that is not a JSON object.
"""

FIELDS = ("type", "data", "cron", "timezone", "delay", "alive_time", *OVERRIDES, *OTHER_OPTIONS)
"""The fields of a schedule's definition, besides its key."""

TIMES = ("next_time", "next_run_time")

_TRIGGER = frozenset({"cron", "timezone", "dst_policy"})
"""If one of these changes, the next occurrence is computed anew."""

_DELAYS = frozenset({"delay", "jitter"})
"""If one of these changes, the time of the next run is computed anew."""


def declare(key: str, fields: Mapping[str, Any], settings: Config, now: Callable[[], float]) -> Row:
    """A new schedule's row.

    Args:
        key: unique name.
        fields: any of `FIELDS`, `SHORTHANDS` and `TIMES`; None means the default.
        settings: the installation's settings.
        now: the store's clock, which is called only if no start is given.

    Raises:
        InvalidError: a value is invalid; ``field`` is its name.
    """
    check_name("key", key)
    _refuse_unknown(fields)
    given = {name: value for name, value in fields.items() if value is not None}
    fields = expand_shorthands(key, given)
    row, definition = _redefined(Row(key=key, timezone=settings.timezone), fields, settings)
    start = _instant(fields, "next_time")
    next_time = _first(definition, now() if start is None else start)
    run_at = _instant(fields, "next_run_time")
    return changed(
        row,
        next_time=next_time,
        next_run_time=definition.first_run(next_time) if run_at is None else run_at,
    )


def declare_all(
    schedules: Iterable[Mapping[str, Any]], settings: Config, now: Callable[[], float]
) -> Sequence[Row]:
    """The rows of many new schedules.

    Args:
        schedules: the ``key`` of each, and any fields that `declare` takes.
        settings: the installation's settings.
        now: the store's clock, which is called once at most.

    Raises:
        InvalidError: a value is invalid; ``field`` is its name, such as ``schedules[17].cron``.
    """
    now, places = cache(now), dict[str, int]()
    rows = []
    for place, schedule in enumerate(schedules):
        name = f"schedules[{place}]"
        if not isinstance(schedule, Mapping):
            raise InvalidError(name, f"must be a mapping, not {type(schedule).__name__}")
        fields = dict(schedule)
        if "key" not in fields:
            raise InvalidError(f"{name}.key", "is missing")
        try:
            row = declare(fields.pop("key"), fields, settings, now)
        except InvalidError as error:
            raise InvalidError(f"{name}.{error.field}", error.problem) from None
        if places.setdefault(row.key, place) != place:
            raise InvalidError(
                f"{name}.key", f"{row.key!r} is that of schedules[{places[row.key]}] as well"
            )
        rows.append(row)
    return rows


def redeclare(
    seen: Row, fields: Mapping[str, Any], settings: Config, now: Callable[[], float]
) -> Row:
    """A schedule's row with some fields of its definition changed.

    If the trigger changes, the next occurrence is computed anew, from the present time on; but not
    while a task is running, because the settlement of the task will use the new definition. A
    quarantined row keeps its ``next_time``. A row that has ended or is paused does not run again
    until a change sets its trigger or a time.

    Args:
        seen: the row as it is stored now.
        fields: any of `FIELDS`, `SHORTHANDS` and `TIMES`.
        settings: the installation's settings.
        now: the store's clock, which is called only if needed.

    Raises:
        InvalidError: a value is invalid; ``field`` is its name.
    """
    _refuse_unknown(fields)
    fields = expand_shorthands(seen.key, fields)
    row, definition = _redefined(seen, fields, settings)
    start, run_at = _instant(fields, "next_time"), _instant(fields, "next_run_time")
    leased, finished = seen.owner is not None, seen.status in {*ENDED, PAUSED}
    anew = start is not None or not _TRIGGER.isdisjoint(fields)
    if finished and not anew and run_at is None:
        return row
    next_time, attempt = seen.next_time, seen.attempt if seen.status == WAITING else 0
    if start is not None or not _is_time(next_time) or ((anew or finished) and not leased):
        next_time = _first(definition, now() if start is None else start)
        # A negative attempt tells the next claim that ``next_time`` was set during a lease.
        attempt = -1 if leased else 0
    elif anew:
        triggers.check(definition.trigger, next_time)
    if run_at is None:
        kept = next_time == seen.next_time and _DELAYS.isdisjoint(fields) and seen.status == WAITING
        run_at = seen.next_run_time if kept else definition.first_run(next_time)
    return changed(
        row,
        next_time=next_time,
        next_run_time=run_at,
        attempt=attempt,
        status=WAITING,
        reason=None,
        retain_until=None,
    )


def _redefined(row: Row, fields: Mapping[str, Any], settings: Config) -> tuple[Row, Definition]:
    """The row with some fields of its definition changed, and the definition parsed from it."""
    own = {
        name: value for name, value in fields.items() if name in OVERRIDES or name in OTHER_OPTIONS
    }
    columns = {n: v for n, v in fields.items() if n not in own and n not in TIMES}
    if "data" in columns:
        columns["data"] = encode("data", columns["data"], most=settings.data_limit)
    else:
        parse_payload(row.data, settings.data_limit)  # raises now rather than quarantine later
    if columns.get("alive_time") is not None:
        check_number("alive_time", columns["alive_time"], LONGEST_ALIVE_TIME)
    if own:
        columns["options"] = _changed_options(row.options, own, settings)
    new = changed(row, **columns)
    definition = parse_row(new, settings)
    given = new.alive_time
    if "alive_time" not in columns and given == alive_time_of(row.type, settings):
        given = None  # the default of the row's former type, not a value of its own
    lease = alive_time_of(new.type, settings) if given is None else given
    return changed(new, alive_time=lease), definition


def alive_time_of(type_: str, settings: Config) -> int | None:
    """The ``alive_time`` of a type. It must be in the row, because a claim does not know types."""
    lease: int | None = settings.types.get(type_, {}).get("alive_time")
    return lease


def _refuse_unknown(fields: Mapping[str, Any]) -> None:
    for name in fields:
        if name not in {*FIELDS, *SHORTHANDS, *TIMES}:
            known = ", ".join((*FIELDS, *SHORTHANDS))
            raise InvalidError(name, f"is not a field of a schedule; these are {known}")


def _changed_options(
    stored: str | bytes | None, own: Mapping[str, Any], settings: Config
) -> str | None:
    """The column ``options`` with some options changed; an option that is None is removed."""
    options = parse_options(stored)
    for name, value in own.items():
        options.pop(name, None)
        if value is not None and name in OTHER_OPTIONS:
            options[name] = OTHER_OPTIONS[name](name, value)
        elif value is not None:
            try:
                settings.with_settings(**{name: value})
            except ConfigError as error:
                raise InvalidError(name, str(error).removeprefix(f"{name}: ")) from None
            options[name] = value
    return encode("options", options) if options else None


def _is_time(instant: int | None) -> TypeGuard[int]:
    return instant is not None and 0 <= instant <= LATEST_TIME


def _first(definition: Definition, start: float) -> int:
    if definition.trigger is None:
        return floor(start)  # rounded down, so that a one-shot for now is due now
    start = ceil(start)
    triggers.check(definition.trigger, start - 1)
    first = triggers.first(definition.trigger, start)
    if first is None:
        raise InvalidError("cron", "never fires at or after the start")
    return first


def _instant(fields: Mapping[str, Any], name: str) -> int | None:
    when: When | None = fields.get(name)
    return None if when is None else shorthands.instant(name, when)
