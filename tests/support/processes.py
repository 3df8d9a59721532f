"""Programs under test as processes: started on a leash, watched through /proc, always killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.waiting import PATIENCE, has_ended, wait_until

LEASH = Path(__file__).with_name("leash.py")


class Leashed:
    """A command on a leash (see support.leash): its descendants die with the test at the latest.

    Args:
        command: the program, by its path, and its arguments.
        output: the file to which its output is appended.
        cwd: the folder to run it in.
        env: its environment.
        leave_zombies: orphans that have ended are not reaped before the test is over.

    Attributes:
        pid: the command's.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: Path,
        cwd: Path,
        env: Mapping[str, str],
        leave_zombies: bool = False,
    ) -> None:
        options = ["--leave-zombies"] if leave_zombies else []
        self._leash = subprocess.Popen(
            [sys.executable, "-I", "-S", str(LEASH), *options, str(output), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env=env,
            # A session of its own, because an interrupt at the terminal is meant for the tests,
            # which then close this.
            start_new_session=True,
        )
        assert self._leash.stdout is not None
        self._said = self._leash.stdout
        self.pid = int(self._said.readline())
        os.set_blocking(self._said.fileno(), False)
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        """The command's exit status, negative if a signal killed it; None: it has not ended."""
        if self._status is None and (line := self._said.readline()):
            self._status = int(line)
        return self._status

    def wait(self, *, timeout: float = PATIENCE) -> int:
        """Wait for the command's end; return its exit status."""
        wait_until(lambda: self.status is not None, timeout=timeout, what=f"the end of {self.pid}")
        assert self.status is not None
        return self.status

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command alone."""
        assert self.status is None, f"process {self.pid} has ended with {self.status}"
        os.kill(self.pid, number)

    @property
    def session(self) -> int:
        """The session in which the command was started, as if it were a terminal's."""
        return self._leash.pid

    def send_to_group(self, number: signal.Signals) -> None:
        """Send a signal to the command's process group, as a terminal does."""
        os.killpg(self.pid, number)

    @property
    def descendants(self) -> list[int]:
        """The living processes of the command: itself, its descendants and their orphans."""
        return descendants(self._leash.pid)

    def close(self) -> None:
        """Kill all processes that are left."""
        assert self._leash.stdin is not None
        self._leash.stdin.close()
        try:
            # Some tests start processes that fork and exit again and again; on a busy machine it
            # takes long to catch them.
            self._leash.wait(timeout=3 * PATIENCE)
        finally:
            self._leash.kill()
            self._leash.wait()
            self._said.close()


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal; a process that has ended meanwhile is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


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
