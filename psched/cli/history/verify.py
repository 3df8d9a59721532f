"""The command verify, which checks the run history for occurrences that were lost or doubled."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import click

from psched.app import CLOCK, make_store
from psched.cli import options
from psched.cli.completion import complete_key
from psched.cli.opening import settings_to_read
from psched.cli.output import one_line
from psched.cli.time_format import format_time, local_times, parse_since
from psched.client.access import retry_while_unavailable
from psched.client.arguments import earliest
from psched.client.verifier import Verifier
from psched.reports.findings import Findings

_TRIES = 5  # the largest number of times that a request is sent while the store is unavailable


@click.command()
@click.argument("keys", metavar="[KEY]...", nargs=-1, shell_complete=complete_key)
@options.since("Check what was due", default="1d")
@options.zone()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@options.database
@click.pass_obj
def verify(
    location: options.ConfigLocation, *, keys: tuple[str, ...], since: str, as_json: bool
) -> None:
    """Check that every occurrence ran once or has a reason.

    The command reads the run history, and checks that each time of each schedule has exactly one
    fate, that no two runs of a schedule overlap, that fences grow, and that nothing started before
    it was due. It prints each violation, and then a summary; if there is a violation, the exit
    status is 1. Occurrences that wait or run are pending. What cannot be known is counted in the
    summary, with its reason.

    KEY is the name of a schedule or task. Without a KEY, all of them are checked. No master needs
    to run. Times that differ by at most a second are considered equal.
    """
    settings = settings_to_read(location)
    store = make_store(settings)
    send = partial(retry_while_unavailable, clock=CLOCK, tries=_TRIES)
    try:
        verifier = Verifier(store, settings, send)
        found = verifier.verify(_age(since, partial(send, store.now)), keys)
    finally:
        store.disconnect()
    if as_json:
        _print_object(found, verifier)
    else:
        _print_lines(found, verifier)
    if found.violations:
        sys.exit(1)


def _age(since: str, now: Callable[[], float]) -> float:
    """How long ago the check begins, in seconds."""
    begin = earliest(parse_since(since, now()) or 0, now)
    return max(now() - begin / 1000, 0)


def _print_object(found: Findings, verifier: Verifier) -> None:
    about = {
        "since": verifier.start,
        "is_complete": verifier.is_complete,
        "schedules": found.schedules,
        "instants": found.instants,
        "runs": found.runs,
        "pending": found.pending,
        "violations": [asdict(each) for each in found.violations],
        "unknown": [{"reason": reason, "count": count} for reason, count in found.unknown.items()],
    }
    click.echo(json.dumps(about))


def _print_lines(found: Findings, verifier: Verifier) -> None:
    for each in found.violations:
        click.echo(f"{each.kind}: {one_line(each.key)}: {one_line(local_times(each.text))}")
    since = format_time(verifier.start)
    if not verifier.is_complete:
        since += ", where the history begins"
    number = len(found.violations)
    click.echo(
        f"checked {_count(found.schedules, 'schedule')}, {_count(found.instants, 'instant')} and"
        f" {_count(found.runs, 'run')} since {since}: {_count(number, 'violation')};"
        f" {found.pending:,} pending, {sum(found.unknown.values()):,} unknown"
    )
    for reason, count in found.unknown.items():
        click.echo(f"unknown: {count:,}, because {reason}")


def _count(number: int, noun: str) -> str:
    """A number with its noun, such as ``no violation`` or ``2 runs``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s") if number else f"no {noun}"
