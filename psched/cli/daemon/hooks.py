"""The command hooks."""

from collections.abc import Iterator, Sequence
from functools import partial

import click

from psched.app import CLOCK, open_schedules
from psched.base.errors import ConfigError
from psched.cli.opening import read_settings
from psched.cli.options import ConfigLocation
from psched.cli.text_table import Column, View, print_table
from psched.config import Config
from psched.config.monitoring import ON_SETTINGS, Webhook
from psched.core.alerts.alert import Alert, Rule
from psched.notify.hooks import deliverers
from psched.notify.notification import CLOSED, RAISED, DeliveryError, Notification
from psched.reports.redaction import Redaction


@click.command()
@click.argument("action", type=click.Choice(["list", "test"]), default="list")
@click.argument("name", required=False)
@click.pass_obj
def hooks(location: ConfigLocation, action: str, name: str | None) -> None:
    """List the hooks that are told about alerts, or test one.

    The setting hooks defines them. "test NAME" sends a notification by the hook NAME now, from this
    host and as this user. The notification says that it is a test. If it was delivered, the exit
    status is 0, else 1 with the reason.
    """
    if (name is None) == (action == "test"):
        raise click.UsageError("Write psched hooks list, or psched hooks test NAME.")
    settings = read_settings(location)
    if name is not None:
        _test(settings, name)
    elif settings.hooks:
        print_table(_COLUMNS, _rows(settings), View(0, Redaction(())))
    else:
        click.echo("No hooks: see the setting hooks")


_COLUMNS: Sequence[Column[tuple[str, str, str]]] = (
    Column("NAME", lambda row, _: row[0]),
    Column("ON", lambda row, _: row[1]),
    Column("KIND", lambda row, _: row[2]),
)


def _rows(settings: Config) -> Iterator[tuple[str, str, str]]:
    named = [(each, "", getattr(settings, each)) for each in ON_SETTINGS]
    for type_, own in settings.types.items():
        named += ((each, f" ({type_})", own.get(each, ())) for each in ON_SETTINGS)
    for name, hook in settings.hooks.items():
        told = [each.removeprefix("on_") + suffix for each, suffix, names in named if name in names]
        yield name, ", ".join(told) or "-", hook.shown


def _test(settings: Config, name: str) -> None:
    """Send a test by a hook."""
    hook = settings.hooks.get(name)
    if hook is None:
        there_are = f"there are {', '.join(settings.hooks)}" if settings.hooks else "it is empty"
        raise ConfigError(f"hooks: does not define {name}; {there_are}")
    deliver = deliverers(settings, partial(open_schedules, settings), CLOCK)[name]
    now = int(CLOCK.wall() * 1000)
    text = f"This is a test of the hook {name}. Nothing is wrong."
    # An incident at PagerDuty would otherwise stay open.
    is_pagerduty = isinstance(hook, Webhook) and hook.template == "pagerduty"
    for event in (RAISED, CLOSED) if is_pagerduty else (RAISED,):
        notification = Notification(
            event=event,
            alert=Alert(
                key="psched-hooks-test",
                rule=Rule.FAILED,
                since=now,
                raised=now,
                text=text,
                closed=now if event == CLOSED else None,
                closed_text=text if event == CLOSED else None,
            ),
            installation=settings.table,
            host=settings.this_host,
            test=True,
            redaction=Redaction(settings.redact),
        )
        try:
            deliver(notification)
        except DeliveryError as error:
            again = "psched would try again" if error.retry else "psched would not try again"
            raise DeliveryError(f"{name}: {error} ({again})", retry=error.retry) from None
    click.echo(f"{name}: delivered: {hook.shown}")
