"""The command run, and its options, which configure and check have as well."""

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from psched import config
from psched.app import read_config
from psched.base.errors import ConfigError
from psched.cli import options
from psched.cli.output import run_and_exit
from psched.config import SETTINGS, Config
from psched.config.kinds import Number
from psched.process import early_signals

F = TypeVar("F", bound=Callable[..., object])

_HANDLERS = ("dispatch", "exec", "script", "script_class")
"""If an option sets one of these settings, the remaining ones in this list are reset to their
defaults."""

_LATEST_EXTEND = 0.75
"""The longest value of --heartbeat-interval that is accepted, as a fraction of the length of a
lease. It is PerfectQueue's default interval.

The option has no effect, because workers extend each lease in time by themselves. But a
longer interval is refused as a mistake, because it would leave no time to extend a lease."""

_TIMEOUT = 600
"""The default length of a lease with --exec or --script, in seconds: PerfectQueue's default
timeout."""


class _SettingOption(click.Option):
    """An option whose value replaces a setting; its help begins with the summary of the setting.

    The texts of the settings are read only if somebody asks for help.
    """

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from psched.config.reference import summary  # noqa: PLC0415

        names, further = super().get_help_record(ctx) or ("", "")
        name = str(self.name)
        return names, " ".join(filter(None, (summary(name), further, f"Setting: {name}.")))


def _setting(*names: str, metavar: str | None = None, **more: Any) -> Callable[[F], F]:  # noqa: ANN401
    """Create an option that replaces a setting; the last of ``names`` is the setting's name."""
    kind = SETTINGS[names[-1].removeprefix("--").replace("-", "_")].kind
    if isinstance(kind, Number) and kind.unit == "seconds":
        more |= {"type": options.duration(whole=kind.whole)}
        metavar = "DURATION"
    return click.option(*names, cls=_SettingOption, metavar=metavar, **more)


def _set_variables(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> None:
    """Set the environment variables that are given as NAME=VALUE in this process."""
    if given and context.info_name == "configure":
        raise click.UsageError("--env: is for run and check; a file of settings has no variables")
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals or "\0" in each:
            raise click.BadParameter(f"{each!r} is not NAME=VALUE", context, option)
        os.environ[name] = value


def _number_or_auto(text: str) -> int | str:
    """Convert the value of an option that is a whole number or the word auto."""
    return text if text == "auto" else int(click.INT(text))


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
    _setting("-C", "--class", "--run-class", "script_class", metavar="NAME"),
    _setting(
        "-I", "--include", "load_path", multiple=True, metavar="FOLDER", help="May be repeated."
    ),
    _setting("-r", "--require", multiple=True, metavar="MODULE", help="May be repeated."),
    options.perfectqueue_file,
    _setting("--only", multiple=True, metavar="TYPE", help="May be repeated."),
    options.database,
    _setting(
        "-w",
        "--processors",
        "--workers",
        "--worker",
        "processors",
        type=_number_or_auto,
        metavar="N",
    ),
    _setting("--concurrency", type=int, metavar="N"),
    _setting(
        "-t",
        "--timeout",
        "alive_time",
        help="With --exec and --script, the default is 10m, as in PerfectQueue.",
    ),
    options.lasting(
        "-b",
        "--heartbeat-interval",
        help="Accepted for PerfectQueue, up to three quarters of the timeout, without effect:"
        " psched extends each lease in time.",
    ),
    _setting("-x", "--kill-timeout"),
    _setting("-X", "--kill-interval"),
    _setting("-i", "--poll-interval"),
    _setting("--retry-wait"),
    _setting("--expire"),
    _setting("-D", "--delete-wait", "retention_time"),
    click.option(
        "--env",
        "variables",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_set_variables,
        expose_value=False,
        help="Set this environment variable for the service and its tasks; may be repeated.",
    ),
    _setting("-o", "--log", type=click.Path(dir_okay=False)),
    options.verbose,
    options.daemon,
    click.argument("words", metavar="[DISPATCH | -- ARG...]", nargs=-1, type=click.UNPROCESSED),
)


def add_options(command: F) -> F:
    """Add the options of ``run`` to a command; `overrides_of` converts their values to settings."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def overrides_of(given: Mapping[str, Any], words: tuple[str, ...]) -> dict[str, object]:
    """Convert the values of the options of `add_options` to settings."""
    for module in given["require"]:
        if module.isdigit():
            raise click.UsageError(
                f"-r {module}: is --require here; PerfectQueue's -r is --retry-wait {module}"
            )
    settings = {
        name: value
        for name, value in given.items()
        if value is not None  # not merely true, because an option can be given as 0
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


def settings_of_run(
    location: options.ConfigLocation, given: Mapping[str, Any], words: tuple[str, ...]
) -> tuple[options.ConfigLocation, Config]:
    """Read the settings that ``run`` uses with these options; also return where they are read."""
    path, environment, before = location
    chosen = {**overrides_of(given, words), **before}

    def set_in_file() -> Collection[str]:
        if isinstance(path, tuple):
            return config.read_raw(path, environment)
        return config.raw_settings(read_config(path, environment), environment)

    whole = options.ConfigLocation(path, environment, with_timeout(chosen, set_in_file))
    settings = read_config(*whole)
    if given["heartbeat_interval"] is not None:
        check_heartbeat(given["heartbeat_interval"], settings)
    return whole, settings


def with_timeout(
    overrides: Mapping[str, object], set_in_file: Callable[[], Collection[str]]
) -> dict[str, object]:
    """Add PerfectQueue's timeout with --exec or --script, unless ``alive_time`` is set anywhere."""
    is_single = any(overrides.get(name) is not None for name in ("exec", "script"))
    if is_single and "alive_time" not in overrides and "alive_time" not in set_in_file():
        return {**overrides, "alive_time": _TIMEOUT}
    return dict(overrides)


def check_heartbeat(seconds: object, settings: Config) -> None:
    """Raise an error if a heartbeat interval is too long for the length of a lease."""
    latest = _LATEST_EXTEND * settings.alive_time
    if isinstance(seconds, float) and not 0 < seconds <= latest:
        raise ConfigError(
            f"heartbeat-interval: {seconds:g} s is not within three quarters of the timeout of"
            f" {settings.alive_time} s, after which there may be no time left to extend a lease;"
            f" choose at most {latest:g}s, or leave it out"
        )


# --- the command -----------------------------------------------------------------------------


@click.command()
@add_options
@click.pass_obj
def run(location: options.ConfigLocation, /, words: tuple[str, ...], **given: object) -> None:
    """Run a master and its workers in the foreground.

    DISPATCH routes tasks to your handlers: module:name, or a name in a module that -r imports. In
    place of DISPATCH, --exec or --script runs the tasks of every type, except psched's own types
    (exec, push). Options override the settings of the configuration file. A DURATION is seconds, or
    a number with the unit s, m, h or d: 30s, 5m, 1h, 30d.

    Signals and exit status are those of psched-master; see psched-master --help.
    """
    early_signals.receive()
    from psched.service.run import run_configured  # noqa: PLC0415

    def run_master() -> int:
        (path, environment, overrides), _ = settings_of_run(location, given, words)
        return run_configured(path, environment, overrides, daemon=given["daemon"] is not None)

    run_and_exit(run_master)
