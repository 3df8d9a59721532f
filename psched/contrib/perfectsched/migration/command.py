"""``psched migrate``: another system's table into psched's own, while both are in use."""

import random
from typing import TYPE_CHECKING

import click

from psched.app import CLOCK, read_config
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation

if TYPE_CHECKING:
    from psched.contrib.perfectsched.migration.judging import Left
    from psched.contrib.perfectsched.migration.moving import Migration

_PROGRESS = 5.0
"""Seconds between two lines about a large table."""


@click.command()
@click.argument("old_table")
@click.option(
    "--url",
    envvar="PSCHED_MIGRATE_URL",
    help="Database of OLD_TABLE, if it is not psched's. Default: $PSCHED_MIGRATE_URL, which no"
    " list of processes shows. Its password is its own; and so is its encryption, if it has an"
    " option about that (ssl_ca, ssl_disabled, sslmode): without one, the settings hold for a"
    " server there, too.",
)
@click.option(
    "--kind",
    type=click.Choice(["perfectsched", "perfectqueue"]),
    help="Whose table it is. Default: what its columns tell.",
)
@click.option(
    "--lease-time",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    help="The longest alive_time of its workers, seconds.",
)
@click.option(
    "--wait",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seconds to wait for rows that its workers may be running.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would become of its rows.")
@click.pass_obj
@report_errors
def migrate(
    location: ConfigLocation,
    old_table: str,
    url: str | None,
    kind: str | None,
    lease_time: int,
    wait: int,
    *,
    dry_run: bool,
) -> None:
    """Move a PerfectSched or PerfectQueue table into psched's.

    Workers of both may run meanwhile. OLD_TABLE loses each row that psched's table has got; what
    is running, or what psched cannot hold, stays there. Run it again until nothing is left.
    """
    from psched.contrib.perfectsched.migration.moving import open_migration  # noqa: PLC0415  # SQLAlchemy

    with open_migration(
        read_config(*location),
        old_table,
        url=url,
        kind=kind,
        lease_time=lease_time,
        clock=CLOCK,
        rng=random.Random(),  # noqa: S311  # jitter
        progress=_Progress(),
    ) as migration:
        click.echo(migration.title)
        left = migration.look(dry=True) if dry_run else migration.run(wait)
    _tell(migration, left, dry=dry_run)


class _Progress:
    """Says now and then how far it has come."""

    def __init__(self) -> None:
        self._said_at = CLOCK.monotonic()

    def __call__(self, seen: int, moved: int) -> None:
        if CLOCK.monotonic() - self._said_at >= _PROGRESS:
            self._said_at = CLOCK.monotonic()
            click.echo(f"{seen} rows looked at, {moved} moved so far", err=True)


def _tell(migration: "Migration", left: "Left", *, dry: bool) -> None:
    """Say what became of the rows; exit with 1 if some remain."""
    click.echo(f"would move: {left.ready}" if dry else f"moved: {migration.moved}")
    click.echo(f"running, left for the next time: {left.running + left.changed}")
    click.echo(f"refused, left where they are: {left.refused}")
    for key, reason in left.reasons.items():
        click.echo(f"    {_plain(key)}: {_plain(reason)}")
    if left.unnamed:
        click.echo(f"    and {left.unnamed} more")
    for origin, number in migration.others.items():
        click.echo(
            f"{number} more rows have begun to move from {_plain(origin)}; finish that move first"
        )
    if migration.late:
        click.echo(f"note: {migration.late} {migration.late_note}")
    if migration.idle:
        click.echo("note: resource and max_running are kept in options, but not enforced")
    remaining = left.remaining + migration.others.total()
    if remaining:
        raise click.ClickException(
            f"{remaining} rows {'would remain' if dry else 'remain'};"
            " mend those that are refused, and run it again"
        )


def _plain(text: object) -> str:
    # What a row holds must not move the cursor.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
