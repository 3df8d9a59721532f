"""Sending a request again while a store is unavailable, for callers that can wait a few seconds."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from psched.base.clock import Clock
from psched.base.errors import TransientStoreError

T = TypeVar("T")

_PAUSE = 0.2
"""Seconds before the second try; each further pause is twice as long."""


class Send(Protocol):
    """Sends a request to a store: once, or again while the store is unavailable."""

    def __call__(self, request: Callable[[], T], /) -> T:
        """Send the request, and return its answer."""
        ...


def send_once(request: Callable[[], T]) -> T:
    """Send a request, which is not repeated."""
    return request()


def retry_while_unavailable(request: Callable[[], T], *, clock: Clock, tries: int) -> T:
    """Send a request, and again while the store is unavailable.

    Args:
        request: sends the request; called at most ``tries`` times.
        clock: sleeps between two tries.
        tries: how often the request is sent at most.

    Raises:
        TransientStoreError: the last try failed, too.
    """
    pause = _PAUSE
    for _ in range(tries - 1):
        try:
            return request()
        except TransientStoreError:
            clock.sleep(pause)
            pause *= 2
    return request()
