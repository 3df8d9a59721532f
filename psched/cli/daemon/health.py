"""The command health."""

import json
import sys
from collections.abc import Mapping
from typing import Any

import click

from psched.base.texts import visible
from psched.cli import options
from psched.cli.daemon.masters import Found, find_masters, judge
from psched.cli.exit_status import report_errors
from psched.cli.options import ConfigLocation
from psched.cli.running_here import served_by
from psched.master.reports.health import Limits


@click.command()
@click.option(
    "--claims-within",
    metavar="DURATION",
    type=options.duration(least=0),
    help="The longest time since a worker has searched for due tasks. Default: 30s, or twice"
    " poll_interval if that is longer.",
)
@click.option(
    "--late-within",
    metavar="DURATION",
    type=options.duration(least=0),
    help="The longest time for which a due task may wait for a free slot. Default: 5m.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
@report_errors
def health(
    location: ConfigLocation,
    *,
    claims_within: float | None,
    late_within: float | None,
    as_json: bool,
) -> None:
    """Tell whether this host can run due tasks.

    For containers, monitors and load balancers: one line gives the reason, and the exit status is
    0 if the master of this host is ready, else 1.

    It is ready if the database has lately answered one of its workers that searched for due tasks,
    and no due task waits too long for a free slot. The master is asked, not the database.
    """
    found = find_masters(location)
    limits = found.default_limits
    if claims_within is not None:
        if found.wanted is not None and claims_within <= found.wanted.poll_interval:
            raise click.UsageError(
                "--claims-within must be longer than the setting poll_interval"
                f" ({found.wanted.poll_interval:g} s), because workers search only so often."
            )
        limits = limits._replace(claims_within=claims_within)
    if late_within is not None:
        limits = limits._replace(late_within=late_within)
    judged = _judge_all(found, limits)
    click.echo(visible(json.dumps(judged) if as_json else _line(judged)))
    if not judged["ready"]:
        sys.exit(1)


def _judge_all(found: Found, limits: Limits) -> Mapping[str, Any]:
    """Judge the masters of this host together; see `judge`.

    One master that is ready is enough for each table. Two masters serve one table, for example,
    while one takes the place of the other.
    """
    if not found.masters:
        return {"ready": False, "problem": found.silent[0] if found.silent else found.nobody}
    by_table: dict[str | None, Mapping[str, Any]] = {}
    for master in found.masters:
        # With a known table, a master that does not know its own table yet serves this one.
        table = served_by(master) if found.wanted is None else None
        if not by_table.get(table, {}).get("ready"):
            by_table[table] = judge(master, limits)
    judged = [*by_table.values()]
    return next((each for each in judged if not each["ready"]), judged[0])


def _line(judged: Mapping[str, Any]) -> str:
    problem = judged["problem"]
    if not judged["ready"]:
        return f"not ready: {problem}"
    return "ready" if problem is None else f"ready, but the last restart failed: {problem}"
