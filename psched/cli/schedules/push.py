"""The command push."""

import json
import math
import os
import sys
from contextlib import suppress
from typing import Any

import click
from typing_extensions import override

from psched.app import open_schedules
from psched.base import payload
from psched.base.errors import AlreadyExistsError, InvalidError, NotFoundError, StoreError
from psched.base.quantities import as_seconds
from psched.base.texts import visible
from psched.cli import options
from psched.cli.exit_status import report_errors
from psched.cli.history.run_text import run_object
from psched.cli.options import ConfigLocation, duration
from psched.cli.other_database import settings_to_write
from psched.cli.output import one_line
from psched.cli.time_format import parse_time
from psched.core.columns import decode
from psched.core.history.redaction import Redaction
from psched.core.model import DEFAULT_TYPE, FINISHED
from psched.core.schedule import Schedule

_OPTIONS = {"alive_time": "timeout", "next_time": "at"}
"""For each field whose option has a different name: the name of the option, which errors show."""

_FIX = """write a JSON object in quotes, such as '{"text": "hello"}', or add --raw"""

_MOST_WORDS = 3
"""The maximum number of arguments: a task's key, type and data."""


class _UnfinishedError(click.ClickException):
    """The command stops waiting, and does not know whether the task has ended (exit status 3)."""

    exit_code = 3


