"""The arithmetic of a lease: when to extend it, and when its task must be gone.

A lease of ``alive_time`` seconds ends, for its holder, at the deadline D: the instant
*before* the claim or the last successful extend was sent, plus ``alive_time``, on a clock
that counts suspended time. In the store it ends later than D, because the store's clock is
read after the request was sent and rounded up. Between the last moment at which a task may
still do something and D stands the margin m::

    sent          sent + alive_time/4       D - 2m        D - m         D - m/2         D
     |------------------|----------------------|-------------|-------------|-----------|
     |                 extend, and again       no new task   every tree    the kernel  the store
     |                 until it succeeds       starts        is dead       kills us    may grant it

The holder's loop can be held up by one call to the database, or by a reconnect and a call;
each is bounded by the driver's timeout T. It kills a tree at D - m - T, so that a call begun
just before still ends before D - m; and 2T < m, so that even a reconnect and a call end before
the kernel's timer.
"""

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


def extend_interval(alive_time: float) -> float:
    """Seconds after which a lease is extended, counted from the last success."""
    return alive_time / 4


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
        return self.sent + extend_interval(self.lease)

    @property
    def last_start(self) -> float:
        """No task is started on it after this."""
        return self.end - 2 * margin(self.lease)

    @property
    def warn(self) -> float:
        """The lease is in danger: its task gets TERM. Not before half of it has passed.

        In a lease of up to some 40 s, `kill` comes first: there is no time for a warning.
        """
        return max(self.last_start, self.sent + self.lease / 2)

    @property
    def kill(self) -> float:
        """Its task's tree gets KILL."""
        return self.end - margin(self.lease) - self.driver_timeout

    @property
    def deadman(self) -> float:
        """The kernel kills the worker."""
        return self.end - margin(self.lease) / 2
