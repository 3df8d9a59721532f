"""The commands pause and resume."""

from functools import partial
from typing import Any

import click

from psched.app import open_schedules
from psched.cli import changes, options
from psched.cli.changes import open_to_change
from psched.cli.exit_status import report_errors
from psched.cli.operate.pause_rules import (
    chosen_types,
    list_pauses,
    pause_types,
    resume_types,
)
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_read, settings_to_write
from psched.cli.schedules.chosen import Chosen, Verb, change_chosen, choosing
from psched.cli.time_format import reader_zone
from psched.client.collection import ScheduleCollection
from psched.client.selected import SelectedSchedules
from psched.core.history.why.asked_time import parse_next


@click.command()
@choosing
@click.option(
    "--until",
    metavar="TIME",
    help="Resume at TIME: 18:00 (the next one), tomorrow 08:00, 2026-11-26T08:00 or +2h. Default:"
    " not before psched resume.",
)
@click.option(
    "--list", "is_list", is_flag=True, help="Show the types that are paused, and change nothing."
)
@click.option(
    "--json", "as_json", is_flag=True, help="With --list: show each as one JSON object per line."
)
@changes.message
@options.zone()
@options.database
@click.pass_obj
@report_errors
def pause(
    location: ConfigLocation,
    /,
    *,
    until: str | None,
    is_list: bool,
    as_json: bool,
    message: str | None,
    **given: Any,  # noqa: ANN401  # the options of `choosing`
) -> None:
    """Pause schedules or tasks, also until a time.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose those that wait, run or are paused now, and that match all of
    them. Schedules that are added later are not paused.

    They do not run until they are resumed. With --all, or with --type alone, everything or the type
    is paused, also what is added later.

    A running task goes on; the pause applies when it has ended. If a schedule is paused already,
    the new end and the new message replace the former ones. A TIME without an offset is in
    your time zone. At this time a worker resumes the schedule as psched resume does.
    """
    chosen = Chosen(**given)
    if is_list:
        if chosen.chooses or until is not None:
            raise click.UsageError("--list changes nothing; leave out KEYS, conditions and --until")
        with open_schedules(settings_to_read(location)) as schedules:
            list_pauses(schedules, as_json=as_json)
        return
    if as_json:
        raise click.UsageError("--json needs --list")
    chosen.check()
    settings = settings_to_write(location)
    types = chosen_types(chosen)

    with open_to_change(settings, message) as schedules:
        now = schedules.now()
        end = None if until is None else parse_next("until", until, reader_zone(), now)
        if types:
            pause_types(schedules, types, end, chosen)
            return

        def pause_one(schedules: ScheduleCollection, key: str) -> bool:
            return schedules.pause(key, end)

        many = partial(SelectedSchedules.pause, until=end)
        change_chosen(schedules, chosen, Verb("pause", "paused", pause_one, many, "ended"))


@click.command()
@choosing
@click.option(
    "--backfill",
    is_flag=True,
    help="Skip nothing: the setting catchup decides which of the missed times run.",
)
@changes.message
@options.database
@click.pass_obj
@report_errors
def resume(
    location: ConfigLocation,
    /,
    *,
    backfill: bool,
    message: str | None,
    **given: Any,  # noqa: ANN401  # the options of `choosing`
) -> None:
    """Let paused schedules or tasks run again.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only those that are paused, and that match all of them. --all,
    or --type alone, ends the pause of everything or of the type; schedules that are paused by their
    keys stay paused.

    What fell due during the pause is skipped, which psched history and psched why show. Tasks that
    run only once are not skipped, but run now if they were due.
    """
    chosen = Chosen(**given)
    chosen.check()
    if types := chosen_types(chosen):
        with open_to_change(settings_to_write(location), message) as schedules:
            resume_types(schedules, types, chosen, backfill=backfill)
        return

    def resume_one(schedules: ScheduleCollection, key: str) -> None:
        schedules.resume(key, backfill=backfill)

    many = partial(SelectedSchedules.resume, backfill=backfill)
    with open_to_change(settings_to_write(location), message) as schedules:
        change_chosen(schedules, chosen, Verb("resume", "resumed", resume_one, many))
