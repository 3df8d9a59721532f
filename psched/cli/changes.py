"""Opens the schedules for a command that changes them, and names it in the audit trail."""

from collections.abc import Iterator
from contextlib import contextmanager

import click

from psched.app import open_schedules
from psched.client.collection import ScheduleCollection
from psched.config import Config

message = click.option(
    "-m", "--message", metavar="TEXT", help="Why, for the audit trail; see psched audit."
)


@contextmanager
def open_to_change(settings: Config, note: str | None = None) -> Iterator[ScheduleCollection]:
    """Open the schedules for the command that is running.

    Args:
        settings: the settings.
        note: why the command changes schedules, for the audit trail.
    """
    program = f"psched {click.get_current_context().info_name}"
    with open_schedules(settings, program=program) as schedules, schedules.audited(note):
        yield schedules
