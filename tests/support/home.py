"""The folder in which a test process keeps its servers' data, thrown away at the end."""

import contextlib
import fcntl
import os
import shutil
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
def server_home() -> Iterator[Path]:
    """A folder for this process's servers, in memory where there is room for it.

    Nothing is made less durable for that: the servers sync as they always do, only sooner.
    """
    storage = _storage()
    _sweep(storage)
    home = Path(tempfile.mkdtemp(prefix=PREFIX, dir=storage))
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
                    shutil.rmtree(home)
            finally:
                os.close(holder)
