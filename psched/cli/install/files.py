"""The files that are installed, and the rule by which an existing file is replaced or kept."""

import grp
import hashlib
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from psched.base.errors import ConfigError
from psched.cli.install.environment import USER, Environment

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
