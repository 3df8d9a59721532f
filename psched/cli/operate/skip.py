"""The command skip."""

from functools import partial
from typing import Any

import click

from psched.cli import changes, options
from psched.cli.changes import open_to_change
from psched.cli.exit_status import report_errors
from psched.cli.operate.rescheduled import lines_of
from psched.cli.options import ConfigLocation
from psched.cli.other_database import settings_to_write
from psched.cli.schedules.chosen import Chosen, Verb, change_chosen, choosing
from psched.client.collection import ScheduleCollection
from psched.client.selected import SelectedSchedules
from psched.core.history.redaction import Redaction
from psched.core.operations.rescheduled import Rescheduled
from psched.core.operations.skipping import MOST


@click.command()
@choosing
@click.option(
    "-n",
    "number",
    type=click.IntRange(1, MOST),
    default=1,
    metavar="N",
    help="Number of runs to leave out. Default: 1.",
)
@changes.message
@options.zone()
@options.database
@click.pass_obj
@report_errors
def skip(
    location: ConfigLocation,
    /,
    *,
    number: int,
    message: str | None,
    **given: Any,  # noqa: ANN401  # the options of `choosing`
) -> None:
    """Leave out the next runs of schedules.

    The next three runs before and after the change are shown. psched history and psched why tell
    which runs were left out, by whom, and why (-m).

    KEYS are keys or patterns, in which * stands for any characters and ? for one; quote patterns.
    Patterns and conditions choose only schedules that match all of them, have not ended, and do not
    run only once. For example, this leaves out the next two runs of a schedule:

        psched skip nightly -n 2 -m holidays

    A schedule that runs now cannot be skipped before this run has ended. A run that has failed and
    would be tried again is left out, too. A paused schedule stays paused.
    """
    chosen = Chosen(**given)
    chosen.check()
    settings = settings_to_write(location)
    redaction = Redaction(settings.redact)

    def skip_one(schedules: ScheduleCollection, key: str, *, dry_run: bool = False) -> Rescheduled:
        return schedules.skip(key, number, dry_run=dry_run)

    verb = Verb(
        "skip",
        "skipped",
        skip_one,
        partial(SelectedSchedules.skip, number=number),
        preview_one=partial(skip_one, dry_run=True),
        lines=lambda outcome: lines_of(outcome, redaction),
        leaves_changed=False,
    )
    with open_to_change(settings, message) as schedules:
        change_chosen(schedules, chosen, verb)
