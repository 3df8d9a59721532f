"""``psched migrate``: moves another system's table into psched's own, while both are in use."""

import random
from typing import TYPE_CHECKING

import click

from psched.app import CLOCK, read_config
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation

if TYPE_CHECKING:
    from psched.contrib.perfectsched.migration.migrator import Migrator
    from psched.contrib.perfectsched.migration.planner import Report

_PROGRESS = 5.0
"""The shortest time between two progress lines, in seconds."""


@click.command()
@click.argument("old_table")
@click.option(
    "--url",
    envvar="PSCHED_MIGRATE_URL",
    help="Database of OLD_TABLE, if it is not in psched's. Default: $PSCHED_MIGRATE_URL, which no"
    " process list shows. The url must include the password. If it has no option about encryption"
    " (ssl_ca, ssl_disabled, sslmode), the encryption settings apply to this server, too.",
)
@click.option(
    "--kind",
    "system",
    type=click.Choice(["perfectsched", "perfectqueue"]),
    help="The system that OLD_TABLE belongs to. Default: the one whose columns the table has.",
)
@click.option(
    "--lease-time",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    help="Longest alive_time of the old workers, in seconds.",
)
@click.option(
    "--wait",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seconds to wait for rows that old workers may be running.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; report what would be moved.")
@click.pass_obj
@report_errors
def migrate(
    location: ConfigLocation,
    old_table: str,
    url: str | None,
    system: str | None,
    lease_time: int,
    wait: int,
    *,
    dry_run: bool,
) -> None:
    """Move a PerfectSched or PerfectQueue table into psched's.

    Workers of both systems may run meanwhile. Each row is deleted from OLD_TABLE once psched's
    table has it. Rows that are running, and rows that psched cannot hold, stay in OLD_TABLE. Repeat
    the command until no row is left.
    """
    from psched.contrib.perfectsched.migration.migrator import open_migrator  # noqa: PLC0415  # SQLAlchemy

    with open_migrator(
        read_config(*location),
        old_table,
        url=url,
        system=system,
        lease_time=lease_time,
        clock=CLOCK,
        rng=random.Random(),  # noqa: S311  # jitter
        progress=_Progress(),
    ) as migrator:
        click.echo(migrator.title)
        report = migrator.run_pass(dry=True) if dry_run else migrator.run(wait)
    _print(migrator, report, dry=dry_run)


class _Progress:
    """Prints the progress, at most once every `_PROGRESS` seconds."""

    def __init__(self) -> None:
        self._printed_at = CLOCK.monotonic()

    def __call__(self, seen: int, moved: int) -> None:
        if CLOCK.monotonic() - self._printed_at >= _PROGRESS:
            self._printed_at = CLOCK.monotonic()
            click.echo(f"{seen} rows read, {moved} moved so far", err=True)


def _print(migrator: "Migrator", report: "Report", *, dry: bool) -> None:
    """Print how many rows were moved, and why others were not; raise an error if rows remain."""
    click.echo(f"would move: {report.ready}" if dry else f"moved: {migrator.moved}")
    click.echo(f"running, left for the next time: {report.running + report.changed}")
    click.echo(f"refused, left where they are: {report.refused}")
    for key, reason in report.reasons.items():
        click.echo(f"    {_escaped(key)}: {_escaped(reason)}")
    if report.unnamed:
        click.echo(f"    and {report.unnamed} more")
    for origin, number in migrator.others.items():
        click.echo(
            f"{number} more rows are half moved from {_escaped(origin)}; finish that migration"
            " first"
        )
    if migrator.overdue:
        click.echo(f"note: {migrator.overdue} {migrator.overdue_note}")
    if migrator.not_enforced:
        click.echo("note: resource and max_running are kept in options, but not enforced")
    remaining = report.remaining + migrator.others.total()
    if remaining:
        raise click.ClickException(
            f"{remaining} rows {'would remain' if dry else 'remain'};"
            " correct those that are refused, and run it again"
        )


def _escaped(text: object) -> str:
    # Control characters from a row are escaped, because a terminal would obey them.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
