"""The commands of a crontab as schedules of type ``exec``, which run as they did under cron.

cron looks at no exit status, sets no time limit and runs nothing twice: so there is one attempt,
and no ``kill_timeout``. What was missed runs once (``catchup: latest``), where cron would have lost
it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from psched.base.errors import InvalidError
from psched.config import Config
from psched.contrib.crontab.crontab import Crontab, Entry, Remark
from psched.core.columns import TEXT_LENGTH
from psched.core.declare import declare

_SHELL = "/bin/sh"
_PATH = "/usr/bin:/bin"
"""cron's, for those that set none."""

_POLICY = {"catchup": "latest", "max_attempts": 1, "kill_timeout": 0}

_KEY_PART = 40
"""Characters of a command's name in a key."""

_HASH = 6

_NO_NAMES = frozenset(
    {
        *(
            "if",
            "then",
            "else",
            "elif",
            "fi",
            "for",
            "in",
            "while",
            "do",
            "done",
            "test",
            "command",
        ),
        *("exec", "env", "cd", "nice", "ionice", "sudo"),
    }
)
"""First words of a command that tell nothing about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What there is to be known about the host where a crontab was in use.

    Attributes:
        name: the crontab's, with which keys begin.
        timezone: the zone in which cron reads it, unless it says another.
        user: who runs psched, as far as one can tell.
        any_user: take the lines of others as well, which will run as that one.
        owner: whose a user's crontab is.
        home: finds a user's home; None: there is no such user.
        is_folder: whether there is such a folder.
    """

    name: str
    timezone: str
    user: str
    any_user: bool
    owner: str | None
    home: Callable[[str], str | None]
    is_folder: Callable[[str], bool] = lambda path: Path(path).is_dir()


def carry(
    crontab: Crontab, host: Host, settings: Config
) -> tuple[Sequence[dict[str, Any]], Sequence[Remark]]:
    """Declare a crontab's commands.

    Args:
        crontab: what it says.
        host: where it was in use.
        settings: the installation's.

    Returns:
        The declarations, as `psched.files.plan.plan` takes them, and whatever is not carried over,
        or not as it is, in the order of the lines.
    """
    remarks, declarations = list(crontab.remarks), dict[str, dict[str, Any]]()
    for entry in crontab.entries:
        user = entry.user or host.owner
        foreign = user not in {None, host.user}
        if foreign and not host.any_user:
            text = f"not carried over: cron runs it as {user}, and psched, it seems, as {host.user}"
            remarks.append(Remark(entry.line, f"{text}; --any-user takes such lines all the same"))
            continue
        fields, odd = _fields(entry, user, host, settings)
        if foreign:
            odd.append(f"cron runs it as {user}, and psched as whoever runs its workers")
        key = _key(entry, host.name, declarations)
        try:
            declare(key, fields, settings, lambda: 0)
        except InvalidError as error:
            remarks.append(Remark(entry.line, f"not carried over: {error}"))
            continue
        declarations[key] = {"key": key, **fields}
        remarks += (Remark(entry.line, text) for text in odd)
    return [*declarations.values()], sorted(remarks, key=lambda remark: remark.line)


def _fields(
    entry: Entry, user: str | None, host: Host, settings: Config
) -> tuple[dict[str, Any], list[str]]:
    """What is declared of a command, and what of it is not as it was."""
    odd = list[str]()
    home = host.home(user) if user is not None else None
    own = {"HOME": home, "LOGNAME": user}
    env = {"SHELL": _SHELL, "PATH": _PATH, **{n: v for n, v in own.items() if v is not None}}
    env |= {n: v for n, v in entry.variables.items() if n not in {"CRON_TZ", "LOGNAME"}}
    folder = env.get("HOME")
    if folder is None:
        odd.append(f"the home of {user or 'its user'} is not known here: it runs in /")
    elif not host.is_folder(folder):
        odd.append(f"{folder}, the home of {user or 'its user'}, is no folder here: it runs in /")
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
        "timezone": entry.variables.get("CRON_TZ", host.timezone),
        "data": data,
        **_POLICY,
        **({} if policy == "debian" else {"dst_policy": "debian"}),
        "note": _note(entry, user if user != host.user else None),
    }
    return {name: value for name, value in fields.items() if value is not None}, odd


def _note(entry: Entry, user: str | None) -> str | None:
    """The comment, and who ran it if that is not who will."""
    lines = [*([entry.note] if entry.note else []), *([f"cron ran it as {user}"] if user else [])]
    note = "".join(c if c.isprintable() or c == "\n" else " " for c in "\n".join(lines))
    return note[:TEXT_LENGTH].strip() or None


def _key(entry: Entry, name: str, taken: dict[str, dict[str, Any]]) -> str:
    """A key that stays the same as long as the command does, wherever in the file it stands."""
    told = f"{entry.user or ''}\0{entry.command}\0{entry.stdin}".encode()
    stem = f"{_slug(name)}.{_name_of(entry.command)}.{sha256(told).hexdigest()[:_HASH]}"
    key, number = stem, 1
    while key in taken:
        number += 1
        key = f"{stem}-{number}"
    return key


def _name_of(command: str) -> str:
    """The program that a command is about, as far as one can guess."""
    bare = re.sub(r"(?<!\S)\w+=\S*", " ", command)
    for word in re.findall(r"[\w./+@:-]+", bare):
        name = word.rstrip("/").rpartition("/")[2]
        elsewhere = word.startswith(("/run/", "/dev/"))
        if name and name[0].isalpha() and name not in _NO_NAMES and not elsewhere:
            return _slug(name)[:_KEY_PART]
    return "command"


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+-]", "-", name)
