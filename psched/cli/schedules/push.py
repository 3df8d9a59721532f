"""The command push."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from psched.app import CLOCK, open_schedules
from psched.base import payload
from psched.base.errors import AlreadyExistsError, InvalidError
from psched.base.exec_data import EXEC_TYPE
from psched.cli import options
from psched.cli.opening import settings_to_write, warn_of_hosts, warn_of_types
from psched.cli.operate import waiting
from psched.cli.options import ConfigLocation
from psched.cli.schedules.arguments import ProgramCommand, exec_data, run_as_option, with_program
from psched.cli.time_format import parse_time
from psched.config import Config
from psched.core.columns import decode
from psched.core.definition import settings_of
from psched.core.hosts import lane_of
from psched.core.model import DEFAULT_TYPE, Row
from psched.reports.redaction import Redaction

_OPTIONS = {"run_at": "at"}
"""For each argument whose option has another name: the name of the option, which errors show."""

_FIX = """write a JSON object in quotes, such as '{"text": "hello"}', or add --raw"""

_ATTEMPTS = 3
"""So many attempts has a command with --wait by default: somebody waits for its end."""

_MOST_WORDS = 3
"""The maximum number of arguments: a task's key, type and data."""


class _PushCommand(ProgramCommand, waiting.WaitingCommand):
    """The command push, of which both is true."""


@click.command(cls=_PushCommand)
@click.argument("words", metavar="[KEY] [TYPE] [DATA]", nargs=-1)
@click.option("--at", metavar="TIME", help="Do not start before TIME. Default: now.")
@options.lasting(
    "--timeout",
    whole=True,
    help="Length of the lease: if the host dies, another host runs the task after this time."
    " Default: the setting alive_time.",
)
@waiting.wait
@waiting.as_json
@click.option("--max-attempts", type=int, metavar="N", help="Give up after N attempts.")
@options.lasting(
    "--expire",
    whole=True,
    help="Give up if the task has not finished this long after it was to start.",
)
@options.lasting("--kill-timeout", help="Stop an attempt that runs longer.")
@options.lasting("--retry-wait", whole=True, help="Wait this long after a failed attempt.")
@options.hosts("Run only on this host")
@run_as_option
@click.option(
    "--raw",
    is_flag=True,
    help="DATA is any text or bytes, not JSON. A handler finds them in task.raw_data, a program on"
    " its standard input.",
)
@options.zone()
@options.database
@click.pass_obj
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
    program: list[str] | None,
    **own: Any,  # noqa: ANN401  # the settings of a task
) -> None:
    """Submit a task that runs once.

    KEY is the task's unique name. TYPE selects the handler that runs the task; without TYPE, the
    type is "default", and a warning is shown if the configuration names no handler. DATA is a JSON
    object for the handler; - reads it from standard input.

    To run a program, write its command line after --, in place of TYPE and DATA: psched push --
    pg_dump -Fc shop. Without KEY, psched makes one, and prints it.

    With --wait, a command (type exec) is given up after 3 failed attempts, unless --max-attempts
    or --expire is given, or max_attempts of the configuration is above 0.

    As in PerfectQueue, KEY=DATA can be one argument. In this form, DATA can be plain text, as with
    --raw, unless it begins with {.

    A KEY can be pushed again when its task has ended and retention_time has passed since. With
    --wait, a KEY that exists already is not an error: the command waits for the existing task. If
    the task has set a result, it is printed on a line of its own, as JSON. If the task has failed,
    the status is on standard error.

    A TIME is 18:00, tomorrow 09:00, 2026-01-31T09:00 or Unix seconds; without an offset, it is in
    your time zone. A DURATION is seconds, or a number with the unit s, m, h or d: 30s, 5m, 1h, 30d.
    """
    if as_json and wait is None:
        raise click.UsageError("--json needs --wait")
    key, type_, fields, form = _submitted(words, program, raw=raw)
    settings = settings_to_write(location)
    gives_up = wait is not None and _gives_up(key, type_, own, settings)
    if gives_up:
        own["max_attempts"] = _ATTEMPTS
    with open_schedules(settings) as schedules:
        try:
            task = schedules.push(
                key,
                DEFAULT_TYPE if type_ is None else type_,
                fields,
                payload=form,
                run_at=parse_time("at", at, CLOCK.wall()),
                timeout=timeout,
                **own,
            )
        except InvalidError as error:
            raise InvalidError(_OPTIONS.get(error.field, error.field), error.problem) from None
        except AlreadyExistsError as error:
            if wait is None or key is None:
                raise
            # With --wait, the command waits for the existing task, because an earlier run of this
            # command may have pushed the task and lost its connection while it was waiting.
            click.echo(f"{error}: waiting for that task", err=True)
            task = schedules[key]
        else:
            if gives_up:
                text = "is given up after {} failed attempts, because of --wait; see --max-attempts"
                click.echo(f"{task.key}: {text.format(_ATTEMPTS)}", err=True)
            if type_ is None and not settings.names_handlers:
                click.echo(f"Warning: {_without_type(task.key)}", err=True)
            else:
                warn_of_types(schedules, [DEFAULT_TYPE if type_ is None else type_])
            warn_of_hosts(schedules, [lane_of(own.get("hosts"))])
        if wait is None:
            click.echo(f"{task.key}: pushed")
        else:
            waiting.wait_for(task, wait, Redaction(settings.redact), as_json=as_json)


