"""``psched migrate``: moves another system's table into psched's, while both tables are in use."""

import random
from typing import TYPE_CHECKING

import click

from psched.app import CLOCK
from psched.cli import options
from psched.cli.opening import settings_to_write
from psched.cli.options import ConfigLocation, duration
from psched.cli.progress import Progress, quiet_option

if TYPE_CHECKING:
    from psched.contrib.perfectsched.migration.migrator import Migrator, Report


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
    type=duration(whole=True, least=1),
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="Longest alive_time of the old workers: seconds, or with a unit, such as 30s, 5m, 1h.",
)
@click.option(
    "--wait",
    type=duration(whole=True, least=0),
    default=0,
    show_default=True,
    metavar="DURATION",
    help="Time to wait for rows that old workers may be running.",
)
@click.option("--dry-run", is_flag=True, help="Change nothing; report what would be moved.")
@quiet_option
@options.own_database
@click.pass_obj
def migrate(
    location: ConfigLocation,
    old_table: str,
    url: str | None,
    system: str | None,
    lease_time: int,
    wait: int,
    *,
    dry_run: bool,
    quiet: bool,
) -> None:
    """Move a PerfectSched or PerfectQueue table into psched's.

    Workers of both systems can run meanwhile. Each row is deleted from OLD_TABLE once psched's
    table contains the row. Rows that are running, and rows that psched cannot store, stay in
    OLD_TABLE. Repeat the command until no row is left.
    """
    from psched.contrib.perfectsched.migration.migrator import open_migrator  # noqa: PLC0415  # SQLAlchemy

    with open_migrator(
        settings_to_write(location),
        old_table,
        url=url,
        system=system,
        lease_time=lease_time,
        clock=CLOCK,
        rng=random.Random(),  # noqa: S311  # jitter
        meter=Progress(quiet=quiet).meter,
    ) as migrator:
        click.echo(migrator.title)
        report = migrator.run_pass(dry=True) if dry_run else migrator.run(wait)
    _print(migrator, report, dry=dry_run)


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
        correct = "correct those that are refused, and " if report.refused else ""
        raise click.ClickException(
            f"{remaining} rows {'would remain' if dry else 'remain'}; {correct}run it again"
        )


def _escaped(text: object) -> str:
    # Control characters from a row are escaped, because a terminal would execute them.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
