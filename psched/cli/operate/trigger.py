"""The command trigger."""

from functools import partial
from typing import Any

import click

from psched.app import CLOCK
from psched.cli import changes, options
from psched.cli.changes import open_to_change
from psched.cli.exit_status import report_errors
from psched.cli.operate import waiting
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_write
from psched.cli.schedules.chosen import Chosen, Verb, change_chosen, choosing
from psched.cli.time_format import parse_time
from psched.client.collection import ScheduleCollection
from psched.client.selected import SelectedSchedules
from psched.core.history.redaction import Redaction
from psched.core.operations.extra_runs import OVERLAPS, QUEUE

overlap_option = click.option(
    "--overlap",
    type=click.Choice(OVERLAPS),
    default=QUEUE,
    help="If another run of the schedule is going on: queue waits for its end, skip gives this run"
    " up, parallel starts it nevertheless. Default: queue.",
)


@click.command(cls=waiting.WaitingCommand)
@choosing
@click.option(
    "--data",
    metavar="JSON",
    help="Data for the run, in place of those of the schedule; - reads them from standard input.",
)
@overlap_option
@click.option("--at", metavar="TIME", help="Do not start before TIME. Default: now.")
@waiting.wait
@waiting.as_json
@changes.message
@options.zone()
@options.database
@click.pass_obj
@report_errors
def trigger(
    location: ConfigLocation,
    /,
    *,
    data: str | None,
    overlap: str,
    at: str | None,
    wait: float | None,
    as_json: bool,
    message: str | None,
    **given: Any,  # noqa: ANN401  # the options of `choosing`
) -> None:
    """Run schedules now, beside their regular runs.

    Each extra run is a task with the schedule's type, data and options, and with a key of its own:
    the schedule's key, ! and 16 letters and digits. The regular runs keep their times. A paused
    schedule runs, too. psched history KEY shows the extra runs of KEY.

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only schedules that match all of them and have not ended.

    With --wait, name one KEY. If the task has set a result, it is printed on a line of its own, as
    JSON. A TIME is 18:00, tomorrow 09:00, 2026-01-31T09:00 or Unix seconds; without an offset, it
    is in your time zone.
    """
    chosen = Chosen(**given)
    chosen.check()
    if as_json and wait is None:
        raise click.UsageError("--json needs --wait")
    settings = settings_to_write(location)
    run_at = parse_time("at", at, CLOCK.wall())
    own = None if data is None else waiting.json_data(data)
    how: dict[str, Any] = {"overlap": overlap, "run_at": run_at}

    def trigger_one(schedules: ScheduleCollection, key: str) -> str:
        return schedules.trigger(key, own, **how).key

    with open_to_change(settings, message) as schedules:
        if wait is None or chosen.dry_run:
            many = partial(SelectedSchedules.trigger, data=own, **how)
            verb = Verb("trigger", "triggered", trigger_one, many, leaves_changed=False)
            change_chosen(schedules, chosen, verb)
            return
        if len(chosen.keys) != 1 or not chosen.names_each(schedules):
            raise click.UsageError("--wait needs one KEY, and no condition")
        task = schedules[trigger_one(schedules, chosen.keys[0])]
        waiting.wait_for(task, wait, Redaction(settings.redact), as_json=as_json)
