"""The options that say what workers do: for ``run``, which does it, and ``configure``."""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import click

from psched.cli import options
from psched.config import Config
from psched.errors import ConfigError

F = TypeVar("F", bound=Callable[..., object])

_HANDLERS = ("dispatch", "exec", "script", "script_class")
"""Of these, what is given replaces all that the configuration has."""

_LATEST_EXTEND = 0.75
"""Of a lease; PerfectQueue's default. A worker extends a lease when a quarter of it is over, and if
the database is away then, tries again until less than this has passed."""


_TIMEOUT = 600
"""Seconds of a lease; PerfectQueue's default for its timeout."""


def _seconds(name: str, setting: str, words: str, type_: type = float) -> Callable[[F], F]:
    return click.option(name, setting, type=type_, metavar="SEC", help=f"{words} Sets {setting}.")


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
        "--class",
        "script_class",
        metavar="NAME",
        help="The class in the script. Default: Run, or the only one.",
    ),
    click.option(
        "-I", "--include", "load_path", multiple=True, help="Look for modules here first."
    ),
    click.option("-r", "--require", multiple=True, help="Load this module or .py file."),
    click.option("--only", multiple=True, metavar="TYPE", help="Take tasks of these types alone."),
    click.option("--database", "url", metavar="URL", help="The database. Sets url."),
    click.option("--table", metavar="NAME", help="The table that holds schedules and tasks."),
    click.option("--processors", "--workers", "processors", type=int, help="Workers."),
    click.option("--concurrency", type=int, help="Tasks that one worker runs at the same time."),
    _seconds(
        "--timeout",
        "alive_time",
        "After this, tasks of a host that has died run elsewhere; with --exec and --script 600,"
        " as in PerfectQueue, if nothing else is said.",
        int,
    ),
    click.option(
        "--heartbeat-interval",
        type=float,
        metavar="SEC",
        help="Accepted up to three quarters of the timeout: psched extends a lease each quarter"
        " of it.",
    ),
    _seconds("--kill-timeout", "kill_timeout", "Longest time a task may run; 0 is for ever."),
    _seconds("--kill-interval", "kill_interval", "Between the TERM signals to a task."),
    _seconds("--poll-interval", "poll_interval", "Between two looks at the table."),
    _seconds("--retry-wait", "retry_wait", "From a failure to the next attempt.", int),
    _seconds("--expire", "expire", "Give up a task that is so old; 0 is never.", int),
    click.option("--log", type=click.Path(dir_okay=False), help="Log to this file."),
    click.option("--verbose", is_flag=True, help="Log more. Sets log_level to debug."),
    options.daemon,
    click.argument("words", metavar="[DISPATCH | -- ARG...]", nargs=-1, type=click.UNPROCESSED),
)


def described(command: F) -> F:
    """Add the options that say what workers do; `overrides` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def overrides(given: Mapping[str, object], words: tuple[str, ...]) -> dict[str, object]:
    """The settings that options of `described` stand for.

    Args:
        given: the options, by their parameters' names.
        words: the arguments.

    Raises:
        UsageError: they contradict each other.
    """
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
