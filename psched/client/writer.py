"""Changes to schedules: each change is applied once, even if the answer to a write is lost.

Each change is recorded in the audit trail after it was applied.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from functools import cache, partial
from math import ceil, floor
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
    NotSupportedError,
    ScheduleError,
    StoreError,
)
from psched.base.retry import Send
from psched.base.texts import visible
from psched.client.arguments import stored_key
from psched.client.auditor import Auditor
from psched.client.lost_answers import LostAnswers, was_replaced, was_requeued, were_inserted
from psched.client.operations.waking import Waker
from psched.config import Config
from psched.core.declare import When, redeclare
from psched.core.definition import parse_row
from psched.core.history.protocol import KeepsHistory
from psched.core.history.records import RunRecord
from psched.core.model import (
    AFTER_RUN,
    BEING_DELETED,
    CANCELLED,
    CANCELLING,
    DELETING,
    ENDED,
    FINISHED,
    FINISHING,
    PAUSED,
    QUARANTINED,
    Row,
)
from psched.core.operations.extra_runs import schedule_of
from psched.core.store_protocol import ReplacesAndRecords, ReplacesMany, Store

_log = logging.getLogger("psched.audit")

_NAMED = 5
"""The largest number of keys that an error text lists."""

_CAN_CONTINUE = frozenset({QUARANTINED, PAUSED})
"""A row with one of these statuses keeps its ``next_time`` if it is requeued without a time."""

CAN_BE_REQUEUED = ENDED | _CAN_CONTINUE
"""The statuses of rows that can be requeued."""

Condition = Callable[[Row], bool]
"""Whether a row, as it is stored now, is still to be changed."""


class ChangedMeanwhileError(ScheduleError):
    """A row does not fulfil the `Condition` any more, so it was not changed."""


class Recorded(NamedTuple):
    """The new row of a schedule, and the records that the run history gets with it."""

    row: Row
    records: Sequence[RunRecord]


class Writer:
    """Adds, changes and deletes the schedules of one store.

    To change a row, the writer reads the row, computes the new row, and writes it only if the
    stored row has not changed since it was read. Otherwise the writer begins again.

    Args:
        store: the store that contains the schedules.
        settings: the installation's settings.
        auditor: records the changes that were applied.
        waker: wakes a worker when a row may have become due.
        clock: measures how long ago an insert was first sent.
        draw_nonce: returns a new random text at each call.
        send: sends a request to the store, again and again while the store is unavailable.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        auditor: Auditor,
        *,
        waker: Waker,
        clock: Clock,
        draw_nonce: Callable[[], str],
        send: Send,
    ) -> None:
        self._store = store
        self._settings = settings
        self._auditor = auditor
        self._waker = waker
        self._clock = clock
        self._draw_nonce = draw_nonce
        self._send = send

    def insert(self, rows: Sequence[Row], *, audited: bool = True) -> None:
        """Insert either all of the rows, or none."""
        nonce, begun = self._draw_nonce(), self._clock.boottime()
        lost = LostAnswers[str]()

        def request() -> None:
            try:
                lost.send(nonce, partial(self._store.add, rows, nonce=nonce))
            except AlreadyExistsError:
                found = self._store.look([row.key for row in rows])
                if lost:
                    since = self._store.now() - (self._clock.boottime() - begun)
                    if were_inserted(found, rows, nonce, since):
                        return
                keys = [row.key for row in rows if row.key in found] or [row.key for row in rows]
                raise AlreadyExistsError(_taken(keys)) from None

        self._send(request)
        self._waker.changed(rows)
        if audited:
            self._auditor.record_added(rows)

    def delete(self, key: str) -> bool:
        """Delete a row, or mark a leased row for deletion by its worker; see `Schedule.delete`."""
        if b"PSCHED_KEY" in os.environb and self._settings.store_kind.keeps_status:
            return self._end("delete", key, None, DELETING)
        lost = LostAnswers[Row | None]()
        seen: Row | None = None

        def request() -> bool:
            nonlocal seen
            try:
                if self._auditor.is_able:
                    found = self._store.get(stored_key(key))
                    # If an answer was lost, this may be the mark of the earlier try.
                    if found is not None and not (lost and found.status in BEING_DELETED):
                        seen = found
                return lost.send(seen, partial(self._store.delete, stored_key(key)))
            except NotFoundError:
                if lost:
                    return True  # the row was deleted by an earlier try, whose answer was lost
                raise

        is_deleted = self._send(request)
        before = seen or Row(key=key)
        after = None if is_deleted else changed(before, status=DELETING)
        self._auditor.record("delete", [(before, after)])
        return is_deleted

    def modify(
        self,
        key: str,
        decide: Callable[[Row], Mapping[str, Any]] | None,
        changes: Mapping[str, Any],
    ) -> None:
        """Change the definition of a schedule; see `ScheduleCollection.modify`."""

        def change(seen: Row) -> Row | None:
            if seen.status in BEING_DELETED:
                raise NotFoundError(f"the schedule {key!r} is being deleted")
            wanted = changes if decide is None else decide(seen)
            if decide is not None and not wanted:
                return None
            return redeclare(seen, wanted, self._settings, self._store.now)

        def was_applied(row: Row, seen: Row, written: Row) -> bool:
            return row.status not in BEING_DELETED and was_replaced(row, seen, written)

        self.replace("modify", key, change, was_applied)

    def try_to_modify(self, seen: Sequence[tuple[Row, Mapping[str, Any]]]) -> Sequence[bool]:
        """Change rows that have not changed since; see `ScheduleCollection.try_to_modify`."""
        store = self._store
        if not isinstance(store, ReplacesMany):
            return [False] * len(seen)
        now = cache(store.now)
        try:
            changes = [(row, redeclare(row, new, self._settings, now)) for row, new in seen]
            done = self._send(partial(self._replace_many, store, changes, LostAnswers()))
        except (InvalidError, StoreError):
            # One of the changes may be the cause. The caller tries each by itself, which succeeds,
            # or raises the error of that change. A change that was applied is not lost.
            return [False] * len(seen)
        applied = [change for change, is_done in zip(changes, done, strict=True) if is_done]
        self._waker.changed(row for _, row in applied)
        self._auditor.record("modify", applied)
        return done

    def _replace_many(
        self, store: ReplacesMany, changes: Sequence[tuple[Row, Row]], lost: LostAnswers[None]
    ) -> Sequence[bool]:
        if lost:
            found = self._store.look([seen.key for seen, _ in changes])
            applied = [
                seen.key in found and was_replaced(found[seen.key], seen, new)
                for seen, new in changes
            ]
            if any(applied):
                return applied
        return lost.send(None, lambda: store.replace_many(changes))

    def requeue(self, key: str, run_at: When | None, only_if: Condition | None = None) -> None:
        """Let an ended, quarantined or paused schedule run again; see `Schedule.requeue`."""

        def change(seen: Row) -> Row:
            require(only_if, seen)
            check_requeue(seen)
            now = floor(self._store.now())
            if run_at is None and seen.status in _CAN_CONTINUE:
                aside = changed(seen, status=QUARANTINED)
                new = redeclare(aside, {}, self._settings, self._store.now)
            else:
                times = {"next_time": now if run_at is None else run_at}
                new = redeclare(seen, times, self._settings, self._store.now)
            return changed(new, created_at=now)

        self.replace("requeue", key, change, lambda row, _seen, written: was_requeued(row, written))

    def cancel(self, key: str, only_if: Condition | None = None) -> bool:
        """Cancel a schedule, or mark a leased one to be cancelled later; see `Schedule.cancel`."""
        return self._end("cancel", key, CANCELLED, CANCELLING, only_if)

    def force_finish(self, key: str, only_if: Condition | None = None) -> bool:
        """Finish a schedule, or mark a leased one to be finished; see `Schedule.force_finish`."""
        return self._end("force_finish", key, FINISHED, FINISHING, only_if)

    def read(self, key: str) -> Row:
        """Read the row with this key."""
        return self._send(partial(read_row, self._store, key))

    def replace(
        self,
        action: str,
        key: str,
        change: Callable[[Row], Row | Recorded | None],
        was_applied: Callable[[Row, Row, Row], bool],
    ) -> None:
        """Replace a row by the result of ``change``.

        Records are written in the transaction that replaces the row. A store that cannot do this
        gets them afterwards.
        """
        lost = LostAnswers[tuple[Row, Row, Sequence[RunRecord]]]()
        done: list[tuple[Row, Row, Sequence[RunRecord]]] = []

        def request() -> bool:
            seen = read_row(self._store, key)
            if write := lost.applied(lambda write: was_applied(seen, *write[:2])):
                done.append(write)
                return True
            new = change(seen)
            if new is None:
                return True
            row, records = new if isinstance(new, Recorded) else (new, ())
            write = seen, row, records
            is_replaced = lost.send(write, partial(self._replace_and_record, *write))
            done.extend([write] if is_replaced else [])
            return is_replaced

        while not self._send(request):
            continue  # begin again, because the row was claimed, settled or changed meanwhile
        self._waker.changed(row for _, row, _ in done)
        for _, _, records in done:
            self._record_afterwards(records)
        self._auditor.record(action, [(seen, row) for seen, row, _ in done])

    def _replace_and_record(self, seen: Row, new: Row, records: Sequence[RunRecord]) -> bool:
        store = self._store
        if records and isinstance(store, ReplacesAndRecords):
            return store.replace_and_record(seen, new, records)
        return store.replace(seen, new)

    def _record_afterwards(self, records: Sequence[RunRecord]) -> None:
        """Write the records of a change that was made, if the store has not written them with it.

        A failure is only logged, because the change stands.
        """
        store: object = self._store
        if not records or isinstance(store, ReplacesAndRecords):
            return
        if isinstance(store, KeepsHistory):
            try:
                self._send(partial(store.record, records))
            except StoreError as error:
                text = "%s was changed, but the run history does not tell what was skipped: %s"
                _log.warning(text, visible(repr(records[0].key)), error)

    def _end(
        self,
        action: str,
        key: str,
        status: str | None,
        mark: str,
        only_if: Condition | None = None,
    ) -> bool:
        """End a schedule, so that it has no next run.

        If its row is leased, the row is only marked; the worker that holds the lease then stops the
        task and ends the schedule.

        Returns:
            True if the schedule has ended or its row was deleted; False if the row was marked.
        """
        lost = LostAnswers[tuple[Row, Row | None]]()
        done: list[tuple[Row, Row | None]] = []

        def request() -> bool | None:
            try:
                seen = read_row(self._store, key)
            except NotFoundError:
                if lost:
                    # The row was deleted by an earlier try, whose answer was lost.
                    done.append(lost.last)
                    return True
                raise
            if seen.status in BEING_DELETED and status is not None:
                raise NotFoundError(f"the schedule {key!r} is being deleted")
            if seen.status == mark or (lost and seen.status == status):
                done.extend([lost.last] if lost else [])
                return seen.status == status
            require(only_if, seen)
            if seen.status in ENDED and status is not None:
                raise AlreadyFinishedError(f"{key!r} has ended already: it is {seen.status}")
            new = self._ended(seen, status, mark)
            write = seen, new
            if new is None:
                rests = lost.send(write, partial(self._store.delete, key))
                done.append((seen, None if rests else changed(seen, status=DELETING)))
                return rests
            replaced = lost.send(write, partial(self._store.replace, seen, new))
            done.extend([write] if replaced else [])
            return new.status == status if replaced else None

        while (rests := self._send(request)) is None:
            continue  # begin again, because the row was claimed, settled or changed meanwhile
        self._auditor.record(action, done)
        return rests

    def _ended(self, seen: Row, status: str | None, mark: str) -> Row | None:
        """Return the ended row, or the marked row if it is leased; None if it must be deleted."""
        if not self._settings.store_kind.keeps_status:
            raise NotSupportedError(
                f"a store of type {self._settings.type} keeps no ended schedules"
            )
        if seen.owner is not None:
            return changed(seen, status=AFTER_RUN[mark] if _is_of_own_task(seen) else mark)
        if _is_of_own_extra_run(seen) and seen.is_held(now := self._store.now()):
            # The row becomes due, so that it is claimed and ended when the hold has ended.
            return changed(seen, status=AFTER_RUN[mark], next_run_time=floor(now))
        if status is None:
            return None
        keep = seen.cron is not None
        try:
            retention = parse_row(seen, self._settings).settings.retention_time
        except InvalidError:
            retention = self._settings.retention_time
        if not keep and not retention:
            return None
        return changed(
            seen,
            status=status,
            next_run_time=None,
            reason=None,
            retain_until=None if keep else ceil(self._store.now()) + retention,
        )


