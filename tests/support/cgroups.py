"""A cgroup for one test, in which the programs that the test starts can make further ones."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.process.cgroup import Cgroup
from support.waiting import PATIENCE, wait_until


def _mounted() -> Path | None:
    """Where cgroup2 is mounted; None if it is not."""
    mounts = Path("/proc/self/mounts").read_text()
    found = re.search(r"^\S+ (\S+) cgroup2 ", mounts, re.MULTILINE)
    return Path(found[1]) if found else None


def _own(mounted: Path) -> Path:
    own = re.search("^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    return mounted / own[1] if own else mounted


@contextlib.contextmanager
def own_cgroup(name: str) -> Iterator[Path]:
    """Make a cgroup, as if systemd had delegated it; it is removed at the end.

    If the kernel has no cgroup2 that can be written to, the test is skipped.
    """
    mounted = _mounted()
    if mounted is None:
        pytest.skip("no cgroup2 is mounted")
    group = _own(mounted) / f"psched-tests.{os.getpid()}.{name}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made: {error}")
    try:
        if not (group / "cgroup.kill").exists():
            assert os.environ.get("PSCHED_TEST_NO_SKIP") != "1", "Linux is older than 5.14"
            pytest.skip("Linux is older than 5.14: there is no cgroup.kill")
        os.setxattr(group, "user.delegate", b"1")
        yield group
    finally:
        (group / "cgroup.kill").write_text("1")
        wait_until(lambda: not populated(group), what="the end of all in the test's cgroup")
        for folder, _, _ in os.walk(group, topdown=False):
            Path(folder).rmdir()


@contextlib.contextmanager
def limited_memory(name: str, mebibytes: int) -> Iterator[list[str]]:
    """Make a cgroup whose processes can use so much memory together; it is removed at the end.

    If no such cgroup can be made, the test is skipped.

    Returns:
        The beginning of a command that runs its further arguments in the cgroup.
    """
    group, limit = _memory_cgroup(f"psched-tests.{os.getpid()}.{name}")
    try:
        group.mkdir()
        (group / limit).write_text(str(mebibytes << 20))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no cgroup with limited memory can be made: {error}")
    try:
        yield ["/bin/sh", "-c", f'echo 0 >{group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        for pid in members(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not members(group), what="the end of all in the test's cgroup")
        group.rmdir()


def _memory_cgroup(name: str) -> tuple[Path, str]:
    """The path for a cgroup with the memory controller, of version 1 or 2; the limit's file."""
    mounts = Path("/proc/self/mounts").read_text()
    own = Path("/proc/self/cgroup").read_text()
    first = re.search(r"^\S+ (\S+) cgroup \S*\bmemory\b", mounts, re.MULTILINE)
    if first is not None and (inside := re.search("^[0-9]+:memory:/(.*)$", own, re.MULTILINE)):
        return Path(first[1], inside[1], name), "memory.limit_in_bytes"
    mounted = _mounted()
    if mounted is None:
        pytest.skip("no cgroup2 is mounted")
    return _own(mounted) / name, "memory.max"


def populated(group: Path) -> bool:
    """Whether a process is in a cgroup, or below it."""
    return "populated 1" in (group / "cgroup.events").read_text()


def leave(cgroup: Cgroup, group: str) -> None:
    """Move back to the test's cgroup from a cgroup below it, and remove the latter."""
    Path(group, "cgroup.procs").write_text("0")
    assert cgroup.wait_until_empty(PATIENCE)  # a fork server may still be exiting
    cgroup.remove()


def below(group: Path) -> list[str]:
    """The names of all cgroups below a cgroup."""
    return sorted(
        str(Path(folder).relative_to(group))
        for folder, _, _ in os.walk(group)
        if folder != str(group)
    )


def members(group: Path) -> list[int]:
    """The processes in a cgroup and below it."""
    return [
        int(pid)
        for folder, _, _ in os.walk(group)
        for pid in (Path(folder) / "cgroup.procs").read_text().split()
    ]


def cgroup_of(pid: int) -> str:
    """The name of the cgroup of version 2 that a process is in."""
    found = re.search("^0::(.*)$", Path(f"/proc/{pid}/cgroup").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]
