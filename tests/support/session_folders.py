"""The folder in which a test process keeps its servers' data, thrown away at the end."""

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
"""Bytes. A server takes some 40 MB; containers often have no more than 64 MB of it at all."""

YOUTH = 60
"""Seconds for which a folder that nobody holds is left alone: it may be in the making."""


@contextlib.contextmanager
def session_folder() -> Iterator[Path]:
    """A folder for this process's servers, in memory where there is room for it.

    Nothing is made less durable for that: the servers sync as they always do, only sooner.
    """
    storage = _storage()
    _sweep(storage)
    home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=storage))
    home.chmod(0o711)  # a server that refuses to be root is another user, with a folder in it
    holder = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        yield home
    finally:
        shutil.rmtree(home)
        os.close(holder)


def _storage() -> Path:
    with contextlib.suppress(OSError):
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
            return MEMORY
    return Path(tempfile.gettempdir()).resolve()


def _sweep(storage: Path) -> None:
    """Remove the folders whose sessions were killed: nobody holds their locks any more."""
    for home in storage.glob(f"{PREFIX}*"):
        # Another user's folder cannot be opened, a living session's cannot be locked.
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
    """Drop what PostgreSQL servers with their data below the folder have left when killed.

    Each has a small piece of shared memory, of System V's kind, by which it knows that its data is
    in use. It drops that itself, but for one that is killed and not started again.
    """
    if not (locks := list(folder.rglob("postmaster.pid"))):
        return
    pieces = [line.split()[:2] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]
    used = {(int(key) % 2**32, piece) for key, piece in pieces}
    for lock in locks:
        line = lock.read_text().splitlines()[6:7]
        for key, piece in map(str.split, line):  # unless it was killed before it had one
            # The number alone may by now be another's.
            if (int(key) % 2**32, piece) in used:
                subprocess.run(["ipcrm", "--shmem-id", piece], check=False)
