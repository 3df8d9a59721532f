"""Declarations: conversion of the fields that a caller gives into the row of a schedule.

Shorthands define when a schedule runs, and are converted into columns:

* ``every="1h"``, a duration (see `base.quantities`), becomes ``@every 3600 +1234``. The offset is
  computed from the key: so schedules that are declared together do not run together, and a schedule
  that is declared again gets the offset that it had. If ``next_time`` is given, the times are
  counted from ``next_time``. With ``align=True`` the times are whole multiples of the interval
  since 1970: ``@every 3600`` is every hour, on the hour.
* ``at=datetime(…)``, or Unix seconds: the schedule runs once, at this instant.
* ``trigger=("myapp.triggers:Tides", {"port": "Brest"})`` becomes ``@call …``. The value is a user's
  class (`triggers.custom`) or the name of the class; or a pair of this and the arguments of the
  class; or an instance, if the class is a dataclass.
"""

import inspect
import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from dataclasses import replace as changed
from datetime import timedelta
from functools import cache
from math import ceil, floor
from typing import Any, TypeGuard

from psched.base import payload
from psched.base.errors import ConfigError, InvalidError
from psched.base.exec_data import EXEC_TYPE, check_declared_exec
from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.base.quantities import DURATIONS, as_seconds
from psched.base.stable_hash import stable_hash
from psched.config import OVERRIDES, Config
from psched.config.monitoring import ON_SETTINGS, Expectations
from psched.core.catchup import iso
from psched.core.columns import (
    LATEST_TIME,
    NAME_LENGTH,
    When,
    check_name,
    check_number,
    check_payload_form,
    check_seconds,
    check_text,
    encode,
    instant,
    parse_options,
    parse_payload,
)
from psched.core.definition import Definition, parse_row
from psched.core.hosts import LONGEST_LANE, lane_of, own_lane
from psched.core.model import (
    CANCELLED,
    ENDED,
    ENDING,
    MARKS,
    NO_PAUSE,
    PAUSED,
    STOPPING,
    WAITING,
    Row,
)
from psched.core.operations.extra_runs import refuse_extra_key
from psched.triggers import trigger as triggers
from psched.triggers.custom import AskElsewhereError

SHORTHANDS = ("every", "align", "at", "trigger")

_WAYS = ("cron", "every", "at", "trigger")

OTHER_OPTIONS = {"note": check_text, payload.OPTION: check_payload_form}
"""Options that are not settings, and the functions that check them.

``note`` is free text, and ``payload`` says how the column ``data`` wraps a payload that is not a
JSON object.
"""

FIELDS = (
    *("type", "data", "cron", "timezone", "delay", "alive_time", "label", "hosts", "each_host"),
    "run_as",
    *OVERRIDES,
    *OTHER_OPTIONS,
)
"""The fields of a schedule's definition, besides its key.

``label`` is the schedule's owner, ``hosts`` and ``each_host`` say where it runs, see
`psched.core.hosts`, and ``run_as`` as which Unix user its program runs.
"""

TIMES = ("next_time", "next_run_time")

KNOWN = (*FIELDS, *SHORTHANDS, *TIMES)

TRIGGER_FIELDS = frozenset({"cron", "timezone", "dst_policy"})
"""If one of these fields changes, the next occurrence is computed anew."""

_PLACING = frozenset({"hosts", "each_host"})

_NEEDS_TRIGGER = "is for what runs again and again: give it cron or every"

_DURATIONS = frozenset({"delay", "alive_time"})
"""The fields that are durations and columns. Other durations are settings, in ``options``."""

_REASON = ("reason", "reason_code")

_DELAYS = frozenset({"delay", "jitter"})
"""If one of these fields changes, the time of the next run is computed anew."""

_COPIED = (
    *("type", "data", "cron", "timezone", "delay", "alive_time", "options", "label", "run_as"),
)
"""The columns that the row of a host has from its template."""


def declare(key: str, fields: Mapping[str, Any], settings: Config, now: Callable[[], float]) -> Row:
    """Create the row of a new schedule."""
    row, definition, fields = _declared(key, fields, settings)
    return _started(row, definition, fields, now)


