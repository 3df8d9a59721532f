"""Schedules in memory: an SQLite database in a private folder that one process owns.

Usually the owner is a master. Its workers, their tasks, and the command ``psched`` on the same host
find the folder by the master's pid. In a program without a master, the owner is the program itself.

The owner removes the folder when the owner exits. If a master is killed, its workers notice and
exit, and the last of them removes the folder. If all of them are killed at the same time, the next
process that creates such a folder removes it.
"""

import atexit
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from psched.base import regular_files
from psched.base.errors import ConfigError
from psched.config.urls import MEMORY as URL
from psched.master.runtime_folders import service_folder
from psched.process import tree

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # psched's folders in it are private

_SERVICE = Path("/run/psched")
"""The ``RuntimeDirectory`` of the unit systemd/psched.service."""

_NAME = re.compile(r"psched-[0-9]{1,10}-[0-9]{1,10}-[0-9]{1,20}")

_DATABASE = "psched.db"


class MemoryFolder:
    """The folder that this process uses; a forked process uses the folder of its parent."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock: int | None = None
        self._uses_running_master = False

    @property
    def url(self) -> str:
        """The database's url. If this process uses no folder yet, one is created or found first."""
        if self._folder is None:
            if self._uses_running_master:
                self._folder = _folder_of_the_only_master()
            else:
                self.join(os.getpid())
                atexit.register(self._remove_own, os.getpid())
        return f"sqlite:///{self._folder}/{_DATABASE}"

    def use_running_master(self) -> None:
        """Use the folder of the running master from now on, and do not create a folder."""
        self._uses_running_master = True

    def join(self, owner: int, *, holds: bool = True) -> None:
        """Use the owner's folder, and create it if it does not exist."""
        for folder in _all():
            _remove_if_abandoned(folder)
        folder = _folder_of(owner)
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700, parents=True)
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"{folder} belongs to another user")
            if holds:
                self._lock = _open_lock(folder)
                fcntl.flock(self._lock, fcntl.LOCK_SH)
        except OSError as error:
            raise ConfigError(f"url: {URL} cannot be used: {error}") from None
        self._folder = folder

    def leave(self) -> None:
        """Stop using the folder; remove it if its owner has exited and no other process uses it."""
        if self._lock is not None and self._folder is not None:
            # The lock is released before the descriptor is closed. Closing alone would not release
            # it if a process that was forked meanwhile has inherited the descriptor.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None
            _remove_if_abandoned(self._folder)

    def _remove_own(self, owner: int) -> None:
        if os.getpid() == owner:
            remove(owner)


MEMORY = MemoryFolder()
"""The folder that this process and its forked children use."""


def remove(owner: int) -> None:
    """Remove an owner's folder; the owner calls this when no other process uses the folder."""
    _remove_tree(_folder_of(owner))


def _open_lock(folder: Path) -> int:
    """Open the file that processes lock while they use the folder."""
    path = folder / "lock"
    try:
        return regular_files.open_file(path, os.O_RDWR | os.O_CREAT)
    except regular_files.NotRegularError:
        # A task has put a FIFO, a link or the like at this path, so we remove that first.
        regular_files.clear(path)
        return regular_files.open_file(path, os.O_RDWR | os.O_CREAT)


def _remove_tree(folder: Path) -> None:
    import shutil  # noqa: PLC0415  # few commands remove a folder

    # rmtree calls itself for each level, so it raises this error if a task has nested too many
    # folders. Then the rest of the folder remains.
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def _home() -> Path:
    """The folder that contains the owners' folders.

    It is the ``RuntimeDirectory`` of the systemd unit if there is one, else shared memory, else the
    folder for temporary files.
    """
    if folder := service_folder(os.environ):
        return folder
    if os.access(_SHARED_MEMORY, os.W_OK):
        return _SHARED_MEMORY
    import tempfile  # noqa: PLC0415  # nearly every host has shared memory

    return Path(tempfile.gettempdir())


def _folder_of(owner: int) -> Path:
    # The name contains the owner's start time, because the kernel reuses pids.
    return _home() / f"psched-{os.geteuid()}-{owner}-{tree.start_time(owner) or 0}"


def _all() -> Iterator[Path]:
    """All folders of this user, whichever process created them."""
    for home in {_home(), _SERVICE}:
        for path in home.glob(f"psched-{os.geteuid()}-*"):
            if _NAME.fullmatch(path.name):
                yield path


def _owner_lives(folder: Path) -> bool:
    pid, start = folder.name.split("-")[2:]
    return tree.lives(int(pid), int(start))


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a folder whose owner has exited, unless another process still uses it."""
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
        pass  # another process holds the lock, so the folder is still in use
    finally:
        os.close(lock)


def _folder_of_the_only_master() -> Path:
    found = [folder for folder in _all() if _owner_lives(folder)]
    if len(found) == 1:
        return found[0]
    if found:
        pids = ", ".join(sorted(folder.name.split("-")[2] for folder in found))
        raise ConfigError(
            f"url: {URL} is ambiguous: several masters run here ({pids}); see psched status"
        )
    raise ConfigError(
        f"url: {URL} is in the memory of a running master, and you have none here; start one"
    )
