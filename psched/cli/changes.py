"""Opens the schedules for a command that changes them, and names it in the audit trail."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from psched.app import open_schedules
from psched.base.errors import NotSupportedError, StoreError
from psched.base.texts import brief, visible
from psched.client.collection import ScheduleCollection
from psched.config import Config
from psched.reports.why.availability import types_of

message = click.option(
    "-m", "--message", metavar="TEXT", help="Why, for the audit trail; see psched audit."
)


@contextmanager
def open_to_change(settings: Config, note: str | None = None) -> Iterator[ScheduleCollection]:
    """Open the schedules for the command that is running."""
    program = f"psched {click.get_current_context().info_name}"
    with open_schedules(settings, program=program) as schedules, schedules.audited(note):
        yield schedules


def warn_of_types(schedules: ScheduleCollection, types: Iterable[str]) -> None:
    """Warn on standard error about types that no worker of the last day takes, if that is known."""
    try:
        seen = [types_of(worker) for worker in schedules.workers_seen(86_400)]
    except (NotSupportedError, StoreError):
        return
    taken = sorted({type_ for each in seen for type_ in each or ()})
    for each in dict.fromkeys(types) if seen and None not in seen else ():
        if each not in taken:
            text = f"takes the type {each!r} (they take only {brief(', '.join(taken))})"
            click.echo(f"Warning: no worker seen in the last day {visible(text)}", err=True)
