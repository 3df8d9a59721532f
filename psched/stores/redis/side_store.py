"""What the parts of the store that keep records beside the rows share."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from typing_extensions import override

from psched.stores.redis import errors, scripts
from psched.stores.redis.connector import Connector
from psched.stores.redis.encoding import Argument

_log = logging.getLogger("psched.store")

BATCH = 200
"""The most records that one run of a script writes or returns.

The number is small because the server serves no other client while a script runs.
"""

TRIMMED = 500
"""The most records that one run of a script deletes."""

_LARGEST_BATCH = 2_000_000
"""The most bytes of records that one request writes, unless a single record has more."""


class _Numbered(Protocol):
    @property
    def id(self) -> int | None: ...


T = TypeVar("T", bound=_Numbered)
R = TypeVar("R")


class SideStore:
    """A part of the store that keeps records beside the rows.

    Args:
        connector: the connection of the store.
    """

    part: str
    """The name of the part in the script `scripts.TRY`."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def problem(self) -> str | None:
        """Why nothing is kept: a command is unknown or forbidden; None if it is kept."""
        return errors.refusal(self._connector.run(scripts.TRY, self.part, writing=False))


class Page(NamedTuple, Generic[T]):
    """Records, and the place after which the next page begins; None if there is no next page."""

    records: Sequence[T]
    place: Argument | None


class Pages(Iterator[T], Generic[T]):
    """Reads records page by page; after an exception, ``next`` reads the same page again.

    Args:
        read: returns the page after a place, the newest records first; the empty place is before
            the newest record. The second argument is the most records of the page.
        limit: the most records; None means no limit.
        size: the most records of a page.
    """

    def __init__(
        self, read: Callable[[Argument, int], Page[T]], limit: int | None, size: int = BATCH
    ) -> None:
        self._read: Callable[[Argument, int], Page[T]] = read
        self._size = size
        self._left = limit
        self._place: Argument | None = ""
        self._page: deque[T] = deque()
        self._last: int | None = None

    @override
    def __iter__(self) -> Self:
        return self

    @override
    def __next__(self) -> T:
        while self._left != 0 and (self._page or self._place is not None):
            if not self._page and self._place is not None:
                most = self._size if self._left is None else min(self._size, self._left)
                records, self._place = self._read(self._place, most)
                self._page.extend(records)
                continue
            record = self._page.popleft()
            # A record that was written meanwhile moves all others of its list, so that the first
            # records of a page can be the last ones of the page before.
            if self._last is None or record.id is None or record.id < self._last:
                self._last = record.id
                if self._left is not None:
                    self._left -= 1
                return record
        raise StopIteration


def batches(items: Sequence[R], size_of: Callable[[R], int]) -> Iterator[Sequence[R]]:
    """Split items, in order, into parts that are small enough for one request each."""
    start = size = 0
    for end, item in enumerate(items):
        added = size_of(item)
        if end > start and (end - start == BATCH or size + added > _LARGEST_BATCH):
            yield items[start:end]
            start, size = end, 0
        size += added
    if items:
        yield items[start:]


class Losses:
    """Records of one kind that are lost because the server refuses them.

    Args:
        what: the records, in the plural, for the log.

    Attributes:
        count: the number of lost records so far.
    """

    def __init__(self, what: str) -> None:
        self.count = 0
        self._what = what
        self._ongoing = False

    def note(self, lost: int, reason: bytes | None) -> None:
        """Note the result of a request; log the first loss, and the first success after it."""
        if lost:
            self.count += lost
            if not self._ongoing:
                why = errors.shortened((reason or b"").decode(errors="replace"))
                _log.error(
                    "%s are lost (%d so far): %s; tasks are not affected",
                    self._what,
                    self.count,
                    why,
                )
        elif self._ongoing:
            _log.info("%s are written again; %d lost", self._what, self.count)
        self._ongoing = bool(lost)
