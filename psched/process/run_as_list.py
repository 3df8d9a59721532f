"""Root's list of the programs that rows may run as other users, and who may change them.

Each line allows one user one program, as a shell would split it::

    # USER  [NAME=VALUE ...]  PROGRAM  [ARGUMENT ...]  [*]
    backup    /usr/local/bin/nightly --full
    www-data  LANG=C.UTF-8 /usr/bin/php /srv/app/artisan schedule:run
    deploy    /usr/local/bin/release *

The arguments must be equal, and ``*`` at the end stands for any further ones; in quotes it is an
argument. ``#`` begins a comment only where a word could begin. A row chooses no variable: the
program gets those of the line. What cannot be understood, or what anybody but root could have
changed, refuses everything: a list that is read in part would be another list.
"""

import os
import pwd
import re
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

PATH = "/etc/psched/run_as"
"""Where the list is."""

_ANY = "*"

_MOST_LINKS = 40
"""The most symbolic links that one path may lead over, as in the kernel."""

_WORD = re.compile(
    r"""[ \t\r]*(?:(?P<comment>\#.*)|(?P<word>(?:[^ \t\r'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+)|$)"""
)
"""The next word of a line, with its quotes; or a comment, or the end."""

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)

DESCRIBING = frozenset(
    f"PSCHED_{name}"
    for name in ("KEY", "SCHEDULE_KEY", "TYPE", "SCHEDULED_TIME", "OCCURRENCE", "ATTEMPT", "FENCE")
)
"""The variables that tell each program about its task; their values are the row's."""


class RefusedError(Exception):
    """Root's list does not allow it; the text is one line that says why."""


class Rule(NamedTuple):
    """One line of the list: a user, the variables that the program gets, and the program."""

    user: str
    environment: Mapping[str, str]
    arguments: tuple[str, ...]
    is_open: bool  # whether further arguments may follow

    def allows(self, arguments: Sequence[str]) -> bool:
        """Whether these are the program and the arguments of this line."""
        given = arguments[: len(self.arguments)] if self.is_open else arguments
        return tuple(given) == self.arguments


def read(path: str = PATH) -> list[Rule]:
    """Read the list, if only root can have written it."""
    if (why := why_changeable(path)) is not None:
        raise RefusedError(f"{path}: {why}")
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123  # it loads less
            text = file.read()
    except FileNotFoundError:
        raise RefusedError(f"{path} does not exist, so root allows no user") from None
    except (OSError, UnicodeError) as error:
        raise RefusedError(f"{path} cannot be read: {error}") from None
    return parse(text, path)


def parse(text: str, path: str = PATH) -> list[Rule]:
    """The lines of a list."""
    rules = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if written := [*_words(line)]:
                rules.append(_rule(*written))
        except ValueError as error:
            raise RefusedError(f"{path}, line {number}: {error}") from None
    return rules


def _words(line: str) -> Iterator[str]:
    """The words of a line, as they are written: `shlex` alone does not tell what was in quotes."""
    at = 0
    while at < len(line):
        if (found := _WORD.match(line, at)) is None:
            raise ValueError("a quote is not closed, or the line ends with a backslash")
        if found["word"] is not None:
            yield found["word"]
        at = found.end()


def _rule(*written: str) -> Rule:
    user, *arguments = [shlex.split(each)[0] for each in written]
    environment = {}
    while arguments and (found := _VARIABLE.fullmatch(arguments[0])):
        environment[found[1]] = found[2]
        del arguments[0]
    is_open = len(arguments) > 1 and written[-1] == _ANY
    if is_open:
        del arguments[-1]
    if not arguments or not arguments[0].startswith("/"):
        raise ValueError("after the user comes the program: its whole path, which begins with /")
    if user == _ANY:
        raise ValueError("only arguments can be any (*)")
    return Rule(user, environment, tuple(arguments), is_open)


def account_of(user: str) -> pwd.struct_passwd:
    """The account of a user that is not root."""
    try:
        account = pwd.getpwnam(user)
    except (KeyError, ValueError):
        raise RefusedError(f"this host has no user {user!r}") from None
    if account.pw_uid == 0:
        raise RefusedError(f"{user} is root, as whom nothing is run")
    return account


def allowed(
    rules: Sequence[Rule],
    account: pwd.struct_passwd,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: str | None,
    *,
    path: str = PATH,
) -> dict[str, str]:
    """The environment of a program that a user may run so; refuses what the list does not allow.

    ``environment`` has the variables that the row asks for, and those that describe its task. The
    row also asks for the working ``folder``; None: the user's home. ``path`` is that of root's
    list, for people.
    """
    user = account.pw_name
    of_user = [rule for rule in rules if rule.user == user]
    if not of_user:
        raise RefusedError(f"{path} has no line for user {user}")
    found = [rule for rule in of_user if rule.allows(arguments)]
    if not found:
        raise RefusedError(f"{path} does not allow user {user}: {shlex.join(arguments)}")
    why = ""
    for rule in found:
        made = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": account.pw_dir,
            "USER": user,
            "LOGNAME": user,
            "SHELL": account.pw_shell or "/bin/sh",
            **rule.environment,
        }
        asked = [name for name in environment if name not in DESCRIBING]
        odd = [name for name in asked if made.get(name) != environment[name]]
        if folder not in {None, "/", account.pw_dir, made["HOME"]}:
            why = f"cwd: user {user} starts in its home or in /, not in {folder!r}"
        elif odd:
            why = f"env: the line of {path} does not set {odd[0]} to what the row asks for"
        else:
            described = {name: environment[name] for name in DESCRIBING & {*environment}}
            return {**made, **described}
    raise RefusedError(why)


def why_changeable(path: str, owner: int = 0) -> str | None:
    """Why somebody but root, or ``owner``, could put something else in this place; None if nobody.

    Each folder and each link on the way counts, because whoever may write a folder may replace what
    is in it. Nobody can change a place that does not exist if nobody can write the folders above.
    """
    for each in _way(path):
        try:
            status = os.lstat(each)
        except OSError as error:
            if isinstance(error, PermissionError):
                return f"{each}: a folder above it is closed to psched-run-as, which obeys modes"
            return None if isinstance(error, FileNotFoundError) else f"{each}: {error.strerror}"
        if status.st_uid not in {0, owner}:
            return f"{each} belongs to user {status.st_uid}, who could change it"
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others than its owner may write {each}: chmod go-w {each}"
    return None


def _way(path: str) -> Iterator[str]:
    """Each folder, link and file that the kernel looks at when it opens an absolute path."""
    todo, at, links = [part for part in reversed(path.split("/")) if part], "/", 0
    yield at
    while todo:
        part = todo.pop()
        if part == ".":
            continue
        if part == "..":
            at = os.path.dirname(at)  # noqa: PTH120  # ``at`` contains no link
            continue
        step = os.path.join(at, part)  # noqa: PTH118
        yield step
        if not os.path.islink(step):  # noqa: PTH114
            at = step
        elif (links := links + 1) > _MOST_LINKS:
            return
        else:
            leads = os.readlink(step)  # noqa: PTH115
            todo += [each for each in reversed(leads.split("/")) if each]
            at = "/" if leads.startswith("/") else at
