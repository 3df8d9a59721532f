"""Writes many rows in as few statements as the database accepts."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError, StoreSlowError
from psched.core.model import Row
from psched.stores import pages
from psched.stores.sql.errors import InvalidValueError

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger("psched.store")

BATCH = 200
"""The most rows that one statement claims, extends or settles.

The limit keeps the number of the statement's parameters and row locks small.
"""

INSERT_BATCH = 500
"""The most rows that one statement inserts.

Each row binds at most eleven values, so a statement binds at most 5500 values. SQLite accepts at
most 32766 values in a statement, and PostgreSQL at most 65535.
"""

INSERT_SIZE = 1_000_000
"""The most characters of payload that one statement inserts, unless a single row has more.

MySQL and MariaDB refuse a statement that is larger than their ``max_allowed_packet``, which is by
default at least 16 MB. Even with four bytes for each character, a statement stays below this size.
"""


def write_in_batches(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Mapping[str, R]],
    *,
    clock: Clock,
    patience: float,
) -> dict[str, R]:
    """Write items a batch at a time; skip an item with a value that does not fit its column.

    If one item of a batch does not fit, or is locked by another session, the batch is repeated item
    by item, so that the other items are written. Any other error does not concern a single item, so
    the error is raised at once, and the caller does not learn the results of earlier batches.
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
                _log.error("%s", error)  # the text names the cause
            return False
        except StoreBusyError as error:
            busy = error
            answered.update(error.answered)
            return False
        return True

    for batch in pages.batched(items, BATCH):
        if attempt(batch) or len(batch) == 1:
            continue
        for item in batch:
            if clock.monotonic() >= give_up_at:
                busy = busy or StoreSlowError("no time was left to write every item by itself")
                break
            attempt([item])
    if busy is not None and len(answered) < len(items):
        raise type(busy)(str(busy), answered)
    return answered


def insert_batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Split rows, in order, into batches that are small enough for one statement each."""
    return split(rows, lambda row: len(row.data or "") + len(row.options or ""))


def split(items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Split items, in order, into parts within the limits `INSERT_BATCH` and `INSERT_SIZE`."""
    return pages.split(items, size_of, most=INSERT_BATCH, largest=INSERT_SIZE)
