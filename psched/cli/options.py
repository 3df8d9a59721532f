"""Options that several commands share. They select the configuration, and override settings."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import click

from psched.base.errors import InvalidError
from psched.base.quantities import DURATIONS, as_seconds

F = TypeVar("F", bound=Callable[..., object])

_ZONE = "psched.zone"

HELP_NAMES = ["-h", "--help"]

HELP = {"help_option_names": HELP_NAMES}
"""The ``context_settings`` of a command for which both ``-h`` and ``--help`` show the help."""


def duration(*, whole: bool = False, least: float | None = None) -> Callable[[str | float], float]:
    """Return the ``type`` of an option that takes a duration: seconds, or a number with a unit."""
    number: type[int | float] = int if whole else float
    wanted = f"{'whole ' if whole else ''}seconds, or a number with a unit: {DURATIONS}"

    def convert(value: str | float) -> int | float:
        given: Any = as_seconds(value)
        try:
            seconds = number(given)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not {wanted}.") from None
        if whole and isinstance(given, float):
            raise click.BadParameter(f"{value!r} is not {wanted}.")
        if least is not None and not seconds >= least:
            raise click.BadParameter(f"{value} is less than {least:g} seconds.")
        return seconds

    return convert


def lasting(
    *names: str,
    help: str,  # noqa: A002  # as click calls it
    whole: bool = False,
    least: float | None = None,
    **more: Any,  # noqa: ANN401  # for click
) -> Callable[[F], F]:
    """Return an option that takes a `duration`."""
    type_ = duration(whole=whole, least=least)
    return click.option(*names, type=type_, metavar="DURATION", help=help, **more)


class ConfigLocation(NamedTuple):
    """Where a command reads its settings; the fields are the arguments of `psched.app.read_config`.

    Attributes:
        config: the path of the configuration file, or of several; None means the file at a default
            path.
        environment: the name of the section in the file; None means the default section.
        overrides: the settings that the command's options set; they override those of the file.
    """

    config: str | tuple[str, ...] | None = None
    environment: str | None = None
    overrides: Mapping[str, object] = MappingProxyType({})


def _environment(text: str) -> str:
    """Check the name of a section; a number is meant as PerfectQueue's option -e."""
    if text.isdigit():
        raise click.BadParameter(f"{text} is no name; PerfectQueue's -e is --expire {text}.")
    return text


_CONFIG: dict[str, Any] = {
    "type": click.Path(dir_okay=False),
    "help": "Configuration file. Default: $PSCHED_CONFIG, else config/psched.yml, else"
    " config/perfectsched.yml, else /etc/psched/psched.yml; without any, a database in your state"
    " folder.",
}
_ENVIRONMENT: dict[str, Any] = {
    "type": _environment,
    "metavar": "NAME",
    "help": "Section of the configuration file. Default: $PSCHED_ENV, else $RAILS_ENV, else"
    " development.",
}


def config_options(command: F) -> F:
    """Add the options -c and -e to a command, which gets their values as arguments."""
    command = click.option("-e", "--environment", **_ENVIRONMENT)(command)
    return click.option("-c", "--config", **_CONFIG)(command)


def location_of(context: click.Context) -> ConfigLocation:
    """Return where the command of a context reads its settings."""
    if context.obj is None:
        # A shell completes a command line: click parses it, but does not call the group.
        given = context.find_root().params
        context.obj = ConfigLocation(given.get("config"), given.get("environment"))
    found: ConfigLocation = context.obj
    return found


