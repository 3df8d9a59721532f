"""What is known about a schedule: its row, records, changes and workers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import cached_property
from typing import Any

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.definition import Definition, parse_row
from psched.core.history.changes import changes_trigger, time_of, values
from psched.core.history.records import AuditRecord, RunRecord, WorkerRecord
from psched.core.model import Row
from psched.triggers.trigger import Trigger
from psched.triggers.zone import Zone, find_zone

_OLDEST = 40 * 366 * 86_400
"""How far before an instant an earlier occurrence is searched, in seconds."""

_MOST_CHANGES = 10_000
"""How many occurrences are computed in the search for an earlier one. A trigger with so many in a
window of the search has an occurrence in the window before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Then:
    """The definition that a schedule had at an instant.

    Attributes:
        definition: the definition; None if it was invalid, or not known.
        problem: why it was invalid; None if it was valid.
        until: the first later change of the trigger; None if the trigger has not been changed.
        added: the change that has added the schedule, if that was later than the instant.
    """

    definition: Definition | None
    problem: str | None = None
    until: AuditRecord | None = None
    added: AuditRecord | None = None

    @property
    def trigger(self) -> Trigger | None:
        """The trigger; None if there was none."""
        return None if self.definition is None else self.definition.trigger


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known about a schedule and its occurrences.

    Attributes:
        key: the key of the schedule.
        row: the schedule as it is stored now; None if it does not exist.
        settings: the settings of the installation.
        now: the present time of the store's clock.
        no_history: why the store keeps no history; None if it keeps it.
        audits: the changes of the schedule, the newest first.
        latest: the last records of the schedule, the newest first.
        workers_since: returns the workers that were alive at this time or later, in Unix seconds.
        covering: returns the records about the occurrence at an instant, the newest first.
        extra_runs: returns the last records of the schedule's extra runs, the newest first.
        backfilled: returns the records of the extra run by which a backfill repeats the occurrence
            at an instant, the newest first.
        oldest: returns the oldest record of the schedule, and how many there are.
        ran_between: returns the records of all attempts, of any schedule, that ended after the
            first time and began before the second; None if there are too many. In Unix seconds.
        leased: returns the rows that are leased now, of any key.
        similar_keys: returns keys of schedules that are spelled like this one.
    """

    key: str
    row: Row | None
    settings: Config
    now: float
    no_history: str | None
    audits: Sequence[AuditRecord] = ()
    latest: Sequence[RunRecord] = ()
    workers_since: Callable[[int], Sequence[WorkerRecord]] = lambda _since: ()
    covering: Callable[[int], Sequence[RunRecord]] = lambda _instant: ()
    extra_runs: Callable[[], Sequence[RunRecord]] = lambda: ()
    backfilled: Callable[[int], Sequence[RunRecord]] = lambda _instant: ()
    oldest: Callable[[], tuple[RunRecord | None, int]] = lambda: (None, 0)
    ran_between: Callable[[float, float], Sequence[RunRecord] | None] = lambda _a, _b: ()
    leased: Callable[[], Sequence[Row]] = lambda: ()
    similar_keys: Callable[[], Sequence[str]] = lambda: ()

    @cached_property
    def present(self) -> Then:
        """The present definition."""
        return self._parsed({})

    @property
    def definition(self) -> Definition | None:
        """The present definition; None if the row is invalid, or does not exist."""
        return self.present.definition

    @cached_property
    def history(self) -> str:
        """The setting ``history`` that applies to the schedule."""
        return (self.settings if self.definition is None else self.definition.settings).history

    def zone(self, name: str | Zone | None = None) -> Zone:
        """The zone of that name; for None, that of the schedule, else that of the installation."""
        if isinstance(name, Zone):
            return name
        if name is not None:
            return find_zone(name)
        stored = None if self.row is None else self.row.timezone
        try:
            return find_zone(stored or self.settings.timezone)
        except InvalidError:
            return find_zone(self.settings.timezone)

    def at(self, instant: int) -> Then:
        """The definition at an instant, as far as the recorded changes tell."""
        columns: dict[str, Any] = {}
        until: AuditRecord | None = None
        for each in self.audits:
            if time_of(each) <= instant:
                break
            before = values(each.before)
            if each.before is None and each.after is not None:
                first = values(each.after).get("next_time")
                if isinstance(first, int) and first <= instant:
                    break  # it was added with occurrences in the past
                return Then(definition=None, until=until, added=each)
            if changes_trigger(each):
                until = each
            columns |= {name: before[name] for name in _DEFINING if name in before}
        if not columns:
            return changed(self.present, until=until)
        return changed(self._parsed(columns), until=until)

    def _parsed(self, columns: Mapping[str, Any]) -> Then:
        if self.row is None:
            return Then(definition=None)
        options = columns.get("options", self.row.options)
        if isinstance(options, Mapping):
            columns = {**columns, "options": json.dumps(options)}
        try:
            return Then(definition=parse_row(changed(self.row, **columns), self.settings))
        except (InvalidError, TypeError) as error:
            return Then(definition=None, problem=str(error))


_DEFINING = ("type", "cron", "timezone", "delay", "options")
"""The columns that decide when a schedule runs, and on which workers."""


def fires(trigger: Trigger | None, instant: int) -> bool:
    """Whether an instant is one of the trigger's times."""
    return trigger is not None and trigger.next_after(instant - 1) == instant


def last_before(trigger: Trigger, instant: int, *, least: int = 0) -> int | None:
    """The trigger's last time before an instant; None if there is none since ``least``.

    Triggers only search forward. So the search begins shortly before the instant, and goes back in
    windows that double in size.
    """
    least = max(least, instant - _OLDEST, 0)
    end, span = instant, 60
    while end > least:
        start = max(instant - span, least)
        found = trigger.next_after(start - 1)
        if found is not None and found < end:
            for _ in range(_MOST_CHANGES):
                following = trigger.next_after(found)
                if following is None or following >= end:
                    return found
                found = following
        end, span = start, 2 * span
    return None
