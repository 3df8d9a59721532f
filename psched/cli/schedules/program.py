"""A program and its arguments after ``--``, from which add and push make data of type exec."""

import re
import shlex
import shutil
from collections.abc import Sequence
from typing import Any

import click
from typing_extensions import override

from psched.base.errors import InvalidError
from psched.base.exec_data import EXEC_TYPE
from psched.base.texts import brief

_GIVEN = "psched.given_arguments"
"""Where the context of a `ProgramCommand` keeps its arguments as they were given."""

_FOR_A_SHELL = re.compile(r"[|&;<>()$`*?#~\n]|\A\S+=")
"""Found in a text that only a shell understands."""


class ProgramCommand(click.Command):
    """A command whose argument ``program`` is what stands after ``--``; None without ``--``."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_GIVEN] = [*args]
        place = args.index("--") if "--" in args else len(args)
        ctx.params["program"] = args[place + 1 :] if "--" in args else None
        return super().parse_args(ctx, args[:place])


def without_exec(words: Sequence[str]) -> Sequence[str]:
    """Return the words that stand between a key and ``--``, without the type, if it is exec."""
    return words[1:] if [*words[:1]] == [EXEC_TYPE] else words


def exec_data(program: Sequence[str]) -> dict[str, Any]:
    """Return the data of type exec that run a program with its arguments.

    Raises:
        click.UsageError: there is no program.
        InvalidError: the first word is an option, or a command for a shell.
    """
    if not program:
        raise click.UsageError("the command after -- is missing")
    name = program[0]
    if name.startswith("-"):
        raise InvalidError("command", f"{name!r} begins with -; a key stands before --")
    if len(program) == 1 and re.search(r"\s", name) and shutil.which(name) is None:
        fix = shlex.join(_words(name))
        raise InvalidError("command", f"no program has the name {brief(name)!r}; write: -- {fix}")
    return {"command": [*program]}


def with_program(error: InvalidError, given: Sequence[str]) -> InvalidError:
    """Return the error about words that seem to be a command, with the line that runs it."""
    if not given[0].strip() or given[0].lstrip()[0] in '{["':
        return error
    context = click.get_current_context()
    line = list(context.meta[_GIVEN])
    for each in (*given, EXEC_TYPE):
        if each in line:
            line.remove(each)
    words = _words(given[0]) if len(given) == 1 else given
    shown = shlex.join(["psched", context.info_name or "", *line, "--", *words])
    return InvalidError(error.field, f"{error.problem}; to run a command, write: {shown}")


def _words(text: str) -> Sequence[str]:
    """The program and the arguments in a text, or the shell that is needed for it."""
    try:
        words = [] if _FOR_A_SHELL.search(text) else shlex.split(text)
    except ValueError:
        words = []
    return words or ["sh", "-c", text]
