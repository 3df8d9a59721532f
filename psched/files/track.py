"""The hook by which long work in this package tells how far it has come."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Track(Protocol):
    """A function that passes items on, and shows how many of them have been passed on.

    If the items have a length, it is the number of all items.
    """

    def __call__(self, items: Iterable[T], what: str, /) -> Iterable[T]:
        """Yield the items; ``what`` names the work that the caller does with them."""
        ...


def untracked(items: Iterable[T], _what: str, /) -> Iterable[T]:
    """Return the items, and show nothing."""
    return items
