"""Converts the commands of a crontab to schedules of type ``exec``, which run as cron runs them.

cron ignores exit statuses and retries nothing, so these schedules have one attempt. cron sets no
time limit; here the limit is a day, because a command that hangs would occupy a slot for ever. cron
drops missed runs; psched runs the latest of them (``catchup: latest``).
"""

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from psched.base.errors import ConfigError, InvalidError
from psched.config import Config, from_mapping
from psched.config.monitoring import MailHook
from psched.contrib.crontab.earlier_imports import Line, line_of, match
from psched.contrib.crontab.parser import DIALECTS, NOT_IMPORTED, Crontab, Entry, Remark
from psched.contrib.crontab.service_user import ServiceUser
from psched.contrib.crontab.shell_command import first_program, is_guarded, program_name
from psched.core.columns import TEXT_LENGTH
from psched.core.declare import declare

_LONGEST_NAME = 40  # the number of characters to which the readable part of a hook's name is cut

_PLAIN = re.compile(r"\w+(@\w+\.\w+)?", re.ASCII)
"""What an address looks like that can be told from its name: ``-`` stands for ``@``, then ``.``."""

_HASHES = (6, 12, 20)
"""How many digits of a hash a name can end in; more are used if the name is taken."""


class Mailing(NamedTuple):
    """Who gets mail about a command."""

    hook: str | None = None  # the name of the hook; None if nobody gets mail
    # What the user must do so that the hook works; None if nothing is left to do.
    remark: str | None = None


def mailing_of(mailto: str | None, settings: Config) -> Mailing:
    """The hook that mails to the addresses of a ``MAILTO``.

    If the settings define a hook that mails to the same addresses, this is the hook. Hooks that
    mail to different addresses have different names.
    """
    addresses = [each for each in re.split(r"[,\s]+", mailto or "") if each]
    if not addresses:
        return Mailing()
    for name, hook in settings.hooks.items():
        if isinstance(hook, MailHook) and {*hook.to} == {*addresses}:
            return Mailing(name)
    name = next(each for each in _names_of(addresses) if each not in settings.hooks)
    try:
        from_mapping({"hooks": {name: {"mail": addresses}}})
    except ConfigError:
        return Mailing(None, f"MAILTO={mailto}: not imported: it is no list of addresses")
    wanted = f"hooks: {{{name}: {{mail: [{', '.join(addresses)}]}}}}"
    how = f"so that psched mails failures, add to the configuration: {wanted}"
    return Mailing(name, f"MAILTO={mailto}: {how}")


def _names_of(addresses: Sequence[str]) -> Iterator[str]:
    """Names for a hook that mails to some addresses, the best one first."""
    name = "-".join(["mail", *(re.sub(r"[^A-Za-z0-9_]+", "-", each) for each in addresses)])
    if len(name) <= _LONGEST_NAME and len(addresses) == 1 and _PLAIN.fullmatch(addresses[0]):
        yield name
    digest = sha256(" ".join(addresses).encode()).hexdigest()
    for digits in _HASHES:
        yield f"{name[:_LONGEST_NAME]}-{digest[:digits]}"


_SHELL = "/bin/sh"
_PATHS = {"debian": "/usr/bin:/bin", "cronie": "/usr/bin:/bin:/usr/sbin:/sbin"}
"""The value of ``PATH`` that each cron sets by default; BusyBox's sets none."""

_RUNUSER = "/sbin/runuser"
"""The program with which root runs commands as other users; this path exists on all systems that
have the program."""

KILL_TIMEOUT = 86_400  # the time limit of an imported command in seconds: one day

_POLICY = {"catchup": "latest", "max_attempts": 1, "kill_timeout": KILL_TIMEOUT}

_GUARDED = [0, 1]
"""The exit statuses that count as success for a command such as ``[ -x FILE ] && FILE``."""

_NO_VARIABLES = {"CRON_TZ", *NOT_IMPORTED}
"""The settings of a crontab that do not become variables of a command."""

_HASH = 6  # the number of characters that a key contains of the command's hash


