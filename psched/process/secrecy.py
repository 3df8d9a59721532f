"""Keeping secrets in this process, such as a database's password, from others of the same user.

A task runs as the same user as its master. It could read the master's memory, environment
(``/proc/PID/environ``) and descriptors, or attach a debugger. The kernel refuses all of that for a
process that must not be dumped: prctl(2), PR_SET_DUMPABLE. Forked processes inherit this, executed
programs do not. Root, or more exactly CAP_SYS_PTRACE, is refused nothing.
"""

import os
import signal

from psched.process import kernel, tree
from psched.process.spawn import launch


def hide() -> bool:
    """Let nobody but root read this process, and those that are forked from it.

    Where ``/proc`` is mounted with ``hidepid``, which hides from users the processes that they may
    not read, psched could no longer see its own processes, and could not kill what tasks leave
    behind. On such a host, this function changes nothing.

    Returns:
        Whether this process is hidden now.

    Raises:
        RuntimeError: this process has a second thread.
    """
    kernel.allow_dump(allowed=False)
    if _is_seen_by_its_parent():
        return True
    kernel.allow_dump(allowed=True)
    return False


def _is_seen_by_its_parent() -> bool:
    """Whether this process finds a child of its own in /proc; false if it cannot fork one."""
    parent = os.getpid()

    def stay() -> int:
        kernel.die_with_parent(parent)
        # All signals but KILL are blocked in the child, so it lives until it is killed.
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
