"""People who change schedules while psched runs, by the API that programs use."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from psched.base.errors import PschedError
from psched.client.collection import ScheduleCollection
from psched.testing.simulation.plan import Step

_log = logging.getLogger("psched.simulation")

_KINDS: tuple[Mapping[str, object], ...] = (
    {"cron": "*"},
    {"cron": "*", "catchup": "latest"},
    {"cron": "*/2", "catchup": "skip"},
    {"every": 30},
    {"every": 45, "catchup": "latest"},
    {"every": 20, "delay": 5},
    {"cron": "*/5", "delay": 30},
    {"every": 90, "retry_wait": 0},
    {"every": 40, "kill_timeout": 15},
    {"every": 60, "jitter": 20},
    {"every": 50, "pause_after_failures": 3},
    {"every": 70, "alive_time": 60},
)
"""The schedules that exist at the beginning. ``cron`` has the minutes, ``every`` the seconds."""

SCHEDULES = len(_KINDS)


def _trigger(number: int, pace: int) -> dict[str, Any]:
    """The arguments of a schedule; one whose times are ``pace`` times as far apart."""
    kind = dict(_KINDS[number % SCHEDULES])
    if "every" in kind:
        kind["every"] = f"{kind['every'] * pace}s"  # type: ignore[operator]  # a number
    elif pace > 1:
        kind["cron"] = f"{number} * * * *"
    else:
        kind["cron"] = f"{kind['cron']} * * * *"
    return kind


def key_of(place: int) -> str:
    """The key of a schedule."""
    return f"s{place}"


def add_all(schedules: ScheduleCollection, number: int, pace: int) -> None:
    """Add the schedules that exist at the beginning."""
    for place in range(number):
        schedules.add(key_of(place), f"t{place % 3}", **_trigger(place, pace))


def carry_out(schedules: ScheduleCollection, step: Step, pace: int) -> None:
    """Make a change; what it is refused for is no fault."""
    key, type_ = key_of(step.place), f"t{step.place % 3}"
    trigger = _trigger(step.number, pace)
    now = schedules.now
    changes: dict[str, Callable[[], object]] = {
        "add": lambda: schedules.add(f"a{step.place % 3}", type_, **trigger),
        "push": lambda: schedules.push(f"p{step.number}", type_, delay=step.seconds),
        "pause": lambda: schedules.pause(key, int(now() + 200) if step.number % 2 else None),
        "resume": lambda: schedules.resume(key, backfill=step.number % 3 == 0),
        "pause_type": lambda: schedules.pause_type(type_, int(now() + 2 + step.seconds)),
        "resume_type": lambda: schedules.resume_type(type_),
        "skip": lambda: schedules.skip(key, 1 + step.number % 3),
        "trigger": lambda: schedules.trigger(key, overlap=["queue", "skip"][step.number % 2]),
        "backfill": lambda: schedules.backfill(key, int(now()) - 120, int(now())),
        "edit": lambda: schedules.edit(key, **_triggers_only(trigger)),
        "edit_data": lambda: schedules.edit(key, data={"n": step.number}),
        "cancel": lambda: schedules.cancel(key),
        "requeue": lambda: schedules.requeue(key),
        "stop": lambda: schedules.stop(key),
        "delete": lambda: schedules.delete(f"a{step.place % 3}"),
        "force_finish": lambda: schedules.force_finish(key),
    }
    try:
        changes[step.what]()
    except PschedError as error:
        _log.debug("%s: %s", step, error)


def _triggers_only(trigger: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in trigger.items() if name in {"cron", "every"}}
