"""Writes the second half of docs/commands.md, from the help of the commands.

`bin/settings` runs it. A test fails if the page is not what is written here.
"""

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click

from psched.cli.commands import load, psched
from psched.cli.daemon.master import master

PAGE = Path(__file__).resolve().parent / "commands.md"

MARK = "<!-- bin/settings writes what follows, from the help of the commands. -->\n"

OF_EVERY_COMMAND = {"--help", "--config", "--environment", "--database", "--table"}


def page() -> str:
    """The content of docs/commands.md: what stands above the mark, and the help below it."""
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    parts = [part for name in sorted(psched.commands) for part in section(load(name))]
    return f"{head}{MARK}\n" + "\n\n".join([*parts, *section(master)]) + "\n"


def section(command: click.Command) -> Iterator[str]:
    """The parts of a command's section: usage, help, and the table of its options."""
    name = "psched-master" if command is master else f"psched {command.name}"
    context = click.Context(command, info_name=name)
    yield f"## `{name}`"
    yield f"`{' '.join([name, *command.collect_usage_pieces(context)])}`"
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if lines[0].strip() == "\b":
            yield "\n".join(["```text", *lines[1:], "```"])
        else:
            yield escaped(" ".join(line.strip() for line in lines))
    rows = [
        parameter.get_help_record(context)
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and not OF_EVERY_COMMAND & {*parameter.opts}
    ]
    cells = [(names.replace("|", "\\|"), escaped(text)) for names, text in filter(None, rows)]
    if cells:
        yield "\n".join(
            ["| option | |", "|---|---|", *(f"| `{names}` | {text} |" for names, text in cells)]
        )


def escaped(text: str) -> str:
    """A text whose characters mean nothing in Markdown."""
    return re.sub(r"([*<`\[|])", r"\\\1", re.sub(r"\s+", " ", text))


FILES = {"docs/commands.md": page}
"""The file that is written, with the function that returns its content."""

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
