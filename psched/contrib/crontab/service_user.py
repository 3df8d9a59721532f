"""Checks what the user that runs psched's workers can do on this host, before a task needs it."""

import os
import pwd
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from psched.base.errors import ConfigError
from psched.base.file_rights import user_name

UNIT_USER = "psched"
"""The user of the systemd unit that psched ships; systemd/psched.sysusers.conf creates it."""

_EXECUTE = 0o1


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """A user of this host.

    The checks read the owner, the group and the mode of files. They ignore access control lists,
    security modules and the restrictions of a unit. If the calling user must not read a file's
    mode, a check answers that the service user can do it.
    """

    name: str
    number: int
    groups: frozenset[int]  # the numbers of all groups of the user

    @classmethod
    def find(cls, name: str | None) -> Self:
        """Find a user; None means the user of psched's unit, else the calling user."""
        for wanted in [UNIT_USER, user_name()] if name is None else [name]:
            with suppress(KeyError):
                found = pwd.getpwnam(wanted)
                groups = os.getgrouplist(found.pw_name, found.pw_gid)
                return cls(found.pw_name, found.pw_uid, frozenset(groups))
        if name is None:  # the calling user has no name
            return cls(user_name(), os.geteuid(), frozenset([os.getegid(), *os.getgroups()]))
        raise ConfigError(f"--service-user: this host has no user {name!r}")

    def can_enter(self, folder: str) -> bool:
        """Whether this is a folder, and the user can make it the working folder of a program."""
        path = Path(os.path.realpath(folder))
        try:
            if not stat.S_ISDIR(_mode(path)):
                return False
        except PermissionError:
            return self.number != os.geteuid()
        return all(self._has_right(each) for each in (path, *path.parents))

    def why_not_run(self, program: str, *, path: str, cwd: str) -> str | None:
        """Say why the user cannot run a program; None if it can."""
        folders = [""] if "/" in program else path.split(":")
        files = [Path(os.path.realpath(Path(cwd, folder, program))) for folder in folders]
        try:
            found = [file for file in files if stat.S_ISREG(_mode(file))]
        except PermissionError:
            return None if self.number != os.geteuid() else f"{self.name} cannot reach {program}"
        if not found:
            where = "does not exist" if "/" in program else f"is in none of the folders {path}"
            return f"{program} {where} on this host"
        for file in found:
            if all(self._has_right(each) for each in (file, *file.parents)):
                return None
        return f"{self.name} must not execute {found[0]}"

    def _has_right(self, path: Path) -> bool:
        """Whether the user can execute a file, or enter a folder that it can reach."""
        try:
            status = path.stat()
        except OSError:
            return True  # a folder above it answers
        mode = status.st_mode
        if self.number == 0:
            return stat.S_ISDIR(mode) or mode & 0o111 != 0
        if status.st_uid == self.number:
            return mode >> 6 & _EXECUTE != 0
        if status.st_gid in self.groups:
            return mode >> 3 & _EXECUTE != 0
        return mode & _EXECUTE != 0


def _mode(path: Path) -> int:
    """The type and the mode of a file; 0 if there is none."""
    try:
        return path.stat().st_mode
    except PermissionError:
        raise
    except OSError:
        return 0
