"""Programs under test as processes that end with the test, with all that they have started."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.commands import can_be_forked, fork_owned
from support.processes import descendants
from support.waiting import PATIENCE, wait_until

OWNER = Path(__file__).with_name("process_owner.py")


class OwnedProcess:
    """A command below its owner (see `support.process_owner`), which kills all that is left of it.

    psched's own commands are forked where that makes no difference, see `support.commands`.

    Args:
        command: the program, by its path, and its arguments.
        output: the file to which its output is appended.
        cwd: the folder to run it in.
        env: its environment.
        leave_zombies: orphans that have exited are not reaped before the test is over.
        forked: whether the command may be forked.

    Attributes:
        pid: the command's.
        session: the session in which the command was started, as if it were a terminal's. Its owner
            leads it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: Path,
        cwd: Path,
        env: Mapping[str, str],
        leave_zombies: bool = False,
        forked: bool = True,
    ) -> None:
        keeps, keeping = os.pipe()
        self._keeping: int | None = keeping
        self._said, says = os.pipe()
        self._owner: subprocess.Popen[bytes] | None = None
        try:
            if forked and can_be_forked(command, env):
                fork_owned(
                    command,
                    cwd=cwd,
                    env=env,
                    descriptors=(keeps, says),
                    output=output,
                    leave_zombies=leave_zombies,
                )
            else:
                options = ["--leave-zombies"] if leave_zombies else []
                self._owner = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(OWNER), *options, str(output), *command],
                    stdin=keeps,
                    stdout=says,
                    cwd=cwd,
                    env=env,
                    # An interrupt at the terminal is for the tests, which then close us.
                    start_new_session=True,
                )
        finally:
            os.close(keeps)
            os.close(says)
        self._lines = b""
        self.session = int(self._line())
        self._owner_fd = os.pidfd_open(self.session)
        self.pid = int(self._line())
        self._status: int | None = None

    def _line(self) -> bytes:
        """The next line of the owner's, which waits for it."""
        while b"\n" not in self._lines:
            more = os.read(self._said, 100)
            assert more, "the owner has died"
            self._lines += more
        line, _, self._lines = self._lines.partition(b"\n")
        return line

    @property
    def status(self) -> int | None:
        """The command's exit status, negative if a signal killed it; None: it has not ended."""
        if self._status is None and (self._lines or select.select([self._said], [], [], 0)[0]):
            self._status = int(self._line())
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

    def send_to_group(self, number: signal.Signals) -> None:
        """Send a signal to the command's process group, as a terminal does."""
        os.killpg(self.pid, number)

    @property
    def descendants(self) -> list[int]:
        """Everything alive that came of the command, itself included, and orphans too."""
        return descendants(self.session)

    def close(self) -> None:
        """Kill all that is left."""
        if self._keeping is None:
            return
        os.close(self._keeping)
        self._keeping = None
        try:
            # Some of what tests start flees from one process to the next: it takes time to catch.
            wait_until(
                lambda: select.select([self._owner_fd], [], [], 0)[0],
                timeout=3 * PATIENCE,
                what=f"the end of all that {self.pid} has started",
            )
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._owner_fd, signal.SIGKILL)
            if self._owner is not None:
                self._owner.wait()
            os.close(self._owner_fd)
            os.close(self._said)
