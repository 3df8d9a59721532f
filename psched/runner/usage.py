"""Measures the CPU time and the memory that a task uses, in the runner that runs the task."""

from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

_MICROSECONDS = 1_000_000


class Usage:
    """Measures one task after another in this process, by getrusage(2).

    The figures contain this process, and those children and further descendants that have ended and
    for which their parents have waited.
    """

    def __init__(self) -> None:
        self._cpu = 0.0
        self._peak = 0

    def begin(self, *, first: bool) -> None:
        """Note that a task begins."""
        self._cpu, peak = _totals()
        self._peak = 0 if first else peak

    def end(self, peak_of_program: int | None) -> tuple[int, int | None]:
        """The CPU time in microseconds and the peak of memory in KiB of the task that has ended.

        The kernel tells only the peak of a process's whole life. So the peak of a task is None if
        an earlier task of this process has used as much.
        """
        cpu, peak = _totals()
        used = max(0, round((cpu - self._cpu) * _MICROSECONDS))
        if peak_of_program is not None:
            return used, peak_of_program
        return used, peak if peak > self._peak else None


def _totals() -> tuple[float, int]:
    """The CPU time in seconds and the peak in KiB, since this process was forked."""
    own, children = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    return cpu, max(own.ru_maxrss, children.ru_maxrss)
