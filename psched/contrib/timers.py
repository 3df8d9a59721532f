"""``psched import-timers``: converts systemd's timers to schedules, which run as systemd runs them.

A timer that is not persistent drops missed runs (``catchup: skip``); a persistent one makes up for
the last of them. A failed service is not repeated, so there is one attempt. What has no effect in
psched is told.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

import click

from psched.base.errors import ConfigError, InvalidError
from psched.cli.options import ConfigLocation
from psched.config import Config
from psched.contrib.crontab.command import (
    Delivery,
    any_user_option,
    delivery_options,
    home_of,
    host_zone,
    source_of,
)
from psched.contrib.crontab.crontab_to_schedules import KILL_TIMEOUT, CrontabContext
from psched.contrib.crontab.service_user import ServiceUser
from psched.contrib.systemd_syntax import (
    Command,
    Setting,
    Unit,
    commands_of,
    data_of,
    place_of,
    read_unit,
    search_path,
    split,
    timers_in,
    unquoted,
)
from psched.core.columns import TEXT_LENGTH
from psched.core.declare import declare
from psched.files.document import Document
from psched.triggers.calendar_event import Times, merged, seconds_of, times_of
from psched.triggers.trigger import parse
from psched.triggers.zone import find_zone

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_TIMES = ("Timer.OnCalendar", "Timer.OnUnitActiveSec")

_OTHER_TIMES = tuple(f"Timer.On{name}Sec" for name in ["UnitInactive", "Boot", "Startup", "Active"])

_LIMITS = (["Service.RuntimeMaxSec"], ["Service.TimeoutStartSec", "Service.TimeoutSec"])
"""The time limits of a service, and of one of the type ``oneshot``."""

_KNOWN = re.compile(
    r"""(Install\.|X-).*
    | Unit\.(Description|Documentation|DefaultDependencies)=.*
    | Unit\.(After|Before|Wants|Requires)=\S+\.target(\s+\S+\.target)*
    | Timer\.(On(Calendar|UnitActiveSec)|Unit|Persistent|RandomizedDelaySec|AccuracySec)=.*
    | Timer\.RemainAfterElapse=.*
    | Service\.(User|WorkingDirectory|Environment(File)?|Type|ExecStart(Pre)?)=.*
    | Service\.(Timeout(Start)?Sec|RuntimeMaxSec|SyslogIdentifier)=.*
    | Service\.(Restart=no|KillMode=control-group|StandardInput=null|StandardOutput=journal)
    | Service\.StandardError=(journal|inherit)
    """,
    re.VERBOSE,
)
"""The settings that are imported, or that make no difference."""

_IS_TRUE = re.compile(r"1|yes|y|true|t|on", re.IGNORECASE)


def convert(
    name: str, folders: Sequence[Path], context: CrontabContext, settings: Config
) -> tuple[Sequence[dict[str, Any]], Sequence[str]]:
    """Its schedules, one for each of its times if they differ much; and remarks with places."""
    timer = read_unit(name, folders)
    if timer is None:
        raise ConfigError(f"{folders[0] / name}: there is no such unit")
    remarks, made = list[str](), list[dict[str, Any]]()
    try:
        service = _service_of(timer, folders, context)
        times = merged(_times(timer, context, remarks))
        persistent = _IS_TRUE.fullmatch(timer.last("Timer.Persistent").value)
        jitter = timer.last("Timer.RandomizedDelaySec")
        fields = {
            "type": "exec",
            "catchup": "latest" if persistent or not timer.all("Timer.OnCalendar") else "skip",
            "jitter": _seconds(jitter, 0),
            "dst_policy": "debian",
            **_run(service, context, remarks),
        }
        for number, (cron, timezone, delay) in enumerate(times, start=1):
            key = f"{context.key_prefix}{name.removesuffix('.timer')}"
            key += f"/{number}" * (number > 1)
            schedule = {"cron": cron, "timezone": timezone, "delay": delay, **fields}
            schedule = {
                name: value for name, value in schedule.items() if value or name == "kill_timeout"
            }
            try:
                declare(key, schedule, settings, lambda: 0)
            except InvalidError as error:
                place = jitter.place if error.field == "jitter" else f"{timer.path}:1"
                raise InvalidError(place, str(error)) from None
            made.append({"key": key, **schedule})
    except InvalidError as error:
        return (), [*remarks, f"{error.field}: not imported: {error.problem}"]
    return made, [*remarks, *_without_effect(timer), *_without_effect(service)]


def _service_of(timer: Unit, folders: Sequence[Path], context: CrontabContext) -> Unit:
    if not timer.path.stat().st_size:  # as /dev/null
        raise InvalidError(f"{timer.path}:1", "it is masked")
    if "@." in timer.name:
        text = f"it is a template; import an instance, as {timer.name.replace('@.', '@NAME.')}"
        raise InvalidError(f"{timer.path}:1", text)
    name = _value(timer, "Timer.Unit", context) or f"{timer.name.removesuffix('.timer')}.service"
    service = read_unit(name, folders) if name.endswith(".service") else None
    if service is None or not service.path.stat().st_size:
        text = f"{name} is no service, is masked, or is not found beside the timer"
        raise InvalidError(timer.last("Timer.Unit").place, text)
    return service


@contextmanager
def _refusing(place: str) -> Iterator[None]:
    """Make the place, a file and a line, the field of errors that are raised inside."""
    try:
        yield
    except InvalidError as error:
        what = f"{error.field}: " if error.field else ""
        raise InvalidError(place, f"{what}{error.problem}") from None


def _without_effect(unit: Unit) -> Iterator[str]:
    for name, value, place in unit.settings:
        is_last = name == "Service.ExecStartPost" and unit.last("Service.Type").value == "oneshot"
        if value and not is_last and not _KNOWN.fullmatch(f"{name}={value}"):
            yield f"{place}: {name.partition('.')[2]}={value}: has no effect in psched"


def _expanded(text: str, unit: Unit, context: CrontabContext) -> str:
    """Replace the specifiers in a text; refuse those whose values are not known here."""
    stem = unit.name.rpartition(".")[0]
    prefix, _, instance = stem.partition("@")
    owner = context.owner or "root"
    known = {"%": "%", "n": unit.name, "N": stem, "p": prefix, "P": _unescaped(prefix)}
    known |= {"i": instance, "I": _unescaped(instance), "u": owner, "h": context.home(owner) or "/"}
    known |= {"T": "/tmp", "V": "/var/tmp"}  # noqa: S108  # what systemd puts there
    if context.owner is None:
        known |= {"t": "/run", "S": "/var/lib", "C": "/var/cache", "L": "/var/log", "E": "/etc"}
    for each in re.findall(r"%(.?)", text):
        if each not in known:
            text = f"%{each} is not known here; write its value (%% is a percent sign)"
            raise InvalidError("", text)
    return re.sub(r"%(.)", lambda found: known[found[1]], text)


def _value(unit: Unit, name: str, context: CrontabContext) -> str:
    """The value of the last setting with this name; its specifiers are replaced."""
    setting = unit.last(name)
    with _refusing(setting.place):
        return _expanded(setting.value, unit, context)


def _unescaped(name: str) -> str:
    """Undo systemd-escape."""
    slashes = name.replace("-", "/")
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), slashes)


def _times(timer: Unit, context: CrontabContext, remarks: list[str]) -> Iterator[Times]:
    """Yield the times of a timer."""
    usable = [each for each in timer.all(*_TIMES, *_OTHER_TIMES) if each.name in _TIMES]
    if not usable:
        raise InvalidError(
            timer.last(*_OTHER_TIMES).place,
            "it has no time that psched knows, as psched runs nothing after the start of a host or"
            " the end of a run; write OnCalendar= or OnUnitActiveSec=, or leave it to systemd",
        )
    for name, given, place in usable:
        is_interval = name == "Timer.OnUnitActiveSec"
        with _refusing(place):
            value = _expanded(given, timer, context)
            if is_interval:
                times = Times(f"@every {seconds_of(value) or 0:g}", context.timezone)
            else:
                times = times_of(value, context.timezone)
            parse(times.cron, times.timezone)
        yield times
        if is_interval:
            remarks.append(
                f"{place}: OnUnitActiveSec={given}: runs at whole multiples of {given} since 1970,"
                " and not that long after its last start"
            )


def _seconds(setting: Setting, default: int) -> int:
    """A duration in seconds; 0 for ``infinity``."""
    with _refusing(setting.place):
        return ceil(seconds_of(setting.value) or 0) if setting.value else default


def _run(service: Unit, context: CrontabContext, remarks: list[str]) -> dict[str, Any]:
    """The fields that say what a schedule runs."""
    expanded = partial(_expanded, unit=service, context=context)
    user, env = _user_and_env(service, context, expanded, remarks)
    kind = service.last("Service.Type")
    if kind.value == "forking":
        text = "Type=forking: psched ends what a command leaves; run it in foreground"
        raise InvalidError(kind.place, text)
    files = list[str]()
    for _, file, place in service.all("Service.EnvironmentFile"):
        with _refusing(place):
            files.append(expanded(file))
            if {*"*?["} & {*files[-1]}:
                raise InvalidError("", f"{file} is a pattern; write a line for each file")
        shell = "is read by a shell, where blanks, quotes, $, \\, ; and # mean something else"
        remarks.append(f"{place}: {file} {shell}")
    folder = _value(service, "Service.WorkingDirectory", context).removeprefix("-")
    folder = env.get("HOME", "/") if folder == "~" or (context.owner and not folder) else folder
    if folder and not context.user.can_enter(folder):
        text = f"{context.user.name} cannot enter {folder}: the command runs in /"
        remarks.append(f"{service.last('Service.WorkingDirectory').place}: {text}")
        folder = ""
    commands = [*_commands(service, expanded)]
    for place, prefix, words in commands:
        if "@" in prefix or ({*"+!"} & {*prefix} and user != "root"):
            remarks.append(f"{place}: the prefix {prefix} has no effect in psched")
        for word in words:
            if word.startswith("$") and {*"\\'\""} & {*env.get(word[1:], "")}:
                raise InvalidError(place, f"the value of {word} has quotes; write it here")
        why = context.user.why_not_run(words[0], path=env["PATH"], cwd=folder or "/")
        remarks += [] if why is None else [f"{place}: {why}"]
    lines = _value(service, "Unit.Description", context), f"systemd ran it as {user}"
    note = "\n".join(filter(None, lines[: 1 + (user != context.user.name)]))
    return {
        "data": {**data_of(commands, files), "env": env, "cwd": folder or "/", "stdin": ""},
        "max_attempts": 1,
        "kill_timeout": _seconds(service.last(*_LIMITS[kind.value == "oneshot"]), KILL_TIMEOUT),
        "note": note[:TEXT_LENGTH],
    }


def _user_and_env(
    service: Unit, context: CrontabContext, expanded: Callable[[str], str], remarks: list[str]
) -> tuple[str, dict[str, str]]:
    """The user as whom systemd runs a service, and the variables that it sets."""
    named = _value(service, "Service.User", context)
    is_dynamic = _IS_TRUE.fullmatch(service.last("Service.DynamicUser").value)
    user = named or ("a dynamic user" if is_dynamic else context.owner or "root")
    if user != context.user.name:
        place = service.last("Service.User", "Service.DynamicUser").place
        text = f"systemd runs it as {user}, and psched as {context.user.name}"
        if not context.any_user:
            raise InvalidError(place, f"{text}; --any-user imports such units, too")
        remarks.append(f"{place}: {text}")
    home = context.home(user) if named or context.owner else None
    env = {"PATH": _PATH, **({"HOME": home, "LOGNAME": user, "USER": user} if home else {})}
    for setting in service.all("Service.Environment"):
        with _refusing(setting.place):
            for word in split(setting.value):
                name, _, value = expanded(unquoted(word)).partition("=")
                env[name] = value
    return user, env


def _commands(service: Unit, expanded: Callable[[str], str]) -> Iterator[Command]:
    post = ["ExecStartPost"] if service.last("Service.Type").value == "oneshot" else []
    for name in ("ExecStartPre", "ExecStart", *post):
        for line in service.all(f"Service.{name}"):
            with _refusing(line.place):
                yield from commands_of(line, expanded)
    if not service.all("Service.ExecStart"):
        raise InvalidError(f"{service.path}:1", "it has no ExecStart=")


@click.command("import-timers")
@click.argument("path", metavar="TIMER|FOLDER", type=click.Path(path_type=Path))
@click.option("--user", metavar="NAME", help="The units are those of this user (systemctl --user).")
@click.option(
    "-t", "--timezone", metavar="ZONE", help="Time zone of the timers. Default: this host's."
)
@click.option(
    "--source", metavar="NAME", help="Host that the timers are from. Default: this host's name."
)
@click.option(
    "--label",
    metavar="LABEL",
    help="Label of the schedules. Default: timers:, the source, ~USER, and TIMER or FOLDER.",
)
@any_user_option
@delivery_options
@click.pass_obj
def import_timers(
    location: ConfigLocation,
    path: Path,
    user: str | None,
    timezone: str | None,
    source: str | None,
    label: str | None,
    service_user: str | None,
    *,
    any_user: bool,
    delivery: Delivery,
) -> None:
    """Convert systemd's timers to a file for apply.

    The schedules have the type exec. TIMER is the path of a timer; its service and the drop-ins of
    both are searched beside it, or as systemd does if the folder is one of systemd's. An instance
    of a template, such as backup@db.timer, needs no file of its own. Of a FOLDER, all timers are
    imported that are enabled.

    If a timer cannot be imported exactly, or the service's user cannot run it, a message on
    standard error names the line, and the exit status is 1.
    """
    settings = delivery.settings(location)
    folder = (path if path.is_dir() else path.parent).absolute()
    if user is None and folder.match("systemd/user"):
        raise click.UsageError(f"whose units are those of {folder}? Use --user NAME")
    host = source_of(source)
    context = CrontabContext(
        key_prefix=f"{host}:~{user}/" if user else f"{host}:",
        timezone=timezone or host_zone(),
        user=ServiceUser.find(service_user),
        any_user=any_user,
        owner=user,
        home=home_of,
    )
    folders = search_path(folder)
    find_zone(context.timezone)
    timers = [*timers_in(folder, folders)] if path.is_dir() else [(path.name, "")]
    if not timers or not timers[0][0].endswith(".timer"):
        raise ConfigError(f"{path}: is no timer, and no folder with files *.timer")
    declarations, remarks = list[dict[str, Any]](), list[str]()
    for name, why in timers:
        if why:
            remarks.append(f"{folder / name}:1: not imported: {why}")
            continue
        made, told = convert(name, folders, context, settings)
        remarks += told
        for each in made:
            if twice := next((o["key"] for o in declarations if o["data"] == each["data"]), None):
                text = f"runs the same as {twice}: a time that both have runs twice"
                remarks.append(f"{folder / name}:1: {each['key']} {text}")
            declarations.append(each)
    place = place_of(folder) if path.is_dir() else path.name
    document = Document(label or f"timers:{context.key_prefix}{place}", declarations)
    home = home_of(user) if user is not None else None
    is_here = f"{folder}" == f"/{place_of(folder)}" or (home and folder.is_relative_to(home))
    is_copy = source is None and not is_here
    delivery.finish_by_key(document, host, path, settings, remarks, is_copy=is_copy)
