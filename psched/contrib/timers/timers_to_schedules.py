"""Converts a timer and its service to schedules of type ``exec``, which run as systemd runs them.

A timer that is not persistent drops missed runs (``catchup: skip``); a persistent one makes up for
the last of them. A failed service is not repeated, so there is one attempt. What has no effect in
psched is told.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

from psched.base.errors import ConfigError, InvalidError
from psched.config import Config
from psched.contrib.crontab.crontab_to_schedules import KILL_TIMEOUT, CrontabContext
from psched.contrib.timers.exec_line import Command, commands_of, data_of, split, unquoted
from psched.contrib.timers.units import Unit, read_unit
from psched.core.columns import TEXT_LENGTH
from psched.core.declare import declare
from psched.triggers.calendar_event import Times, merged, seconds_of, times_of

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_STARTS = ("Calendar", "UnitActiveSec", "UnitInactiveSec", "BootSec", "StartupSec", "ActiveSec")

_KNOWN = {
    *("Unit.Description", "Unit.Documentation", "Unit.DefaultDependencies"),
    *(f"Timer.On{name}" for name in _STARTS),
    *("Timer.Unit", "Timer.Persistent", "Timer.RandomizedDelaySec", "Timer.AccuracySec"),
    *("Timer.RemainAfterElapse", "Service.User", "Service.WorkingDirectory", "Service.Environment"),
    *("Service.EnvironmentFile", "Service.ExecStart", "Service.ExecStartPre", "Service.Type"),
    *("Service.TimeoutStartSec", "Service.TimeoutSec", "Service.RuntimeMaxSec"),
    *("Service.SyslogIdentifier", "Service.Restart=no", "Service.KillMode=control-group"),
    *("Service.StandardInput=null", "Service.StandardOutput=journal"),
    *("Service.StandardError=journal", "Service.StandardError=inherit"),
}
"""The settings that are imported, or that make no difference; with a value: only that one."""

_IS_TRUE = re.compile(r"1|yes|y|true|t|on", re.IGNORECASE)


def convert(
    name: str, folders: Sequence[Path], context: CrontabContext, settings: Config
) -> tuple[Sequence[dict[str, Any]], Sequence[str]]:
    """Convert a timer to declarations of schedules: one for each of its times, if they differ much.

    Args:
        name: the name of the timer.
        folders: where units are searched.
        context: facts about the host; its ``key_prefix`` is the host's name, its ``owner`` None for
            the units of the system.
        settings: psched's settings; a timer is not imported if they forbid its schedule.

    Returns:
        The schedules; and remarks, each with file and line, about what is not imported or differs.

    Raises:
        ConfigError: the timer does not exist, or a file cannot be read.
    """
    timer = read_unit(name, folders)
    if timer is None:
        raise ConfigError(f"{folders[0] / name}: there is no such unit")
    remarks, made, whole = list[str](), list[dict[str, Any]](), f"{timer.path}:1"
    try:
        with _refusing(whole):
            service = _service_of(timer, folders, context)
        times = merged(_times(timer, context, remarks))
        fields = {**_start(timer, settings), **_run(service, context, remarks)}
        for number, (cron, timezone, delay) in enumerate(times, start=1):
            key = f"{context.key_prefix}:{name.removesuffix('.timer')}" + f"/{number}" * (
                number > 1
            )
            when = {"cron": cron, "timezone": timezone, **({"delay": delay} if delay else {})}
            with _refusing(whole):
                declare(key, {"type": "exec", **when, **fields}, settings, lambda: 0)
            made.append({"key": key, "type": "exec", **when, **fields})
    except InvalidError as error:
        return (), [*remarks, f"{error.field}: not imported: {error.problem}"]
    if len(made) > 1:
        remarks.append(f"{whole}: it becomes {len(made)} schedules, whose runs can overlap")
    return made, [*remarks, *_without_effect(timer), *_without_effect(service)]


def _service_of(timer: Unit, folders: Sequence[Path], context: CrontabContext) -> Unit:
    if not timer.settings:
        raise _refusal("it is masked")
    if "@." in timer.name:
        example = timer.name.replace("@.", "@NAME.")
        raise _refusal(f"it is a template; import an instance, such as {example}")
    name = timer.text("Timer.Unit", f"{timer.name.removesuffix('.timer')}.service")
    name = _expanded(name, timer, context)
    service = read_unit(name, folders) if name.endswith(".service") else None
    if service is None or not service.settings:
        raise _refusal(f"{name} is no service, is masked, or is not found beside the timer")
    return service


def _refusal(text: str) -> InvalidError:
    return InvalidError("", text)


@contextmanager
def _refusing(place: str) -> Iterator[None]:
    """Name the place in errors that are raised inside."""
    try:
        yield
    except _PlacedError:
        raise
    except InvalidError as error:
        what = f"{error.field}: " if error.field else ""
        raise _PlacedError(place, f"{what}{error.problem}") from None


class _PlacedError(InvalidError):
    """An error whose field is the file and the line."""


def _without_effect(unit: Unit) -> Iterator[str]:
    is_oneshot = unit.text("Service.Type") == "oneshot"
    for name, value, place in unit.settings:
        is_order = re.fullmatch(r"Unit\.(After|Before|Wants|Requires)", name) is not None
        if (
            {name, f"{name}={value}"}.isdisjoint(_KNOWN)
            and value
            and not (is_oneshot and name == "Service.ExecStartPost")
            and not name.startswith(("Install.", "X-"))
            and not (is_order and all(each.endswith(".target") for each in value.split()))
        ):
            yield f"{place}: {name.partition('.')[2]}={value}: has no effect in psched"


def _expanded(text: str, unit: Unit, context: CrontabContext) -> str:
    """Replace the specifiers in a text.

    Raises:
        InvalidError: one of them stands for something that is not known here.
    """
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
            raise _refusal(f"%{each} is not known here; write its value (%% is a percent sign)")
    return re.sub(r"%(.)", lambda found: known[found[1]], text)


def _unescaped(name: str) -> str:
    """Undo systemd-escape."""
    slashes = name.replace("-", "/")
    return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), slashes)


def _times(timer: Unit, context: CrontabContext, remarks: list[str]) -> Iterator[Times]:
    """Yield the times of a timer."""
    settings = timer.all(*(f"Timer.On{name}" for name in _STARTS))
    usable = [
        each for each in settings if each.name in ("Timer.OnCalendar", "Timer.OnUnitActiveSec")
    ]
    for setting in settings:
        name, given = setting.name.partition(".")[2], setting.value
        with _refusing(setting.place):
            value = _expanded(given, timer, context)
            if name == "OnCalendar":
                yield times_of(value, context.timezone)
            elif name == "OnUnitActiveSec":
                yield Times(f"@every {seconds_of(value) or 0:g}", context.timezone)
                remarks.append(
                    f"{setting.place}: {name}={given}: runs at whole multiples of {given} since"
                    " 1970, and not that long after its last start"
                )
            elif usable:
                remarks.append(f"{setting.place}: {name}={given}: has no effect in psched")
            else:
                raise _refusal(
                    f"{name}: psched runs nothing after the start of a host or the end of a run;"
                    " write OnCalendar= or OnUnitActiveSec=, or leave it to systemd"
                )
    if not settings:
        raise _PlacedError(f"{timer.path}:1", "the timer has no time; write OnCalendar=")


def _start(timer: Unit, settings: Config) -> dict[str, Any]:
    """The fields that say how a schedule starts."""
    persistent = _IS_TRUE.fullmatch(timer.text("Timer.Persistent"))
    is_calendar = bool(timer.all("Timer.OnCalendar"))
    policy = settings.types.get("exec", {}).get("dst_policy", settings.dst_policy)
    jitter = _seconds(timer, ["Timer.RandomizedDelaySec"], 0)
    return {
        "catchup": "latest" if persistent or not is_calendar else "skip",
        **({"jitter": jitter} if jitter else {}),
        **({} if policy == "debian" else {"dst_policy": "debian"}),
    }


def _seconds(unit: Unit, names: Sequence[str], default: int) -> int:
    """A duration in seconds; 0 for ``infinity``."""
    for setting in reversed(unit.all(*names)):
        with _refusing(setting.place):
            return ceil(seconds_of(setting.value) or 0)
    return default


def _run(service: Unit, context: CrontabContext, remarks: list[str]) -> dict[str, Any]:
    """The fields that say what a schedule runs."""

    def expanded(text: str) -> str:
        return _expanded(text, service, context)

    whole, kind = f"{service.path}:1", service.text("Service.Type", "simple")
    with _refusing(whole):
        user, env = _user_and_env(service, context, expanded)
        if user != context.user.name:
            remarks.append(f"{whole}: {_runs_as(user, context)}")
        if kind == "forking":
            raise _refusal("Type=forking: psched ends what a command leaves; run it in foreground")
    files = service.all("Service.EnvironmentFile")
    shell = "is read by a shell, where quotes, $ and \\ in a value can mean something else"
    remarks += [f"{place}: {value} {shell}" for _, value, place in files]
    folder = expanded(service.text("Service.WorkingDirectory")).removeprefix("-")
    folder = env.get("HOME", "/") if folder == "~" or (context.owner and not folder) else folder
    if folder and not context.user.can_enter(folder):
        text = f"{context.user.name} cannot enter {folder}: the command runs in /"
        remarks.append(f"{whole}: {text}")
        folder = ""
    commands = [*_commands(service, kind, expanded)]
    for place, prefix, words in commands:
        if "@" in prefix or ({*"+!"} & {*prefix} and user != "root"):
            remarks.append(f"{place}: the prefix {prefix} has no effect in psched")
        for word in words:
            if word.startswith("$") and {*"\\'\""} & {*env.get(word[1:], "")}:
                raise _PlacedError(place, f"the value of {word} has quotes; write it here")
        why = context.user.why_not_run(words[0], path=env["PATH"], cwd=folder or "/")
        remarks += [] if why is None else [f"{place}: {why}"]
    limit = ["TimeoutStartSec", "TimeoutSec"] if kind == "oneshot" else ["RuntimeMaxSec"]
    lines = expanded(service.text("Unit.Description")), f"systemd ran it as {user}"
    note = "\n".join(filter(None, lines[: 1 + (user != context.user.name)]))
    data = data_of(commands, [expanded(each.value) for each in files])
    return {
        "data": {**data, "env": env, "cwd": folder or "/", "stdin": ""},
        "max_attempts": 1,
        "kill_timeout": _seconds(service, [f"Service.{each}" for each in limit], KILL_TIMEOUT),
        **({"note": note[:TEXT_LENGTH]} if note else {}),
    }


def _runs_as(user: str, context: CrontabContext) -> str:
    return f"systemd runs it as {user}, and psched as {context.user.name}"


def _user_and_env(
    service: Unit, context: CrontabContext, expanded: Callable[[str], str]
) -> tuple[str, dict[str, str]]:
    """The user as whom systemd runs a service, and the variables that it sets.

    Raises:
        InvalidError: the workers run as another user.
    """
    named = expanded(service.text("Service.User"))
    is_dynamic = _IS_TRUE.fullmatch(service.text("Service.DynamicUser"))
    user = named or ("a dynamic user" if is_dynamic else context.owner or "root")
    if user != context.user.name and not context.any_user:
        raise _refusal(f"{_runs_as(user, context)}; --any-user imports such units, too")
    home = context.home(user) if named or context.owner else None
    env = {"PATH": _PATH, **({"HOME": home, "LOGNAME": user, "USER": user} if home else {})}
    for setting in service.all("Service.Environment"):
        with _refusing(setting.place):
            for word in split(setting.value):
                name, _, value = expanded(unquoted(word)).partition("=")
                env[name] = value
    return user, env


def _commands(service: Unit, kind: str, expanded: Callable[[str], str]) -> Iterator[Command]:
    post = ["Service.ExecStartPost"] if kind == "oneshot" else []
    for name in ("Service.ExecStartPre", "Service.ExecStart", *post):
        lines = service.all(name)
        if not lines and name.endswith("Start"):
            raise _PlacedError(f"{service.path}:1", "it has no ExecStart=")
        for line in lines:
            with _refusing(line.place):
                yield from commands_of(line, expanded)
