"""Pauses and resumes schedules, and stops their runs."""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed

from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    NotFoundError,
    NotSupportedError,
)
from psched.client.auditor import Auditor
from psched.client.lost_answers import was_replaced
from psched.client.operations.skipped_records import records_of
from psched.client.writer import Condition, Recorded, Writer, require
from psched.config import Config
from psched.core.columns import plain_reason
from psched.core.history.why.asked_time import parse_next
from psched.core.model import (
    BEING_DELETED,
    ENDED,
    ENDING,
    NO_PAUSE,
    PAUSED,
    RUNNING,
    STOPPING,
    WAITING,
    Pause,
    ReasonCode,
    Row,
)
from psched.core.operations import pausing
from psched.core.shorthands import Until
from psched.core.store_protocol import Store

CAN_BE_PAUSED = frozenset({WAITING, RUNNING, PAUSED, STOPPING})
"""The states of rows that can be paused."""

CAN_BE_RESUMED = frozenset({PAUSED})
"""The states of rows that can be resumed."""


@dataclass(frozen=True, slots=True)
class Pauser:
    """Pauses and resumes the schedules of one store, and stops their runs.

    Attributes:
        store: the store that contains the schedules.
        settings: the installation's settings.
        auditor: knows who makes the changes, and why.
        writer: makes the changes.
        draw_nonce: returns a new random text at each call.
    """

    store: Store
    settings: Config
    auditor: Auditor
    writer: Writer
    draw_nonce: Callable[[], str]

    def pause(self, key: str, until: Until | None, only_if: Condition | None = None) -> bool:
        """Pause a schedule; see `Schedule.pause`."""
        self._refuse_without_status()
        rests = True

        def change(seen: Row) -> Row:
            nonlocal rests
            require(only_if, seen)
            _refuse_ended(seen)
            if seen.state not in CAN_BE_PAUSED:
                raise AlreadyExistsError(f"{key!r} cannot be paused: it is {seen.status}")
            now, zone = self.store.now(), pausing.zone_of(seen, self.settings)
            # The pause lasts since the first time, if it is only prolonged or explained anew.
            since = (None if seen.pause is None else seen.pause.since) or int(now)
            end = None if until is None else parse_next("until", until, zone, now)
            note = pausing.note_of(self.auditor.author.name, self.auditor.note)
            rests = seen.owner is None
            return pausing.paused(seen, Pause(since, end, note), zone)

        def was_applied(row: Row, _seen: Row, written: Row) -> bool:
            return row.pause == written.pause

        self.writer.replace("pause", key, change, was_applied)
        return rests

    def resume(self, key: str, *, backfill: bool, only_if: Condition | None = None) -> None:
        """Resume a paused schedule; see `Schedule.resume`."""
        self._refuse_without_status()
        owner = self.draw_nonce()

        def change(seen: Row) -> Row | Recorded:
            require(only_if, seen)
            _refuse_ended(seen)
            if seen.status == STOPPING and seen.pause is not None:
                return changed(seen, **NO_PAUSE)
            if seen.status != PAUSED:
                raise AlreadyExistsError(f"{key!r} is not paused: it is {seen.state}")
            now = self.store.now()
            row, skipped = pausing.resumed(seen, self.settings, now, backfill=backfill)
            host = self.auditor.author.host
            spans = () if skipped is None else (skipped,)
            records = records_of(
                self.store, self.settings, seen, spans, owner=owner, host=host, now=now
            )
            return Recorded(row, records)

        def was_applied(row: Row, seen: Row, written: Row) -> bool:
            return row.status != PAUSED and was_replaced(row, seen, written)

        self.writer.replace("resume", key, change, was_applied)

    def stop(self, key: str, only_if: Condition | None = None) -> bool:
        """Stop the present run of a schedule; see `Schedule.stop`."""
        self._refuse_without_status()

        def change(seen: Row) -> Row | None:
            require(only_if, seen)
            _refuse_ended(seen)
            if seen.status == STOPPING:
                return None
            if seen.owner is None and seen.is_held(self.store.now()):
                what = f"what runs is an extra run of {key!r}; stop that one: psched stop '{key}!*'"
                raise AlreadyFinishedError(what)
            if seen.owner is None:
                raise AlreadyFinishedError(f"{key!r} does not run now: it is {seen.state}")
            by, note = self.auditor.author.name, self.auditor.note
            because = f": {note}" if note else ""
            pause = seen.pause
            if pause is not None and pause.since is None:  # plain SQL has paused it
                told = pausing.note_of(by, seen.reason)
                pause = Pause(int(self.store.now()), pause.until, told)
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

        self.writer.replace("stop", key, change, was_applied)
        return False

    def _refuse_without_status(self) -> None:
        if not self.settings.store_kind.keeps_status:
            raise NotSupportedError(
                f"a store of type {self.settings.type} keeps no status, so it has no pauses"
            )


def _refuse_ended(row: Row) -> None:
    if row.status in BEING_DELETED:
        raise NotFoundError(f"the schedule {row.key!r} is being deleted")
    if row.status in ENDED:
        raise AlreadyFinishedError(f"{row.key!r} has ended already: it is {row.status}")
    if row.status in ENDING:
        raise AlreadyFinishedError(f"{row.key!r} is about to end: it is {row.status}")
