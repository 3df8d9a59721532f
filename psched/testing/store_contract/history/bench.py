"""Functions for the tests of the run history."""

from collections.abc import Callable, Iterable
from dataclasses import replace as changed
from functools import partial
from typing import Any

from psched.core.history.protocol import KeepsHistory, RunSelection
from psched.core.history.records import Fate, Outcome, RunRecord
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Settled, Store
from psched.testing.store_contract.bench import LONG_AGO, claim, ending, wait_for_end

ENDED = 1_700_000_000_000
"""When the first record of a test ended, in milliseconds."""

MANY = 450
"""More records than a store reads or writes in one request."""


def history_of(store: Store) -> KeepsHistory:
    """The store, which must have the capability."""
    assert isinstance(store, KeepsHistory)
    return store


def made(key: str, *, ended: int = ENDED, **fields: Any) -> RunRecord:  # noqa: ANN401  # a record's
    """A record of an attempt that has finished, with these changes."""
    given = {
        "type": "default",
        "scheduled_time": LONG_AGO,
        "owner": "worker.1",
        "fence": 1,
        "attempt": 1,
        "outcome": Outcome.FINISHED,
        **fields,
    }
    return RunRecord(key=key, ended=ended, **given)


def recorded(row: Row, **fields: Any) -> RunRecord:  # noqa: ANN401  # a record's
    """A record of the lease of a row that was claimed."""
    given = {
        "type": row.type,
        "scheduled_time": row.next_time or 0,
        "owner": row.owner or "",
        "fence": row.fence,
        "fate": Fate.FINISHED,
        **fields,
    }
    return made(row.key, **given)


def ending_with(row: Row, *records: RunRecord, **changes: Any) -> Settlement:  # noqa: ANN401  # fields
    """A settlement of a row with records."""
    return ending(row, records=records, **changes)


def settled(store: Store, *ends: Settlement) -> dict[str, Settled]:
    """Settle, and return the results."""
    return {**store.settle(ends)}


def claimed(store: Store, key: str, owner: str) -> Row:
    """Claim the only row; wait for a store that makes a released row due in the next second."""
    wait_for_end(store, key)
    (row,) = claim(store, owner).rows
    return row


def plain(record: RunRecord) -> RunRecord:
    """A record without the number that the store has given it."""
    return changed(record, id=None)


def runs(store: Store, **conditions: Any) -> list[RunRecord]:  # noqa: ANN401  # a selection's
    """The records that fulfil these conditions, in the store's order, without their numbers."""
    return [plain(each) for each in history_of(store).runs(RunSelection(**conditions))]


def are_same(records: Iterable[RunRecord], others: Iterable[RunRecord]) -> bool:
    """Whether the records are equal, whatever their order."""
    return sorted(records, key=repr) == sorted(others, key=repr)


def numbered(count: int) -> list[RunRecord]:
    """Records of three keys, the oldest first."""
    return [made(f"k{n % 3}", owner=f"worker.{n}", ended=ENDED + n) for n in range(count)]


def trim(store: Store, *, before: int) -> None:
    """Delete all records and changes before a time."""
    until_nothing_is_left(partial(history_of(store).trim, before=before, limit=1000))


def until_nothing_is_left(delete: Callable[[], int]) -> int:
    """Repeat a deletion until it deletes nothing; return the number of all that it deleted."""
    total = 0
    while deleted := delete():
        total += deleted
    return total
