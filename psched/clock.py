"""What a store needs of time: the public path of `psched.base.clock`."""

from psched.base.clock import (
    Clock,
    SystemClock,
)

__all__ = [
    "Clock",
    "SystemClock",
]
