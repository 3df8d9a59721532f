"""Standing rules that pause a type, or everything: no worker claims rows of that type meanwhile.

A rule also holds rows that are added later. It ends at its time ``until``; `psched resume` sets
that time to the present one. A rule that has ended stays stored for `KEPT` seconds, because a
worker may still find rows that fell due while it held. The worker skips these occurrences, and
records a span of the fate ``skipped_paused``; see `skipped_by_pause`.

A rule holds from its second ``since`` until before its second ``until``. An occurrence belongs to a
pause if it fell due in these seconds, that is after ``delay`` and jitter.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, NamedTuple, Protocol, Self

from psched.base.texts import cut
from psched.config import Config
from psched.core.definition import Definition
from psched.core.history.records import Fate, Skipped
from psched.core.model import WAITING, Pause, Row
from psched.core.operations.pausing import describe, note_of, paused, span_of, zone_of
from psched.core.store_protocol import Store
from psched.triggers.trigger import Trigger, first
from psched.triggers.zone import Zone, find_zone

KEPT = 7 * 86_400
"""For so many seconds, a rule that has ended stays stored."""

LONGEST_NOTE = 200
"""The most characters of `PauseRule.note`. The audit trail contains the whole note."""

_LONGEST_TYPE = 60
"""The most characters of a type in a text for people."""

UTC = find_zone("UTC")

_MOST_DELAYED = 100
"""How many occurrences are examined in the search for the first one that falls due after a pause,
because ``jitter`` can delay some of them until after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRule:
    """A pause of a type, or of everything.

    Attributes:
        id: a text that no other rule has: letters and digits.
        type: the type; None means every type.
        since: since when the rule holds, in Unix seconds of the store's clock.
        until: when the rule ends, in Unix seconds; None means that only `psched resume` ends it.
        by: who has paused the type, such as ``ann@web1``.
        note: why, in the words of who has paused it; None if nothing was said.
    """

    id: str
    type: str | None
    since: int
    until: int | None = None
    by: str
    note: str | None = None

    def holds(self, now: float) -> bool:
        """Whether the rule holds at a time."""
        return self.until is None or self.until > int(now)

    def covers(self, type_: str) -> bool:
        """Whether the rule is about rows of this type."""
        return self.type is None or self.type == type_

    @property
    def what(self) -> str:
        """What is paused, such as ``type mail`` or ``everything``."""
        return "everything" if self.type is None else f"type {cut(self.type, _LONGEST_TYPE)}"

    @property
    def pause(self) -> Pause:
        """The rule as the pause of a row."""
        return Pause(self.since, self.until, note_of(f"{self.by} ({self.what})", self.note))

    def reason(self, zone: Zone) -> str:
        """The rule in the words of a paused row, with its times in a zone."""
        return describe(self.pause, zone)

    def to_json(self) -> dict[str, Any]:
        """The rule as a JSON object, without what is None."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, stored: object) -> Self | None:
        """The rule in a JSON object; None if the object is none.

        What a later version of psched has added is ignored.
        """
        if not isinstance(stored, dict):
            return None
        known = {each.name: stored.get(each.name) for each in fields(cls)}
        texts = [known["id"], known["by"]]
        optional = [known["type"], known["note"]]
        if not all(isinstance(each, str) for each in texts):
            return None
        if not all(each is None or isinstance(each, str) for each in optional):
            return None
        if type(known["since"]) is not int or type(known["until"]) not in {int, type(None)}:
            return None
        return cls(**known)  # type: ignore[arg-type]  # just checked


class PausesTypes(Protocol):
    """The attribute ``pauses`` of a `psched.core.store_protocol.Store`, which obeys these rules.

    `Store.claim` leases no row of a type that a stored rule pauses at that time, and does not
    return its time as ``next_due``; `Store.backlog` leaves it out. A rule takes effect with
    the next claim that begins after the rule was stored. `HoldsSchedules.hold` ignores rules.
    """

    def pause_rules(self) -> Sequence[PauseRule]:
        """The stored rules: those that hold, and those that have ended. Their order is arbitrary.

        A rule that cannot be understood is left out.
        """

    def change_pause_rules(self, *, drop: Sequence[str], store: Sequence[PauseRule]) -> None:
        """Delete the rules with the ids ``drop``, if they exist, and store others, all or nothing.

        A rule with the same id is replaced. The call can be repeated.
        """


def rules_of(stored: str | bytes | None) -> Sequence[PauseRule]:
    """The rules in a JSON list of them, which stores without a table for rules keep."""
    try:
        found = json.loads(stored) if stored else []
    except (ValueError, RecursionError):
        return []
    if not isinstance(found, list):
        return []
    return [rule for each in found if (rule := PauseRule.from_json(each)) is not None]


class PastPause(NamedTuple):
    """A time during which a type was paused: from ``since`` to before ``until``.

    The reason says by whom and why, as in the row of a paused schedule.
    """

    since: int
    until: int
    reason: str


def past_pauses(rules: Iterable[PauseRule], type_: str, now: float) -> tuple[PastPause, ...]:
    """The pauses of a type that are over, the earliest first; those that overlap are one."""
    found = list[PastPause]()
    over = [
        (rule.since, rule.until, rule)
        for rule in rules
        if rule.covers(type_) and rule.until is not None and rule.since < rule.until <= int(now)
    ]
    for since, until, rule in sorted(over, key=lambda each: each[:2]):
        if found and since <= found[-1].until:
            found[-1] = found[-1]._replace(until=max(until, found[-1].until))
        else:
            found.append(PastPause(since, until, rule.reason(UTC)))
    return tuple(found)


def active_rules(rules: Iterable[PauseRule], type_: str, now: float) -> list[PauseRule]:
    """The rules that pause a type now: first those of the type, then those of everything."""
    found = [rule for rule in rules if rule.covers(type_) and rule.holds(now)]
    return sorted(found, key=lambda rule: (rule.type is None, rule.since, rule.id))


def as_paused(row: Row, rules: Iterable[PauseRule], zone: Zone, now: float) -> Row:
    """A row as it is shown to people: if its type is paused, as if the row itself were paused.

    A row that runs, or that does not wait, stays as it is.
    """
    if row.status != WAITING or row.owner is not None:
        return row
    found = active_rules(rules, row.type, now)
    if not found:
        return row
    last = max(found, key=lambda rule: (rule.until is None, rule.until or 0))
    return paused(row, last.pause, zone)


@dataclass(frozen=True, slots=True)
class ShownAsPaused:
    """Changes rows of the types that rules pause now as people see them, see `as_paused`."""

    rules: Sequence[PauseRule]
    settings: Config
    now: float

    def __call__(self, row: Row) -> Row:
        """The row as people see it."""
        if not self.rules:
            return row
        return as_paused(row, self.rules, zone_of(row, self.settings), self.now)


def may_be_skipped(row: Row, now: float) -> bool:
    """Whether a row that was claimed may have fallen due during a pause of its type.

    That needs a schedule that is late by more than a second, and that was not tried before.
    """
    if row.cron is None or row.next_time is None or row.attempt != 1:
        return False
    return row.next_time + row.delay < now - 1


def skipped_by_pause(
    definition: Definition, trigger: Trigger, cursor: int, pauses: Sequence[PastPause]
) -> tuple[int | None, Skipped] | None:
    """Which occurrences of a schedule fell due during a pause of its type, from its cursor on.

    The result is the first occurrence after the pause, if there is one, and those before it; None
    if the cursor's occurrence did not fall due during a pause.
    """
    due = definition.first_run(cursor)
    pause = next((each for each in pauses if each.since <= due < each.until), None)
    if pause is None:
        return None
    kept = _first_due_after(definition, trigger, cursor, pause.until)
    end, fate = pause.until if kept is None else kept, Fate.SKIPPED_PAUSED
    return kept, span_of(trigger, definition, cursor, end, fate, reason=pause.reason)


def _first_due_after(
    definition: Definition, trigger: Trigger, cursor: int, until: int
) -> int | None:
    """The first occurrence after the cursor that falls due at an instant or later."""
    surely = until - definition.delay
    found = first(trigger, max(cursor + 1, surely - definition.settings.jitter))
    for _ in range(_MOST_DELAYED):
        if found is None or definition.first_run(found) >= until:
            return found
        found = trigger.next_after(found)
    return first(trigger, max(cursor + 1, surely))


_VALID = 1.0
"""Rules are read again if they were read more than this many seconds before a claim."""


class PauseReader:
    """Reads the standing rules of pauses, when rows are claimed that may have been held by one.

    An idle worker reads no rules, because the claim itself leaves out rows of paused types.
    """

    def __init__(self, store: Store) -> None:
        self._stored = store.pauses
        self._rules: Sequence[PauseRule] = ()
        self._read_at = -inf

    def is_outdated(self, rows: Sequence[Row], now: float) -> bool:
        """Whether `read` must be called before `pauses` of these rows."""
        return any(self.is_unsure(row, now) for row in rows)

    def is_unsure(self, row: Row, now: float) -> bool:
        """Whether it is unknown if a row that was claimed fell due during a pause."""
        if self._stored is None or not may_be_skipped(row, now):
            return False
        # A rule that seems to hold has ended since it was read: its row has been claimed.
        return not now - _VALID <= self._read_at <= now or bool(
            active_rules(self._rules, row.type, now)
        )

    def read(self, now: float) -> None:
        """Read the rules."""
        if self._stored is not None:
            self._rules = self._stored.pause_rules()
            self._read_at = now

    def pauses(self, row: Row, now: float) -> tuple[PastPause, ...]:
        """The pauses of a row's type that are over and can have held the row."""
        return past_pauses(self._rules, row.type, now) if may_be_skipped(row, now) else ()
