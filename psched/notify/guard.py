"""A process that runs one program, kills everything that the program has started, and reports.

It is run as a script, because that starts faster than a module that is looked for, and needs
nothing of its environment. Its arguments: the folders of Python's modules, separated by colons; the
descriptor for the report; the pid of its parent; the time limit in seconds; and the program with
its arguments. The report is `SUCCESS`, or says what the program did, such as ``exited with status
1``.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial

SUCCESS = "ok"

_ATTEMPTS = 100  # how often the guard tries to kill what dies slowly: for 2 seconds at least


def main(path: str, report: int, parent: int, seconds: float, command: Sequence[str]) -> None:
    """Run the program, kill what it has started, and report."""
    sys.path += path.split(os.pathsep)
    from psched.process import kernel, tree  # noqa: PLC0415  # found only by now

    kernel.die_with_parent(parent)
    kernel.adopt_orphans()
    try:
        how = _run(command, seconds, partial(kernel.die_with_parent, os.getpid()))
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


def _run(command: Sequence[str], seconds: float, begin: Callable[[], None]) -> str:
    """Run the program until it ends, or the time limit is over; say what it did."""
    try:
        process = subprocess.Popen(command, preexec_fn=begin)  # noqa: PLW1509  # no threads
    except (OSError, ValueError) as error:
        return f"cannot be started: {getattr(error, 'strerror', None) or error}"
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"has not ended within {seconds:g} s"
    if status < 0:
        return f"was killed by signal {-status}"
    return f"exited with status {status}" if status else SUCCESS


if __name__ == "__main__":
    _, _path, _report, _parent, _seconds, *_command = sys.argv
    main(_path, int(_report), int(_parent), float(_seconds), _command)
