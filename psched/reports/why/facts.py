"""What is known about a schedule and one occurrence: the row, records, changes and workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from difflib import get_close_matches
from functools import cached_property

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.definition import Definition, parse_row
from psched.core.history.answer import Answer, Code, State
from psched.core.history.changes import changes_trigger, number_in, row_before, time_of
from psched.core.history.protocol import AuditSelection, KeepsHistory, RunSelection
from psched.core.history.records import AuditRecord, RunRecord, WorkerRecord
from psched.core.model import RUNNING, Row
from psched.core.operations.extra_runs import extra_key, id_of_instant
from psched.core.operations.pauses import as_paused
from psched.core.operations.pausing import zone_of
from psched.core.selection import Selection
from psched.core.store_protocol import Send, Store
from psched.triggers.trigger import Trigger
from psched.triggers.zone import LATEST, Zone, find_zone

_OLDEST = 40 * 366 * 86_400
"""How far before an instant an earlier occurrence is searched, in seconds."""

_MOST_CHANGES = 10_000
"""How many occurrences are computed in the search for an earlier one. A trigger with so many in a
window of the search has an occurrence in the window before it."""

_COVERING = 100
"""The most records about one occurrence that are read, the newest."""

_LATEST = 10
"""How many of the last records of the schedule are read."""

_AUDITS = 1000
"""The most changes of the schedule that are read, the newest."""

_OF_KEY = 5000
"""The most records of a schedule that are read to find its oldest one."""

_OF_ALL = 10_000
"""The most records of all schedules that are read to find out which slots were busy."""

_LEASED = 1000
"""The most leased rows that are read to find out which slots are busy."""

_OUT_OF_ORDER = 60
"""Records are stored in the order of their ends, except for differences up to so many seconds."""

_SIMILAR = 300
"""The most rows that are read to find keys that are spelled like the one that does not exist."""

_LONGEST_SIMILAR = 40
"""The most characters of keys that are compared. For the worst keys, the time grows with the third
power of their lengths: it would be a minute for those that are as long as keys can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Then:
    """The definition that a schedule had at an instant, as far as it is known.

    ``problem`` says why it was invalid. ``until`` is the first later change of the trigger;
    ``added`` is the change that has added the schedule, if that was later than the instant.
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
    """What is known about a schedule; what not every answer needs is read when it is asked for."""

    store: Store  # the store; the run history is read only if ``no_history`` is None
    send: Send
    key: str
    row: Row | None  # the schedule as it is stored now; None if it does not exist
    settings: Config  # the settings of the installation
    now: float  # the present time of the store's clock
    no_history: str | None  # why the store keeps no history; None if it keeps it
    audits: Sequence[AuditRecord] = ()  # the changes of the schedule, the newest first
    latest: Sequence[RunRecord] = ()  # the last records of the schedule, the newest first

    # --- what is defined ---

    @cached_property
    def present(self) -> Then:
        """The present definition."""
        return self._parsed(self.row)

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
        if name is None and self.row is not None:
            return zone_of(self.row, self.settings)
        return find_zone(self.settings.timezone if name is None else name)

    def at(self, instant: int) -> Then:
        """The definition at an instant, as far as the recorded changes tell."""
        row = self.row
        until: AuditRecord | None = None
        for each in self.audits:
            if time_of(each) <= instant:
                break
            if each.before is None and each.after is not None:
                first = number_in(each.after, "next_time")
                if first is not None and first <= instant:
                    break  # it was added with occurrences in the past
                return Then(definition=None, until=until, added=each)
            if changes_trigger(each):
                until = each
            row = None if row is None else row_before(row, each)
        then = self.present if row == self.row else self._parsed(row)
        return changed(then, until=until)

    def _parsed(self, row: Row | None) -> Then:
        if row is None:
            return Then(definition=None)
        try:
            return Then(definition=parse_row(row, self.settings))
        except (InvalidError, TypeError) as error:
            return Then(definition=None, problem=str(error))

    # --- what is recorded, the newest first ---

    def covering(self, instant: int) -> Sequence[RunRecord]:
        """The records about the occurrence at an instant."""
        return self._runs(RunSelection(key=self.key, covering=instant, limit=_COVERING))

    def extra_runs(self) -> Sequence[RunRecord]:
        """The last records of the schedule's extra runs."""
        found = self._runs(RunSelection(key=self.key, with_extra_runs=True, limit=_LATEST))
        return [each for each in found if each.key != self.key]

    def backfilled(self, instant: int) -> Sequence[RunRecord]:
        """The records of the extra run by which a backfill repeats the occurrence at an instant."""
        try:
            key = extra_key(self.key, id_of_instant(instant))
        except InvalidError:
            return ()  # a schedule with so long a key has no extra runs
        return self._runs(RunSelection(key=key, limit=_LATEST))

    def shown_with(self, instant: int) -> RunRecord | None:
        """The record of the attempt that started in this second, or of what was decided then."""
        selection = RunSelection(
            key=self.key, with_extra_runs=True, since=instant * 1000, limit=_OF_KEY
        )
        for each in self._runs(selection):
            if each.began // 1000 == instant:
                return each
        return None

    def oldest(self) -> tuple[RunRecord | None, int]:
        """The oldest record of the schedule, and how many there are."""
        found = self._runs(RunSelection(key=self.key, limit=_OF_KEY))
        return (found[-1] if found else None), len(found)

    def workers_since(self, since: int) -> Sequence[WorkerRecord]:
        """The workers that were alive at this time or later, in Unix seconds."""
        if (history := self._history) is None:
            return ()
        # A row that another client has written can have a time that no column can store.
        return self.send(lambda: history.workers(max(0, since)))

    def ran_between(self, start: float, end: float) -> Sequence[RunRecord] | None:
        """The records of the attempts, of any schedule, that overlap a time in Unix seconds.

        There can also be some that ended a little earlier. None if they are too many.
        """
        if (history := self._history) is None:
            return ()

        def read() -> Sequence[RunRecord] | None:
            found = list[RunRecord]()
            # The newest record is first, and the records are nearly in the order of their ends.
            for number, record in enumerate(history.runs(RunSelection(limit=_OF_ALL)), 1):
                if record.ended < (start - _OUT_OF_ORDER) * 1000:
                    return found
                if number == _OF_ALL:
                    return None
                if record.started is not None and record.started < end * 1000:
                    found.append(record)
            return found

        return self.send(read)

    @property
    def _history(self) -> KeepsHistory | None:
        return None if self.no_history else self.store.history

    def _runs(self, selection: RunSelection) -> Sequence[RunRecord]:
        if (history := self._history) is None:
            return ()
        return self.send(lambda: [*history.runs(selection)])

    # --- other rows ---

    @cached_property
    def leased(self) -> Sequence[Row]:
        """The rows that are leased now, of any key."""
        if self._history is None:
            return ()
        return self._rows(Selection(statuses=frozenset({RUNNING}), limit=_LEASED))

    def similar_keys(self) -> Sequence[str]:
        """Keys that are spelled like this one: those with its beginning, or the first ones."""
        key, found = self.key, dict[str, None]()
        if len(key) > _LONGEST_SIMILAR:
            return []
        for prefix in (key[:2], ""):
            selection = Selection(prefix=prefix, limit=_SIMILAR, by_key=True)
            found |= dict.fromkeys(row.key for row in self._rows(selection))
        short = (each for each in found if len(each) <= _LONGEST_SIMILAR)
        return get_close_matches(key, short, n=3)

    def _rows(self, selection: Selection) -> Sequence[Row]:
        return self.send(lambda: [*self.store.rows(selection)])


