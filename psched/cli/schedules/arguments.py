"""The arguments of commands that define a schedule or a task, and warnings about its trigger."""

import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

import click
from typing_extensions import override

from psched.app import CLOCK
from psched.base.errors import InvalidError
from psched.base.exec_data import EXEC_TYPE
from psched.base.texts import brief
from psched.cli.options import hosts, lasting
from psched.cli.output import one_line
from psched.cli.time_format import parse_time
from psched.config import Config
from psched.core.definition import parse_row
from psched.core.model import Row
from psched.triggers.cron import clock_change_effects, excessive_steps
from psched.triggers.zone import Zone

Command = TypeVar("Command", bound=Callable[..., Any])

OPTIONS = {"next_time": "start", "next_run_time": "at"}
"""For each field whose option has a different name: the name of the option, which errors show."""

_GIVEN = "psched.given_arguments"
"""Where the context of a `ProgramCommand` keeps its arguments as they were given."""

_FOR_A_SHELL = re.compile(r"[|&;<>()$`*?#~\n]|\A\S+=")
"""Found in a text that only a shell understands."""

_WARNED_AHEAD = 400 * 86_400
"""The length of the period in which clock changes are searched, in seconds. It is more than a year,
so that every clock change of a year is found."""

_MOST_WARNINGS = 4


_EACH_HOST = (
    "Run it on each host, or each that --host names: every host with a host_name gets its own row,"
    " KEY@HOST."
)

run_as_option = click.option(
    "--run-as",
    metavar="USER",
    help="Run the program as this Unix user, if root's list allows it (type exec).",
)


def fields_of_a_schedule(*, new: bool) -> Callable[[Command], Command]:
    """Return a decorator that adds the options to a command."""
    made = (
        lasting(
            "--every",
            "interval",
            whole=True,
            help="Run at this interval, in place of CRON. Schedules with one interval start at"
            " different times within it.",
        ),
        lasting(
            "-d",
            "--delay",
            whole=True,
            default=0 if new else None,
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
        run_as_option,
        lasting(
            "--jitter",
            whole=True,
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
        hosts("Run only on this host", new=new),
        *((click.option("--each-host", is_flag=True, default=None, help=_EACH_HOST),) * new),
    )

    def decorate(command: Command) -> Command:
        for add in reversed(made):
            command = add(command)
        return command

    return decorate


def pop_times(given: dict[str, Any], zone: Zone | None) -> dict[str, int | None]:
    """Take --start and --at out of the given options, and return the fields that they set."""
    texts = {name: given.pop(option) for name, option in OPTIONS.items()}
    return {
        name: parse_time(OPTIONS[name], text, CLOCK.wall(), zone=zone)
        for name, text in texts.items()
        if text is not None
    }


def _help(text: str, default: str, *, new: bool) -> str:
    return f"{text} Default: {default}." if new else text


# --- a program after -- ---------------------------------------------------------------------


class ProgramCommand(click.Command):
    """A command whose argument ``program`` is what stands after ``--``; None without ``--``."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_GIVEN] = [*args]
        place = args.index("--") if "--" in args else len(args)
        ctx.params["program"] = args[place + 1 :] if "--" in args else None
        return super().parse_args(ctx, args[:place])


def exec_data(program: Sequence[str]) -> dict[str, Any]:
    """Return the data of type exec that run a program with its arguments."""
    if not program:
        raise click.UsageError("the command after -- is missing")
    name = program[0]
    if name.startswith("-"):
        raise InvalidError("command", f"{name!r} begins with -; a key stands before --")
    if len(program) == 1 and re.search(r"\s", name) and shutil.which(name) is None:
        fix = shlex.join(_words(name))
        raise InvalidError("command", f"no program has the name {brief(name)!r}; write: -- {fix}")
    return {"command": [*program]}


def with_program(error: InvalidError, text: str) -> InvalidError:
    """Return the error about a text that seems to be a command, with the line that runs it."""
    if not text.strip() or text.lstrip()[0] in '{["-':
        return error
    context = click.get_current_context()
    line = list(context.meta[_GIVEN])
    for each in text, EXEC_TYPE:
        line.remove(each)
    root = context.find_root().params
    before = [f"--{name}={root[name]}" for name in ("config", "environment") if root.get(name)]
    name = context.info_name or ""
    shown = shlex.join(["psched", *before, name, *line, "--", *_words(text)])
    return InvalidError(error.field, f"{error.problem}; to run a command, write: {shown}")


def _words(text: str) -> Sequence[str]:
    """The program and the arguments in a text, or the shell that is needed for it."""
    try:
        words = [] if _FOR_A_SHELL.search(text) else shlex.split(text)
    except ValueError:
        words = []
    return words or ["sh", "-c", text]


# --- warnings -------------------------------------------------------------------------------


def warn_of_trigger(row: Row, settings: Config) -> None:
    """Warn about steps, and about runs in the coming year that a clock change skips or repeats."""
    warn_of_steps(row.key, row.cron)
    trigger, start = parse_row(row, settings).trigger, row.next_time or 0
    found = clock_change_effects(trigger, start - 1, start + _WARNED_AHEAD)
    for odd in islice(found, _MOST_WARNINGS):
        click.echo(f"Warning: {row.key}: {odd.text}", err=True)


def warn_of_steps(key: str, cron: str | None) -> None:
    """Warn on standard error about steps in a trigger that are longer than their field."""
    for remark in excessive_steps(cron or ""):
        click.echo(one_line(f"Warning: {key}: {remark}"), err=True)