class _PushCommand(click.Command):
    """A command whose option ``--wait`` accepts a duration, but does not require one."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        words = list(args)
        for place in range(end):
            if args[place] == "--wait" and (place + 1 >= end or not _is_duration(args[place + 1])):
                words[place] = "--wait=inf"
        return super().parse_args(ctx, words)


@click.command(cls=_PushCommand)
@click.argument("words", metavar="KEY [TYPE] DATA", nargs=-1, required=True)
@click.option("--at", metavar="TIME", help="Do not start before TIME. Default: now.")
@click.option(
    "--timeout",
    type=duration(whole=True),
    metavar="DURATION",
    help="Length of the lease: if the host dies, another host runs the task after this time."
    " Default: the setting alive_time.",
)
@click.option(
    "--wait",
    type=duration(least=0),
    metavar="[DURATION]",
    help="Wait until the task ends, at most this long. Exit status: 0 finished, 1 ended otherwise,"
    " 3 not ended yet.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="With --wait: show how the task has ended as one JSON object, with its result.",
)
@click.option("--max-attempts", type=int, metavar="N", help="Give up after N attempts.")
@click.option(
    "--expire",
    type=duration(whole=True),
    metavar="DURATION",
    help="Give up if the task has not finished this long after it was to start.",
)
@click.option(
    "--kill-timeout",
    type=duration(),
    metavar="DURATION",
    help="Stop an attempt that runs longer.",
)
@click.option(
    "--retry-wait",
    type=duration(whole=True),
    metavar="DURATION",
    help="Wait this long after a failed attempt.",
)
@click.option(
    "--raw",
    is_flag=True,
    help="DATA is any text or bytes, not JSON. A handler finds them in task.raw_data, a program on"
    " its standard input.",
)
@options.database
@click.pass_obj
@report_errors
def push(
    location: ConfigLocation,
    /,
    words: tuple[str, ...],
    at: str | None,
    timeout: int | None,
    wait: float | None,
    *,
    raw: bool,
    as_json: bool,
    **own: float | None,
) -> None:
    """Submit a task that runs once.

    KEY is the task's unique name. TYPE selects the handler that runs the task; without TYPE, the
    type is "default", and a warning is shown if the configuration names no handler. DATA is a JSON
    object for the handler; - reads it from standard input.

    As in PerfectQueue, KEY=DATA can be one argument. In this form, DATA can be plain text, as with
    --raw, unless it begins with {.

    A KEY can be pushed again when its task has ended and retention_time has passed since. With
    --wait, a KEY that exists already is not an error: the command waits for the existing task. If
    the task has set a result, it is printed on a line of its own, as JSON. If the task has failed,
    the status is on standard error.

    A TIME is Unix seconds or ISO 8601, such as 2026-01-31T09:00; without an offset, it is in the
    configured timezone. A DURATION is seconds, or a number with the unit s, m, h or d: 30s, 5m, 1h,
    30d.
    """
    key, type_, data = _task(words)
    if as_json and wait is None:
        raise click.UsageError("--json needs --wait")
    fields, form = _payload(data, raw=raw, may_be_text=len(words) == 1)
    settings = settings_to_write(location)
    with open_schedules(settings) as schedules:
        try:
            task = schedules.push(
                key,
                DEFAULT_TYPE if type_ is None else type_,
                fields,
                payload=form,
                run_at=parse_time("at", at, settings.timezone),
                timeout=timeout,
                **own,
            )
        except InvalidError as error:
            raise InvalidError(_OPTIONS.get(error.field, error.field), error.problem) from None
        except AlreadyExistsError as error:
            if wait is None:
                raise
            # With --wait, the command waits for the existing task, because an earlier run of this
            # command may have pushed the task and lost its connection while it was waiting.
            click.echo(f"{error}: waiting for that task", err=True)
            task = schedules[key]
        else:
            if type_ is None and not settings.names_handlers:
                click.echo(f"Warning: {_without_type(key)}", err=True)
        if wait is None:
            click.echo(f"{key}: pushed")
        else:
            _wait_for(task, wait, Redaction(settings.redact), as_json=as_json)


def _without_type(key: str) -> str:
    return (
        f'{key}: no type is given, so the type is "{DEFAULT_TYPE}", and the configuration names no'
        " handler for it (dispatch, exec or script); to give the type of a handler, write: psched"
        f" push {key} TYPE DATA"
    )


def _task(words: tuple[str, ...]) -> tuple[str, str | None, str]:
    """Return the task's key, type and data; the type is None if the arguments do not give it."""
    if len(words) == 1:
        key, equals, data = words[0].partition("=")
        if not equals:
            raise click.UsageError(f"DATA is missing; for a task without data: push {key} '{{}}'")
        return key, None, data
    if len(words) > _MOST_WORDS:
        raise click.UsageError("too many arguments: put quotes around DATA")
    key, *types, data = words
    return key, types[0] if types else None, data


def _payload(data: str, *, raw: bool, may_be_text: bool) -> tuple[dict[str, Any], str | None]:
    """Return the JSON object to store as the payload, and the form in which it wraps the data.

    The form is None if the data is a JSON object itself. `psched.base.payload` explains the forms.
    """
    stored = os.fsencode(data)  # the bytes of the argument, whatever the locale is
    if data == "-":
        if sys.stdin is None:
            raise InvalidError("data", "standard input is closed")
        stored = sys.stdin.buffer.read()
    if raw:
        return payload.wrap(stored)
    try:
        return decode("data", stored, values=None), None
    except InvalidError as error:
        # A text that begins with { is refused, because it is probably a JSON object with a mistake.
        if may_be_text and not stored.lstrip().startswith(b"{"):
            return payload.wrap(stored)
        raise InvalidError("data", f"{error.problem}; {_FIX}") from None


def _wait_for(task: Schedule, seconds: float, redaction: Redaction, *, as_json: bool) -> None:
    try:
        end = task.wait_for_end(seconds if math.isfinite(seconds) else None)
    except TimeoutError as error:
        if as_json:
            with suppress(StoreError, NotFoundError):
                made = {"key": task.key, "status": task.metadata().row.state, "reason": None}
                click.echo(json.dumps({**made, "result": None, "run": None}))
        raise _UnfinishedError(f"{error} after {seconds:g} s; the task goes on") from None
    except KeyboardInterrupt:
        raise _UnfinishedError(f"{task.key}: no longer waiting; the task goes on") from None
    except NotFoundError:
        raise _UnfinishedError(
            f"{task.key}: has been deleted, so its result is unknown; --wait needs a retention_time"
            " above 0"
        ) from None
    except StoreError as error:
        raise _UnfinishedError(f"{task.key}: pushed, but its result is unknown: {error}") from None
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
        text = f"{task.key}: {end.status}" + (f": {one_line(why)}" if why else "")
        raise click.ClickException(text)


def _is_duration(word: str) -> bool:
    try:
        return not math.isnan(float(str(as_seconds(word))))
    except ValueError:
        return False
