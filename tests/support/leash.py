"""Starts a command, and kills all its descendants at the end.

    python -I -S leash.py [--leave-zombies] OUTPUT COMMAND...

It runs as a program of its own. As the subreaper of the command's descendants, it becomes the
parent of every orphan, even of a daemon in its own session, so that no process escapes. When its
standard input ends, because the test is over or has died, it kills all of them.

It writes two lines to its standard output: the command's pid, and, when that has ended, its exit
status (negative: the signal that killed it). The command's own output goes to a file.

With --leave-zombies it reaps the command but no orphans, as in a container whose process 1 does not
reap.
"""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """The leash's whole life."""
    leaves_zombies = sys.argv[1] == "--leave-zombies"
    output, *command = sys.argv[1 + leaves_zombies :]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Blocked, so that the command's end is not reported before its pid is known.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    pid = _start(command, output)
    _say(pid)
    reaped = pid if leaves_zombies else -1
    signal.signal(signal.SIGCHLD, lambda _number, _frame: _reap(pid, reaped))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    while os.read(0, 1):
        pass
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Parents are killed first, because a dead process cannot fork, and its children become ours.
    while below := _children():
        for child in below:
            os.kill(child, signal.SIGKILL)
        os.waitpid(-1, 0)
        # All other dead processes are reaped, too: a storm leaves thousands, which would be listed
        # again for each.
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
    """This process's children, including those that wait to be reaped."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in listed.split()]


def _reap(command: int, which: int = -1) -> None:
    """Reap one process, or by default all that have ended, and report the command's end."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(which, os.WNOHANG)
            if pid == 0:
                return
            if pid == command:
                _say(os.waitstatus_to_exitcode(status))


def _say(number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody reads: the test has died
        os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    main()
