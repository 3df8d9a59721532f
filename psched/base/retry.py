"""Sending a request again while a store is unavailable, for those who can wait a few seconds."""

from collections.abc import Callable
from typing import TypeVar

from psched.base.clock import Clock
from psched.base.errors import TransientStoreError

T = TypeVar("T")

_PAUSE = 0.2
"""Seconds before the second try; each further pause is twice as long."""


def retry_while_unavailable(request: Callable[[], T], *, clock: Clock, tries: int) -> T:
    """Send a request, and again while the store is unavailable.

    Args:
        request: what to send; called at most so often.
        clock: to wait by.
        tries: how often.
    """
    pause = _PAUSE
    for _ in range(tries - 1):
        try:
            return request()
        except TransientStoreError:
            clock.sleep(pause)
            pause *= 2
    return request()
