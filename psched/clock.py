"""A host's clocks, for stores: the public path of `psched.base.clock`."""

from psched.base.clock import Clock, SystemClock

__all__ = [
    "Clock",
    "SystemClock",
]
