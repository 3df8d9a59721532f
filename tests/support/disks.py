"""Small disks, which a test can fill."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(home: Path) -> Iterator[tuple[Path, Callable[[int], None]]]:
    """A small disk; only root can make one, so for other users the test is skipped.

    Args:
        home: the folder in which the disk is mounted.

    Yields:
        The folder, and a function that leaves so many megabytes on the disk.
    """
    folder = home / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400m,mode=711", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        folder.rmdir()
        pytest.skip("only root can make a small disk")

    def leave(free: int) -> None:
        size = shutil.disk_usage(folder).used + free * 2**20
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)

    try:
        yield folder, leave
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()
