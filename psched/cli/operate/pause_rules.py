"""What the commands pause and resume do with types and everything: standing rules."""

import json
import sys
from collections.abc import Sequence
from itertools import islice

import click

from psched.base.errors import AlreadyExistsError
from psched.base.texts import counted, visible
from psched.cli.opening import warn_of_types
from psched.cli.operate.chosen import Chosen, confirm
from psched.cli.time_format import format_time, local_times
from psched.client.collection import ScheduleCollection
from psched.client.verbs.pausing import pause_type, resume_type
from psched.core.operations.pauses import PauseRule

_MOST_COUNTED = 1000
"""So many schedules are counted for the question; there may be more."""


def chosen_types(chosen: Chosen) -> Sequence[str | None] | None:
    """The types for which a rule is chosen; None among them stands for everything.

    None if schedules are chosen one by one, by keys or by other conditions.
    """
    if chosen.keys or chosen.labels or chosen.states or chosen.reason is not None:
        return None
    return [None] if chosen.every else [*dict.fromkeys(chosen.types)]


def pause_types(
    schedules: ScheduleCollection, types: Sequence[str | None], until: int | None, chosen: Chosen
) -> None:
    """Pause types, or everything, and print each."""
    _refuse_rate(chosen)
    warn_of_types(schedules, filter(None, types))
    if chosen.dry_run:
        _preview("paused", schedules, types)
        return
    _ask("pause", schedules, types, chosen)
    for type_ in types:
        paused = pause_type(schedules.access, type_, until)
        end = "" if paused.until is None else f" until {format_time(paused.until)}"
        click.echo(f"{_what(type_)}: paused{end}, also what is added later")


def resume_types(
    schedules: ScheduleCollection,
    types: Sequence[str | None],
    chosen: Chosen,
    *,
    backfill: bool,
) -> None:
    """End the pauses of types, or of everything, and print each.

    The program exits with status 1 if one of them is not paused.
    """
    _refuse_rate(chosen)
    if chosen.dry_run:
        held = {rule.type for rule in schedules.pauses()}
        _preview("resumed", schedules, [each for each in types if each in held])
        others = [each for each in types if each not in held]
        for each in others:
            click.echo(f"{_what(each)}: would not be resumed: it is not paused", err=True)
        if others:
            sys.exit(1)
        return
    _ask("resume", schedules, types, chosen)
    failed = False
    for type_ in types:
        try:
            resume_type(schedules.access, type_, backfill=backfill)
        except AlreadyExistsError as error:
            failed = True
            click.echo(f"Error: {local_times(str(error))}", err=True)
        else:
            click.echo(f"{_what(type_)}: resumed")
    if failed:
        sys.exit(1)


def list_pauses(schedules: ScheduleCollection, *, as_json: bool) -> None:
    """Print the pauses of types and of everything that hold now."""
    found = schedules.pauses()
    for rule in found:
        made = {name: getattr(rule, name) for name in ("type", "since", "until", "by", "note")}
        click.echo(json.dumps(made) if as_json else describe_pause(rule))
    if not found and not as_json:
        click.echo(
            "neither a type nor everything is paused; psched list --status paused shows keys"
        )


def describe_pause(rule: PauseRule) -> str:
    """One line about a pause: what, since when, until when, by whom and why."""
    until = "" if rule.until is None else f" until {format_time(rule.until)}"
    note = f": {rule.note}" if rule.note else ""
    since = format_time(rule.since)
    return visible(f"{rule.what} since {since}{until} by {rule.by}{note}")


def _refuse_rate(chosen: Chosen) -> None:
    if chosen.rate is not None:
        raise click.UsageError("--rate: a type, or everything, is paused or resumed at once")


def _preview(done: str, schedules: ScheduleCollection, types: Sequence[str | None]) -> None:
    for type_ in types:
        text = _counted(_number(schedules, type_))
        click.echo(f"{_what(type_)}: would be {done}: {text} now")


def _ask(
    verb: str, schedules: ScheduleCollection, types: Sequence[str | None], chosen: Chosen
) -> None:
    """Ask the user on a terminal."""
    if not chosen.asks:
        return
    number = sum(_number(schedules, type_) for type_ in types)
    what = " and ".join(map(_what, types))
    confirm(f"{verb} {what} ({_counted(number)} now)?")


def _number(schedules: ScheduleCollection, type_: str | None) -> int:
    """How many schedules have a type, as far as they are counted."""
    found = schedules.list(type=type_, limit=_MOST_COUNTED + 1)
    return sum(1 for _ in islice(found, _MOST_COUNTED + 1))


def _counted(count: int) -> str:
    if count > _MOST_COUNTED:
        return f"more than {_MOST_COUNTED} schedules"
    return counted(count, "schedule")


def _what(type_: str | None) -> str:
    return "everything" if type_ is None else f"type {visible(type_)}"
