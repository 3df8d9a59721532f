"""Schedules in memory: an SQLite database in a private folder that goes with its owner.

The owner is a master: its workers, their tasks, and the command ``psched`` on the same host find
the folder by the master's pid. In any other program the owner is the program itself.

Nobody can clear up for a master that was killed but its workers, who see its end and go: the last
one removes the folder. If all were killed at the same time, the next who makes such a folder does.
"""

import atexit
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from psched.base import regular_files
from psched.base.errors import ConfigError
from psched.config.urls import MEMORY as URL
from psched.process import tree

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # what is made there is private

_SERVICE = Path("/run/psched")
"""The RuntimeDirectory of systemd/psched.service."""

_NAME = re.compile(r"psched-[0-9]{1,10}-[0-9]{1,10}-[0-9]{1,20}")

_DATABASE = "psched.db"


class Memory:
    """Which folder this process uses; a fork goes on with that of its parent."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock: int | None = None
        self._visits = False

    @property
    def url(self) -> str:
        """The database's url.

        Raises:
            ConfigError: there is none, or it cannot be made.
        """
        if self._folder is None:
            if self._visits:
                self._folder = _only_one()
            else:
                self.join(os.getpid())
                atexit.register(self._remove_own, os.getpid())
        return f"sqlite:///{self._folder}/{_DATABASE}"

    def visit(self) -> None:
        """Look at the schedules of a master, and have none of our own."""
        self._visits = True

    def join(self, owner: int) -> None:
        """Use the folder of a process, our own or the master above us; it is made if need be.

        Raises:
            ConfigError: it cannot be made.
        """
        for folder in _all():
            _remove_if_left(folder)
        folder = _folder_of(owner)
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700, parents=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"{folder} is somebody else's")
            self._lock = _open_lock(folder)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        except OSError as error:
            raise ConfigError(f"url: {URL} cannot be used: {error}") from None
        self._folder = folder

    def leave(self) -> None:
        """We go; if the owner has gone before us, and nobody else is there, the folder goes too."""
        if self._lock is not None and self._folder is not None:
            # Closing is not enough: a fork server that was forked this moment has it, too.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None
            _remove_if_left(self._folder)

    def _remove_own(self, owner: int) -> None:
        if os.getpid() == owner:
            remove(owner)


MEMORY = Memory()
"""This process's."""


def remove(owner: int) -> None:
    """An owner goes, after all who used its folder."""
    _remove_tree(_folder_of(owner))


def _open_lock(folder: Path) -> int:
    """Open the file that is locked while the folder is used.

    Raises:
        OSError: it cannot be opened.
    """
    path = folder / "lock"
    try:
        return regular_files.open_file(path, os.O_RDWR | os.O_CREAT)
    except regular_files.NotRegularError:
        # Nobody uses the folder by what a task has put there.
        regular_files.clear(path)
        return regular_files.open_file(path, os.O_RDWR | os.O_CREAT)


def _remove_tree(folder: Path) -> None:
    # It calls itself for each level, of which a task can make any number.
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def _home() -> Path:
    """Where folders are made: in the service's own, which goes with it, or among shared memory."""
    # systemd lists all folders of the unit, divided by colons.
    folder, _, _ = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")
    if folder:
        return Path(folder)
    return _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def _homes() -> set[Path]:
    """Where they may be."""
    return {_home(), _SERVICE}


def _folder_of(owner: int) -> Path:
    # A pid is used again, some day.
    return _home() / f"psched-{os.geteuid()}-{owner}-{tree.start_time(owner) or 0}"


def _all() -> Iterator[Path]:
    """Our user's folders."""
    for home in _homes():
        for path in home.glob(f"psched-{os.geteuid()}-*"):
            if _NAME.fullmatch(path.name):
                yield path


def _owner_lives(folder: Path) -> bool:
    pid, start = folder.name.split("-")[2:]
    return tree.lives(int(pid), int(start))


def _remove_if_left(folder: Path) -> None:
    """Remove a folder whose owner has gone, if nobody uses it any more."""
    if _owner_lives(folder):
        return
    try:
        lock = regular_files.open_file(folder / "lock", os.O_RDWR)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_tree(folder)
    except OSError:
        pass  # somebody uses it
    finally:
        os.close(lock)


def _only_one() -> Path:
    found = [folder for folder in _all() if _owner_lives(folder)]
    if len(found) == 1:
        return found[0]
    if found:
        pids = ", ".join(sorted(folder.name.split("-")[2] for folder in found))
        raise ConfigError(
            f"url: {URL} is of several masters that run here ({pids}); psched status shows them"
        )
    raise ConfigError(
        f"url: {URL} belongs to a running master, and there is none of yours here; start one"
    )
