"""Where the files of tests are: in memory, if there is room.

Each process has a folder for its servers' data; it is deleted at the end.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "psched-servers-"
MEMORY = Path("/dev/shm")  # noqa: S108 - what goes there is a folder made by mkdtemp
ROOM = 2**30
"""Bytes. A server needs some 40 MB; many containers have only 64 MB of shared memory in all."""

YOUTH = 60
"""Seconds for which a folder that nobody has locked is left alone: it may just be made."""


@contextlib.contextmanager
def session_folder() -> Iterator[Path]:
    """A folder for this process's servers, in memory where there is room for it.

    The servers sync to it as they do to a disk.
    """
    folder = storage()
    _sweep(folder)
    home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
    home.chmod(0o711)  # servers that refuse to run as root have a folder in it
    holder = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        yield home
    finally:
        shutil.rmtree(home)
        os.close(holder)


def storage() -> Path:
    """The folder in memory, if there is room and programs may run there; else that on the disk."""
    with contextlib.suppress(OSError):
        runs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
        if runs and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
            return MEMORY
    return Path(tempfile.gettempdir()).resolve()


def _sweep(folder: Path) -> None:
    """Remove the folders of processes that were killed: nobody has locked them any more."""
    for home in folder.glob(f"{PREFIX}*"):
        # Another user's folder cannot be opened, that of a process that lives cannot be locked.
        with contextlib.suppress(OSError):
            holder = os.open(home, os.O_RDONLY)
            try:
                fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - home.stat().st_mtime > YOUTH:
                    drop_shared_memory(home)
                    shutil.rmtree(home)
            finally:
                os.close(holder)


def drop_shared_memory(folder: Path) -> None:
    """Drop the shared memory of PostgreSQL servers that were killed, with data below the folder.

    Each server has a small piece of System V shared memory, by which it knows that its data is in
    use. A server that was killed does not drop it, unless it is started again.
    """
    if not (locks := list(folder.rglob("postmaster.pid"))):
        return
    pieces = [line.split()[:2] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    used = {(int(key) % 2**32, piece) for key, piece in pieces}
    for lock in locks:
        line = lock.read_text().splitlines()[6:7]
        for key, piece in map(str.split, line):  # missing if it was killed early
            # The number alone is not enough: another segment may have it by now.
            if (int(key) % 2**32, piece) in used:
                subprocess.run(["ipcrm", "--shmem-id", piece], check=False)
