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
from psched.cli.operate.waiting import WaitingCommand

_GIVEN = "psched.given_arguments"
"""Where the context of a `ProgramCommand` keeps its arguments as they were given."""

_FOR_A_SHELL = re.compile(r"[|&;<>()$`*?#~\n]|\A\S+=")
"""Found in a text that only a shell understands."""


class ProgramCommand(WaitingCommand):
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
