"""The command hosts."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import floor

import click

from psched.app import open_schedules
from psched.base.quantities import format_duration
from psched.cli import options
from psched.cli.opening import settings_to_read
from psched.cli.options import ConfigLocation
from psched.cli.output import one_line
from psched.cli.text_table import Column, View, print_table
from psched.cli.time_format import short_time
from psched.reports.hosts import SHOWN_FOR, Host, hosts_seen
from psched.reports.redaction import Redaction


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Show a JSON list of objects.")
@options.zone()
@options.database
@click.pass_obj
def hosts(location: ConfigLocation, *, as_json: bool) -> None:
    """List the hosts that run tasks.

    The workers of a host say each minute that they are alive, and how many of their slots are BUSY.
    A host without workers is listed for 7 days. HOST and LABELS are what the field hosts of a
    schedule can name. CLOCK is by how much the clock of the host is ahead of the database's.
    """
    settings = settings_to_read(location)
    with open_schedules(settings) as schedules:
        now = schedules.now()
        found = [*hosts_seen(schedules.workers_seen(SHOWN_FOR), floor(now))]
    if as_json:
        click.echo(json.dumps([*map(asdict, found)]))
    elif not print_table(COLUMNS, found, View(now, Redaction(settings.redact))):
        click.echo("No host: no worker has run in the last 7 days")


def _clock(host: Host) -> str:
    if host.clock is None:
        return ""
    return ("-" if host.clock < 0 else "+") + format_duration(abs(host.clock))


COLUMNS: Sequence[Column[Host]] = (
    Column("HOST", lambda host, _: one_line(host.name)),
    Column("SEEN", lambda host, view: short_time(host.seen, view.now), is_time=True),
    Column("WORKERS", lambda host, _: str(host.workers) if host.workers else "gone"),
    Column("BUSY", lambda host, _: f"{host.busy} of {host.slots}" if host.workers else ""),
    Column("LABELS", lambda host, _: one_line(" ".join(host.labels))),
    Column("PSCHED", lambda host, _: one_line(host.version or "")),
    Column("PYTHON", lambda host, _: one_line(host.python or "")),
    Column("ZONES", lambda host, _: one_line(host.zone_data or "")),
    Column("CLOCK", lambda host, _: _clock(host)),
)
