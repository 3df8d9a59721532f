"""A program and its arguments after ``--``, from which add and push make data of type exec."""

import json
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
        try:
            return super().parse_args(ctx, args[:place])
        except click.NoSuchOption as error:
            error.message += " (write -- before a command that is to run)"
            raise


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
    words = _words(given[0]) if len(given) == 1 else given
    if not words or given[0].lstrip().startswith("{"):
        return error
    context = click.get_current_context()
    line = list(context.meta[_GIVEN])
    for each in (*given, EXEC_TYPE):
        if each in line:
            line.remove(each)
    shown = shlex.join(["psched", context.info_name or "", *line, "--", *words])
    return InvalidError(error.field, f"{error.problem}; to run a command, write: {shown}")


def _words(text: str) -> list[str]:
    """The program and the arguments in a text: in JSON, as a shell reads them, or for a shell."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return found
    if not isinstance(found, str) or not found.strip():
        return []
    try:
        words = shlex.split(found)
    except ValueError:
        words = []
    return ["sh", "-c", found] if not words or _FOR_A_SHELL.search(found) else words
