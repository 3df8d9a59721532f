"""The command alerts, and how other commands and the web show alerts."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from itertools import islice
from typing import Any

import click

from psched.app import open_schedules
from psched.base.errors import NotSupportedError
from psched.base.quantities import format_duration
from psched.base.texts import counted
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.opening import open_to_change, settings_to_read, settings_to_write
from psched.cli.output import one_line
from psched.cli.shown import KEY_WIDTH
from psched.cli.text_table import Column, View, print_table
from psched.cli.time_format import format_span, format_time, local_times, parse_since, short_time
from psched.client.auditor import this_process
from psched.client.collection import ScheduleCollection
from psched.config.monitoring import Expectations
from psched.core.alerts.alert import Alert, Rule
from psched.reports.redaction import Redaction

_DEFAULT_LIMIT = 50  # the number of alerts in a table, unless the user chooses another one


def open_alerts(schedules: ScheduleCollection, key: str) -> Sequence[Alert]:
    """The open alerts about a schedule; none if the store keeps no alerts."""
    try:
        return [*schedules.alerts(key)]
    except NotSupportedError:
        return []


def subject(alert: Alert) -> str:
    """The key of the schedule that an alert is about, or ``host NAME``."""
    return alert.key or f"host {alert.host}"


def _open_for(alert: Alert, view: View) -> str:
    """For how long an alert has been open, or was."""
    end = view.now if alert.closed is None else alert.closed / 1000
    return format_duration(max(0.0, end - alert.raised / 1000))


def _closed(alert: Alert, view: View) -> str:
    return "" if alert.closed is None else short_time(alert.closed // 1000, view.now)


def _alert_text(alert: Alert, view: View) -> str:
    text = alert.text if alert.closed_text is None else f"{alert.text}; over: {alert.closed_text}"
    return one_line(local_times(view.redaction.text(text)))


ALERTS: Sequence[Column[Alert]] = (
    Column("SINCE", lambda alert, view: short_time(alert.since // 1000, view.now), is_time=True),
    Column("RULE", lambda alert, _: alert.rule, colours=dict.fromkeys(Rule, "red")),
    Column("KEY", lambda alert, _: one_line(subject(alert)), least=KEY_WIDTH),
    Column("OPEN FOR", _open_for),
    Column("CLOSED", _closed, is_time=True),
    Column("TEXT", _alert_text),
)
"""The columns of a table of alerts."""

OPEN_ALERTS = [column for column in ALERTS if column.heading != "CLOSED"]
"""The columns of a table that shows only open alerts."""


def sentence(alert: Alert, redaction: Redaction) -> str:
    """An open alert in one line, below what another command shows about its schedule."""
    raised = format_time(alert.raised // 1000)
    return f"{alert.rule}, raised at {raised}: {one_line(local_times(redaction.text(alert.text)))}"


def alert_object(alert: Alert, redaction: Redaction) -> dict[str, Any]:
    """The JSON object of an alert; docs/alerts.md describes it."""
    names = [each.name for each in fields(alert) if each.name not in {"owner", "fence"}]
    made: dict[str, Any] = {name: getattr(alert, name) for name in names}
    # In seconds, like the times of other commands.
    for name in ("since", "raised", "closed", "next_try"):
        made[name] = _seconds(made[name])
    made |= {"key": alert.key or None, "host": alert.host or None}
    made["deliveries"] = {
        name: asdict(each) | {"next_try": _seconds(each.next_try)}
        for name, each in alert.deliveries.items()
    }
    shown: dict[str, Any] = redaction.value(made)
    return shown


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def expected_text(expect: Expectations) -> str:
    """What is expected of a schedule: ``late 5m, unusual 3``; empty if nothing is."""
    found = ((name, value) for name, value in expect.items() if value is not None)
    return ", ".join(
        f"{name} {value:g}"
        if name == Rule.UNUSUAL or value % 1
        else f"{name} {format_span(int(value))}"
        for name, value in found
    )


# --- the command -----------------------------------------------------------------------------


@click.command()
@click.argument("key", required=False, shell_complete=complete_key)
@click.option("--all", "also_closed", is_flag=True, help="Also alerts that are over.")
@options.since("Only alerts that were raised")
@options.one_of(Rule, "--rule rules", "Only alerts of this rule")
@options.limit(default=_DEFAULT_LIMIT)
@click.option(
    "--close",
    is_flag=True,
    help="Close the open alerts about KEY; the same incident is not told of again.",
)
@options.zone()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@options.database
@click.pass_obj
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
