"""Many rows, in as few statements as the database accepts."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError
from psched.core.model import Row
from psched.stores.sql.errors import InvalidValueError

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger("psched.store")

BATCH = 200
"""Rows that one statement claims, extends or settles at most; this bounds its parameters, and the
locks it holds."""

INSERT_BATCH = 500
"""Rows that one statement inserts at most. Each row binds ten values; SQLite accepts 32766 of them
in a statement, PostgreSQL 65535."""

INSERT_SIZE = 1_000_000
"""Characters of payload that one statement inserts at most, unless a single row has more: servers
refuse what is larger than their ``max_allowed_packet``, which is 16 MB or more."""


def write_in_batches(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Mapping[str, R]],
    *,
    clock: Clock,
    patience: float,
) -> dict[str, R]:
    """Write items a batch at a time; an item with a value that does not fit is left out.

    A batch is repeated item by item if one of its items does not fit, or is locked by another
    session, so that this item cannot hold up the others. Any other error is not the fault of a
    single item and is raised at once; it says nothing about who holds which lease.

    Args:
        items: what is to be written.
        write: writes some of the items, and returns the result of each by its key. A
            `StoreBusyError` that it raises may carry the results of a part of them.
        clock: measures the patience.
        patience: seconds after which no further locked item is tried.

    Raises:
        StoreBusyError: an item is locked, or there was no time for all items; it carries the
            results of the others.
    """
    answered: dict[str, R] = {}
    busy: StoreBusyError | None = None
    give_up_at = clock.monotonic() + patience

    def attempt(batch: Sequence[T]) -> bool:
        nonlocal busy
        try:
            answered.update(write(batch))
        except InvalidValueError as error:
            if len(batch) == 1:
                _log.error("%s", error)  # the error's text is complete
            return False
        except StoreBusyError as error:
            busy = error
            answered.update(error.answered)
            return False
        return True

    for start in range(0, len(items), BATCH):
        batch = items[start : start + BATCH]
        if attempt(batch) or len(batch) == 1:
            continue
        for item in batch:
            if clock.monotonic() < give_up_at:
                attempt([item])
    if busy is not None and len(answered) < len(items):
        raise type(busy)(str(busy), answered)
    return answered


def insert_batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Split rows, in their order, into batches that one statement may insert."""
    return split(rows, lambda row: len(row.data or "") + len(row.options or ""))


def split(items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Split items, in their order, into parts of `INSERT_BATCH` items and `INSERT_SIZE` characters.

    Args:
        items: what is to be split.
        size_of: the characters of payload that an item has.
    """
    start = size = 0
    for end, item in enumerate(items):
        added = size_of(item)
        if end > start and (end - start == INSERT_BATCH or size + added > INSERT_SIZE):
            yield items[start:end]
            start, size = end, 0
        size += added
    if items:
        yield items[start:]
