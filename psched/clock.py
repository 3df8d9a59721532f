"""The clocks of a host, for authors of stores: the public path of `psched.base.clock`."""

from psched.base.clock import Clock, SystemClock

__all__ = [
    "Clock",
    "SystemClock",
]
