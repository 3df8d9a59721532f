"""The options of commands that set the fields of a schedule's definition."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from psched.cli.options import duration

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS = {"next_time": "start", "next_run_time": "at"}
"""For each field whose option has a different name: the name of the option, which errors show."""


def fields_of_a_schedule(*, new: bool) -> Callable[[Command], Command]:
    """Return a decorator that adds the options to a command."""
    made = (
        click.option(
            "--every",
            "interval",
            type=duration(whole=True),
            metavar="DURATION",
            help="Run at this interval, in place of CRON. Schedules with one interval start at"
            " different times within it.",
        ),
        click.option(
            "-d",
            "--delay",
            type=duration(whole=True),
            default=0 if new else None,
            metavar="DURATION",
            help=_help("Start each run this long after its scheduled time.", "0", new=new),
        ),
        click.option(
            "-t",
            "--timezone",
            metavar="ZONE",
            help=_help("Time zone of CRON, such as Asia/Tokyo.", "the setting timezone", new=new),
        ),
        click.option(
            "-s",
            "--start",
            metavar="TIME",
            help=_help(
                f"The {'first' if new else 'next'} run is the first scheduled time at or after"
                " TIME.",
                "now",
                new=new,
            ),
        ),
        click.option(
            "-a",
            "--at",
            metavar="TIME",
            help=_help(
                "Start the first run at TIME. Before its scheduled time, it takes the place of the"
                " scheduled run."
                if new
                else "Do not start the next run before TIME, which must not be before its scheduled"
                " time.",
                "the scheduled time plus the delay",
                new=new,
            ),
        ),
        click.option(
            "--jitter",
            type=duration(whole=True),
            metavar="DURATION",
            help=_help(
                "Start each run up to this much later, so that not all schedules start at once.",
                "the setting jitter",
                new=new,
            ),
        ),
        click.option(
            "--catchup",
            type=click.Choice(["all", "latest", "skip"]),
            help=_help(
                "Which of the missed runs to make up for: all, the latest, or none (skip).",
                "the setting catchup",
                new=new,
            ),
        ),
        click.option(
            "--dst-policy",
            type=click.Choice(["debian", "wallclock"]),
            help=_help(
                "At a clock change: debian runs a skipped time right afterwards, and a repeated"
                " time once; wallclock loses a skipped time, and runs a repeated time twice.",
                "the setting dst_policy",
                new=new,
            ),
        ),
    )

    def decorate(command: Command) -> Command:
        for add in reversed(made):
            command = add(command)
        return command

    return decorate


def _help(text: str, default: str, *, new: bool) -> str:
    return f"{text} Default: {default}." if new else text
