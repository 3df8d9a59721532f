"""Repeating a request while a store is unavailable, for callers that can wait a few seconds."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from psched.base.clock import Clock
from psched.base.errors import MissingDatabaseError, TransientStoreError

T = TypeVar("T")

_PAUSE = 0.2
"""The pause before the second try, in seconds; each further pause is twice as long."""


class Send(Protocol):
    """Sends a request to a store once, or repeatedly while the store is unavailable."""

    def __call__(self, request: Callable[[], T], /) -> T:
        """Send the request, and return its answer."""
        ...


def send_once(request: Callable[[], T]) -> T:
    """Send a request once, without repeating it."""
    return request()


def read_each(send: Send, found: Iterator[T]) -> Iterator[T]:
    """Yield what a store has found, which it reads page by page."""
    end = object()
    while (item := send(lambda: next(found, end))) is not end:
        yield item  # type: ignore[misc]  # it is not `end`


def retry_while_unavailable(request: Callable[[], T], *, clock: Clock, tries: int) -> T:
    """Send a request, and repeat it while the store is unavailable."""
    pause = _PAUSE
    for _ in range(tries - 1):
        try:
            return request()
        except MissingDatabaseError:
            raise  # a file that does not exist will hardly appear within seconds
        except TransientStoreError:
            clock.sleep(pause)
            pause *= 2
    return request()
