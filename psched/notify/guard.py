"""A process that runs one program, kills everything that the program has started, and reports.

It is run as a script, because that starts faster than a module that is looked for, and needs
nothing of its environment. Its arguments: the folders of Python's modules, separated by colons; the
descriptor for the report; the pid of its parent; the time limit in seconds; and the program with
its arguments. The report is `SUCCESS`, or says what the program did, such as ``exited with status
1``.
"""

import os
import signal
import sys
from collections.abc import Sequence

SUCCESS = "ok"

_ATTEMPTS = 100  # how often the guard tries to kill what dies slowly: for 2 seconds at least


def main(path: str, report: int, parent: int, seconds: float, command: Sequence[str]) -> None:
    """Run the program, kill what it has started, and report."""
    sys.path += path.split(os.pathsep)
    from psched.process import kernel, tree  # noqa: PLC0415  # found only by now

    kernel.die_with_parent(parent)
    kernel.adopt_orphans()
    try:
        how = _run(command, seconds)
    finally:
        for _ in range(_ATTEMPTS):
            if tree.kill_all_below(os.getpid()) and _reap():
                break
    os.write(report, how.encode(errors="replace"))


def _reap() -> bool:
    """Reap what has ended, because nobody else would; return whether no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def _run(command: Sequence[str], seconds: float) -> str:
    """Run the program until it ends, or the time limit is over; say what it did."""
    from psched.process.program_runner import start  # noqa: PLC0415  # found only by now

    news = (signal.SIGCHLD, signal.SIGALRM)
    signal.pthread_sigmask(signal.SIG_BLOCK, news)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        program = start([os.fsencode(each) for each in command], os.environb, None, None)
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    while signal.sigwait(news) != signal.SIGALRM:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == program:
                status = os.waitstatus_to_exitcode(ended[1])
                if status < 0:
                    return f"was killed by signal {-status}"
                return f"exited with status {status}" if status else SUCCESS
    return f"has not ended within {seconds:g} s"


if __name__ == "__main__":
    _, _path, _report, _parent, _seconds, *_command = sys.argv
    main(_path, int(_report), int(_parent), float(_seconds), _command)
