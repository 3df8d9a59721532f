"""Writes the manual pages psched.1 and psched-master.1, from the help of the commands.

``python -m psched.cli.man FOLDER`` writes them to a folder, such as ``/usr/local/share/man/man1``.
"""

import re
from collections.abc import Iterator
from importlib.metadata import version
from inspect import cleandoc
from pathlib import Path

import click

from psched.cli import options
from psched.cli.commands import load, psched
from psched.cli.daemon.master import master


@click.command(context_settings=options.HELP)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def man(folder: Path) -> None:
    """Write the manual pages psched.1 and psched-master.1 to FOLDER."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, command, other in (
        ("psched", psched, "psched-master"),
        ("psched-master", master, "psched"),
    ):
        path = folder / f"{name}.1"
        path.write_text("\n".join(_page(name, command, other)) + "\n", encoding="utf-8")
        click.echo(path)


def _page(name: str, command: click.Command, other: str) -> Iterator[str]:
    """Yield the lines of a page; ``other`` is the name of the page to see also."""
    context = click.Context(command, info_name=name, help_option_names=options.HELP_NAMES)
    yield f'.TH {_escaped(name.upper())} 1 "" "psched {version("psched")}" "User Commands"'
    yield ".SH NAME"
    first = command.get_short_help_str(limit=1000).rstrip(".")
    yield _escaped(f"{name} - {first[0].lower()}{first[1:]}")
    yield ".SH SYNOPSIS"
    yield _usage(context)
    yield ".SH DESCRIPTION"
    yield from _description(command)
    yield ".SH OPTIONS"
    yield from _options(context)
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        yield _escaped("Each command also has the options -c, -e and -h.")
        for each in sorted(command.commands):
            below = click.Context(load(each), info_name=each, parent=context)
            yield f".SS {_escaped(f'{name} {each}')}"
            yield _usage(below)
            yield ".PP"
            yield from _description(below.command)
            yield from _options(below, without=("config", "environment", "help"))
    yield ".SH SEE ALSO"
    yield f".BR {_escaped(other)} (1)"


def _usage(context: click.Context) -> str:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    return f"\\fB{_escaped(context.command_path)}\\fR {_escaped(pieces)}"


def _description(command: click.Command) -> Iterator[str]:
    r"""Yield a command's help; a paragraph that begins with ``\b`` keeps its lines."""
    for number, paragraph in enumerate(cleandoc(command.help or "").split("\n\n")):
        if number:
            yield ".PP"
        lines = paragraph.strip("\n").split("\n")
        if lines[0].strip() == "\b":
            yield ".nf"
            yield from map(_escaped, lines[1:])
            yield ".fi"
        else:
            yield _escaped(" ".join(line.strip() for line in lines))


def _options(context: click.Context, without: tuple[str, ...] = ()) -> Iterator[str]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or parameter.name in without:
            continue
        names, text = record
        yield ".TP"
        yield f"\\fB{_escaped(names)}\\fR"
        yield _escaped(text)


_LITERALS = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
)
"""Characters that roff prints as other ones, such as typographic quotes, which no shell accepts."""


def _escaped(text: str) -> str:
    """Return a line of text as roff prints it literally."""
    return re.sub(r"^(?=\.)", r"\\&", text.translate(_LITERALS))


if __name__ == "__main__":
    man(prog_name="psched.cli.man")
