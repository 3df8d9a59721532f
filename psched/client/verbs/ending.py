"""Ends schedules, stops their runs, and lets them run again."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from math import ceil, floor
from typing import ClassVar

from typing_extensions import override

from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
    NotSupportedError,
)
from psched.client.access import (
    Access,
    Condition,
    LostAnswers,
    read_row,
    refuse_template,
    replace,
    require,
    stored_key,
    was_requeued,
)
from psched.client.verbs import Verb, refuse_without_status
from psched.core.columns import When, plain_reason
from psched.core.declare import redeclare
from psched.core.definition import parse_row
from psched.core.model import (
    AFTER_RUN,
    BEING_DELETED,
    CANCELLED,
    CANCELLING,
    DELETING,
    ENDED,
    FINISHED,
    FINISHING,
    NO_PAUSE,
    PAUSED,
    QUARANTINED,
    RUNNING,
    STOPPING,
    Pause,
    ReasonCode,
    Row,
)
from psched.core.operations import pausing
from psched.core.operations.extra_runs import schedule_of
from psched.core.operations.skipping import refuse_ended

_CAN_CONTINUE = frozenset({QUARANTINED, PAUSED})
"""A row with one of these statuses keeps its ``next_time`` if it is requeued without a time."""


@dataclass(frozen=True)
class Requeue(Verb[bool]):
    """Let an ended, quarantined or paused schedule run again; see `Schedule.requeue`."""

    run_at: When | None = None

    name: ClassVar = "requeue"
    done: ClassVar = "requeued"
    states: ClassVar = ENDED | _CAN_CONTINUE
    unless_named: ClassVar = frozenset({FINISHED, CANCELLED})
    has_preview: ClassVar = True

    @override
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> bool:
        run_at, settings = self.run_at, access.settings

        def change(seen: Row) -> Row:
            require(only_if, seen)
            self.preview(access, seen)
            now = floor(access.store.now())
            if run_at is None and seen.status in _CAN_CONTINUE:
                aside = changed(seen, status=QUARANTINED)
                new = redeclare(aside, {}, settings, access.store.now)
            else:
                times = {"next_time": now if run_at is None else run_at}
                new = redeclare(seen, times, settings, access.store.now)
            return changed(new, created_at=now)

        replace(access, self.name, key, change, lambda row, _, written: was_requeued(row, written))
        return True

    @override
    def preview(self, access: Access, row: Row) -> bool:
        if row.status not in self.states:
            raise AlreadyExistsError(f"{row.key!r} has not ended: it is {row.state}")
        return True


@dataclass(frozen=True)
class Cancel(Verb[bool]):
    """Cancel a schedule, or mark a leased one to be cancelled later; see `Schedule.cancel`."""

    name: ClassVar = "cancel"
    done: ClassVar = "cancelled"
    ends: ClassVar = True

    @override
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> bool:
        return _end(access, self.name, key, CANCELLED, CANCELLING, only_if=only_if)


@dataclass(frozen=True)
class ForceFinish(Verb[bool]):
    """Finish a schedule, or mark a leased one to be finished; see `Schedule.force_finish`."""

    name: ClassVar = "force_finish"
    done: ClassVar = "finished"
    ends: ClassVar = True

    @override
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> bool:
        return _end(access, self.name, key, FINISHED, FINISHING, only_if=only_if)


@dataclass(frozen=True)
class Stop(Verb[bool]):
    """Stop the present run of a schedule; see `Schedule.stop`."""

    name: ClassVar = "stop"
    done: ClassVar = "stopped"
    later: ClassVar = "its run is being stopped"
    states: ClassVar = frozenset({RUNNING})

    @override
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> bool:
        refuse_without_status(access.settings)
        by, note = access.auditor.author.name, access.auditor.note

        def change(seen: Row) -> Row | None:
            require(only_if, seen)
            refuse_ended(seen)
            if seen.status == STOPPING:
                return None
            if seen.owner is None and seen.is_held(access.store.now()):
                what = f"what runs is an extra run of {key!r}; stop that one: psched stop '{key}!*'"
                raise AlreadyFinishedError(what)
            if seen.owner is None:
                raise AlreadyFinishedError(f"{key!r} does not run now: it is {seen.state}")
            because = f": {note}" if note else ""
            pause = seen.pause
            if pause is not None and pause.since is None:  # plain SQL has paused it
                told = pausing.note_of(by, seen.reason)
                pause = Pause(int(access.store.now()), pause.until, told)
            return changed(
                seen,
                status=STOPPING,
                reason=plain_reason(f"stopped by {by}{because}"),
                reason_code=ReasonCode.STOPPED,
                **(NO_PAUSE if pause is None else pause.columns),
            )

        def was_applied(row: Row, seen: Row, _written: Row) -> bool:
            is_over = row.owner is None or row.fence > seen.fence
            return row.version > seen.version and (row.status == STOPPING or is_over)

        replace(access, self.name, key, change, was_applied)
        return False


def delete(access: Access, key: str) -> bool:
    """Delete a row, or mark a leased row for deletion by its worker; see `Schedule.delete`."""
    if b"PSCHED_KEY" in os.environb and access.settings.store_kind.keeps_status:
        return _end(access, "delete", key, None, DELETING)
    lost = LostAnswers[Row | None]()
    seen: Row | None = None

    def request() -> bool:
        nonlocal seen
        try:
            if access.auditor.is_able:
                found = access.store.get(stored_key(key))
                # If an answer was lost, this may be the mark of the earlier try.
                if found is not None and not (lost and found.status in BEING_DELETED):
                    seen = found
            return lost.send(seen, partial(access.store.delete, stored_key(key)))
        except NotFoundError:
            if lost:
                return True  # the row was deleted by an earlier try, whose answer was lost
            raise

    is_deleted = access.send(request)
    before = seen or Row(key=key)
    after = None if is_deleted else changed(before, status=DELETING)
    access.auditor.record("delete", [(before, after)])
    _remove_rows_of_hosts(access, [(before, after)])
    return is_deleted


def _remove_rows_of_hosts(access: Access, done: Iterable[tuple[Row, Row | None]]) -> None:
    for before, after in done:
        if before.each_host and after is None:
            from psched.client.each_host import remove_rows  # noqa: PLC0415  # rarely needed

            remove_rows(access, before.key)


def _end(
    access: Access,
    action: str,
    key: str,
    status: str | None,
    mark: str,
    *,
    only_if: Condition | None = None,
) -> bool:
    """End a schedule, so that it has no next run; the status None deletes it.

    If its row is leased, the row is only marked, and the result is False; the worker that holds the
    lease then stops the task and ends the schedule.
    """
    lost = LostAnswers[tuple[Row, Row | None]]()
    done: list[tuple[Row, Row | None]] = []

    def request() -> bool | None:
        try:
            seen = read_row(access.store, key)
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
        new = _ended(access, seen, status, mark)
        write = seen, new
        if new is None:
            rests = lost.send(write, partial(access.store.delete, key))
            done.append((seen, None if rests else changed(seen, status=DELETING)))
            return rests
        replaced = lost.send(write, partial(access.store.replace, seen, new))
        done.extend([write] if replaced else [])
        return new.status == status if replaced else None

    while (rests := access.send(request)) is None:
        continue  # begin again, because the row was claimed, settled or changed meanwhile
    access.auditor.record(action, done)
    _remove_rows_of_hosts(access, done)
    return rests


def _ended(access: Access, seen: Row, status: str | None, mark: str) -> Row | None:
    """Return the ended row, or the marked row if it is leased; None if it must be deleted."""
    settings = access.settings
    if status is not None:
        refuse_template(seen)
    if not settings.store_kind.keeps_status:
        raise NotSupportedError(f"a store of type {settings.type} keeps no ended schedules")
    if seen.owner is not None:
        return changed(seen, status=AFTER_RUN[mark] if _is_of_own_task(seen) else mark)
    if _is_of_own_extra_run(seen) and seen.is_held(now := access.store.now()):
        # The row becomes due, so that it is claimed and ended when the hold has ended.
        return changed(seen, status=AFTER_RUN[mark], next_run_time=floor(now))
    if status is None:
        return None
    keep = seen.cron is not None
    try:
        retention = parse_row(seen, settings).settings.retention_time
    except InvalidError:
        retention = settings.retention_time
    if not keep and not retention:
        return None
    return changed(
        seen,
        status=status,
        next_run_time=None,
        reason=None,
        retain_until=None if keep else ceil(access.store.now()) + retention,
    )


def _is_of_own_task(row: Row) -> bool:
    """Whether this process belongs to the task that holds a row's lease."""
    key = os.environb.get(b"PSCHED_KEY", b"").decode(errors="replace")
    return row.key == key and os.environb.get(b"PSCHED_FENCE") == b"%d" % row.fence


def _is_of_own_extra_run(row: Row) -> bool:
    """Whether this process belongs to an extra run of a schedule."""
    return schedule_of(os.environb.get(b"PSCHED_KEY", b"").decode(errors="replace")) == row.key
