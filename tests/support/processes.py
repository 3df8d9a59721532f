"""Processes as tests see and signal them: by their pids, through /proc."""

import contextlib
import os
import signal
import sys
from pathlib import Path

from support.waiting import has_ended


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal; a process that has ended meanwhile is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def ignoring_children(module: str) -> list[str]:
    """The command ``python -m`` a module, started by a parent that ignores SIGCHLD."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
        " os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    return [sys.executable, "-c", code, "-m", module]


def children(pid: int) -> list[int]:
    """The living children of a process; none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return [child for child in found if not has_ended(child)]


def descendants(pid: int) -> list[int]:
    """Everything alive below a process, nearest first."""
    found: list[int] = []
    level = children(pid)
    while level:
        found += level
        level = [below for each in level for below in children(each)]
    return found


def runners(worker: int) -> list[int]:
    """The living runners of a worker: the children of its fork server."""
    servers = [pid for pid in children(worker) if title(pid) == "psched fork server"]
    return [pid for server in servers for pid in children(server)]


def title(pid: int) -> str:
    """The title of a process, as ``ps`` shows it."""
    try:
        command_line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return command_line.replace(b"\0", b" ").decode(errors="replace").strip()


def server_of(worker):
    """A worker's fork server."""
    [server] = [pid for pid in children(worker) if title(pid) == "psched fork server"]
    return server