@dataclass(frozen=True, slots=True, kw_only=True)
class CrontabContext:
    """Facts about a crontab's commands that the crontab itself does not contain."""

    key_prefix: str  # the beginning of the keys of its schedules, such as ``db1:php``
    timezone: str  # the time zone of the lines to which no ``CRON_TZ`` applies
    user: ServiceUser  # the user that runs psched's workers
    any_user: bool  # whether to import lines that cron runs as a user other than ``user``
    owner: str | None  # the user that the crontab belongs to; None if it is a system crontab
    # Returns the path of a user's home folder; None if the user does not exist.
    home: Callable[[str], str | None]
    # Finds a user of this host; returns None if there is no such user.
    find_user: Callable[[str], ServiceUser | None] = lambda _name: None
    # The same, given if ``user`` is root, and ``runuser`` runs the commands of other users. None
    # means that the schedules name the users (``run_as``), or with ``any_user``, that ``user`` runs
    # all commands.
    run_as: Callable[[str], ServiceUser | None] | None = None
    # The former lines of this crontab, by the keys of their schedules.
    former: Mapping[str, Line] = field(default_factory=dict)
    # The variables that cron's session has on this host; cron's own values win.
    session: Mapping[str, str] = field(default_factory=dict)
    # The cron that runs the commands; one of `psched.contrib.crontab.parser.DIALECTS`.
    dialect: str = DIALECTS[0]


@dataclass(frozen=True, slots=True)
class Imported:
    """The schedules that a crontab was converted to."""

    # The schedules, in the form that `psched.files.plan.plan` accepts.
    declarations: Sequence[dict[str, Any]]
    # Messages about lines that are not imported, or whose runs differ from cron's, in the order of
    # the lines.
    remarks: Sequence[Remark]
    # For the key of each schedule whose line was edited: the former and the present line.
    edited: Mapping[str, tuple[Line, Line]]
    added: Mapping[str, Line]  # the lines that have no former line, by the keys of their schedules
    gone: Mapping[str, Line]  # the former lines that the crontab does not contain any more, by key


def convert(crontab: Crontab, context: CrontabContext, settings: Config) -> Imported:
    """Convert the commands of a crontab to declarations of schedules."""
    remarks, accepted = list(crontab.remarks), list[tuple[Entry, dict[str, Any]]]()
    told = set[str]()
    for entry in crontab.entries:
        user = entry.user or context.owner
        if entry.user is None and (first := _user_in(entry, context)):
            text = f"the command begins with {first!r}; is this a system crontab (--system)?"
            remarks.append(Remark(entry.line, text))
        foreign = user not in {None, context.user.name}
        foreign = foreign and context.run_as is None
        text = f"cron runs it as {user}, and psched as {context.user.name}"
        helped = foreign and user != "root" and not context.any_user
        if foreign and not helped and not context.any_user:
            ways = "--run-as keeps the user, for workers of root; --any-user imports it without"
            remarks.append(Remark(entry.line, f"not imported: {text}; {ways}"))
            continue
        fields, odd = _fields(entry, user, context, settings)
        if helped:
            fields["run_as"] = user
        elif foreign:
            odd.append(text)
        try:
            declare(_key(entry, context.key_prefix), fields, settings, lambda: 0)
        except InvalidError as error:
            remarks.append(Remark(entry.line, f"not imported: {error}"))
            continue
        mailing = mailing_of(entry.variables.get("MAILTO"), settings)
        if mailing.hook is not None:
            fields["on_failed"] = mailing.hook
        if mailing.remark is not None and mailing.remark not in told:
            odd.append(mailing.remark)
            told.add(mailing.remark)
        accepted.append((entry, fields))
        remarks += (Remark(entry.line, text) for text in odd)
    return _with_keys(accepted, sorted(remarks, key=lambda remark: remark.line), context)


def allowing_lines(made: Imported, home: Callable[[str], str | None]) -> Sequence[str]:
    """The lines that root's list needs, see `psched.process.run_as_list`."""
    lines = []
    for fields in made.declarations:
        if (user := fields.get("run_as")) is not None:
            data, own = fields["data"], {"HOME": home(user), "LOGNAME": user, "USER": user}
            env = [f"{n}={v}" for n, v in data["env"].items() if own.get(n) != v]
            command = data["command"]
            words = ["/bin/sh", "-c", command, "sh"] if data.get("shell") else command
            lines.append(shlex.join([user, *env, *words]))
    return [*dict.fromkeys(lines)]


def _user_in(entry: Entry, context: CrontabContext) -> str | None:
    """The first word of a command, if a user of this host and no program has this name."""
    name, *rest = entry.command.split(None, 1)
    if not rest or not re.fullmatch(r"[\w.@$-]+", name) or context.home(name) is None:
        return None
    path = entry.variables.get("PATH", _PATHS.get(context.dialect, os.defpath))
    return name if context.user.why_not_run(name, path=path, cwd="/") else None


