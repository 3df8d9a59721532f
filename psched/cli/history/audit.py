"""The command audit."""

import json
from functools import partial

import click

from psched.app import open_schedules
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.exit_status import report_errors
from psched.cli.other_database import settings_to_read
from psched.cli.shown import CHANGES, change_lines, change_object
from psched.cli.text_table import View, print_table
from psched.cli.time_format import parse_since
from psched.core.history.redaction import Redaction


@click.command()
@click.argument("key", required=False, shell_complete=complete_key)
@click.option(
    "--since",
    metavar="AGE|TIME",
    help="Only changes that are at most this old (30s, 5m, 1h, 30d), or after this time.",
)
@click.option("--limit", metavar="N", type=click.IntRange(1, 10**9), help="Show at most N.")
@options.zone()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@options.database
@click.pass_obj
@report_errors
def audit(
    location: options.ConfigLocation,
    key: str | None,
    *,
    since: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Show who changed which schedule.

    The newest change is first: when, who on which host, with which program, the key, what was done,
    and why: the words of the option -m. Below are the old and new values of what has changed. With
    KEY, only the changes of this schedule are shown, even if it is deleted. Pushed tasks and runs
    are not shown.
    """
    settings = settings_to_read(location)
    redaction = Redaction.of_changes(settings.redact)
    with open_schedules(settings) as schedules:
        now = schedules.now()
        found = schedules.audit(key, parse_since(since, now), limit)
        if as_json:
            for record in found:
                click.echo(json.dumps(change_object(record, redaction)))
            return
        details = partial(change_lines, redaction=redaction)
        if not print_table(CHANGES, found, View(now, redaction), details):
            click.echo("no changes are recorded", err=True)
