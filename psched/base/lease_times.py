"""The arithmetic of a lease: when to extend it, and when its task must be gone.

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

**What blocks the worker's loop.** One request to the store. It fails after T without a byte, and
after 2T in any case, even if it has to connect first or consists of several statements (see
`stores.deadline_socket`). The guard checks the leases before each request. A fork takes T at most.

**Why no task runs without its lease.** A tree is killed at D - m - T. So a request that was begun
just before, and gets no answer, has failed by D - m. Because 2T < m, even a request that takes 2T
ends before the kernel's timer.

**Why a task may start until D - m - 2T.** It is killed at D - m - T like every other task, so it is
stopped in time if it starts before that. It must start T earlier for the sake of its lease: by then
an extend is due and is sent at once, so that its answer, if there is one, arrives before the KILL.
If the claim took so long that an extend is due already, the lease is extended before the task
starts; then the lease is as old as one answer takes, however slow the claim was.

**Why a lease is extended while the store answers.** An extend that is due is sent between any two
other requests. A long lease is due after a quarter of it, which is long before the KILL. A short
one is due so early that a request of 2T that was begun just before still ends before D - m - T,
but not before an eighth of the lease has passed. If an answer takes r, at most an extend and a
claim of two statements lie between two extends: 3r. That is shorter than alive_time - m - T if r is
shorter than `longest_answer`.
"""

import itertools
from dataclasses import dataclass

MARGIN_LIMIT = 15.0
"""Seconds; even a long lease needs no longer margin."""

MARGIN_SHARE = 0.4
"""The margin's share of a short lease."""

SHORTEST_ALIVE_TIME = 6
"""Seconds; with a shorter lease, scheduling delays of a busy machine use up the margin."""

LONGEST_ALIVE_TIME = 366 * 86_400
"""Seconds."""


def margin(alive_time: float) -> float:
    """The margin m in seconds: a task's tree is dead m before its lease's deadline."""
    return min(MARGIN_LIMIT, MARGIN_SHARE * alive_time)


def extend_interval(alive_time: float, driver_timeout: float) -> float:
    """Seconds from the claim or the last successful extend until the next extend is due."""
    in_time = _usable(alive_time, driver_timeout) - 2 * driver_timeout
    return min(alive_time / 4, max(alive_time / 8, in_time))


def longest_answer(alive_time: float, driver_timeout: float) -> float:
    """The longest time in seconds that answers may take without a lease being lost."""
    return min(driver_timeout, _usable(alive_time, driver_timeout) / 3)


def slow_request(alive_time: float, driver_timeout: float) -> float:
    """Seconds; a longer request uses up half of the time in which an extend must succeed."""
    return _usable(alive_time, driver_timeout) / 2


def sufficient_alive_time(answer: float, driver_timeout: float | None) -> int:
    """The shortest lease in whole seconds that is kept while answers take so long.

    Args:
        answer: the time of an answer in seconds.
        driver_timeout: the setting; None: the default, which depends on the lease.
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
    """Seconds for which a row is leased; the stores compute the same.

    Args:
        own: the row's ``alive_time``, if it has one.
        alive_time: the setting.
        shortest: the result of `shortest_alive_time`; a worker cannot guard a shorter lease.
    """
    return min(max(alive_time if own is None else own, shortest), LONGEST_ALIVE_TIME)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The instants of one lease, seconds of the boot-time clock.

    Attributes:
        sent: just before the claim or the last successful extend was sent.
        lease: its length in seconds.
        driver_timeout: T in seconds.
    """

    sent: float
    lease: float
    driver_timeout: float

    @property
    def end(self) -> float:
        """D: from now on the store may grant the row to another worker."""
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
        """When the task gets TERM, because its lease may be lost; not before half of the lease.

        A lease of up to about 40 s is too short for that: `kill` is earlier.
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
