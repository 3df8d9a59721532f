"""Other ways to say when a schedule runs, and the columns that mean the same.

* ``every=3600``, a number of seconds or a `timedelta`: ``@every 3600 +1234``. Where its times lie
  is a matter of the key, so that what is declared together does not run together, and what is
  declared again is the same; with ``next_time``, they lie from there on. With ``align=True`` they
  are whole multiples of the interval since 1970: ``@every 3600`` is every hour, on the hour.
* ``at=datetime(…)``, or Unix seconds: once.
* ``trigger=("myapp.triggers:Tides", {"port": "Brest"})``: a class of the user's own
  (`triggers.custom`), by its name or itself, with its arguments if it takes any; or a dataclass's
  instance, which knows them.
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
from psched.base.stable_hash import stable_hash
from psched.core.columns import LATEST_TIME, check_number
from psched.triggers.trigger import LONGEST_INTERVAL

When = int | datetime
"""An instant: Unix seconds, or a datetime that knows its zone."""

SHORTHANDS = ("every", "align", "at", "trigger")

_WAYS = ("cron", "every", "at", "trigger")


def expand_shorthands(key: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What was said about a schedule, in columns only.

    Args:
        key: the schedule's.
        fields: what was said; a shorthand that is None was not.

    Raises:
        InvalidError: a value makes no sense, or contradicts another; its ``field`` names it.
    """
    said = {name: value for name, value in fields.items() if name not in SHORTHANDS}
    given = {name: fields[name] for name in SHORTHANDS if fields.get(name) is not None}
    ways = [name for name in _WAYS if fields.get(name) is not None]
    if len(ways) > 1:
        raise InvalidError(ways[1], f"and {ways[0]} both say when it runs; leave one out")
    start = said.get("next_time")
    align = given.get("align", False)
    if not isinstance(align, bool):
        raise InvalidError("align", f"must be true or false, not {align!r}")
    if align and ("every" not in given or start is not None):
        raise InvalidError("align", "says where the times of every lie; next_time does, too")
    if "every" in given:
        said["cron"] = _every(key, given["every"], start, align=align)
    if "trigger" in given:
        said["cron"] = _call(given["trigger"])
    if "at" in given:
        if start is not None:
            raise InvalidError("next_time", "and at both say when it runs; leave one out")
        said |= {"cron": None, "next_time": instant("at", given["at"])}
    return said


def instant(name: str, when: When) -> int:
    """Unix seconds, rounded up: nothing runs early.

    Raises:
        InvalidError: it is no instant; ``name`` is its ``field``.
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidError(
                name, "is a datetime without a zone; give it one: tzinfo=ZoneInfo('Europe/Paris')"
            )
        when = ceil(when.timestamp())
    return check_number(name, when, LATEST_TIME)


def _every(key: str, interval: object, start: When | None, *, align: bool) -> str:
    seconds = interval
    if isinstance(interval, timedelta) and not interval.microseconds:
        seconds = interval.days * 86_400 + interval.seconds
    number = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not number or not 1 <= seconds <= LONGEST_INTERVAL:  # type: ignore[operator]
        raise InvalidError(
            "every",
            f"must be whole seconds, from 1 to {LONGEST_INTERVAL}, or a timedelta of as many,"
            f" not {interval!r}",
        )
    gap = int(seconds)  # type: ignore[call-overload]
    if align:
        return f"@every {gap}"
    phase = stable_hash(key, gap) if start is None else instant("next_time", start) % gap
    return f"@every {gap} +{phase}"


def name_main_class(trigger: object) -> object:
    """A trigger whose class the running program defines itself, named as its workers know it.

    They run the same program, and so have the class in ``__main__``, as it has. Other triggers are
    returned as they are.

    Raises:
        InvalidError: it is none.
    """
    named, arguments = _parts(trigger)
    if inspect.isclass(named) and named.__module__ == "__main__" and "<" not in named.__qualname__:
        return f"__main__:{named.__qualname__}", {} if arguments is None else arguments
    return trigger


def _parts(trigger: object) -> tuple[object, object]:
    """A class, or its name, and its arguments; None: none were given."""
    if isinstance(trigger, tuple | list):
        if len(trigger) != 2:  # noqa: PLR2004
            raise InvalidError("trigger", "must be a class and its arguments, as (Tides, {...})")
        return trigger[0], trigger[1]
    if is_dataclass(trigger) and not isinstance(trigger, type):
        given = {f.name: getattr(trigger, f.name) for f in fields_of(trigger) if f.init}
        return type(trigger), given
    return trigger, None


def _call(trigger: object) -> str:
    """The text of a trigger of the user's own."""
    named, arguments = _parts(trigger)
    name = named if isinstance(named, str) else _path_of(named)
    if arguments is None or arguments == {}:
        return f"@call {name}"
    if not isinstance(arguments, Mapping):
        raise InvalidError("trigger", f"takes its arguments by name, not {arguments!r}")
    return f"@call {name} {_json(arguments)}"


def _json(arguments: Mapping[str, Any]) -> str:
    """The same for equal arguments."""
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
