"""Small disks, which a test can fill."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.waiting import wait_until


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
        def has_new_size() -> bool:
            size = shutil.disk_usage(folder).used + free * 2**20
            command = ["mount", "-o", f"remount,size={size}", str(folder)]
            return subprocess.run(command, check=False).returncode == 0

        # If a server writes more after its use of the disk was read, the kernel refuses the size.
        wait_until(has_new_size, what=f"a disk with {free} MiB left")

    try:
        yield folder, leave
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()
