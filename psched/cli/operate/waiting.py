"""The options --wait and --json of commands that submit a task, and what they print."""

import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click
from typing_extensions import override

from psched.base.errors import InvalidError, NotFoundError, StoreError
from psched.base.quantities import as_seconds
from psched.base.texts import visible
from psched.cli.options import duration
from psched.cli.output import one_line
from psched.cli.shown import run_object
from psched.cli.time_format import format_time, local_times
from psched.core.columns import decode
from psched.core.model import FINISHED, WAITING
from psched.core.schedule import Schedule, ScheduleMetadata
from psched.reports.redaction import Redaction


class UnfinishedError(click.ClickException):
    """The command stops waiting, and does not know whether the task has ended (exit status 3)."""

    exit_code = 3


class WaitingCommand(click.Command):
    """A command whose option ``--wait`` accepts a duration, but does not require one."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        words = list(args)
        for place in range(end):
            if args[place] == "--wait" and (place + 1 >= end or not _is_duration(args[place + 1])):
                words[place] = "--wait=inf"
        return super().parse_args(ctx, words)


wait = click.option(
    "--wait",
    type=duration(least=0),
    metavar="[DURATION]",
    help="Wait until the task ends, at most this long. Exit status: 0 finished, 1 ended otherwise,"
    " 3 not ended yet.",
)
"""The option of a `WaitingCommand`."""

as_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="With --wait: show how the task has ended as one JSON object, with its result.",
)


def read_argument(data: str) -> bytes:
    """The bytes of an argument, whatever the locale is; those of standard input if it is a dash."""
    if data != "-":
        return os.fsencode(data)
    if sys.stdin is None:
        raise InvalidError("data", "standard input is closed")
    return sys.stdin.buffer.read()


def json_data(data: str) -> dict[str, Any]:
    """The JSON object in an argument, or on standard input if the argument is a dash."""
    try:
        return decode("data", read_argument(data), values=None)
    except InvalidError as error:
        fix = """write a JSON object in quotes, such as '{"text": "hello"}'"""
        raise InvalidError("data", f"{error.problem}; {fix}") from None


def wait_for(task: Schedule, seconds: float, redaction: Redaction, *, as_json: bool) -> None:
    """Wait until a task has ended, and print how it has ended."""
    try:
        most = seconds if math.isfinite(seconds) else None
        end = task.wait_for_end(most, _teller(redaction))
    except TimeoutError as error:
        if as_json:
            with suppress(StoreError, NotFoundError):
                made = {"key": task.key, "status": task.metadata().row.state, "reason": None}
                click.echo(json.dumps({**made, "result": None, "run": None}))
        raise UnfinishedError(f"{error} after {seconds:g} s; the task goes on") from None
    except KeyboardInterrupt:
        raise UnfinishedError(f"{task.key}: no longer waiting; the task goes on") from None
    except NotFoundError:
        raise UnfinishedError(
            f"{task.key}: has been deleted, so its result is unknown; --wait needs a retention_time"
            " above 0"
        ) from None
    except StoreError as error:
        raise UnfinishedError(f"{task.key}: its result is unknown: {error}") from None
    run = None if end.run is None else run_object(end.run, redaction)
    result = None if run is None else run["result"]
    why = redaction.text(end.reason or "")
    if as_json:
        made = {"key": task.key, "status": end.status, "reason": why or None, "result": result}
        click.echo(json.dumps({**made, "run": run}))
    elif end.status == FINISHED:
        click.echo(f"{task.key}: {end.status}")
    if not as_json and result is not None:
        click.echo(visible(json.dumps(result, ensure_ascii=False)))
    if end.status != FINISHED:
        text = f"{task.key}: {end.status}" + (f": {one_line(local_times(why))}" if why else "")
        raise click.ClickException(text)


def _teller(redaction: Redaction) -> Callable[[ScheduleMetadata], None]:
    """Return a function that tells of each failed attempt of a task on standard error."""
    told = 0

    def tell(seen: ScheduleMetadata) -> None:
        nonlocal told
        row = seen.row
        is_running = row.owner is not None
        first, told = told + 1, max(row.attempt - is_running, 0)
        if told < first or row.status != WAITING:
            return
        which = f"attempt {told}" if told == first else f"attempts {first} to {told}"
        why = one_line(local_times(redaction.text(row.reason or "")))
        when = "is running" if is_running else f"is at {format_time(row.next_run_time)}"
        text = f"{row.key}: {which} failed" + (f": {why}" if why else "")
        click.echo(f"{text}; the next {when}", err=True)

    return tell


def _is_duration(word: str) -> bool:
    try:
        return not math.isnan(float(str(as_seconds(word))))
    except ValueError:
        return False
