"""Writes about many leases at once, and what became of each."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError
from psched.core.model import Row, Settlement, Token
from psched.core.store_protocol import Settled
from psched.stores.sql.errors import UnfitError

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger("psched.store")

BATCH = 200
"""Rows in one statement at most; bounds its parameters and the locks it holds."""


def in_batches(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Mapping[str, R]],
    *,
    clock: Clock,
    patience: float,
) -> dict[str, R]:
    """Write items a batch at a time; one with a value that does not fit is left out.

    A batch with such an item, or with one that somebody has locked, is repeated item by item, so
    that it cannot spoil the others. Any other failure is none of an item's own, and says nothing
    about who holds what.

    Args:
        items: what is to be written.
        write: writes some of them; what became of each, by key. What it raises may tell it of a
            part.
        clock: measures how long it takes.
        patience: seconds after which locked items are waited for no more.

    Raises:
        StoreBusyError: somebody has locked one, or there was no time for all of them; it tells what
            became of the others.
    """
    answered: dict[str, R] = {}
    busy: StoreBusyError | None = None
    give_up_at = clock.monotonic() + patience

    def attempt(lot: Sequence[T]) -> bool:
        nonlocal busy
        try:
            answered.update(write(lot))
        except UnfitError as error:
            if len(lot) == 1:
                _log.error("%s", error)  # its text says all
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


def result_of(end: Settlement, row: Row | None) -> Settled:
    """What became of a settlement that was not simply applied."""
    if row is None:
        return Settled.DONE if end.remove else Settled.PREEMPTED
    if row.settled_by == str(end.token):
        return Settled.DONE
    return Settled.REDEFINED if holds(end.token, row) else Settled.PREEMPTED


def holds(token: Token, row: Row) -> bool:
    """Whether a row's lease is the one with this token."""
    return row.owner == token.owner and row.fence == token.fence
