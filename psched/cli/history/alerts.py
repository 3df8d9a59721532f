"""The command alerts."""

import json
from collections.abc import Collection
from itertools import islice

import click

from psched.app import open_schedules
from psched.base.texts import counted
from psched.cli import options
from psched.cli.changes import open_to_change
from psched.cli.completion import complete_key
from psched.cli.exit_status import report_errors
from psched.cli.other_database import settings_to_read, settings_to_write
from psched.cli.output import one_line
from psched.cli.shown import ALERTS, OPEN_ALERTS, alert_object, subject
from psched.cli.text_table import View, print_table
from psched.cli.time_format import parse_since
from psched.client.author import this_process
from psched.core.alerts.alert import Rule
from psched.core.history.redaction import Redaction

_DEFAULT_LIMIT = 50  # the number of alerts in a table, unless the user chooses another one


@click.command()
@click.argument("key", required=False, shell_complete=complete_key)
@click.option("--all", "also_closed", is_flag=True, help="Also alerts that are over.")
@click.option(
    "--since",
    metavar="AGE|TIME",
    help="Only alerts that were raised at most this long ago (30s, 5m, 1h, 30d), or after this"
    " time.",
)
@click.option(
    "--rule",
    "rules",
    type=click.Choice([each.value for each in Rule]),
    metavar="RULE",
    multiple=True,
    help=f"Only alerts of this rule; may be repeated. One of {', '.join(Rule)}.",
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1, 10**9),
    help=f"Show at most N. Default: {_DEFAULT_LIMIT}; with --json, all.",
)
@click.option(
    "--close",
    is_flag=True,
    help="Close the open alerts about KEY; the same incident is not told of again.",
)
@options.zone()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@options.database
@click.pass_obj
@report_errors
def alerts(
    location: options.ConfigLocation,
    key: str | None,
    *,
    also_closed: bool,
    since: str | None,
    rules: Collection[str],
    limit: int | None,
    close: bool,
    as_json: bool,
) -> None:
    """Show what is wrong with schedules and hosts.

    The alerts that are open are shown, those that were raised last first. The monitors raise them,
    and close them when they are over. The setting expect says what is expected of schedules.

    KEY is the key of a schedule or task, which may have been deleted since; without it, the alerts
    about all schedules and hosts are shown. SINCE says when the incident began.

    The exit status is 0, also if an alert is open.
    """
    if close:
        if key is None:
            raise click.UsageError("--close needs a KEY")
        if also_closed or since is not None or limit is not None or as_json:
            raise click.UsageError("--close goes only with KEY and --rule")
        _close(location, key, rules)
        return
    settings = settings_to_read(location)
    redaction = Redaction(settings.redact)
    if limit is None and not as_json:
        limit = _DEFAULT_LIMIT
    with open_schedules(settings) as schedules:
        found = schedules.alerts(
            key,
            rule=rules or None,
            only_open=not also_closed,
            since=parse_since(since, schedules.now()),
            # One more is read, to know whether there are more.
            limit=None if limit is None else limit + 1,
        )
        if as_json:
            for alert in islice(found, limit):
                click.echo(json.dumps(alert_object(alert, redaction)))
            return
        columns = ALERTS if also_closed else OPEN_ALERTS
        number = print_table(columns, islice(found, limit), View(schedules.now(), redaction))
        if not number:
            click.echo("no alert" if also_closed else "no open alert", err=True)
        elif number == limit and next(found, None) is not None:
            click.echo(f"{counted(number, 'alert')}; --limit N shows older ones")


def _close(location: options.ConfigLocation, key: str, rules: Collection[str]) -> None:
    settings = settings_to_write(location)
    with open_to_change(settings) as schedules:
        found = [*schedules.alerts(key, rule=rules or None)]
        closed = schedules.close_alerts(found, f"closed by {this_process().name}") if found else ()
    for alert in closed:
        click.echo(f"{one_line(subject(alert))}: {alert.rule}: closed")
    if not closed:
        click.echo("no open alert", err=True)