def _set(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        changes: dict[str, Any] = {str(parameter.name): value}
        context.obj = location_of(context)._replace(**changes)


def _overriding(setting: str) -> Callable[[click.Context, click.Parameter, str | None], None]:
    """Return the callback of an option whose value replaces a setting."""

    def override(context: click.Context, _option: click.Parameter, value: str | None) -> None:
        if value is not None:
            location = location_of(context)
            context.obj = location._replace(overrides={**location.overrides, setting: value})

    return override


SUBCOMMAND_OPTIONS: Sequence[click.Option] = (
    click.Option(["-c", "--config"], callback=_set, expose_value=False, **_CONFIG),
    click.Option(["-e", "--environment"], callback=_set, expose_value=False, **_ENVIRONMENT),
)
"""The options ``-c`` and ``-e`` after the name of a subcommand. They override the options ``-c``
and ``-e`` before the name."""


def _show_in(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Let the reader's zone be another one until the command ends."""
    if value is None:
        return
    if context.meta.setdefault(_ZONE, option.name) != option.name:
        raise click.UsageError("--utc and --zone exclude each other")
    from psched.triggers.zone import find_zone  # noqa: PLC0415  # --help shows no time

    try:
        name = find_zone(value).name
    except InvalidError as error:
        raise click.BadParameter(error.problem) from None
    before = os.environ.get("TZ")
    os.environ["TZ"] = name

    def restore() -> None:
        os.environ.pop("TZ")
        os.environ.update({} if before is None else {"TZ": before})

    context.call_on_close(restore)


def hosts(text: str, *, new: bool = True) -> Callable[[F], F]:
    """Add the option --host, which can be repeated."""
    default = " Default: every host." if new else ""
    return click.option(
        "--host",
        "hosts",
        metavar="NAME",
        multiple=True,
        callback=lambda _context, _option, given: [*given] or None,
        help=f"{text}: its name, a label (host_labels) or a pattern; may be repeated.{default}",
    )


def zone(*names: str) -> Callable[[F], F]:
    """Add the options --utc and --zone, which select the zone of all times (`reader_zone`)."""

    def add(command: F) -> F:
        shared: dict[str, Any] = {"expose_value": False, "callback": _show_in}
        text = "Show and read times in this zone. Default: yours."
        command = click.option(*names, "--zone", metavar="ZONE", help=text, **shared)(command)
        text = "The same as --zone UTC."
        return click.option("--utc", is_flag=True, flag_value="UTC", help=text, **shared)(command)

    return add


def _set_files(context: click.Context, _option: click.Parameter, files: tuple[str, ...]) -> None:
    if files:
        config = files if len(files) > 1 else files[0]
        context.obj = location_of(context)._replace(config=config)


perfectqueue_file = click.option(
    "-f",
    "--file",
    "files",
    type=click.Path(dir_okay=False),
    multiple=True,
    callback=_set_files,
    expose_value=False,
    help="The same as -c, for users of PerfectQueue; if repeated, later files replace settings.",
)


def database(command: F) -> F:
    """Add the options --url (or --database) and --table, which override settings."""
    for setting, names, metavar, text in (
        ("table", ["--table"], "NAME", "Table of that database. Replaces the setting table."),
        ("url", ["--url", "--database"], "URL", "Url of the database. Replaces the setting url."),
    ):
        command = click.option(
            *names,
            setting,
            metavar=metavar,
            callback=_overriding(setting),
            expose_value=False,
            help=text,
        )(command)
    return command


def one_of(values: Iterable[str], name: str, text: str, more: str = "") -> Callable[[F], F]:
    """Return an option that takes one of some values, and may be repeated.

    The last word of ``name`` is that of the argument, as in ``--fate fates``.
    """
    option, argument = name.split()
    given = [str(each) for each in values]
    return click.option(
        option,
        argument,
        type=click.Choice(given),
        metavar=option.removeprefix("--").upper(),
        multiple=True,
        help=f"{text}; may be repeated. One of {', '.join(given)}.{more}",
    )


types = click.option(
    "--type",
    "types",
    metavar="TYPE",
    multiple=True,
    help="Only those of this type; may be repeated.",
)


def since(text: str, default: str | None = None) -> Callable[[F], F]:
    """Return the option for the beginning of a period, which `time_format.parse_since` reads."""
    help_ = f"{text} at most this long ago ({DURATIONS}), or after this time."
    if default is not None:
        help_ += f" Default: {default}."
    return click.option("--since", metavar="AGE|TIME", default=default, help=help_)


def limit(text: str = "Show at most N.", default: int | None = None) -> Callable[[F], F]:
    """Return the option for the most rows of a table; without it, ``default``, or as JSON all."""
    if default is not None:
        text += f" Default: {default}; with --json, all."
    return click.option("--limit", metavar="N", type=click.IntRange(1, 10**9), help=text)


verbose = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Log debug messages, such as each claim, extend and settle. Setting: log_level.",
)

own_database = click.option(
    "--database",
    metavar="URL",
    callback=_overriding("url"),
    expose_value=False,
    help="Url of psched's own database. Replaces the setting url.",
)
"""The option --database alone, for a command whose option --url has another meaning."""

daemon = click.option(
    "-d",
    "--daemon",
    metavar="PIDFILE",
    type=click.Path(dir_okay=False),
    help="Run in the background, and write the process id to this file.",
)
