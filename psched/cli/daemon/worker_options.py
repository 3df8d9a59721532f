"""The options that say what workers do: for ``run``, which does it, and ``configure``."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from psched.base.errors import ConfigError
from psched.cli import options
from psched.config import Config

F = TypeVar("F", bound=Callable[..., object])

_HANDLERS = ("dispatch", "exec", "script", "script_class")
"""Of these, what is given replaces all that the configuration has."""

_LATEST_EXTEND = 0.75
"""Of a lease; PerfectQueue's default. A worker extends a lease when a quarter of it is over, and if
the database is away then, tries again until less than this has passed."""


_TIMEOUT = 600
"""Seconds of a lease; PerfectQueue's default for its timeout."""


def _seconds(*names: str, words: str, type_: type = float) -> Callable[[F], F]:
    """An option for the setting that is named last."""
    words = f"{words} Sets {names[-1]}."
    return click.option(*names, type=type_, metavar="SEC", help=words)


_OPTIONS = (
    click.option(
        "--exec",
        metavar="COMMAND",
        help="Run this program for tasks of every type: the data on its standard input, each ARG"
        " and last the key its arguments; exit status 0 has finished the task.",
    ),
    click.option(
        "--script",
        metavar="FILE.py",
        help="Have a class in this file run tasks of every type: made of the task, then run(), and"
        " kill(reason) if it has that.",
    ),
    click.option(
        "-C",
        "--class",
        "--run-class",
        "script_class",
        metavar="NAME",
        help="The class in the script. Default: Run, or the only one.",
    ),
    click.option(
        "-I", "--include", "load_path", multiple=True, help="Look for modules here first."
    ),
    click.option(
        "-r", "--require", multiple=True, help="Load this module, or file (with or without .py)."
    ),
    options.perfectqueue_file,
    click.option("--only", multiple=True, metavar="TYPE", help="Take tasks of these types alone."),
    options.database,
    click.option(
        "-w", "--processors", "--workers", "--worker", "processors", type=int, help="Workers."
    ),
    click.option("--concurrency", type=int, help="Tasks that one worker runs at the same time."),
    _seconds(
        "-t",
        "--timeout",
        "alive_time",
        words="After this, tasks of a host that has died run elsewhere; with --exec and --script"
        " 600, as in PerfectQueue, if nothing else is said.",
        type_=int,
    ),
    click.option(
        "-b",
        "--heartbeat-interval",
        type=float,
        metavar="SEC",
        help="Accepted up to three quarters of the timeout: psched extends a lease each quarter"
        " of it.",
    ),
    _seconds(
        "-x", "--kill-timeout", "kill_timeout", words="Longest time a task may run; 0 is for ever."
    ),
    _seconds("-X", "--kill-interval", "kill_interval", words="Between TERM signals to a task."),
    _seconds("-i", "--poll-interval", "poll_interval", words="Between two looks at the table."),
    _seconds("--retry-wait", "retry_wait", words="From a failure to the next try.", type_=int),
    _seconds("--expire", "expire", words="Give up a task that is so old; 0: never.", type_=int),
    click.option("-o", "--log", type=click.Path(dir_okay=False), help="Log to this file."),
    click.option("-v", "--verbose", is_flag=True, help="Log more. Sets log_level to debug."),
    options.daemon,
    click.argument("words", metavar="[DISPATCH | -- ARG...]", nargs=-1, type=click.UNPROCESSED),
)


def described(command: F) -> F:
    """Add the options that say what workers do; `overrides` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def overrides(given: Mapping[str, Any], words: tuple[str, ...]) -> dict[str, object]:
    """The settings that options of `described` stand for.

    Args:
        given: the options, by their parameters' names.
        words: the arguments.

    Raises:
        UsageError: they contradict each other.
    """
    for module in given["require"]:
        if module.isdigit():
            raise click.UsageError(
                f"-r {module}: is --require here; PerfectQueue's -r is --retry-wait {module}"
            )
    settings = {
        name: value
        for name, value in given.items()
        if value is not None  # 0 is a value
        and value != ()
        and name not in ("heartbeat_interval", "daemon", "verbose")
    }
    if given["daemon"] is not None:
        settings["pid_file"] = given["daemon"]
    if given["verbose"]:
        settings["log_level"] = "debug"
    whole = [name for name in ("exec", "script") if given[name] is not None]
    if len(whole) > 1:
        raise click.UsageError("--exec and --script cannot both run tasks of every type")
    if whole:
        settings[whole[0]] = (given[whole[0]], *words)
    elif len(words) > 1:
        raise click.UsageError("only one DISPATCH can route tasks; arguments are for --exec")
    elif words:
        settings["dispatch"] = words[0]
    if whole or words:
        settings = dict.fromkeys(_HANDLERS) | settings
    return settings


def timed(
    overrides: Mapping[str, object], said: Callable[[], Collection[str]]
) -> dict[str, object]:
    """The same settings, with PerfectQueue's timeout if they are of its kind and nobody has one.

    Args:
        overrides: see `overrides`.
        said: the settings that the configuration file has; asked only if it matters.
    """
    whole = any(overrides.get(name) is not None for name in ("exec", "script"))
    if whole and "alive_time" not in overrides and "alive_time" not in said():
        return {**overrides, "alive_time": _TIMEOUT}
    return dict(overrides)


def check_heartbeat(seconds: object, settings: Config) -> None:
    """Refuse a heartbeat that comes later than psched extends leases.

    Raises:
        ConfigError: it does.
    """
    latest = _LATEST_EXTEND * settings.alive_time
    if isinstance(seconds, float) and not 0 < seconds <= latest:
        raise ConfigError(
            f"heartbeat-interval: {seconds:g} s is not within three quarters of the timeout of"
            f" {settings.alive_time} s, after which a lease is too near its end to be extended in"
            f" time; choose at most {latest:g}, or leave it out"
        )
