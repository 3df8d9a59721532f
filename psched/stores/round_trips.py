"""The distance to a store, for `psched check`."""

from collections.abc import Callable

from psched.base.clock import Clock

_TRIES = 5
"""How many round trips are measured."""


def measure(now: Callable[[], float], clock: Clock) -> tuple[str, str]:
    """How far the store's clock is from this host's, and the shortest round trip, in words.

    Args:
        now: reads the store's clock, in one round trip.
        clock: this host's clocks.
    """
    tries = []
    for _ in range(_TRIES):
        before = clock.monotonic()
        shown = now()
        tries.append((clock.monotonic() - before, shown - clock.wall()))
    # The shortest was the least disturbed. The server read its clock half-way through it.
    took, behind = min(tries)
    return f"{behind + took / 2:+.3f} s from this host's", f"{took * 1000:.3f} ms"
