"""The command why."""

import json
import re
import sys
from collections.abc import Sequence

import click
from typing_extensions import override

from psched.app import open_schedules
from psched.base.errors import InvalidError
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.history.alerts import open_alerts, sentence
from psched.cli.opening import settings_to_read
from psched.cli.time_format import local_times, reader_zone
from psched.core.history.answer import GOOD
from psched.reports.redaction import Redaction

_AGO = re.compile(r"-[0-9.]+[a-z]")


class _TakesAgo(click.Command):
    """A command with an argument such as ``-2h``, which click would take for an option."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(
            ctx, [f" {each}" if _AGO.fullmatch(each) else each for each in args]
        )


@click.command(cls=_TakesAgo)
@click.argument("key", shell_complete=complete_key)
@click.argument("time", nargs=-1)
@options.zone("-t", "--timezone")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with a code and details.")
@options.database
@click.pass_obj
def why(
    location: options.ConfigLocation,
    *,
    key: str,
    time: Sequence[str],
    as_json: bool,
) -> None:
    """Explain why a schedule ran, or did not run.

    TIME is the scheduled time: 2026-11-22 02:30, or 02:30 (the last one), or yesterday 02:30, or
    -2h (the last scheduled time that is at least two hours ago), or ISO 8601 with an offset, or
    Unix seconds. Without TIME: the last time that was due, and what comes next. A task that runs
    once needs no TIME. The open alerts about the schedule are shown, too, except with --json.

    The exit status is 0 if it ran, runs or will run, or if the schedule has no run at TIME. It is
    1 if it did not run, or if nobody knows. No master needs to run.
    """
    settings = settings_to_read(location)
    redaction = Redaction(settings.redact)
    with open_schedules(settings) as schedules:
        try:
            answer = schedules.why(key, " ".join(time).strip() or None, reader_zone())
        except InvalidError as error:
            raise click.UsageError(str(error)) from None
        alerts = [] if as_json else open_alerts(schedules, key)
    shown = (
        redaction.value(answer.to_json())
        if as_json
        else local_times(redaction.text(answer.sentence))
    )
    click.echo(json.dumps(shown) if as_json else shown)
    for alert in alerts:
        click.echo(f"An alert is open: {sentence(alert, redaction)}")
    sys.exit(0 if answer.state in GOOD else 1)