def describe(
    key: str, fields: Mapping[str, Any], settings: Config, now: Callable[[], float]
) -> Row:
    """Create the row of a new schedule like `declare`, even if all its times have passed.

    The row has no times then.
    """
    row, definition, fields = _declared(key, fields, settings)
    trigger = definition.trigger
    is_over = trigger is not None and triggers.first(trigger, ceil(now())) is None
    return row if is_over else _started(row, definition, fields, now)


def _declared(
    key: str, fields: Mapping[str, Any], settings: Config
) -> tuple[Row, Definition, Mapping[str, Any]]:
    """The row of a new schedule without times, its definition, and the fields with the times."""
    refuse_extra_key(check_name("key", key))
    refuse_unknown(fields, KNOWN)
    given = {name: value for name, value in fields.items() if value is not None}
    fields = expand_shorthands(key, given)
    return *_redefined(Row(key=key, timezone=settings.timezone), fields, settings), fields


def refuse_unknown(given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse the first field whose name is not known."""
    for name in given:
        if name not in known:
            from difflib import get_close_matches  # noqa: PLC0415  # only for this error

            if near := get_close_matches(str(name), known, 1):
                hint = f"did you mean {near[0]}?"
            else:
                hint = f"these are {', '.join(known)}"
            raise InvalidError(name, f"is not a field of a schedule; {hint}")


def derive(key: str, seen: Row, fields: Mapping[str, Any], settings: Config) -> Row:
    """Create the row of a one-shot that is defined like another row; it has no times yet."""
    copy = Row(
        key=key,
        type=seen.type,
        data=seen.data,
        timezone=seen.timezone,
        alive_time=seen.alive_time,
        options=seen.options,
        label=seen.label,
        lane=seen.lane,
        run_as=seen.run_as,
    )
    row, _ = _redefined(copy, fields, settings)
    return row


def restart(row: Row, fields: Mapping[str, Any], settings: Config, now: Callable[[], float]) -> Row:
    """Compute the first times of a new schedule's row anew. This is faster than `declare`."""
    times = {name: fields[name] for name in TIMES if fields.get(name) is not None}
    if fields.get("at") is not None:
        times["next_time"] = fields["at"]
    return _started(row, parse_row(row, settings), times, now)


def _started(
    row: Row, definition: Definition, fields: Mapping[str, Any], now: Callable[[], float]
) -> Row:
    next_time, run_at = _first_times(definition, fields, now)
    return resting_if_template(
        changed(
            row,
            next_time=next_time,
            next_run_time=run_at,
            local_time=definition.local_time(next_time),
        )
    )


def resting_if_template(row: Row) -> Row:
    """The row; if it is a template, with a time that never comes, as no host looks for it."""
    return changed(row, next_run_time=LATEST_TIME) if row.each_host else row


def row_of_host(
    template: Row, host: str, settings: Config, start: int | None, now: Callable[[], float]
) -> Row | None:
    """The new row of a host for a template, from a time on; None means the present.

    The result is None if the template has no more occurrences.
    """
    columns = {name: getattr(template, name) for name in _COPIED}
    row = Row(key=f"{template.key}{own_lane(host)}", lane=own_lane(host), **columns)
    definition = parse_row(row, settings)
    if definition.trigger is None:  # plain SQL has added the template
        raise InvalidError("each_host", _NEEDS_TRIGGER)
    try:
        if triggers.first(definition.trigger, ceil(now()) if start is None else start) is None:
            return None
        return _started(row, definition, {"next_time": start}, now)
    except AskElsewhereError:
        if start is None:
            return _without_time(row, now)
        return changed(
            row,
            next_time=start,  # it is an occurrence of the template
            next_run_time=definition.first_run(start),
            local_time=definition.local_time(start),
        )


def _without_time(row: Row, now: Callable[[], float]) -> Row:
    """The row without a time, which whoever claims it lets a helper compute.

    So a worker that keeps its host's rows does not call a user's trigger, which can hang.
    """
    return changed(
        row, next_time=None, next_run_time=floor(now()), decided_until=None, local_time=None
    )


def as_template_says(
    seen: Row, template: Row, settings: Config, now: Callable[[], float]
) -> Row | None:
    """The row of a host with what has changed in its template; None if nothing has.

    A row that was cancelled stays so, because its host shall not run the schedule.
    """
    columns = {name: getattr(template, name) for name in _COPIED}
    new = changed(seen, **columns)
    if new == seen:
        return None
    if MARKS.get(seen.status) == CANCELLED:
        return new
    before, after = parse_options(seen.options), parse_options(new.options)
    names = {name for name, value in columns.items() if value != getattr(seen, name)}
    names |= {name for name in {*before, *after} if before.get(name) != after.get(name)}
    try:
        return _retimed(seen, (new, parse_row(new, settings)), dict.fromkeys(names), settings, now)
    except AskElsewhereError:
        # A row that is paused, or runs, follows later, or when a client changes the template again.
        waits = seen.status == WAITING and seen.owner is None
        return _without_time(changed(new, attempt=0, moved_at=None), now) if waits else None


def _first_times(
    definition: Definition, fields: Mapping[str, Any], now: Callable[[], float]
) -> tuple[int, int]:
    """The ``next_time`` and the ``next_run_time`` of a new schedule."""
    start = _instant(fields, "next_time")
    next_time = _first(definition, now() if start is None else start)
    run_at = _instant(fields, "next_run_time")
    if definition.cron is None:
        _refuse_early_run(None, next_time, run_at, now, definition.settings)
    return next_time, definition.first_run(next_time) if run_at is None else run_at


def declare_all(
    schedules: Iterable[Mapping[str, Any]], settings: Config, now: Callable[[], float]
) -> Sequence[Row]:
    """Create the rows of many new schedules."""
    similar, places = _SimilarSchedules(settings, cache(now)), dict[str, int]()
    rows = []
    for place, schedule in enumerate(schedules):
        try:
            row = similar.declare(schedule)
        except InvalidError as error:
            field = f"schedules[{place}]" + (error.field and f".{error.field}")
            raise InvalidError(field, error.problem) from None
        if (first := places.setdefault(row.key, place)) != place:
            raise InvalidError(
                f"schedules[{place}].key", f"{row.key!r} is that of schedules[{first}] as well"
            )
        rows.append(row)
    return rows


_MOST_KNOWN = 10_000  # the kinds of schedules that one call remembers; each takes memory


class _SimilarSchedules:
    """Declares many schedules; those that differ only in key and data are checked together.

    Args:
        settings: the installation's settings.
        now: the store's clock; always returns the same time.
    """

    def __init__(self, settings: Config, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._known: dict[Hashable, tuple[Row, Definition]] = {}

    def declare(self, schedule: object) -> Row:
        """Create the row of a new schedule, as the function `declare` does."""
        if not isinstance(schedule, Mapping):
            raise InvalidError("", f"must be a mapping, not {type(schedule).__name__}")
        fields = dict(schedule)
        if "key" not in fields:
            raise InvalidError("key", "is missing")
        key, data = fields.pop("key"), fields.pop("data", None)
        similar = _all_but_key_and_data(fields)
        known = self._known.get(similar)
        if known is None:
            row, definition, times = _declared(key, {**fields, "data": data}, self._settings)
            row = _started(row, definition, times, self._now)
            if similar is not None and len(self._known) < _MOST_KNOWN:
                self._known[similar] = row, definition
            return row
        alike, definition = known
        refuse_extra_key(check_name("key", key))
        text = None if data is None else encode("data", data, most=self._settings.data_limit)
        _check_exec({} if data is None else data, alike.type, self._settings)
        cron, next_time, run_at = alike.cron, alike.next_time, alike.next_run_time
        if "every" in fields or definition.settings.jitter:
            cron, next_time, run_at = self._times(key, fields, definition)
        return Row(
            key,
            alike.type,
            text,
            cron,
            alike.timezone,
            alike.delay,
            next_time,
            run_at,
            alive_time=alike.alive_time,
            options=alike.options,
            local_time=alike.local_time,
            label=alike.label,
            lane=alike.lane,
            run_as=alike.run_as,
        )

    def _times(
        self, key: str, fields: Mapping[str, Any], alike: Definition
    ) -> tuple[str | None, int, int]:
        """The trigger and the first times of a schedule with an offset of every, or with jitter.

        Both depend on the key.
        """
        given = {name: value for name, value in fields.items() if value is not None}
        columns = expand_shorthands(key, given)
        cron, trigger = columns.get("cron"), alike.trigger
        if cron is not None and cron != alike.cron:
            trigger = triggers.parse(cron, alike.timezone)
        own = changed(alike, key=key, cron=cron, trigger=trigger)
        return cron, *_first_times(own, columns, self._now)


_PLAIN = frozenset({str, int, float, bool, timedelta, type(None)})
"""The types of values that mean the same if they are equal. Two equal datetimes can be different
instants, because ``fold`` is not compared."""


def _all_but_key_and_data(fields: Mapping[str, Any]) -> Hashable:
    """A value that is equal for schedules that differ only in their key and their data."""
    types = [*map(type, fields.values())]
    if not _PLAIN.issuperset(types):
        return None
    # The types are compared, because 1, 1.0 and True are equal.
    return *fields, *fields.values(), *types


def redeclare(
    seen: Row, fields: Mapping[str, Any], settings: Config, now: Callable[[], float]
) -> Row:
    """Return a schedule's row with some fields of its definition changed.

    If the trigger changes, the next occurrence is the first one from the present time on. But while
    a task of the schedule is running, ``next_time`` stays, because the settlement of the task will
    compute the next occurrence from the new definition. A quarantined row keeps a valid
    ``next_time`` if the trigger does not change. A paused row stays paused until a change sets a
    time. A row that has ended, or is about to, does not run again until a change sets its trigger
    or a time. One that had ended then counts as created anew.
    """
    refuse_unknown(fields, KNOWN)
    fields = expand_shorthands(seen.key, fields)
    for name in TIMES:
        if seen.each_host and fields.get(name) is not None:
            raise InvalidError(
                name,
                "cannot be changed, because each host has its own times; delete"
                f" {seen.key!r}, and add it anew",
            )
    return _retimed(seen, _redefined(seen, fields, settings), fields, settings, now)


def _retimed(
    seen: Row,
    redefined: tuple[Row, Definition],
    fields: Mapping[str, Any],
    settings: Config,
    now: Callable[[], float],
) -> Row:
    """The redefined row with the times and the status that follow from its changed fields."""
    row, definition = redefined
    if seen.status == STOPPING:  # its run is stopped nevertheless
        waiting, row = changed(seen, status=WAITING), changed(row, status=WAITING)
        new = _retimed(waiting, (row, definition), fields, settings, now)
        told = {name: getattr(seen, name) for name in (*_REASON, *NO_PAUSE)}
        return changed(new, status=STOPPING, **told)
    start, run_at = _instant(fields, "next_time"), _instant(fields, "next_run_time")
    leased, finished = seen.owner is not None, seen.status in {*ENDING, PAUSED}
    stays_paused = seen.status == PAUSED and start is None and run_at is None
    anew = start is not None or not TRIGGER_FIELDS.isdisjoint(fields)
    if finished and not anew and run_at is None:
        return row
    next_time = seen.next_time
    attempt, moved_at = (seen.attempt, seen.moved_at) if seen.status == WAITING else (0, None)
    if start is not None or not _is_time(next_time) or ((anew or finished) and not leased):
        goes_on = seen.next_time is None and not anew and not finished
        if goes_on and seen.decided_until is not None:
            start = seen.decided_until + 1
        next_time = _first(definition, now() if start is None else start)
        # If the lease is never settled, the next claim sees that ``next_time`` was set during it.
        attempt, moved_at = 0, floor(now()) if leased else None
    elif anew:
        triggers.check(definition.trigger, next_time)
    _refuse_early_run(row.cron, next_time, run_at, now, settings)
    if run_at is None:
        kept = next_time == seen.next_time and _DELAYS.isdisjoint(fields) and seen.status == WAITING
        run_at = seen.next_run_time if kept else definition.first_run(next_time)
    new = changed(
        row,
        next_time=next_time,
        next_run_time=run_at,
        attempt=attempt,
        decided_until=None,
        moved_at=moved_at,
        local_time=definition.local_time(next_time),
        status=WAITING,
        reason=None,
        reason_code=None,
        created_at=floor(now()) if seen.status in ENDED else row.created_at,
        retain_until=None,
    )
    if not stays_paused:
        return changed(resting_if_template(new), **NO_PAUSE)
    told = {name: getattr(seen, name) for name in _REASON}
    return changed(new, next_run_time=seen.next_run_time, status=PAUSED, **told)


def _redefined(row: Row, fields: Mapping[str, Any], settings: Config) -> tuple[Row, Definition]:
    """Return the row with some fields changed, and the definition parsed from the new row."""
    own = {
        name: value for name, value in fields.items() if name in OVERRIDES or name in OTHER_OPTIONS
    }
    columns = {n: v for n, v in fields.items() if n not in own and n not in TIMES}
    if "data" in columns:
        data = columns["data"]
        columns["data"] = encode("data", data, most=settings.data_limit)
    else:
        data = parse_payload(row.data, settings.data_limit)
    for name in _DURATIONS & {*columns}:
        columns[name] = check_seconds(name, columns[name])
    if columns.get("alive_time") is not None:
        check_number("alive_time", columns["alive_time"], LONGEST_ALIVE_TIME)
    if columns.get("label") is not None:
        check_name("label", columns["label"])
    if not _PLACING.isdisjoint(columns):
        columns["lane"] = _lane(row, columns, settings)
    if own:
        columns["options"] = _changed_options(row.options, own, settings)
    new = changed(row, **columns)
    definition = parse_row(new, settings)
    _refuse_unknown_hooks(own.keys(), definition.settings)
    if "data" in columns or new.type != row.type:
        _check_exec(data, new.type, settings)
    given = new.alive_time
    if "alive_time" not in columns and given == alive_time_of(row.type, settings):
        given = None  # this was the default of the row's former type
    lease = alive_time_of(new.type, settings) if given is None else given
    return (new if lease == new.alive_time else changed(new, alive_time=lease)), definition


def _lane(row: Row, columns: dict[str, Any], settings: Config) -> str | None:
    """Take the fields that say where a schedule runs out of its columns; return its lane."""
    each_host = columns.pop("each_host", None)
    each_host = row.each_host if each_host is None else each_host
    if not isinstance(each_host, bool):
        raise InvalidError("each_host", f"must be true or false, not {each_host!r}")
    lane = lane_of(columns.pop("hosts", row.hosts), each_host=each_host)
    if lane is not None and not settings.store_kind.keeps_lanes:
        raise InvalidError(
            "each_host" if each_host else "hosts",
            f"a store of type {settings.type} runs everything on any host; leave it out, or use"
            " a relational database or Redis",
        )
    if row.created_at is not None and each_host != row.each_host:
        raise InvalidError("each_host", "cannot be changed; delete the schedule, and add it anew")
    if each_host and columns.get("cron", row.cron) is None:
        raise InvalidError("each_host", _NEEDS_TRIGGER)
    if each_host and len(row.key) > NAME_LENGTH - LONGEST_LANE:
        most = NAME_LENGTH - LONGEST_LANE
        raise InvalidError("key", f"may have {most} characters with each_host, not {len(row.key)}")
    return lane


def _refuse_unknown_hooks(given: Collection[str], settings: Config) -> None:
    """Refuse names of hooks that the configuration does not define.

    A program whose configuration defines no hooks at all cannot know those of the monitor, so any
    name is accepted there.
    """
    for field in ON_SETTINGS:
        for name in getattr(settings, field) if settings.hooks and field in given else ():
            if name not in settings.hooks:
                there_are = ", ".join(settings.hooks)
                raise InvalidError(field, f"there is no hook {name}; there are {there_are}")


def _check_exec(data: Mapping[str, Any], type_: str, settings: Config) -> None:
    """Refuse data that the handler for the type ``exec`` would refuse, if there is this handler."""
    if type_ != EXEC_TYPE or not settings.has_exec_handler:
        return
    try:
        check_declared_exec(data)
    except InvalidError as error:
        if settings.dispatch is None:
            raise
        own = f"if {settings.dispatch} has a route for type exec, set exec_type: off"
        raise InvalidError(error.field, f"{error.problem}; {own}") from None


def alive_time_of(type_: str, settings: Config) -> int | None:
    """The ``alive_time`` of a type in seconds; None if the settings have none for the type.

    This value is copied into the row, because a claim reads only rows, not the settings of types.
    """
    lease: int | None = settings.types.get(type_, {}).get("alive_time")
    return lease


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
                checked = settings.with_settings(**{name: value})
            except ConfigError as error:
                # The error of a part of ``expect`` names the part after a dot.
                text = str(error).removeprefix(name).removeprefix(".").removeprefix(": ")
                raise InvalidError(name, text) from None
            # A number is stored as it was given. A duration with a unit is stored as seconds, so
            # that equal durations are stored equally.
            is_number = isinstance(value, int | float)
            options[name] = value if is_number else _stored(getattr(checked, name))
    return encode("options", options) if options else None


def _refuse_early_run(
    cron: str | None,
    next_time: int,
    run_at: int | None,
    now: Callable[[], float],
    settings: Config,
) -> None:
    """Refuse a ``next_run_time`` that would run an occurrence before its scheduled time.

    Such a run would use up the occurrence, so that nothing would run at the scheduled time. Whoever
    adds a schedule can ask for that, as in PerfectSched. But a change is probably meant as an extra
    run. The times that plain SQL has written are not checked.
    """
    if run_at is None or run_at >= next_time or next_time <= now():
        return
    early = f"{iso(run_at)} is before the scheduled time, {iso(next_time)}"
    if cron is None:
        fix = "to move the task to another time, set next_time instead"
    else:
        fix = "a run before it would take the place of the scheduled run. "
        if settings.store_kind.keeps_options:
            fix += "For an extra run, call trigger (psched trigger KEY)"
        else:
            fix += "This table has no extra runs; to ask for that, delete it and add it with this"
            fix += " time (psched add --at)"
    raise InvalidError("next_run_time", f"{early}; {fix}")


def _stored(value: object) -> object:
    """The value of a setting as options store it; a float without a fraction becomes an int."""
    if isinstance(value, Expectations):
        return value.to_json()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_time(instant: int | None) -> TypeGuard[int]:
    return instant is not None and 0 <= instant <= LATEST_TIME


def _first(definition: Definition, start: float) -> int:
    if definition.trigger is None:
        return floor(start)  # rounded down, so that a one-shot that starts now is due at once
    start = ceil(start)
    triggers.check(definition.trigger, start - 1)
    first = triggers.first(definition.trigger, start)
    if first is None:
        raise InvalidError("cron", "never fires at or after the start")
    return first


def _instant(fields: Mapping[str, Any], name: str) -> int | None:
    when: When | None = fields.get(name)
    return None if when is None else instant(name, when)


# --- shorthands ---------------------------------------------------------------------------


def expand_shorthands(key: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the shorthands in the fields of a schedule by columns."""
    columns = {name: value for name, value in fields.items() if name not in SHORTHANDS}
    given = {name: fields[name] for name in SHORTHANDS if fields.get(name) is not None}
    ways = [name for name in _WAYS if fields.get(name) is not None]
    if len(ways) > 1:
        raise InvalidError(ways[1], f"and {ways[0]} both say when it runs; leave one out")
    start = columns.get("next_time")
    align = given.get("align", False)
    if not isinstance(align, bool):
        raise InvalidError("align", f"must be true or false, not {align!r}")
    if align and "every" not in given:
        raise InvalidError("align", "is for every, which is not given; leave it out")
    if align and start is not None:
        raise InvalidError("align", "and next_time both say where the times of every lie; omit one")
    if isinstance(columns.get("cron"), str):
        columns["cron"] = triggers.in_seconds(columns["cron"])
    if "every" in given:
        columns["cron"] = _every(key, given["every"], start, align=align)
    if "trigger" in given:
        columns["cron"] = _call(given["trigger"])
    if "at" in given:
        if start is not None:
            raise InvalidError("next_time", "and at both say when it runs; leave one out")
        columns |= {"cron": None, "next_time": instant("at", given["at"])}
    return columns


def _every(key: str, interval: object, start: When | None, *, align: bool) -> str:
    seconds = as_seconds(interval)
    number = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not number or not 1 <= seconds <= triggers.LONGEST_INTERVAL:  # type: ignore[operator]
        from psched.triggers.foreign import as_interval  # noqa: PLC0415  # rarely needed

        instead = as_interval(interval.lower()) if isinstance(interval, str) else None
        raise InvalidError(
            "every",
            f"must be whole seconds from 1 to {triggers.LONGEST_INTERVAL}, a text with a unit"
            f" ({DURATIONS}) or a timedelta, not {interval!r}"
            + (f"; write {instead}" if instead else ""),
        )
    gap = int(seconds)  # type: ignore[call-overload]
    if align:
        return f"@every {gap}"
    phase = stable_hash(key, gap) if start is None else instant("next_time", start) % gap
    return f"@every {gap} +{phase}"


def name_main_class(trigger: object) -> object:
    """Replace the class in a trigger by its import path, if ``__main__`` defines the class.

    The path is valid in the workers that a program starts, because they run the program's
    ``__main__``. Other triggers are returned unchanged.
    """
    named, arguments = _parts(trigger)
    if inspect.isclass(named) and named.__module__ == "__main__" and "<" not in named.__qualname__:
        return f"__main__:{named.__qualname__}", {} if arguments is None else arguments
    return trigger


def _parts(trigger: object) -> tuple[object, object]:
    """Split a trigger into the class or its name, and its arguments (None: none were given)."""
    if isinstance(trigger, tuple | list):
        if len(trigger) != 2:  # noqa: PLR2004
            raise InvalidError("trigger", "must be a class and its arguments, as (Tides, {...})")
        return trigger[0], trigger[1]
    if is_dataclass(trigger) and not isinstance(trigger, type):
        given = {f.name: getattr(trigger, f.name) for f in fields_of(trigger) if f.init}
        return type(trigger), given
    return trigger, None


def _call(trigger: object) -> str:
    """Convert a user's trigger to its text ``@call …``."""
    named, arguments = _parts(trigger)
    name = named if isinstance(named, str) else _path_of(named)
    if arguments is None or arguments == {}:
        return f"@call {name}"
    if not isinstance(arguments, Mapping):
        raise InvalidError("trigger", f"takes its arguments by name, not {arguments!r}")
    return f"@call {name} {_json(arguments)}"


def _json(arguments: Mapping[str, Any]) -> str:
    """Convert arguments to JSON; equal arguments always give equal text."""
    try:
        text = json.dumps(dict(arguments), allow_nan=False, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidError("trigger", f"has arguments that JSON cannot hold: {error}") from None
    return text


def _path_of(named: object) -> str:
    if not inspect.isclass(named):
        raise InvalidError(
            "trigger",
            f"is {named!r}; name a class, as in 'myapp.triggers:Tides', give it, or give it with"
            " its arguments, as in (Tides, {'port': 'Brest'})",
        )
    path = f"{named.__module__}:{named.__qualname__}"
    if named.__module__ == "__main__" or "<" in path:
        raise InvalidError(
            "trigger", f"{path} cannot be imported by a worker; put it into a module of its own"
        )
    return path
