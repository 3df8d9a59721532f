"""Programs under test as processes that end with the test, with all that they have started."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.processes import descendants
from support.waiting import PATIENCE, wait_until

OWNER = Path(__file__).with_name("process_owner.py")


class OwnedProcess:
    """A command below its owner (see `support.process_owner`), which kills all that is left of it.

    Args:
        command: the program, by its path, and its arguments.
        output: the file to which its output is appended.
        cwd: the folder to run it in.
        env: its environment.
        leave_zombies: orphans that have exited are not reaped before the test is over.

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
        self._owner = subprocess.Popen(
            [sys.executable, "-I", "-S", str(OWNER), *options, str(output), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env=env,
            # An interrupt at the terminal is for the tests, which then close us.
            start_new_session=True,
        )
        assert self._owner.stdout is not None
        self._said = self._owner.stdout
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
        """Wait for the command's end; its exit status."""
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
        return self._owner.pid

    def send_to_group(self, number: signal.Signals) -> None:
        """Send a signal to the command's process group, as a terminal does."""
        os.killpg(self.pid, number)

    @property
    def descendants(self) -> list[int]:
        """Everything alive that came of the command, itself included, and orphans too."""
        return descendants(self._owner.pid)

    def close(self) -> None:
        """Kill all that is left."""
        assert self._owner.stdin is not None
        self._owner.stdin.close()
        try:
            # Some of what tests start flees from one process to the next: it takes time to catch.
            wait_until(
                lambda: self._owner.poll() is not None,
                timeout=3 * PATIENCE,
                what=f"the end of all that {self.pid} has started",
            )
        finally:
            self._owner.kill()
            self._owner.wait()
            self._said.close()
