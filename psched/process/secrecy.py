"""Hides secrets in this process, such as a database's password, from other processes of its user.

A task runs as the same user as its master. So the task could read the master's memory, environment
(``/proc/PID/environ``) and descriptors, or attach a debugger to the master. The kernel refuses all
of that if the master is marked as not dumpable: prctl(2), PR_SET_DUMPABLE. Forked processes inherit
the mark; executed programs do not. Processes with CAP_SYS_PTRACE, such as root's, are not refused.
"""

import os
import signal

from psched.process import kernel, tree
from psched.process.spawn import launch


def hide() -> bool:
    """Let nobody but root read this process and the processes that are forked from it.

    This function changes nothing if ``/proc`` is mounted with ``hidepid``. This mount option hides
    processes from users who must not read them, so psched could not see its own hidden processes,
    and could not kill the processes that tasks leave behind. Return whether this one is hidden now.
    """
    kernel.allow_dump(allowed=False)
    if _is_seen_by_its_parent():
        return True
    kernel.allow_dump(allowed=True)
    return False


def _is_seen_by_its_parent() -> bool:
    """Fork a child, and return whether this process sees it in /proc; False if the fork fails."""
    parent = os.getpid()

    def stay() -> int:
        kernel.die_with_parent(parent)
        # `launch` has blocked all signals that can be blocked, so the child sleeps until KILL.
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
