"""Changes to rows: each change is applied once, even if the answer to a write is lost.

If the outcome of a write is unknown, the sender repeats the write. Before that, the sender checks
whether the write was applied already: the sender remembers what it has sent (`LostAnswers`), reads
the row, and compares the two (`were_inserted`, `was_replaced`, `was_requeued`).

Each change is recorded in the audit trail after it was applied.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Generic, NamedTuple, TypeVar

from psched.base.compression import readable
from psched.base.errors import (
    AlreadyExistsError,
    InvalidError,
    ScheduleError,
    StoreError,
    UnknownOutcomeError,
)
from psched.base.texts import visible
from psched.client.access import Access, read_row
from psched.core.declare import redeclare
from psched.core.history.records import RunRecord
from psched.core.model import Row

T = TypeVar("T")
W = TypeVar("W")

_log = logging.getLogger("psched.audit")

_NAMED = 5
"""The largest number of keys that an error text lists."""

_DEFINITION = "type", "cron", "timezone", "delay", "alive_time", "label"
_PAYLOADS = "data", "options"

Condition = Callable[[Row], bool]
"""Whether a row, as it is stored now, is still to be changed."""


class ChangedMeanwhileError(ScheduleError):
    """A row does not fulfil the `Condition` any more, so it was not changed."""


def require(condition: Condition | None, seen: Row) -> None:
    """Refuse to change a row that does not fulfil a condition."""
    if condition is not None and not condition(seen):
        raise ChangedMeanwhileError(f"{seen.key!r} was changed meanwhile: it is {seen.state}")


# --- adding ------------------------------------------------------------------------------


def insert(access: Access, rows: Sequence[Row], *, audited: bool = True) -> None:
    """Insert either all of the rows, or none."""
    nonce, begun = access.draw_nonce(), access.clock.boottime()
    lost = LostAnswers[str]()

    def request() -> None:
        try:
            lost.send(nonce, partial(access.store.add, rows, nonce=nonce))
        except AlreadyExistsError:
            found = access.store.look([row.key for row in rows])
            if lost:
                since = access.store.now() - (access.clock.boottime() - begun)
                if were_inserted(found, rows, nonce, since):
                    return
            keys = [row.key for row in rows if row.key in found] or [row.key for row in rows]
            raise AlreadyExistsError(_taken(keys)) from None

    access.send(request)
    access.wake_for(rows)
    if audited:
        access.auditor.record_added(rows)


def _taken(keys: Sequence[str]) -> str:
    if len(keys) == 1:
        return f"the key {keys[0]!r} is taken"
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"the keys {', '.join(map(repr, keys[:_NAMED]))}{more} are taken"


# --- replacing ---------------------------------------------------------------------------


class Recorded(NamedTuple):
    """The new row of a schedule, and the records that the run history gets with it."""

    row: Row
    records: Sequence[RunRecord]


def replace(
    access: Access,
    action: str,
    key: str,
    change: Callable[[Row], Row | Recorded | None],
    was_applied: Callable[[Row, Row, Row], bool],
) -> None:
    """Replace a row by the result of ``change``; None leaves the row as it is.

    The row is read, and the new row is written only if the stored row has not changed since.
    Otherwise both begin again. Records are written in the transaction that replaces the row. A
    store that cannot do this gets them afterwards.
    """
    lost = LostAnswers[tuple[Row, Row, Sequence[RunRecord]]]()
    done: list[tuple[Row, Row, Sequence[RunRecord]]] = []

    def request() -> bool:
        seen = read_row(access.store, key)
        if write := lost.applied(lambda write: was_applied(seen, *write[:2])):
            done.append(write)
            return True
        new = change(seen)
        if new is None:
            return True
        row, records = new if isinstance(new, Recorded) else (new, ())
        write = seen, row, records
        is_replaced = lost.send(write, partial(_replace_and_record, access, *write))
        done.extend([write] if is_replaced else [])
        return is_replaced

    while not access.send(request):
        continue  # begin again, because the row was claimed, settled or changed meanwhile
    access.wake_for(row for _, row, _ in done)
    for _, _, records in done:
        _record_afterwards(access, records)
    access.auditor.record(action, [(seen, row) for seen, row, _ in done])


def _replace_and_record(access: Access, seen: Row, new: Row, records: Sequence[RunRecord]) -> bool:
    store = access.store
    if records and store.recorded_changes is not None:
        return store.recorded_changes.replace_and_record(seen, new, records)
    return store.replace(seen, new)


def _record_afterwards(access: Access, records: Sequence[RunRecord]) -> None:
    """Write the records of a change that was made, if the store has not written them with it.

    A failure is only logged, because the change stands.
    """
    store = access.store
    if not records or store.recorded_changes is not None:
        return
    if store.history is not None:
        try:
            access.send(partial(store.history.record, records))
        except StoreError as error:
            text = "%s was changed, but the run history does not tell what was skipped: %s"
            _log.warning(text, visible(repr(records[0].key)), error)


def try_to_modify(access: Access, seen: Sequence[tuple[Row, Mapping[str, Any]]]) -> Sequence[bool]:
    """Change rows that have not changed since; see `ScheduleCollection.try_to_modify`."""
    now = cache(access.store.now)
    try:
        changes = [(row, redeclare(row, new, access.settings, now)) for row, new in seen]
        done = access.send(partial(_replace_many, access, changes, LostAnswers()))
    except (InvalidError, StoreError):
        # One of the changes may be the cause. The caller tries each by itself, which succeeds,
        # or raises the error of that change. A change that was applied is not lost.
        return [False] * len(seen)
    applied = [change for change, is_done in zip(changes, done, strict=True) if is_done]
    access.wake_for(row for _, row in applied)
    access.auditor.record("modify", applied)
    return done


def _replace_many(
    access: Access, changes: Sequence[tuple[Row, Row]], lost: "LostAnswers[None]"
) -> Sequence[bool]:
    if lost:
        found = access.store.look([seen.key for seen, _ in changes])
        applied = [
            seen.key in found and was_replaced(found[seen.key], seen, new) for seen, new in changes
        ]
        if any(applied):
            return applied
    return lost.send(None, lambda: access.store.replace_many(changes))


# --- lost answers ------------------------------------------------------------------------


class LostAnswers(Generic[W]):
    """Those writes of one request whose outcome is unknown. The object is true if there are any.

    The sender chooses what is stored for a write (the type `W`), such as the old and the new row of
    a replacement, or the owner of a claim.
    """

    def __init__(self) -> None:
        self._writes: list[W] = []

    def __bool__(self) -> bool:
        return bool(self._writes)

    def send(self, write: W, request: Callable[[], T]) -> T:
        """Send a write, and remember it if its answer is lost."""
        try:
            return request()
        except UnknownOutcomeError:
            self._writes.append(write)
            raise

    def applied(self, was_applied: Callable[[W], bool]) -> W | None:
        """The write that was applied, as far as ``was_applied`` can tell; None if none was."""
        return next((write for write in self._writes if was_applied(write)), None)

    @property
    def last(self) -> W:
        """The last of these writes; there must be one."""
        return self._writes[-1]


def were_inserted(
    found: Mapping[str, Row], wanted: Sequence[Row], nonce: str, since: float
) -> bool:
    """Whether an insert was applied, even if its rows have run since.

    The insert adds all rows or none. It writes its nonce into the rows, and the first settle of a
    row overwrites the nonce. So the insert also counts as applied if all rows have been settled,
    equal the wanted rows, and are no older than the request. If another caller has added such rows,
    the result is wrong, but this caller has the rows that it wanted.
    """
    if any(row.settled_by == nonce for row in found.values()):
        return True
    return all(row.key in found and _has_run(found[row.key], row, since) for row in wanted)


def _has_run(row: Row, wanted: Row, since: float) -> bool:
    settled = row.settled_by is not None and "#" in row.settled_by
    young = row.created_at is not None and row.created_at >= int(since)
    return settled and young and _is_alike(row, wanted)


def was_replaced(row: Row, seen: Row, written: Row) -> bool:
    """Whether a replacement was applied, even if the new row has run since."""
    if not _is_alike(row, written):
        return False
    if row.next_time != written.next_time:
        # The times also differ if the new row has run since, so we compare other columns.
        return row.version > seen.version and row.fence > seen.fence
    # We compare the times too, because the version of a row in PerfectSched's table is a checksum
    # that does not depend on them.
    times = row.next_run_time, row.status
    return row.version != seen.version or times == (written.next_run_time, written.status)


def was_requeued(row: Row, written: Row) -> bool:
    """Whether a requeue was applied, even if the row has run and ended again since."""
    return row.version > written.version and row.created_at == written.created_at


def _is_alike(row: Row, other: Row) -> bool:
    return all(getattr(row, name) == getattr(other, name) for name in _DEFINITION) and all(
        _bytes(getattr(row, name)) == _bytes(getattr(other, name)) for name in _PAYLOADS
    )


def _bytes(stored: str | bytes | None) -> bytes | None:
    plain = readable(stored)
    return plain.encode() if isinstance(plain, str) else plain
