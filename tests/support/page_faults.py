"""Counts the pages of memory that a forked process touches."""

import os
import resource
from collections.abc import Callable

from psched.process.spawn import fork


def pages_copied(work: Callable[[], object]) -> int:
    """How many pages a child copies, or touches first, that does some work."""
    read, write = os.pipe()

    def count() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        work()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        os.write(write, str(after - before).encode())
        return 0

    os.waitpid(fork(count), 0)
    return int(os.read(read, 100))
