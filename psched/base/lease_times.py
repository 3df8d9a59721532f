"""The arithmetic of a lease: when to extend it, and when its task must have been killed.

The holder of a lease counts its ``alive_time`` seconds from the instant just *before* the claim or
the last successful extend was sent, on a clock that counts suspended time. For the holder, the
lease ends at the deadline D, ``alive_time`` after that instant. In the store, the lease ends later
than D, because the store reads its clock after the request was sent, and rounds the time up. All
processes of the task must be dead at D - m; m is called the margin. T is the driver's timeout::

    sent       extend           D - m - 2T   D - m - T    D - m      D - m/2       D
     |------------|------------------|------------|---------|-----------|-----------|
     |         extend, and       no new task    KILL is   every tree  the kernel  the store
     |         again until it    starts         sent      is dead     kills the   can grant
     |         succeeds                                           worker      the row

**What blocks the worker's loop.** At most one request to the store at a time blocks the loop. A
request fails if no byte arrives for T. It fails after 2T in any case, even if a connection must be
opened first or the request consists of several statements (see `stores.deadline_socket`). The
worker checks all leases before each request. A fork blocks the loop for T at most.

**Why no task runs without its lease.** The worker kills the task's process tree at D - m - T. If a
request blocks the worker at that instant and gets no answer, the request fails by D - m, and the
worker kills the tree then. Even a request that takes 2T ends before D - m/2, because 2T < m. At
D - m/2 a timer of the kernel kills the worker.

**Why no task starts after D - m - 2T.** A task that starts at any time before D - m - T is stopped
in time, because it is killed at that instant. But tasks start at least T before the KILL, so that
their lease can still be extended: at D - m - 2T an extend is due and is sent at once, so that its
answer, if there is one, arrives before the KILL. If the claim took so long that an extend is due
already, the worker extends the lease before it starts the task. Then the lease is only as old as
one answer takes, however slow the claim was.

**Why no lease is lost while the store answers.** As soon as an extend is due, it is the next
request that the worker sends. The extend of a long lease is due after a quarter of the lease, which
is long before the KILL. The extend of a short lease is due earlier: a request that was begun just
before, and takes 2T, still ends before D - m - T. But no extend is due before an eighth of the
lease has passed. If each answer takes r, at most 3r pass between two extends: r for one extend, and
2r for a claim of two statements (5r for an extra run, if other leases are extended and its schedule
is held before its own extend). 3r is shorter than alive_time - m - T if r is shorter than
`longest_answer`.
"""

import itertools
from dataclasses import dataclass, field

MARGIN_LIMIT = 15.0
"""The longest margin in seconds: even the longest lease needs no longer margin."""

MARGIN_SHARE = 0.4
"""The margin of a short lease, as a fraction of the lease."""

SHORTEST_ALIVE_TIME = 6
"""The shortest lease in seconds.

The margin of a shorter lease could be used up by the scheduling delays of a busy machine.
"""

LONGEST_ALIVE_TIME = 366 * 86_400
"""The longest lease in seconds."""


def margin(alive_time: float) -> float:
    """The margin m in seconds: a task's processes are dead m before the lease's deadline D."""
    return min(MARGIN_LIMIT, MARGIN_SHARE * alive_time)


def extend_interval(alive_time: float, driver_timeout: float) -> float:
    """Seconds from the claim or the last successful extend until the next extend is due."""
    in_time = _usable(alive_time, driver_timeout) - 2 * driver_timeout
    return min(alive_time / 4, max(alive_time / 8, in_time))


def longest_answer(alive_time: float, driver_timeout: float) -> float:
    """If each answer of the store takes less than this time in seconds, no lease is lost."""
    return min(driver_timeout, _usable(alive_time, driver_timeout) / 3)


def slow_request(alive_time: float, driver_timeout: float) -> float:
    """The duration in seconds from which a request counts as slow.

    Such a request uses up half of the time in which an extend must succeed.
    """
    return _usable(alive_time, driver_timeout) / 2


def sufficient_alive_time(answer: float, driver_timeout: float | None) -> int:
    """The shortest lease, in whole seconds, that lasts if each answer takes ``answer`` seconds."""
    for lease in itertools.count(SHORTEST_ALIVE_TIME):
        if _usable(lease, effective_driver_timeout(driver_timeout, lease)) >= 3 * answer:
            return lease
    raise AssertionError


def _usable(alive_time: float, driver_timeout: float) -> float:
    """Seconds from a successful extend until the task is killed, if no other extend succeeds."""
    return alive_time - margin(alive_time) - driver_timeout


def default_driver_timeout(alive_time: float) -> float:
    """The default of the driver timeout T in seconds; 2T is always less than the margin."""
    return min(5.0, 0.45 * margin(alive_time))


def effective_driver_timeout(setting: float | None, alive_time: float) -> float:
    """The driver timeout T in seconds: the setting ``database_timeout``, or the default."""
    return default_driver_timeout(alive_time) if setting is None else setting


def shortest_alive_time(driver_timeout: float) -> int:
    """The shortest lease in whole seconds whose margin is longer than two driver timeouts."""
    return max(SHORTEST_ALIVE_TIME, int(2 * driver_timeout / MARGIN_SHARE) + 1)


def lease_time(own: int | None, alive_time: int, shortest: int) -> int:
    """The length of a row's lease in seconds.

    The claim of every store must grant a lease of this length, whether it calls this function or
    repeats the formula, for example in SQL.
    """
    return min(max(alive_time if own is None else own, shortest), LONGEST_ALIVE_TIME)


@dataclass(slots=True)
class Deadlines:
    """The instants of one lease, in seconds of the boot-time clock.

    They are computed once, because the guard of the tasks reads them before each request.

    Attributes:
        sent: the instant just before the claim or the last successful extend was sent.
        lease: the length of the lease in seconds.
        driver_timeout: the driver timeout T in seconds.
        end: D; before this instant, the store grants the row to no other worker.
        extend: the instant at which an extend of the lease becomes due.
        kill: the instant at which the task's tree gets KILL.
        last_start: the last instant at which a task is started.
        warn: the instant at which the task gets TERM, because its lease was not extended in time.
            It is never in the first half of the lease. If the lease is shorter than about 40 s,
            ``kill`` is earlier than this instant, so the task gets KILL without TERM.
        deadman: the instant at which the kernel kills the worker.
    """

    sent: float
    lease: float
    driver_timeout: float
    end: float = field(init=False)
    extend: float = field(init=False)
    kill: float = field(init=False)
    last_start: float = field(init=False)
    warn: float = field(init=False)
    deadman: float = field(init=False)

    def __post_init__(self) -> None:
        spare = margin(self.lease)
        self.end = self.sent + self.lease
        self.extend = self.sent + extend_interval(self.lease, self.driver_timeout)
        self.kill = self.sent + _usable(self.lease, self.driver_timeout)
        self.last_start = self.kill - self.driver_timeout
        self.warn = max(self.end - 2 * spare, self.sent + self.lease / 2)
        self.deadman = self.end - spare / 2
