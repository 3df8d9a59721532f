"""Converts a timer and its service to schedules of type ``exec``, which run as systemd runs them.

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

from psched.base.errors import ConfigError, InvalidError
from psched.config import Config
from psched.contrib.crontab.crontab_to_schedules import KILL_TIMEOUT, CrontabContext
from psched.contrib.timers.exec_line import Command, commands_of, data_of, split, unquoted
from psched.contrib.timers.units import Setting, Unit, read_unit
from psched.core.columns import TEXT_LENGTH
from psched.core.declare import declare
from psched.triggers.calendar_event import Times, merged, seconds_of, times_of
from psched.triggers.trigger import parse

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
    """Convert a timer to declarations of schedules: one for each of its times, if they differ much.

    Returns:
        The schedules; and remarks, each with file and line, about what is not imported or differs.
    """
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
