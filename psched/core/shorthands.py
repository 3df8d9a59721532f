"""Shorthands that define when a schedule runs, and their conversion into columns.

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
from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from psched.base.errors import InvalidError
from psched.base.quantities import DURATIONS, as_seconds
from psched.base.stable_hash import stable_hash
from psched.core.columns import LATEST_TIME, check_number
from psched.triggers.trigger import LONGEST_INTERVAL, in_seconds

When = int | datetime
"""An instant: Unix seconds, or an aware datetime."""

Until = When | timedelta | str
"""The end of a pause, see `psched.core.schedule.Schedule.pause`."""

SHORTHANDS = ("every", "align", "at", "trigger")

_WAYS = ("cron", "every", "at", "trigger")


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
        columns["cron"] = in_seconds(columns["cron"])
    if "every" in given:
        columns["cron"] = _every(key, given["every"], start, align=align)
    if "trigger" in given:
        columns["cron"] = _call(given["trigger"])
    if "at" in given:
        if start is not None:
            raise InvalidError("next_time", "and at both say when it runs; leave one out")
        columns |= {"cron": None, "next_time": instant("at", given["at"])}
    return columns


def instant(name: str, when: When) -> int:
    """Convert an instant to Unix seconds, rounded up so that nothing runs early."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidError(
                name, "is a datetime without a zone; give it one: tzinfo=ZoneInfo('Europe/Paris')"
            )
        when = ceil(when.timestamp())
    return check_number(name, when, LATEST_TIME)


def _every(key: str, interval: object, start: When | None, *, align: bool) -> str:
    seconds = as_seconds(interval)
    number = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not number or not 1 <= seconds <= LONGEST_INTERVAL:  # type: ignore[operator]
        from psched.triggers.foreign import as_interval  # noqa: PLC0415  # rarely needed

        instead = as_interval(interval.lower()) if isinstance(interval, str) else None
        raise InvalidError(
            "every",
            f"must be whole seconds from 1 to {LONGEST_INTERVAL}, a text with a unit"
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