def _with_keys(
    accepted: Sequence[tuple[Entry, dict[str, Any]]],
    remarks: Sequence[Remark],
    context: CrontabContext,
) -> Imported:
    """Give each schedule the key of the line's former version, or a new key."""
    lines = [line_of(fields) for _, fields in accepted]
    gone = dict(context.former)
    taken, declarations = {*gone}, list[dict[str, Any]]()
    edited, added = dict[str, tuple[Line, Line]](), dict[str, Line]()
    numbers = Counter[str]()
    keys = match(lines, context.former)
    for (entry, fields), line, known in zip(accepted, lines, keys, strict=True):
        key = known or _free_key(_key(entry, context.key_prefix), taken, numbers)
        taken.add(key)
        declarations.append({"key": key, **fields})
        if known is None:
            added[key] = line
        elif (old := gone.pop(key)) != line:
            edited[key] = old, line
    return Imported(declarations, remarks, edited, added, gone)


def _fields(
    entry: Entry, user: str | None, context: CrontabContext, settings: Config
) -> tuple[dict[str, Any], list[str]]:
    """The fields of a command's schedule, and texts that say how psched runs it unlike cron."""
    odd = list[str]()
    home = context.home(user) if user is not None else None
    names = ["LOGNAME"] if context.dialect == "debian" else ["LOGNAME", "USER"]
    cron = {"SHELL": _SHELL, "PATH": _PATHS.get(context.dialect), "HOME": home}
    env = {**context.session, **{name: value for name, value in cron.items() if value is not None}}
    env |= {n: v for n, v in entry.variables.items() if n not in {*_NO_VARIABLES, *names}}
    env |= dict.fromkeys(names, user) if user is not None else {}
    wrapper, runner = list[str](), context.user
    keeps_user = user is not None and user != runner.name and not context.any_user
    if keeps_user and context.run_as is None:
        found = context.find_user(user or "")
        runner = found or runner
        odd += [] if found is not None else [f"this host has no user {user}, so it is refused"]
    elif user is not None and keeps_user and context.run_as is not None:
        # runuser would set HOME as the system knows it, not as the crontab sets it.
        home_again = ["/usr/bin/env", f"HOME={env['HOME']}"] if "HOME" in env else []
        wrapper = [_RUNUSER, "-u", user, "--", *home_again]
        found = context.run_as(user)
        runner = found or runner
        why = context.user.why_not_run(_RUNUSER, path="", cwd="/")
        odd += [] if why is None else [why]
        odd += [] if found is not None else [f"this host has no user {user}, so runuser fails"]
    folder = env.get("HOME")
    if folder is None:
        odd.append(f"the home of {user or 'its user'} is unknown on this host: it runs in /")
    elif not runner.can_enter(folder):
        whose = f"the home of {user or 'its user'}"
        odd.append(f"{runner.name} cannot enter {folder}, {whose}: the command runs in /")
        folder = None
    program = first_program(entry.command)
    if program is not None:
        why = runner.why_not_run(program, path=env.get("PATH", os.defpath), cwd=folder or "/")
        odd += [] if why is None else [why]
    guarded = is_guarded(entry.command)
    if guarded and wrapper:
        odd.append("if the test at its beginning is false, it fails, as it does if runuser fails")
    shell = env["SHELL"] == _SHELL and not wrapper
    data = {
        **({"shell": True} if shell else {}),
        "command": entry.command if shell else [*wrapper, env["SHELL"], "-c", entry.command],
        "env": env,
        "cwd": folder or "/",
        "stdin": entry.stdin,
        **({"ok_exit": _GUARDED} if guarded and not wrapper else {}),
    }
    policy = settings.types.get("exec", {}).get("dst_policy", settings.dst_policy)
    fields = {
        "type": "exec",
        "cron": entry.cron,
        "timezone": entry.variables.get("CRON_TZ") or context.timezone,
        "data": data,
        **_POLICY,
        **({} if policy == "debian" else {"dst_policy": "debian"}),
        "note": _note(entry, user if user != context.user.name and not keeps_user else None),
    }
    return {name: value for name, value in fields.items() if value is not None}, odd


def _note(entry: Entry, user: str | None) -> str | None:
    """The schedule's note: the command's comment, and the user as whom cron ran the command."""
    lines = [*([entry.note] if entry.note else []), *([f"cron ran it as {user}"] if user else [])]
    note = "".join(c if c.isprintable() or c == "\n" else " " for c in "\n".join(lines))
    return note[:TEXT_LENGTH].strip() or None


def _key(entry: Entry, prefix: str) -> str:
    """Compute a key that does not depend on the time or the place of the command's line."""
    identity = f"{entry.user or ''}\0{entry.command}\0{entry.stdin}".encode()
    program = program_name(entry.command)
    return f"{prefix}.{program}.{sha256(identity).hexdigest()[:_HASH]}"


def _free_key(stem: str, taken: Container[str], numbers: Counter[str]) -> str:
    """The stem if no schedule has this key, else the stem and a number."""
    while True:
        numbers[stem] += 1
        key = stem if numbers[stem] == 1 else f"{stem}-{numbers[stem]}"
        if key not in taken:
            return key
