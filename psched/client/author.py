"""Who makes a change, for the audit trail: the user, the host and the program."""

import os
import pwd
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from psched.base.texts import visible

LONGEST = 255
"""The most characters of a user, a host or a program; the rest is cut off."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change.

    Attributes:
        user: the name of the operating system's user.
        host: the name of the host.
        program: the name of the command or program.
    """

    user: str
    host: str
    program: str

    @property
    def name(self) -> str:
        """The user and the host, such as ``ann@web1``."""
        return f"{self.user}@{self.host}"


def this_process(program: str | None = None) -> Author:
    """The author of the changes that this process makes."""
    name = _script() if program is None else program
    return Author(*(visible(text)[:LONGEST] for text in (_user(), socket.gethostname(), name)))


def _user() -> str:
    """The effective user; ``ann (as root)`` if ann has become root by ``sudo``."""
    user = os.geteuid()
    try:
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        name = f"uid {user}"  # for example in a container, whose users have no names
    # Anybody can set this variable, so the name that the kernel vouches for is always shown, too.
    before = os.environ.get("SUDO_USER")
    return name if before in {None, "", name} else f"{before} (as {name})"


def _script() -> str:
    given = sys.argv[0] if getattr(sys, "argv", None) else ""
    if given in {"", "-"}:
        return "python"
    if given in {"-c", "-m"}:
        return f"python {given}"
    path = Path(given)
    return path.parent.name if path.name == "__main__.py" else path.name
