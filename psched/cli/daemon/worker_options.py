"""The options of the commands ``run`` and ``configure``, and the settings that they replace."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from psched.base.errors import ConfigError
from psched.cli import options
from psched.config import Config

F = TypeVar("F", bound=Callable[..., object])

_HANDLERS = ("dispatch", "exec", "script", "script_class")
"""If an option sets one of these settings, the others are reset to their defaults."""

_LATEST_EXTEND = 0.75
"""The longest heartbeat interval, as a fraction of a lease; PerfectQueue's default.

A worker extends a lease after a quarter of its length. While the database is unavailable, the
worker repeats the request for less time than this fraction of the lease."""

_TIMEOUT = 600
"""The length of a lease with --exec or --script, in seconds; PerfectQueue's default timeout."""


def _seconds(*names: str, text: str, type_: type = float) -> Callable[[F], F]:
    """An option for a number of seconds; the last of its names is the name of the setting."""
    return click.option(*names, type=type_, metavar="SEC", help=f"{text} Setting: {names[-1]}.")


_OPTIONS = (
    click.option(
        "--exec",
        metavar="COMMAND",
        help="Run this program for tasks of every type. It reads the data from its standard input;"
        " its arguments are each ARG, then the key. Exit status 0 finishes the task.",
    ),
    click.option(
        "--script",
        metavar="FILE.py",
        help="Run tasks of every type with a class in this file: an object is made with the task,"
        " run() runs the task, and kill(reason), if there is one, stops it.",
    ),
    click.option(
        "-C",
        "--class",
        "--run-class",
        "script_class",
        metavar="NAME",
        help="The class in the script. Default: Run, else the only class.",
    ),
    click.option(
        "-I",
        "--include",
        "load_path",
        multiple=True,
        metavar="FOLDER",
        help="Search this folder for modules first; may be repeated. Setting: load_path.",
    ),
    click.option(
        "-r",
        "--require",
        multiple=True,
        metavar="MODULE",
        help="Import this module or .py file; may be repeated. Setting: require.",
    ),
    options.perfectqueue_file,
    click.option(
        "--only",
        multiple=True,
        metavar="TYPE",
        help="Run only tasks of this type; may be repeated. Setting: only.",
    ),
    options.database,
    click.option(
        "-w",
        "--processors",
        "--workers",
        "--worker",
        "processors",
        type=int,
        metavar="N",
        help="Number of workers. Setting: processors.",
    ),
    click.option(
        "--concurrency",
        type=int,
        metavar="N",
        help="Number of tasks that one worker runs at the same time. Setting: concurrency.",
    ),
    _seconds(
        "-t",
        "--timeout",
        "alive_time",
        text="Length of a lease: if a host dies, other hosts run its tasks after SEC. With --exec"
        " and --script, the default is 600, as in PerfectQueue.",
        type_=int,
    ),
    click.option(
        "-b",
        "--heartbeat-interval",
        type=float,
        metavar="SEC",
        help="Accepted for PerfectQueue, up to three quarters of the timeout, without effect:"
        " psched extends a lease after each quarter of the timeout.",
    ),
    _seconds(
        "-x",
        "--kill-timeout",
        "kill_timeout",
        text="Stop a task that runs longer; 0: never.",
    ),
    _seconds("-X", "--kill-interval", "kill_interval", text="Time between TERM signals to a task."),
    _seconds(
        "-i", "--poll-interval", "poll_interval", text="Time between two searches for due tasks."
    ),
    _seconds(
        "--retry-wait", "retry_wait", text="Time between a failure and the next attempt.", type_=int
    ),
    _seconds(
        "--expire",
        "expire",
        text="Give up a task that has not finished SEC seconds after it was to start; 0: never.",
        type_=int,
    ),
    click.option("-o", "--log", type=click.Path(dir_okay=False), help="Log file. Setting: log."),
    click.option("-v", "--verbose", is_flag=True, help="Log debug messages. Setting: log_level."),
    options.daemon,
    click.argument("words", metavar="[DISPATCH | -- ARG...]", nargs=-1, type=click.UNPROCESSED),
)


def add_options(command: F) -> F:
    """Add the options of ``run`` to a command; `overrides` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def overrides(given: Mapping[str, Any], words: tuple[str, ...]) -> dict[str, object]:
    """The settings that the options of `add_options` replace.

    Args:
        given: the values of the options, by their parameters' names.
        words: the command's arguments.

    Raises:
        UsageError: the options contradict each other.
    """
    for module in given["require"]:
        if module.isdigit():
            raise click.UsageError(
                f"-r {module}: is --require here; PerfectQueue's -r is --retry-wait {module}"
            )
    settings = {
        name: value
        for name, value in given.items()
        if value is not None  # 0 counts as given
        and value != ()
        and name not in ("heartbeat_interval", "daemon", "verbose")
    }
    if given["daemon"] is not None:
        settings["pid_file"] = given["daemon"]
    if given["verbose"]:
        settings["log_level"] = "debug"
    single = [name for name in ("exec", "script") if given[name] is not None]
    if len(single) > 1:
        raise click.UsageError("--exec and --script cannot both run tasks of every type")
    if single:
        settings[single[0]] = (given[single[0]], *words)
    elif len(words) > 1:
        raise click.UsageError("only one DISPATCH can route tasks; arguments need --exec")
    elif words:
        settings["dispatch"] = words[0]
    if single or words:
        settings = dict.fromkeys(_HANDLERS) | settings
    return settings


def with_timeout(
    overrides: Mapping[str, object], set_in_file: Callable[[], Collection[str]]
) -> dict[str, object]:
    """The overrides; with --exec or --script, PerfectQueue's timeout is the default.

    Args:
        overrides: the settings of the command line.
        set_in_file: returns the names of the settings in the configuration file; is called only if
            the default may apply.
    """
    is_single = any(overrides.get(name) is not None for name in ("exec", "script"))
    if is_single and "alive_time" not in overrides and "alive_time" not in set_in_file():
        return {**overrides, "alive_time": _TIMEOUT}
    return dict(overrides)


def check_heartbeat(seconds: object, settings: Config) -> None:
    """Refuse a heartbeat interval that is too long for a lease.

    Raises:
        ConfigError: the interval is longer than three quarters of a lease, or not positive.
    """
    latest = _LATEST_EXTEND * settings.alive_time
    if isinstance(seconds, float) and not 0 < seconds <= latest:
        raise ConfigError(
            f"heartbeat-interval: {seconds:g} s is not within three quarters of the timeout of"
            f" {settings.alive_time} s, after which there may be no time left to extend a lease;"
            f" choose at most {latest:g}, or leave it out"
        )
