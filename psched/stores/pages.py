"""Reads records page by page, and splits what is written into parts; for all kinds of stores."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

from typing_extensions import override

T = TypeVar("T")
R = TypeVar("R")


class Page(NamedTuple, Generic[T]):
    """Records, and the place after which the next page begins; None if there is no next page."""

    records: Sequence[T]
    place: Any


class Pages(Iterator[T], Generic[T]):
    """Reads records page by page; after an exception, ``next`` reads the same page again.

    That is why it is no generator, which an exception would end.

    Args:
        read: returns the page after a place; the empty text is before the first record. The second
            argument is the most records of the page.
        limit: the most records of all pages; None means no limit.
        size: the most records of a page.
        moves: whether a record that is written meanwhile moves all others, so that the first
            records of a page can be the last ones of the page before. Records then have an ``id``.
    """

    def __init__(
        self,
        read: Callable[[Any, int], Page[T]],
        limit: int | None,
        size: int,
        *,
        moves: bool = False,
    ) -> None:
        self._read: Callable[[Any, int], Page[T]] = read
        self._size = size
        self._left = limit
        self._moves = moves
        self._place: Any = ""
        self._page: deque[T] = deque()
        self._last: int | None = None

    @override
    def __iter__(self) -> Self:
        return self

    @override
    def __next__(self) -> T:
        while self._left != 0 and (self._page or self._place is not None):
            if not self._page:
                most = self._size if self._left is None else min(self._size, self._left)
                records, self._place = self._read(self._place, most)
                self._page.extend(records)
                continue
            record = self._page.popleft()
            if self._moves and self._is_repeated(record):
                continue
            if self._left is not None:
                self._left -= 1
            return record
        raise StopIteration

    def _is_repeated(self, record: Any) -> bool:  # noqa: ANN401  # a record with an ``id``
        """Whether a record was on the page before, too."""
        if self._last is not None and (record.id or 0) >= self._last:
            return True
        self._last = record.id
        return False


def batched(items: Sequence[R], most: int) -> Iterator[Sequence[R]]:
    """Split items, in order, into parts of at most so many items."""
    for start in range(0, len(items), most):
        yield items[start : start + most]


def split(
    items: Sequence[R], size_of: Callable[[R], int], *, most: int, largest: int
) -> Iterator[Sequence[R]]:
    """Split items, in order, into parts of at most so many items, and of at most this size.

    A part of one item can be larger.
    """
    start = size = 0
    for end, item in enumerate(items):
        added = size_of(item)
        if end > start and (end - start == most or size + added > largest):
            yield items[start:end]
            start, size = end, 0
        size += added
    if items:
        yield items[start:]
