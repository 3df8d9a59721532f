"""Starts a command and owns every process that comes of it.

    python -I -S process_owner.py [--leave-zombies] OUTPUT COMMAND...

It is a process of its own and a subreaper: every orphan below it becomes its child, also a daemon
in a session of its own, so that nothing can get away. When its standard input ends, because the
test is over or was killed, it kills all of them.

It writes three lines to its standard output: its own pid, the command's pid and, when the command
has exited, its exit status (negative: the number of the signal that killed it). The command's
output is appended to a file.

With --leave-zombies it reaps the command and no orphan, as a process 1 of a container that is no
init.
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Start the command, and own it."""
    leaves_zombies = sys.argv[1] == "--leave-zombies"
    output, *command = sys.argv[1 + leaves_zombies :]
    become_owner()
    own(_start(command, output), leaves_zombies=leaves_zombies)


def become_owner() -> None:
    """Make this process the parent of all orphans below it, before it starts the command."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Its end must not be reported before its pid.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])


def own(pid: int, *, leaves_zombies: bool) -> None:
    """Report on the command, and kill what is left of it when the test is over."""
    _report(os.getpid())
    _report(pid)
    reaped = pid if leaves_zombies else -1
    signal.signal(signal.SIGCHLD, lambda _number, _frame: _reap(pid, reaped))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    while os.read(0, 1):
        pass
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # From the top of the tree: a dead process forks no more, and its children become ours.
    while below := _children():
        for child in below:
            os.kill(child, signal.SIGKILL)
        os.waitpid(-1, 0)
        # All that are dead at once: there may be thousands, and each turn lists all of them.
        _reap(pid)


def _start(command: list[str], output: str) -> int:
    append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, output, append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        # The command leads a process group, as in a shell with job control.
        setpgroup=0,
        setsigmask=[],
    )


def _children() -> list[int]:
    """The children of this process, zombies included."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in listed.split()]


def _reap(command: int, which: int = -1) -> None:
    """Reap one process, or by default all that have exited; report the command's exit status."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(which, os.WNOHANG)
            if pid == 0:
                return
            if pid == command:
                _report(os.waitstatus_to_exitcode(status))


def _report(number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test has died
        os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    main()
