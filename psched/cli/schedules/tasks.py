"""Commands about tasks that run once: push, cancel, requeue."""

import math
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from psched.app import changed_config, open_schedules, read_config
from psched.base import payload
from psched.base.errors import (
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    ScheduleError,
    StoreError,
)
from psched.cli import options
from psched.cli.options import Place
from psched.cli.refusals import refusing
from psched.cli.schedules.listing import text
from psched.cli.time_format import when
from psched.client.schedule import Schedule
from psched.core.columns import decode
from psched.core.model import DEFAULT_TYPE, FINISHED

_OPTIONS = {"alive_time": "timeout", "next_time": "at"}
"""Fields, and the options that they come from."""

_MEND = (
    """write an object in quotes, such as '{"text": "hello"}', or submit it as it is with --raw"""
)

_MOST_WORDS = 3
"""Of a task: its key, type and data."""


class _UnfinishedError(click.ClickException):
    """The task that was waited for goes on, as far as anybody knows."""

    exit_code = 3


class _WithWait(click.Command):
    """A command whose ``--wait`` may be followed by a number, but by nothing else of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        words = list(args)
        for place in range(end):
            if args[place] == "--wait" and (place + 1 >= end or not _is_number(args[place + 1])):
                words[place] = "--wait=inf"
        return super().parse_args(ctx, words)


@click.command(cls=_WithWait)
@click.argument("words", metavar="KEY [TYPE] DATA", nargs=-1, required=True)
@click.option("--at", metavar="TIME", help="Not before this. Default: now.")
@click.option(
    "--timeout",
    type=int,
    metavar="SEC",
    help="Length of its lease: how long it waits when its host dies. Default: alive_time.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    metavar="[SEC]",
    help="Wait for its end, so many seconds at most; exit with 0 if it has finished, 1 if it has"
    " ended otherwise, 3 if it goes on.",
)
@click.option("--max-attempts", type=int, metavar="N", help="Attempts before it is given up.")
@click.option("--expire", type=int, metavar="SEC", help="Give it up when it is so old.")
@click.option("--kill-timeout", type=float, metavar="SEC", help="Longest time it may run.")
@click.option("--retry-wait", type=int, metavar="SEC", help="From a failure to the next attempt.")
@click.option(
    "--raw",
    is_flag=True,
    help="DATA need not be JSON: text or bytes, which a program gets on its standard input, and a"
    " handler as task.raw_data.",
)
@options.database
@click.pass_obj
@refusing
def push(
    place: Place,
    /,
    words: tuple[str, ...],
    at: str | None,
    timeout: int | None,
    wait: float | None,
    url: str | None,
    table: str | None,
    *,
    raw: bool,
    **own: float | None,
) -> None:
    """Submit a task that runs once.

    KEY names it, TYPE (default if it is left out) is what handlers are routed by, DATA is a JSON
    object for the handler, or - to read that from standard input. KEY=DATA in one word is
    PerfectQueue's form: its DATA may be plain text, as with --raw, unless it begins with {.

    A key is taken while its task waits or runs, and for retention_time after its end; with --wait,
    the task that has it is waited for. A TIME is Unix seconds or ISO 8601; one without an offset is
    in the configured timezone.
    """
    key, type_, data = _task(words)
    fields, form = _payload(data, raw=raw, may_be_text=len(words) == 1)
    settings = changed_config(*place, {"url": url, "table": table})
    with open_schedules(settings) as schedules:
        try:
            task = schedules.push(
                key,
                type_,
                fields,
                payload=form,
                run_at=when("at", at, settings.timezone),
                timeout=timeout,
                **own,
            )
        except InvalidError as error:
            raise InvalidError(_OPTIONS.get(error.field, error.field), error.problem) from None
        except AlreadyExistsError as error:
            if wait is None:
                raise
            # Whoever was cut off while waiting asks again.
            click.echo(f"{error}: waiting for that", err=True)
            task = schedules[key]
        if wait is None:
            click.echo(f"{key}: pushed")
        else:
            _await(task, wait)


@click.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@options.database
@click.pass_obj
@refusing
def cancel(place: Place, keys: tuple[str, ...], url: str | None, table: str | None) -> None:
    """Never run these again; a task that is running is stopped first, by its worker.

    A task that completes before it could be stopped has finished.
    """
    with open_schedules(changed_config(*place, {"url": url, "table": table})) as schedules:

        def end(key: str) -> str:
            rests = schedules[key].cancel()
            return "cancelled" if rests else "is cancelled when its running task has stopped"

        _each(keys, end)


@click.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--at", metavar="TIME", help="Not before this. Default: now.")
@click.pass_obj
@refusing
def requeue(place: Place, keys: tuple[str, ...], at: str | None) -> None:
    """Run again what has ended, was quarantined or is paused, with all its attempts before it.

    A TIME is Unix seconds or ISO 8601; one without an offset is in the configured timezone.
    """
    settings = read_config(*place)
    run_at = when("at", at, settings.timezone)
    with open_schedules(settings) as schedules:

        def again(key: str) -> str:
            schedules[key].requeue(run_at)
            return "requeued"

        _each(keys, again)


def _task(words: tuple[str, ...]) -> tuple[str, str, str]:
    """Key, type and data, as they were written."""
    if len(words) == 1:
        key, equals, data = words[0].partition("=")
        if not equals:
            raise click.UsageError(f"DATA is missing: push {key} '{{}}' is a task without any")
        return key, DEFAULT_TYPE, data
    if len(words) > _MOST_WORDS:
        raise click.UsageError("too many words: put quotes around DATA")
    key, *types, data = words
    return key, types[0] if types else DEFAULT_TYPE, data


def _payload(data: str, *, raw: bool, may_be_text: bool) -> tuple[dict[str, Any], str | None]:
    """The data, and how they carry what is not a JSON object; see `psched.base.payload`."""
    stored = os.fsencode(data)  # as they were given, whatever the locale makes of it
    if data == "-":
        if sys.stdin is None:
            raise InvalidError("data", "standard input is closed")
        stored = sys.stdin.buffer.read()
    if raw:
        return payload.wrap(stored)
    try:
        return decode("data", stored, values=None), None
    except InvalidError as error:
        # A payload that begins like an object is more likely a mistyped object than plain text.
        if may_be_text and not stored.lstrip().startswith(b"{"):
            return payload.wrap(stored)
        raise InvalidError("data", f"{error.problem}; {_MEND}") from None


def _await(task: Schedule, seconds: float) -> None:
    try:
        status = task.wait(seconds if math.isfinite(seconds) else None)
    except TimeoutError as error:
        raise _UnfinishedError(f"{error} after {seconds:g} s; it goes on") from None
    except KeyboardInterrupt:
        raise _UnfinishedError(f"{task.key}: goes on; it is not waited for any more") from None
    except NotFoundError:
        words = f"{task.key}: is gone, so nobody can tell how it has ended; --wait needs a"
        raise _UnfinishedError(f"{words} retention_time above 0") from None
    except StoreError as error:
        words = f"{task.key}: pushed, but nobody knows how it goes: {error}"
        raise _UnfinishedError(words) from None
    if status != FINISHED:
        why = task.metadata().reason
        raise click.ClickException(f"{task.key}: {status}" + (f": {text(why)}" if why else ""))
    click.echo(f"{task.key}: {status}")


def _each(keys: Iterable[str], do: Callable[[str], str]) -> None:
    """Do the same to each; what is refused for one holds up no other."""
    refused = False
    for key in keys:
        try:
            click.echo(f"{key}: {do(key)}")
        except (InvalidError, ScheduleError) as error:
            refused = True
            click.echo(f"Error: {error}", err=True)
    if refused:
        sys.exit(1)


def _is_number(word: str) -> bool:
    try:
        return not math.isnan(float(word))
    except ValueError:
        return False
