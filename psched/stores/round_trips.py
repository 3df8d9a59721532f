"""Measures the offset of a store's clock and the time of a round trip, for `psched check`."""

from collections.abc import Callable

from psched.base.clock import Clock

_TRIES = 5
"""How many round trips are measured."""


def measure(now: Callable[[], float], clock: Clock) -> tuple[str, str]:
    """Return the offset of the store's clock and the shortest round trip, as texts."""
    tries = []
    for _ in range(_TRIES):
        before = clock.monotonic()
        shown = now()
        tries.append((clock.monotonic() - before, shown - clock.wall()))
    # We assume that the server read its clock half-way through the round trip. The shorter the
    # round trip, the smaller the error of this assumption, so we use the shortest one.
    took, behind = min(tries)
    return f"{behind + took / 2:+.3f} s from this host's", f"{took * 1000:.3f} ms"
