"""The command hosts."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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
from psched.core.history.records import GONE_AFTER, WorkerRecord
from psched.reports.redaction import Redaction

_SHOWN_FOR = 7 * 86_400
"""A host that is gone is shown for so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the records of its workers tell about a host; of several, the newest one.

    Attributes:
        seen: when a worker last wrote its record, in Unix seconds.
        workers: how many are alive.
        labels: its labels, see the setting ``host_labels``.
        clock: by how many seconds its clock is ahead of the store's; None if it is not known.
    """

    name: str
    seen: int
    workers: int
    labels: Sequence[str]
    version: str | None
    python: str | None
    zone_data: str | None
    clock: float | None


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Show a JSON list of objects.")
@options.zone()
@options.database
@click.pass_obj
def hosts(location: ConfigLocation, *, as_json: bool) -> None:
    """List the hosts that run tasks.

    The workers of a host say each minute that they are alive. A host without workers is listed for
    7 days. HOST and LABELS are what the field hosts of a schedule can name. CLOCK is by how much
    the clock of the host is ahead of the database's.
    """
    settings = settings_to_read(location)
    with open_schedules(settings) as schedules:
        now = schedules.now()
        found = [*_hosts(schedules.workers_seen(_SHOWN_FOR), floor(now))]
    if as_json:
        click.echo(json.dumps([*map(asdict, found)]))
    elif not print_table(_COLUMNS, found, View(now, Redaction(settings.redact))):
        click.echo("No host: no worker has run in the last 7 days")


def _hosts(workers: Sequence[WorkerRecord], now: int) -> Iterator[Host]:
    by_host: dict[str, list[WorkerRecord]] = {}
    for worker in sorted(workers, key=lambda each: each.seen):
        by_host.setdefault(worker.host, []).append(worker)
    for name, found in sorted(by_host.items()):
        newest = found[-1]
        alive = [each for each in found if each.ended is None and each.seen >= now - GONE_AFTER]
        offset = newest.clock_offset
        yield Host(
            name=name,
            seen=newest.seen,
            workers=len(alive),
            labels=(newest.labels or "").split(),
            version=newest.version,
            python=newest.python,
            zone_data=newest.zone_data,
            clock=None if offset is None else offset / 1000,
        )


def _clock(host: Host) -> str:
    if host.clock is None:
        return ""
    return ("-" if host.clock < 0 else "+") + format_duration(abs(host.clock))


_COLUMNS: Sequence[Column[Host]] = (
    Column("HOST", lambda host, _: one_line(host.name)),
    Column("SEEN", lambda host, view: short_time(host.seen, view.now), is_time=True),
    Column("WORKERS", lambda host, _: str(host.workers) if host.workers else "gone"),
    Column("LABELS", lambda host, _: one_line(" ".join(host.labels))),
    Column("PSCHED", lambda host, _: one_line(host.version or "")),
    Column("PYTHON", lambda host, _: one_line(host.python or "")),
    Column("ZONES", lambda host, _: one_line(host.zone_data or "")),
    Column("CLOCK", lambda host, _: _clock(host)),
)
