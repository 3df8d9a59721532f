"""The arithmetic of a lease: when to extend it, and when its task must be gone.

A lease of ``alive_time`` seconds ends, for its holder, at the deadline D: the instant
*before* the claim or the last successful extend was sent, plus ``alive_time``, on a clock
that counts suspended time. In the store it ends later than D, because the store's clock is
read after the request was sent and rounded up. Between the last moment at which a task may still
do something and D stands the margin m. With T for the driver's timeout::

    sent       extend           D - m - 2T   D - m - T    D - m      D - m/2       D
     |------------|------------------|------------|---------|-----------|-----------|
     |         extend, and       no new task    KILL is   every tree  the kernel  the store
     |         again until it    starts         sent      is dead     kills us    may grant it
     |         succeeds

**What holds the loop up.** One request to the store, which fails after T in which nothing arrives,
and after 2T in any case, whether it has to connect first or consists of several statements (see
`stores.deadline_socket`). The guard looks at the leases before each request. A fork takes T at
most.

**Why no task runs without its lease.** A tree is killed at D - m - T, so that a request that was
begun just before, and gets no answer, has ended by D - m. Because 2T < m, even one of 2T ends
before the kernel's timer.

**Why a task may start until D - m - 2T.** It is killed at D - m - T like every other, so to stop it
in time needs no more than that. The T before is for its lease, which is due to be extended by
then: that request is sent at once, and if it is answered, it is answered before the KILL. A row
whose claim took long enough for its lease to be due is extended before it is started, so its age
is one answer, however slow the claim was.

**Why a lease is extended while the store answers.** An extend is sent between any two other
requests, once it is due. In a long lease it is due after a quarter, which is long before the KILL.
In a short one it is due so early that a request of 2T that was begun just before still ends before
D - m - T, as far as that leaves an eighth of the lease in peace. With r for the time that an answer
takes, at most an extend and a claim of two statements lie between two extends: 3r. That is shorter
than alive_time - m - T if r is shorter than `longest_answer`.
"""

import itertools
from dataclasses import dataclass

MARGIN_LIMIT = 15.0
"""Seconds; a long lease needs no longer margin than this."""

MARGIN_SHARE = 0.4
"""The margin's share of a short lease."""

SHORTEST_ALIVE_TIME = 6
"""Seconds; below this a busy machine's scheduling delays eat the margin."""

LONGEST_ALIVE_TIME = 366 * 86_400
"""Seconds."""


def margin(alive_time: float) -> float:
    """The margin m in seconds: a tree is dead m before its lease's deadline."""
    return min(MARGIN_LIMIT, MARGIN_SHARE * alive_time)


def extend_interval(alive_time: float, driver_timeout: float) -> float:
    """Seconds after which a lease is extended, counted from the last success."""
    in_time = _usable(alive_time, driver_timeout) - 2 * driver_timeout
    return min(alive_time / 4, max(alive_time / 8, in_time))


def longest_answer(alive_time: float, driver_timeout: float) -> float:
    """Seconds that each answer may take while leases of this length are still kept."""
    return min(driver_timeout, _usable(alive_time, driver_timeout) / 3)


def slow_request(alive_time: float, driver_timeout: float) -> float:
    """Seconds; a request that takes longer uses up half of the time that an extend has."""
    return _usable(alive_time, driver_timeout) / 2


def sufficient_alive_time(answer: float, driver_timeout: float | None) -> int:
    """The shortest lease in whole seconds that is long enough for such answers.

    Args:
        answer: seconds that one takes.
        driver_timeout: the setting; None: it follows the lease.
    """
    for lease in itertools.count(SHORTEST_ALIVE_TIME):
        timeout = default_driver_timeout(lease) if driver_timeout is None else driver_timeout
        if _usable(lease, timeout) >= 3 * answer:
            return lease
    raise AssertionError


def _usable(alive_time: float, driver_timeout: float) -> float:
    """Seconds from an extend until the task is killed if no other succeeds."""
    return alive_time - margin(alive_time) - driver_timeout


def default_driver_timeout(alive_time: float) -> float:
    """The driver timeout T in seconds that suits a lease: 2T stays under the margin."""
    return min(5.0, 0.45 * margin(alive_time))


def shortest_alive_time(driver_timeout: float) -> int:
    """The shortest whole lease in seconds whose margin outlasts two driver timeouts."""
    return max(SHORTEST_ALIVE_TIME, int(2 * driver_timeout / MARGIN_SHARE) + 1)


def lease_time(own: int | None, alive_time: int, shortest: int) -> int:
    """Seconds for which a row is leased; the stores compute the same.

    Args:
        own: the row's own ``alive_time``, if it has one.
        alive_time: the setting.
        shortest: see `shortest_alive_time`: no lease is shorter than a worker can guard.
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
        """D: from here on the store may grant the row to another."""
        return self.sent + self.lease

    @property
    def extend(self) -> float:
        """Extend it from here on."""
        return self.sent + extend_interval(self.lease, self.driver_timeout)

    @property
    def last_start(self) -> float:
        """No task is started on it after this."""
        return self.kill - self.driver_timeout

    @property
    def warn(self) -> float:
        """The lease is in danger: its task gets TERM. Not before half of it has passed.

        In a lease of up to some 40 s, `kill` comes first: there is no time for a warning.
        """
        return max(self.end - 2 * margin(self.lease), self.sent + self.lease / 2)

    @property
    def kill(self) -> float:
        """Its task's tree gets KILL."""
        return self.sent + _usable(self.lease, self.driver_timeout)

    @property
    def deadman(self) -> float:
        """The kernel kills the worker."""
        return self.end - margin(self.lease) / 2
