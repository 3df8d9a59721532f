"""The command add."""

from typing import Any

import click

from psched.base.errors import InvalidError
from psched.base.exec_data import EXEC_TYPE
from psched.cli import opening, options
from psched.cli.opening import open_to_change, settings_to_write, warn_of_hosts, warn_of_types
from psched.cli.options import ConfigLocation
from psched.cli.schedules.arguments import (
    OPTIONS,
    ProgramCommand,
    exec_data,
    fields_of_a_schedule,
    pop_times,
    warn_of_trigger,
    with_program,
)
from psched.cli.time_format import format_time
from psched.core.columns import decode
from psched.triggers.zone import find_zone


@click.command(cls=ProgramCommand)
@click.argument("key")
@click.argument("type", required=False)
@click.argument("cron", required=False)
@click.argument("data", required=False)
@fields_of_a_schedule(new=True)
@opening.message
@options.zone()
@options.database
@click.pass_obj
def add(
    location: ConfigLocation,
    /,
    key: str,
    type: str | None,  # noqa: A002  # named like the column of the table
    cron: str | None,
    data: str | None,
    interval: int | None,
    timezone: str | None,
    message: str | None,
    program: list[str] | None,
    **more: Any,  # noqa: ANN401  # the other options of `fields_of_a_schedule`
) -> None:
    """Add a schedule.

    KEY is the schedule's unique name, TYPE selects the handler that runs its tasks, CRON says when
    they run, and DATA is a JSON object for the handler.

    To run a program, write its command line after --, in place of TYPE and DATA: psched add backup
    '30 2 * * *' -- pg_dump -Fc shop

    CRON is a cron line of five fields, or a name such as @daily; or '@every 5m', an interval;
    or '@call module:Class {…}', a trigger class of your own. With --every, leave CRON out.

    A DURATION is seconds, or a number with the unit s, m, h or d: 30s, 5m, 1h, 30d.

    A TIME is 18:00, tomorrow 09:00, 2026-01-31T09:00 or Unix seconds; without an offset, it is in
    the zone of --timezone, else in yours.
    """
    words = [each for each in (type, cron, data) if each is not None]
    fields = None if program is None else exec_data(program)
    if fields is not None and words[:1] != [EXEC_TYPE]:
        words.insert(0, EXEC_TYPE)
    every = interval is not None
    if fields is not None and len(words) > 2 - every:
        raise click.UsageError("-- replaces TYPE and DATA; write: add KEY CRON -- COMMAND")
    if every and len(words) > 2:  # noqa: PLR2004  # TYPE and DATA
        raise click.UsageError("--every replaces CRON; leave one out")
    if len(words) < 2 - every:
        raise click.UsageError("CRON or --every is missing" if words else "TYPE is missing")
    type_, *rest = words
    cron, texts = (None, rest) if every else (rest[0], rest[1:])
    settings = settings_to_write(location)
    zone = settings.timezone if timezone is None else timezone
    own = find_zone(zone)  # refuses an empty name, which an unset shell variable can cause
    more |= pop_times(more, None if timezone is None else own)
    with open_to_change(settings, message) as schedules:
        try:
            added = schedules.add(
                key,
                type_,
                cron=cron,
                every=interval,
                timezone=zone,
                data=decode("data", *texts or ["{}"], values=None) if fields is None else fields,
                **more,
            ).metadata()
        except InvalidError as error:
            refused = InvalidError(OPTIONS.get(error.field, error.field), error.problem)
            if texts and type_ == EXEC_TYPE and error.field == "data":
                refused = with_program(refused, texts[0])
            raise refused from None
        scheduled, run_at = added.next_time, added.next_run_time
        times = format_time(scheduled)
        if scheduled is not None and run_at is not None and run_at < scheduled:
            times = f"{format_time(run_at)}, in place of {times}"
        click.echo(f"{key}: first at {times}")
        warn_of_trigger(added.row, settings)
        warn_of_types(schedules, [type_])
        warn_of_hosts(schedules, [added.row.lane])
