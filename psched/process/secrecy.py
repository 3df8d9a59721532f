"""Keeping what this process knows, such as a database's password, from others of the same user.

A task runs as the same user as its master and could read its memory, its environment
(``/proc/PID/environ``) and its descriptors, or attach a debugger. The kernel refuses all of that
of a process that must not be dumped: prctl(2), PR_SET_DUMPABLE. What is forked from it is the
same; what is executed begins anew. Root, more exactly CAP_SYS_PTRACE, is refused nothing.
"""

import os
import signal

from psched.process import kernel, tree
from psched.process.spawn import launch


def hide() -> bool:
    """Have nobody but root read this process, and all that is forked from it.

    Where ``/proc`` hides from a user what that user may not read (its mount option ``hidepid``),
    psched could not see its own processes any more, and could not kill what tasks leave. There it
    is not done.

    Returns:
        Whether it is done.

    Raises:
        RuntimeError: this process has a second thread.
    """
    kernel.allow_dump(allowed=False)
    if _is_seen_by_its_parent():
        return True
    kernel.allow_dump(allowed=True)
    return False


def _is_seen_by_its_parent() -> bool:
    """Whether this process finds a child of its own in /proc; false if it can have none."""
    parent = os.getpid()

    def stay() -> int:
        kernel.die_with_parent(parent)
        # No signal comes through but KILL.
        signal.pause()
        return 0

    try:
        pid = launch(stay)
    except OSError:
        return False
    try:
        return tree.start_time(pid) is not None
    except OSError:
        return False
    finally:
        tree.send(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
