"""Pauses and resumes schedules, and types of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from typing import ClassVar

from typing_extensions import override

from psched.base.errors import AlreadyExistsError, NotSupportedError
from psched.client.access import Access, Condition, Recorded, replace, require, was_replaced
from psched.client.verbs import Verb, records_of, refuse_without_status
from psched.core.asked_time import parse_next
from psched.core.catchup import iso
from psched.core.columns import Until, check_name
from psched.core.model import NO_PAUSE, PAUSED, RUNNING, STOPPING, WAITING, Row
from psched.core.model import Pause as RowPause
from psched.core.operations import pausing
from psched.core.operations.pauses import KEPT, LONGEST_NOTE, PauseRule, PausesTypes
from psched.core.operations.skipping import refuse_ended
from psched.triggers.zone import find_zone

EVERYTHING = "*"
"""The key under which the audit trail contains a pause of everything. That of a type is ``type:``
and the type."""

_LONGEST_KEY = 255
"""The most characters of a key in the audit trail."""

_ID_LENGTH = 16


@dataclass(frozen=True)
class Pause(Verb[bool]):
    """Pause a schedule; see `Schedule.pause`."""

    until: Until | None = None

    name: ClassVar = "pause"
    done: ClassVar = "paused"
    after: ClassVar = "ended"
    states: ClassVar = frozenset({WAITING, RUNNING, PAUSED, STOPPING})

    @override
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> bool:
        refuse_without_status(access.settings)
        by = pausing.note_of(access.auditor.author.name, access.auditor.note)
        rests = True

        def change(seen: Row) -> Row:
            nonlocal rests
            require(only_if, seen)
            refuse_ended(seen)
            if seen.state not in self.states:
                raise AlreadyExistsError(f"{key!r} cannot be paused: it is {seen.status}")
            now, zone = access.store.now(), pausing.zone_of(seen, access.settings)
            # The pause lasts since the first time, if it is only prolonged or explained anew.
            since = (None if seen.pause is None else seen.pause.since) or int(now)
            end = None if self.until is None else parse_next("until", self.until, zone, now)
            rests = seen.owner is None
            return pausing.paused(seen, RowPause(since, end, by), zone)

        def was_applied(row: Row, _seen: Row, written: Row) -> bool:
            return row.pause == written.pause

        replace(access, self.name, key, change, was_applied)
        return rests


@dataclass(frozen=True)
class Resume(Verb[bool]):
    """Resume a paused schedule; see `Schedule.resume`."""

    backfill: bool = False

    name: ClassVar = "resume"
    done: ClassVar = "resumed"
    states: ClassVar = frozenset({PAUSED})

    @override
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> bool:
        refuse_without_status(access.settings)
        owner = access.draw_nonce()

        def change(seen: Row) -> Row | Recorded:
            require(only_if, seen)
            refuse_ended(seen)
            if seen.status == STOPPING and seen.pause is not None:
                return changed(seen, **NO_PAUSE)
            if seen.status != PAUSED:
                raise AlreadyExistsError(f"{key!r} is not paused: it is {seen.state}")
            now = access.store.now()
            row, skipped = pausing.resumed(seen, access.settings, now, backfill=self.backfill)
            spans = () if skipped is None else (skipped,)
            return Recorded(row, records_of(access, seen, spans, owner=owner, now=now))

        def was_applied(row: Row, seen: Row, written: Row) -> bool:
            return row.status != PAUSED and was_replaced(row, seen, written)

        replace(access, self.name, key, change, was_applied)
        return True


# --- types, and everything ---------------------------------------------------------------


def pause_type(access: Access, type_: str | None, until: Until | None) -> PauseRule:
    """Pause a type, or everything; see `ScheduleCollection.pause_type`."""
    store = _pausing(access)
    if type_ is not None:
        check_name("type", type_)
    now = access.send(access.store.now)
    end = None
    if until is not None:
        end = parse_next("until", until, find_zone(access.settings.timezone), now)
    rules = access.send(store.pause_rules)
    former = [rule for rule in rules if rule.type == type_ and rule.holds(now)]
    note = access.auditor.note
    rule = PauseRule(
        id=_id_of(access.draw_nonce()),
        type=type_,
        # The pause lasts since the first time, if it is only prolonged or explained anew.
        since=min((rule.since for rule in former), default=int(now)),
        until=end,
        by=access.auditor.author.name,
        note=None if note is None else note[:LONGEST_NOTE],
    )
    drop = [each.id for each in (*former, *_forgotten(rules, now))]
    access.send(partial(store.change_pause_rules, drop=drop, store=[rule]))
    about = {"until": None if end is None else iso(end)}
    access.auditor.record_about("pause", _key_of(type_), about)
    return rule


def resume_type(access: Access, type_: str | None, *, backfill: bool) -> None:
    """End the pause of a type, or of everything; see `ScheduleCollection.resume_type`."""
    store = _pausing(access)
    now = access.send(access.store.now)
    rules = access.send(store.pause_rules)
    held = [rule for rule in rules if rule.type == type_ and rule.holds(now)]
    if not held:
        raise AlreadyExistsError(_not_paused(type_, [r for r in rules if r.holds(now)]))
    # The workers skip what fell due before the end of a rule that is stored.
    ended = [
        changed(rule, until=int(now)) for rule in held if not backfill and rule.since < int(now)
    ]
    drop = [each.id for each in (*held, *_forgotten(rules, now))]
    access.send(partial(store.change_pause_rules, drop=drop, store=ended))
    access.wake()
    access.auditor.record_about("resume", _key_of(type_), {"backfill": backfill})


def _pausing(access: Access) -> PausesTypes:
    if access.store.pauses is None:
        raise NotSupportedError(
            f"a store of type {access.settings.type} cannot pause types; pause each schedule"
        )
    return access.store.pauses


def _id_of(nonce: str) -> str:
    return "".join(each for each in nonce if each.isalnum())[-_ID_LENGTH:]


def _forgotten(rules: Sequence[PauseRule], now: float) -> list[PauseRule]:
    """The rules that have ended long ago, so that no row is left that they have held."""
    return [rule for rule in rules if rule.until is not None and rule.until < now - KEPT]


def _key_of(type_: str | None) -> str:
    return EVERYTHING if type_ is None else f"type:{type_}"[:_LONGEST_KEY]


def _not_paused(type_: str | None, others: Sequence[PauseRule]) -> str:
    what = "everything" if type_ is None else f"the type {type_!r}"
    text = f"{what} is not paused"
    if others:
        text += f"; paused are {', '.join(sorted({rule.what for rule in others}))}"
    return text + " (schedules that are paused one by one are resumed by their keys)"