def read_facts(store: Store, settings: Config, send: Send, key: str, row: Row | None) -> Facts:
    """Read what every answer needs."""
    now = send(store.now)
    if row is not None and store.pauses is not None:
        rules = send(store.pauses.pause_rules)
        row = as_paused(row, rules, zone_of(row, settings), now)
    facts = Facts(
        store=store,
        send=send,
        key=key,
        row=row,
        settings=settings,
        now=now,
        no_history="a store of this kind keeps none",
    )
    history = store.history
    if history is None:
        return facts
    if (problem := send(history.problem)) is not None:
        return changed(facts, no_history=problem)
    changes, runs = AuditSelection(key=key, limit=_AUDITS), RunSelection(key=key, limit=_LATEST)
    return changed(
        facts,
        no_history=None,
        audits=send(lambda: [*history.audits(changes)]),
        latest=send(lambda: [*history.runs(runs)]),
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """The question what became of an occurrence."""

    facts: Facts
    zone: Zone  # the zone of the times in the answer
    instant: int  # the scheduled time of the occurrence, in Unix seconds

    @cached_property
    def then(self) -> Then:
        """The definition at the time of the occurrence."""
        return self.facts.at(self.instant)

    @property
    def definition(self) -> Definition | None:
        """The definition at the time of the occurrence, or else the present one."""
        return self.then.definition or self.facts.definition

    @property
    def cursor(self) -> int | None:
        """The scheduled time of the occurrence that is due or running next."""
        return None if self.facts.row is None else self.facts.row.next_time

    @property
    def once(self) -> bool:
        """Whether the schedule has only one occurrence."""
        return self.facts.row is not None and self.facts.row.cron is None

    @cached_property
    def records(self) -> Sequence[RunRecord]:
        """The records about the occurrence, the newest first.

        A span also covers times between its occurrences. So it counts only if the trigger has an
        occurrence at the time.
        """
        return [
            each
            for each in self.facts.covering(self.instant)
            if each.scheduled_time == self.instant
            or self.facts.row is None
            or fires(self.then.trigger, self.instant)
        ]

    @property
    def attempts(self) -> Sequence[RunRecord]:
        """The records of the attempts, in order."""
        return sorted(
            (each for each in self.records if each.outcome is not None),
            key=lambda each: (each.started or each.ended, each.fence),
        )

    @property
    def run_from(self) -> int:
        """When the occurrence could start at the earliest: after the delay and the jitter."""
        if self.definition is None:
            return self.instant
        return self.definition.first_run(self.instant)

    def date_time(self, instant: float) -> str:
        """A time with its date."""
        return shown_time(self.zone, instant)

    def time(self, instant: float) -> str:
        """A time in a sentence that begins with the time of the occurrence."""
        return shown_time(self.zone, instant, self.instant)

    def span(self, start: float, end: float) -> str:
        """Two times, such as ``2026-11-22 02:00 CET and 02:16 CET``."""
        return f"{self.time(start)} and {shown_time(self.zone, end, start)}"

    def answer(self, code: Code, state: State, predicate: str, **details: object) -> Answer:
        """An answer whose sentence has the occurrence as its subject."""
        subject = "task" if self.once else "occurrence"
        return Answer(
            key=self.facts.key,
            time=self.instant,
            code=code,
            state=state,
            sentence=f"The {subject} of {self.date_time(self.instant)} {predicate}.",
            details=details,
        )


def shown_time(zone: Zone, instant: float, beside: float | None = None) -> str:
    """A time such as ``2026-11-22 02:30 CET``; without its date if that is ``beside``'s, too."""
    whole = int(instant)
    if not 0 <= whole < LATEST:
        return str(whole)
    date, clock = zone.shown(whole)
    same = beside is not None and 0 <= beside < LATEST
    if same and date == zone.shown(int(beside or 0))[0]:
        return clock
    return f"{date} {clock}"


def fires(trigger: Trigger | None, instant: int) -> bool:
    """Whether an instant is one of the trigger's times."""
    return trigger is not None and trigger.next_after(instant - 1) == instant


def last_before(trigger: Trigger, instant: int) -> int | None:
    """The trigger's last time before an instant; None if there is none within `_OLDEST`.

    Triggers only search forward. So the search begins shortly before the instant, and goes back in
    windows that double in size.
    """
    least = max(instant - _OLDEST, 0)
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


def listed(words: Sequence[str]) -> str:
    """Words with commas and a final ``and``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
