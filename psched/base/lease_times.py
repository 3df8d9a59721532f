"""The arithmetic of a lease: when to extend it, and when its task must have been killed.

A lease of ``alive_time`` seconds ends, for its holder, at the deadline D: the instant
*before* the claim or the last successful extend was sent, plus ``alive_time``, on a clock
that counts suspended time. In the store it ends later than D, because the store's clock is
read after the request was sent and rounded up. Between the instant at which a task must be dead
and D lies the margin m. T is the driver's timeout::

    sent       extend           D - m - 2T   D - m - T    D - m      D - m/2       D
     |------------|------------------|------------|---------|-----------|-----------|
     |         extend, and       no new task    KILL is   every tree  the kernel  the store
     |         again until it    starts         sent      is dead     kills us    may grant it
     |         succeeds

**What blocks the worker's loop.** Only one request to the store at a time blocks the loop. A
request fails when no byte arrives for T, and after 2T in any case, even if it has to connect first
or consists of several statements (see `stores.deadline_socket`). The guard checks the leases before
each request. A fork takes T at most.

**Why no task runs without its lease.** A tree is killed at D - m - T. So a request that was begun
just before that instant, and gets no answer, has failed by D - m. Because 2T < m, even a request
that takes 2T ends before the kernel's timer expires.

**Why a task may start until D - m - 2T.** Every task is killed at D - m - T, so a task that starts
before that instant is stopped in time. A task must start T earlier, because its lease must be
extended: at D - m - 2T an extend is due and is sent at once, so that its answer, if there is one,
arrives before the KILL. If the claim took so long that an extend is due already, the lease is
extended before the task starts. Then the age of the lease is the time of one answer, however slow
the claim was.

**Why a lease is extended while the store answers.** An extend that is due is sent between any two
other requests. The extend of a long lease is due after a quarter of the lease, which is long before
the KILL. The extend of a short lease is due so early that a request of 2T that was begun just
before still ends before D - m - T; but it is not due before an eighth of the lease has passed. If
an answer takes r, at most an extend and a claim of two statements lie between two extends, and they
take 3r. That is shorter than alive_time - m - T if r is shorter than `longest_answer`.
"""

import itertools
from dataclasses import dataclass

MARGIN_LIMIT = 15.0
"""The longest margin in seconds: even the longest lease needs no longer one."""

MARGIN_SHARE = 0.4
"""The margin of a short lease, as a fraction of the lease."""

SHORTEST_ALIVE_TIME = 6
"""The shortest lease in seconds.

The margin of a shorter lease could be used up by the scheduling delays of a busy machine.
"""

LONGEST_ALIVE_TIME = 366 * 86_400
"""The longest lease in seconds."""


def margin(alive_time: float) -> float:
    """The margin m in seconds: all processes of a task are dead m before the lease's deadline."""
    return min(MARGIN_LIMIT, MARGIN_SHARE * alive_time)


def extend_interval(alive_time: float, driver_timeout: float) -> float:
    """Seconds from the claim or the last successful extend until the next extend is due."""
    in_time = _usable(alive_time, driver_timeout) - 2 * driver_timeout
    return min(alive_time / 4, max(alive_time / 8, in_time))


def longest_answer(alive_time: float, driver_timeout: float) -> float:
    """The longest time in seconds that each answer may take without the loss of a lease."""
    return min(driver_timeout, _usable(alive_time, driver_timeout) / 3)


def slow_request(alive_time: float, driver_timeout: float) -> float:
    """The duration in seconds from which a request counts as slow.

    Such a request uses up half of the time in which an extend must succeed.
    """
    return _usable(alive_time, driver_timeout) / 2


def sufficient_alive_time(answer: float, driver_timeout: float | None) -> int:
    """The shortest lease in whole seconds that is not lost if each answer takes ``answer`` seconds.

    Args:
        answer: the time of an answer in seconds.
        driver_timeout: the setting in seconds; None: the default, which depends on the lease.
    """
    for lease in itertools.count(SHORTEST_ALIVE_TIME):
        if _usable(lease, effective_driver_timeout(driver_timeout, lease)) >= 3 * answer:
            return lease
    raise AssertionError


def _usable(alive_time: float, driver_timeout: float) -> float:
    """Seconds from a successful extend until the task is killed, if no other extend succeeds."""
    return alive_time - margin(alive_time) - driver_timeout


def default_driver_timeout(alive_time: float) -> float:
    """The default of the driver timeout T in seconds, so that 2T is less than the margin."""
    return min(5.0, 0.45 * margin(alive_time))


def effective_driver_timeout(setting: float | None, alive_time: float) -> float:
    """The driver timeout T in seconds: the setting ``database_timeout``, or the default."""
    return default_driver_timeout(alive_time) if setting is None else setting


def shortest_alive_time(driver_timeout: float) -> int:
    """The shortest lease in whole seconds whose margin is longer than two driver timeouts."""
    return max(SHORTEST_ALIVE_TIME, int(2 * driver_timeout / MARGIN_SHARE) + 1)


def lease_time(own: int | None, alive_time: int, shortest: int) -> int:
    """The length of a row's lease in seconds. Each store computes the same value in a claim.

    Args:
        own: the row's own ``alive_time`` in seconds; None: the setting applies.
        alive_time: the setting in seconds.
        shortest: the result of `shortest_alive_time`; a worker cannot guard a shorter lease.
    """
    return min(max(alive_time if own is None else own, shortest), LONGEST_ALIVE_TIME)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The instants of one lease, in seconds of the boot-time clock.

    Attributes:
        sent: the instant just before the claim or the last successful extend was sent.
        lease: the length of the lease in seconds.
        driver_timeout: T in seconds.
    """

    sent: float
    lease: float
    driver_timeout: float

    @property
    def end(self) -> float:
        """D: from this instant on, the store may grant the row to another worker."""
        return self.sent + self.lease

    @property
    def extend(self) -> float:
        """From this instant on, an extend of the lease is due."""
        return self.sent + extend_interval(self.lease, self.driver_timeout)

    @property
    def last_start(self) -> float:
        """The last instant at which a task is started."""
        return self.kill - self.driver_timeout

    @property
    def warn(self) -> float:
        """The instant at which the task gets TERM because its lease may be lost.

        The instant is never in the first half of the lease. If the lease is not longer than about
        40 s, `kill` is earlier than this instant.
        """
        return max(self.end - 2 * margin(self.lease), self.sent + self.lease / 2)

    @property
    def kill(self) -> float:
        """The instant at which the task's tree gets KILL."""
        return self.sent + _usable(self.lease, self.driver_timeout)

    @property
    def deadman(self) -> float:
        """The instant at which the kernel kills the worker."""
        return self.end - margin(self.lease) / 2
