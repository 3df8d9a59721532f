"""The environment that this psched is installed in, from which the unit is to start it."""

import os
import pwd
import re
import stat
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Self

import psched
from psched.base.errors import ConfigError

USER = "psched"
"""The user and the group of the unit; systemd/psched.sysusers.conf creates both."""

HIDDEN = {
    "/home": "ProtectHome=yes",
    "/root": "ProtectHome=yes",
    "/run/user": "ProtectHome=yes",
    "/tmp": "PrivateTmp=yes",  # noqa: S108  # names a folder that the service cannot see
    "/var/tmp": "PrivateTmp=yes",  # noqa: S108  # the same
}
"""Folders whose content the service cannot see, and the unit's setting that hides it."""

_MASTER = "psched-master"

_UNIT = "systemd/psched.service"
"""The path of the unit below the folder of the shipped files."""

_PLAIN_PATH = re.compile(r"/[\w./+=@:,~-]*")
"""Paths that systemd and the first line of a script read as they are."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Programs and files of an installed psched."""

    prefix: Path  # the folder of the environment, for instance of a virtual one
    master: Path  # the program psched-master
    shipped: Path  # its subfolders systemd and etc contain the files to install
    used: tuple[Path, ...]  # what the service reads: the interpreter, psched's modules and others

    @classmethod
    def current(cls) -> Self:
        """Return the environment in which this process runs."""
        package = Path(psched.__file__)
        master = _find(f"bin/{_MASTER}", Path(sysconfig.get_path("scripts"), _MASTER))
        if master is None:
            raise ConfigError(
                f"{sys.prefix}: no {_MASTER} is installed in this environment, so no unit can start"
                " it; install psched there: pip install PATH-OF-PSCHED"
            )
        # In a clone, and where a clone is installed as editable, the files lie beside the package.
        unit: Path | None = package.resolve().parents[1] / _UNIT
        if unit is None or not unit.is_file():
            unit = _find(
                f"share/psched/{_UNIT}", Path(sysconfig.get_path("data"), "share/psched", _UNIT)
            )
        if unit is None:
            raise ConfigError(
                f"{sys.prefix}/share/psched/{_UNIT} is missing; install psched again:"
                " pip install --force-reinstall PATH-OF-PSCHED"
            )
        used = Path(sys.executable), package, Path(os.__file__)
        return cls(Path(sys.prefix), master, unit.parents[1], used)

    def check(self) -> None:
        """Check that the service can use the environment.

        The check reads owners, groups and modes. It knows nothing of access control lists, security
        modules and drop-ins of the unit.
        """
        if not _PLAIN_PATH.fullmatch(str(self.master)):
            raise ConfigError(
                f"{self.master}: a unit cannot start a program whose path contains such"
                " characters; install psched elsewhere, for instance in /opt/psched"
            )
        files = self.master, *self.used
        for file in files:
            for path in _chain(file):
                _check_visible(file, path)
        number, groups = _user()
        for file in files:
            for path in _chain(file):
                # The interpreter is a program, too, but nobody takes away only its x.
                bits = (
                    stat.S_IXOTH
                    if path.is_dir()
                    else stat.S_IROTH | (stat.S_IXOTH if file == self.master else 0)
                )
                if not _may(path, bits, number, groups):
                    raise ConfigError(
                        f"{path}: the service's user {USER} cannot use it, so the service could not"
                        f" start; allow it: {self._fix(path)}"
                    )

    def _fix(self, path: Path) -> str:
        if path.is_relative_to(self.prefix):
            return f"chmod -R o+rX {self.prefix}"
        return f"chmod {'o+x' if path.is_dir() else 'o+r'} {path}"


def _find(recorded: str, usual: Path) -> Path | None:
    """Find an installed file."""
    try:
        files = distribution("psched").files or ()
    except PackageNotFoundError:
        files = ()
    paths = [Path(os.path.normpath(file.locate())) for file in files if file.match(recorded)]
    return next((path for path in (*paths, usual) if path.is_file()), None)


def _chain(file: Path) -> Iterator[Path]:
    """Yield a file and its folders, and the same of the file that its links lead to."""
    for path in dict.fromkeys((file, Path(os.path.realpath(file)))):
        yield from reversed((path, *path.parents))


def _check_visible(file: Path, path: Path) -> None:
    setting = HIDDEN.get(str(path))
    if setting is None:
        return
    real = os.path.realpath(file)
    text = str(file) if Path(real) == file else f"{file}, which leads to {real}"
    raise ConfigError(
        f"{text}: the service cannot see it, because the unit's {setting} hides {path}; install"
        " psched elsewhere, with a Python that all users can run, for instance"
        " /usr/bin/python3 -m venv /opt/psched"
    )


def _user() -> tuple[int, list[int]]:
    """The number of the service's user and its groups; no number, -1, if there is no user yet."""
    try:
        found = pwd.getpwnam(USER)
    except KeyError:
        return -1, []
    return found.pw_uid, os.getgrouplist(USER, found.pw_gid)


def _may(path: Path, bits: int, number: int, groups: list[int]) -> bool:
    """Whether a user has rights, given as the bits of others in a mode."""
    status = path.stat()
    shift = 6 if status.st_uid == number else 3 if status.st_gid in groups else 0
    return status.st_mode >> shift & bits == bits
