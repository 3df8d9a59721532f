"""The file of users: who may see the pages, who may act, and the hashes of their tokens."""

import re
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from psched.base.errors import ConfigError
from psched.base.file_rights import refusal_of_file
from psched.web.secret import digest

Right = Literal["read", "operate", "admin"]
"""What a user may do: look; also pause, trigger, stop and the like; also edit definitions."""

RIGHTS: tuple[Right, ...] = get_args(Right)
READ, OPERATE, ADMIN = RIGHTS

EVERYBODY = "*"
"""In place of a name: every user whom a proxy names and the file does not."""

_NO_TOKEN = "-"  # noqa: S105  # no password
_HASH = re.compile("[0-9a-f]{64}")
_OF_NOTHING = digest("")  # such as of a variable of a shell that is not set


class User(NamedTuple):
    """Who asks for a page, and what they may do."""

    name: str
    right: Right


class Entry(NamedTuple):
    """A line of the file; ``hash`` is empty if the user has no token."""

    right: Right
    hash: str


def allows(right: Right, needed: Right) -> bool:
    """Whether somebody with a right may do what needs a right."""
    return RIGHTS.index(right) >= RIGHTS.index(needed)


class Users:
    """The users of a file, which is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        # One pair, so that no thread puts what the file said before with what it looks like now.
        self._known: tuple[tuple[int, ...], dict[str, Entry]] = (), {}
        self.read()

    def read(self) -> dict[str, Entry]:
        """The lines of the file by the names."""
        try:
            found = self._path.stat()
            seen = found.st_mtime_ns, found.st_size, found.st_ino
            known, entries = self._known
            if seen == known:
                return entries
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"users: {self._path} cannot be read: {error}") from None
        if (refusal := refusal_of_file(self._path)) is not None:
            raise ConfigError(f"users: is refused, because whoever may write it gets in: {refusal}")
        entries = dict(self._parse(text))
        self._known = seen, entries
        return entries

    def _parse(self, text: str) -> list[tuple[str, Entry]]:
        made = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            match words:
                case [_, _, token] if token == _OF_NOTHING:
                    raise ConfigError(
                        f"users: {self._path}, line {number}: HASH is that of an empty token,"
                        " with which everybody would get in; make a token, and hash it again"
                    )
                case [name, ("read" | "operate" | "admin") as right, token] if (
                    token == _NO_TOKEN or _HASH.fullmatch(token)
                ):
                    made.append((name, Entry(right, "" if token == _NO_TOKEN else token)))
                case _:
                    raise ConfigError(
                        f"users: {self._path}, line {number}: must be NAME RIGHT HASH, where RIGHT"
                        f" is {', '.join(RIGHTS)}, and HASH - or that of a token"
                    )
        return made

    def named(self, name: str) -> User | None:
        """The user with this name; whom the file does not name, but a proxy does, counts as `*`."""
        entries = self.read()
        entry = entries.get(name) or entries.get(EVERYBODY)
        return None if entry is None or name == EVERYBODY else User(name, entry.right)

    def by_token(self, token: str) -> User | None:
        """The user who has this token."""
        wanted = digest(token)
        for name, entry in self.read().items():
            if entry.hash == wanted:  # of a hash, the time tells nothing
                return User(name, entry.right)
        return None

    def hash_of(self, name: str) -> str:
        """The hash of a user's token; empty if there is none."""
        entry = self.read().get(name)
        return "" if entry is None else entry.hash