def _submitted(
    words: tuple[str, ...], program: Sequence[str] | None, *, raw: bool
) -> tuple[str | None, str | None, Mapping[str, Any], str | None]:
    """The key, the type and the data of a task, and the form of its payload."""
    if program is None:
        key, type_, data = _task(words)
        return key, type_, *_payload(words, data, raw=raw)
    if raw or [*words[1:]] not in ([], [EXEC_TYPE]):
        raise click.UsageError("-- replaces TYPE, DATA and --raw; write: push [KEY] -- COMMAND")
    return words[0] if words else None, EXEC_TYPE, exec_data(program), None


def _gives_up(key: str | None, type_: str | None, own: Mapping[str, Any], settings: Config) -> bool:
    """Whether nothing says when a command is to be given up, for which somebody waits."""
    if type_ != "exec" or own["max_attempts"] is not None or own["expire"] is not None:
        return False
    return not settings_of(Row(key=key or "", type=type_), settings).max_attempts


def _without_type(key: str) -> str:
    return (
        f'{key}: no type is given, so the type is "{DEFAULT_TYPE}", and the configuration names no'
        " handler for it (dispatch, exec or script); to give the type of a handler, write: psched"
        f" push {key} TYPE DATA"
    )


def _task(words: tuple[str, ...]) -> tuple[str, str | None, str]:
    """Return the task's key, type and data; the type is None if the arguments do not give it."""
    if len(words) <= 1:
        key, equals, data = "".join(words).partition("=")
        if not equals:
            fix = f"push {key or 'KEY'} '{{}}'"
            raise click.UsageError(f"DATA is missing; for a task without data: {fix}")
        return key, None, data
    if len(words) > _MOST_WORDS:
        raise click.UsageError("too many arguments: put quotes around DATA")
    key, *types, data = words
    return key, types[0] if types else None, data


def _payload(words: tuple[str, ...], data: str, *, raw: bool) -> tuple[dict[str, Any], str | None]:
    """Return the JSON object to store as the payload, and the form in which it wraps the data.

    The form is None if the data is a JSON object itself. `psched.base.payload` explains the forms.
    """
    stored = waiting.read_argument(data)
    if raw:
        return payload.wrap(stored)
    try:
        return decode("data", stored, values=None), None
    except InvalidError as error:
        # A text that begins with { is refused, because it is probably a JSON object with a mistake.
        if len(words) == 1 and not stored.lstrip().startswith(b"{"):
            return payload.wrap(stored)
        fix = _FIX
        if words[1:] == (data,) and re.fullmatch(r"\w[\w.-]*", data):  # perhaps a type
            fix += f"; for type {data} without data: push {words[0]} {data} '{{}}'"
        if EXEC_TYPE in words[:-1]:
            raise with_program(error, data) from None
        raise InvalidError("data", f"{error.problem}; {fix}") from None