def _is_of_own_task(row: Row) -> bool:
    """Whether this process belongs to the task that holds a row's lease."""
    key = os.environb.get(b"PSCHED_KEY", b"").decode(errors="replace")
    return row.key == key and os.environb.get(b"PSCHED_FENCE") == b"%d" % row.fence


def _is_of_own_extra_run(row: Row) -> bool:
    """Whether this process belongs to an extra run of a schedule."""
    return schedule_of(os.environb.get(b"PSCHED_KEY", b"").decode(errors="replace")) == row.key


def check_requeue(row: Row) -> None:
    """Refuse to requeue a row that runs again anyway, or is about to end."""
    if row.status not in CAN_BE_REQUEUED:
        raise AlreadyExistsError(f"{row.key!r} has not ended: it is {row.state}")


def require(condition: Condition | None, seen: Row) -> None:
    """Refuse to change a row that does not fulfil a condition."""
    if condition is not None and not condition(seen):
        raise ChangedMeanwhileError(f"{seen.key!r} was changed meanwhile: it is {seen.state}")


def read_row(store: Store, key: str) -> Row:
    """Read the row with this key."""
    row = store.get(stored_key(key))
    if row is None:
        raise NotFoundError(f"no schedule has the key {key!r}")
    return row


def _taken(keys: Sequence[str]) -> str:
    if len(keys) == 1:
        return f"the key {keys[0]!r} is taken"
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"the keys {', '.join(map(repr, keys[:_NAMED]))}{more} are taken"
