"""The files that are installed, and the environment from which the unit is to start psched."""

import grp
import hashlib
import os
import pwd
import re
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Self

import psched
from psched.base.errors import ConfigError
from psched.process.run_as_list import PATH as ROOTS_LIST
from psched.process.run_as_list import why_changeable

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

    def check_for_root(self) -> None:
        """Check that root can run a program of the environment: that only root may change it."""
        for file in self.master, *self.used:
            if (why := why_changeable(str(file))) is not None:
                raise ConfigError(
                    f"{file}: {why}; root must not run what others may change, so psched-run-as"
                    " needs an environment that belongs to root"
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


CONFIG = "/etc/psched/psched.yml"
"""The configuration that the unit names."""

_HEAD = (
    "# psched install-systemd wrote this file. It replaces the file only while the SHA-256 of the\n"
    "# lines below is {}.\n"
)
"""The comment above an installed file, with the checksum of what is below it."""

_STAMP = re.compile(re.escape(_HEAD).replace(r"\{\}", "([0-9a-f]{64})"))


class State(Enum):
    """What becomes of a file."""

    WRITE = "write"
    """The file does not exist, and is written."""
    REPLACE = "replace"
    """Another version of psched wrote it, and nobody has changed it."""
    SAME = "same"
    """The file is as it would be written, so nothing is done."""
    KEEP = "keep"
    """Somebody has changed it, or has put a symbolic link in its place."""
    UNKNOWN = "unknown"
    """This user must not read it."""


@dataclass(frozen=True, slots=True)
class SystemFile:
    """A file to install."""

    source: Path
    path: str  # below the root folder
    root: Path  # / or that of an image
    mode: int = 0o644
    own: bool = False  # file and new folder belong to the service's group, and others cannot enter
    master: Path | None = None  # the program that the unit starts

    @property
    def target(self) -> Path:
        """The path of the installed file, with the root folder."""
        return self.root / self.path.lstrip("/")

    def content(self) -> str:
        """Return what is written: the shipped text, and above it a comment with its checksum."""
        text = self._text()
        return _HEAD.format(_checksum(text)) + text

    def state(self) -> State:
        """Return what `write` would do."""
        try:
            if self.target.is_symlink():
                return State.KEEP
            existing = self.target.read_bytes().decode(errors="surrogateescape")
        except FileNotFoundError:
            return State.WRITE
        except PermissionError:
            return State.UNKNOWN
        except NotADirectoryError:
            blocking = next(each for each in self.target.parents if each.exists())
            raise ConfigError(f"{blocking}: is not a folder; move it away") from None
        except OSError as error:
            raise ConfigError(f"{self.target}: {error.strerror}; move it away") from None
        if existing in {self.content(), self._text()}:
            return State.SAME
        stamp = _STAMP.match(existing)
        if stamp and stamp[1] == _checksum(existing[stamp.end() :]):
            return State.REPLACE
        return State.KEEP

    def write(self) -> State:
        """Write the file if it is missing or can be replaced; return what was found."""
        state = self.state()
        if state in {State.WRITE, State.REPLACE}:
            group = service_group(self.root) if self.own else 0
            try:
                self._make_folders(group)
                self._replace(group)
            except OSError as error:
                raise ConfigError(
                    f"{error.filename or self.target}: cannot be written: {error.strerror}; when"
                    " that is repaired, run this command again, which continues"
                ) from None
        return state

    def remove(self) -> State:
        """Remove the file if `write` could replace it, and its folder; return what was found."""
        state = self.state()
        if state in {State.SAME, State.REPLACE}:
            self.target.unlink()
        if self.own:
            with suppress(OSError):  # another file is there
                self.target.parent.rmdir()
        return state

    def _text(self) -> str:
        text = self.source.read_text(encoding="utf-8")
        if self.master is not None:
            text = re.sub(
                r"^ExecStart=\S+", f"ExecStart={self.master}", text, count=1, flags=re.MULTILINE
            )
        return text

    def _make_folders(self, group: int) -> None:
        for folder in reversed(self.target.parents):
            if not folder.exists():
                last = self.own and folder == self.target.parent
                folder.mkdir(0o700)
                os.chown(folder, 0, group if last else 0)
                folder.chmod(0o750 if last else 0o755)

    def _replace(self, group: int) -> None:
        target = self.target
        descriptor, made = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self.content())
                os.fchown(descriptor, 0, group)
                os.fchmod(descriptor, self.mode)
                file.flush()
                os.fsync(descriptor)
            Path(made).replace(target)
        finally:
            Path(made).unlink(missing_ok=True)


def user_files(environment: Environment, root: Path) -> list[SystemFile]:
    """Return the files that create the user and the folders of the service."""
    systemd = environment.shipped / "systemd"
    return [
        SystemFile(systemd / "psched.sysusers.conf", "/etc/sysusers.d/psched.conf", root),
        SystemFile(systemd / "psched.tmpfiles.conf", "/etc/tmpfiles.d/psched.conf", root),
    ]


def service_files(environment: Environment, root: Path) -> list[SystemFile]:
    """Return the configuration, its example, the unit and the file for logrotate."""
    systemd, etc = environment.shipped / "systemd", environment.shipped / "etc"
    return [
        SystemFile(etc / "psched.yml", CONFIG, root, mode=0o640, own=True),
        SystemFile(etc / "psched.yml.example", f"{CONFIG}.example", root, mode=0o640, own=True),
        SystemFile(
            systemd / "psched.service",
            "/etc/systemd/system/psched.service",
            root,
            master=environment.master,
        ),
        SystemFile(systemd / "psched.logrotate", "/etc/logrotate.d/psched", root),
    ]


def run_as_files(environment: Environment, root: Path) -> list[SystemFile]:
    """Return the units of the helper that starts programs as other users, and a list's example."""
    systemd, etc = environment.shipped / "systemd", environment.shipped / "etc"
    units = "/etc/systemd/system/psched-run-as"
    helper = environment.master.with_name("psched-run-as")
    return [
        SystemFile(etc / "run_as.example", f"{ROOTS_LIST}.example", root, mode=0o640, own=True),
        SystemFile(systemd / "psched-run-as.socket", f"{units}.socket", root),
        SystemFile(systemd / "psched-run-as.service", f"{units}.service", root, master=helper),
    ]


def service_group(root: Path) -> int:
    """Return the number of the group of the service, in the system below a root folder."""
    try:
        if root == Path("/"):
            return grp.getgrnam(USER).gr_gid
        groups = (root / "etc/group").read_text(encoding="utf-8", errors="replace")
        return int(re.findall(rf"^{USER}:[^:]*:(\d+):", groups, re.MULTILINE)[0])
    except (KeyError, IndexError, FileNotFoundError):
        option = "" if root == Path("/") else f" --root {root}"
        raise ConfigError(
            f"{root / 'etc/group'}: there is no group {USER}; create it with its user, and run this"
            f" command again: useradd --system --user-group{option} --home-dir /var/lib/psched"
            f" --shell /usr/sbin/nologin {USER}"
        ) from None


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
