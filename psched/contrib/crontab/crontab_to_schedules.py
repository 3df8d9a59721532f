"""Converts the commands of a crontab to schedules of type ``exec``, which run as cron runs them.

cron ignores exit statuses, sets no time limit and retries nothing. So these schedules have one
attempt and no ``kill_timeout``. cron drops missed runs; psched runs the latest of them
(``catchup: latest``).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from psched.base.errors import InvalidError
from psched.config import Config
from psched.contrib.crontab.parser import Crontab, Entry, Remark
from psched.core.columns import TEXT_LENGTH
from psched.core.declare import declare

_SHELL = "/bin/sh"
_PATH = "/usr/bin:/bin"
"""The PATH that cron sets by default."""

_POLICY = {"catchup": "latest", "max_attempts": 1, "kill_timeout": 0}

_KEY_PART = 40
"""The largest number of characters of a program's name in a key."""

_HASH = 6

_SHELL_WORDS = frozenset([
    *("if", "then", "else", "elif", "fi", "for", "in", "while", "do", "done", "test", "command"),
    *("exec", "env", "cd", "nice", "ionice", "sudo"),
])  # fmt: skip
"""Words that may precede a command's main program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrontabContext:
    """Facts about a crontab's commands that the crontab itself does not contain.

    Attributes:
        name: the name of the crontab; the keys of its schedules begin with it.
        timezone: the time zone of the lines to which no ``CRON_TZ`` applies.
        user: the user that psched probably runs as.
        any_user: whether to import also the lines that cron runs as other users.
        owner: the user that the crontab belongs to; None if it is a system crontab.
        home: returns the path of a user's home; None if the user does not exist.
        is_folder: returns whether a folder exists.
    """

    name: str
    timezone: str
    user: str
    any_user: bool
    owner: str | None
    home: Callable[[str], str | None]
    is_folder: Callable[[str], bool] = lambda path: Path(path).is_dir()


def convert(
    crontab: Crontab, context: CrontabContext, settings: Config
) -> tuple[Sequence[dict[str, Any]], Sequence[Remark]]:
    """Declare the commands of a crontab.

    Args:
        crontab: the crontab.
        context: facts about the crontab's host and user.
        settings: psched's settings; a schedule that they forbid is not imported.

    Returns:
        The declarations, in the form that `psched.files.plan.plan` accepts; and a remark on each
        line that is not imported, or not exactly, in the order of the lines.
    """
    remarks, declarations = list(crontab.remarks), dict[str, dict[str, Any]]()
    for entry in crontab.entries:
        user = entry.user or context.owner
        foreign = user not in {None, context.user}
        if foreign and not context.any_user:
            text = f"not imported: cron runs it as {user}, and psched probably as {context.user}"
            remarks.append(Remark(entry.line, f"{text}; --any-user imports such lines, too"))
            continue
        fields, odd = _fields(entry, user, context, settings)
        if foreign:
            odd.append(f"cron runs it as {user}, and psched as the user of its workers")
        key = _key(entry, context.name, declarations)
        try:
            declare(key, fields, settings, lambda: 0)
        except InvalidError as error:
            remarks.append(Remark(entry.line, f"not imported: {error}"))
            continue
        declarations[key] = {"key": key, **fields}
        remarks += (Remark(entry.line, text) for text in odd)
    return [*declarations.values()], sorted(remarks, key=lambda remark: remark.line)


def _fields(
    entry: Entry, user: str | None, context: CrontabContext, settings: Config
) -> tuple[dict[str, Any], list[str]]:
    """The fields of a command's schedule, and texts on how psched's runs differ from cron's."""
    odd = list[str]()
    home = context.home(user) if user is not None else None
    own = {"HOME": home, "LOGNAME": user}
    env = {"SHELL": _SHELL, "PATH": _PATH, **{n: v for n, v in own.items() if v is not None}}
    env |= {n: v for n, v in entry.variables.items() if n not in {"CRON_TZ", "LOGNAME"}}
    folder = env.get("HOME")
    if folder is None:
        odd.append(f"the home of {user or 'its user'} is unknown on this host: it runs in /")
    elif not context.is_folder(folder):
        odd.append(f"{folder}, the home of {user or 'its user'}, is not a folder: it runs in /")
        folder = None
    shell = env["SHELL"] == _SHELL
    data = {
        **({"shell": True} if shell else {}),
        "command": entry.command if shell else [env["SHELL"], "-c", entry.command],
        "env": env,
        "cwd": folder or "/",
        "stdin": entry.stdin,
    }
    policy = settings.types.get("exec", {}).get("dst_policy", settings.dst_policy)
    fields = {
        "type": "exec",
        "cron": entry.cron,
        "timezone": entry.variables.get("CRON_TZ", context.timezone),
        "data": data,
        **_POLICY,
        **({} if policy == "debian" else {"dst_policy": "debian"}),
        "note": _note(entry, user if user != context.user else None),
    }
    return {name: value for name, value in fields.items() if value is not None}, odd


def _note(entry: Entry, user: str | None) -> str | None:
    """The command's comment; if ``user`` is given, also a line that cron ran it as this user."""
    lines = [*([entry.note] if entry.note else []), *([f"cron ran it as {user}"] if user else [])]
    note = "".join(c if c.isprintable() or c == "\n" else " " for c in "\n".join(lines))
    return note[:TEXT_LENGTH].strip() or None


def _key(entry: Entry, name: str, taken: dict[str, dict[str, Any]]) -> str:
    """A key made from the command: a new time or a move to another line does not change the key."""
    identity = f"{entry.user or ''}\0{entry.command}\0{entry.stdin}".encode()
    stem = f"{_slug(name)}.{_program_of(entry.command)}.{sha256(identity).hexdigest()[:_HASH]}"
    key, number = stem, 1
    while key in taken:
        number += 1
        key = f"{stem}-{number}"
    return key


def _program_of(command: str) -> str:
    """Guess a command's main program."""
    bare = re.sub(r"(?<!\S)\w+=\S*", " ", command)
    for word in re.findall(r"[\w./+@:-]+", bare):
        name = word.rstrip("/").rpartition("/")[2]
        elsewhere = word.startswith(("/run/", "/dev/"))
        if name and name[0].isalpha() and name not in _SHELL_WORDS and not elsewhere:
            return _slug(name)[:_KEY_PART]
    return "command"


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+-]", "-", name)
