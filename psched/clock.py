"""The public import path of the clocks in `psched.base.clock`, for authors of stores."""

from psched.base.clock import Clock, SystemClock

__all__ = [
    "Clock",
    "SystemClock",
]
