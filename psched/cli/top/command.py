"""The command top."""

import json
import os
import sys
from contextlib import suppress
from functools import partial

import click

from psched.app import CLOCK, open_schedules
from psched.cli import options
from psched.cli.exit_status import report_errors
from psched.cli.other_database import settings_to_read
from psched.cli.output import are_terminals, one_line
from psched.cli.running_here import table_of
from psched.cli.text_table import is_coloured, line_width
from psched.cli.top.loop import Top
from psched.cli.top.rendering import Window, render
from psched.cli.top.screen import Screen
from psched.cli.top.snapshot import Reader, Snapshot
from psched.master.reports.queries import ask_all
from psched.master.runtime_folders import socket_folders
from psched.process.signals import end_by

_SHORTEST = 0.2  # the shortest interval, in seconds


@click.command()
@click.option(
    "--interval",
    metavar="DURATION",
    type=options.duration(least=_SHORTEST),
    default="2s",
    help="Time between two screens. Default: 2s.",
)
@click.option("--once", is_flag=True, help="Print one screen as plain text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@options.zone()
@options.database
@click.pass_context
@report_errors
def top(context: click.Context, *, interval: float, once: bool, as_json: bool) -> None:
    """Show what runs now, and what is late, next or failed.

    The screen is drawn again every two seconds. Select a row with the arrow keys; p pauses or
    resumes its schedule, t runs it now, l shows what it prints, ? explains all keys, q quits.

    Without a terminal, and with --once, one screen is printed as plain text.

    It shows the tasks of all hosts, as far as the store knows them. The progress of a task is shown
    if it runs on this host.
    """
    settings = settings_to_read(options.location_of(context))
    schedules = open_schedules(settings)
    reader = Reader(
        schedules,
        settings,
        ask_masters=partial(ask_all, socket_folders(os.environ)),
        clock=CLOCK,
    )
    if as_json or once or not _is_terminal():
        with schedules:
            snapshot = reader.read()
            _print(snapshot, as_json=as_json)
        if snapshot.away:
            sys.exit(1)
        return
    screen = Screen(sys.stdin.fileno(), sys.stdout.fileno(), colours=is_coloured())
    shown = Top(
        screen,
        read=reader.read,
        perform=lambda action, key: action.perform(schedules, key),
        show_logs=partial(_show_logs, context, screen),
        interval=interval,
        clock=CLOCK,
        first=Snapshot(now=None, table=table_of(settings)),
    )
    # From here on no signal ends the process before the terminal is given back.
    with screen:
        number = shown.run()
    if shown.is_idle:
        schedules.close()
    if number:
        end_by(number)


def _is_terminal() -> bool:
    """Whether there is a terminal that a screen can be drawn on."""
    if os.environ.get("TERM", "dumb") == "dumb":
        return False
    return are_terminals(sys.stdin, sys.stdout)


def _print(snapshot: Snapshot, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(snapshot.as_object()))
        return
    for line in render(snapshot, Window(width=line_width(), height=None)):
        click.echo(line.text)


def _show_logs(context: click.Context, screen: Screen, key: str, follows: bool) -> None:  # noqa: FBT001
    """Run the command logs, then wait for a key."""
    from psched.cli.history.logs import logs  # noqa: PLC0415  # few need it

    click.echo(f"psched logs {'-f ' if follows else ''}{one_line(key)}", err=True)
    try:
        context.invoke(logs, key=key, follow=follows)
    except click.ClickException as error:
        error.show()
    except (KeyboardInterrupt, click.Abort):
        click.echo(err=True)
    except click.exceptions.Exit:
        pass
    click.echo("-- Enter returns to psched top --", err=True)
    with suppress(KeyboardInterrupt):
        os.read(screen.source, 1024)
