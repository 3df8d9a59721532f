"""Reads what is known about a schedule from a store, and explains what became of an occurrence."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from difflib import get_close_matches
from functools import cache, partial

from psched.base.errors import InvalidError
from psched.base.retry import Send
from psched.client.arguments import stored_key
from psched.config import Config
from psched.core.history.protocol import AuditSelection, KeepsHistory, RunSelection
from psched.core.history.records import AuditRecord, RunRecord, WorkerRecord
from psched.core.history.why.answer import Answer
from psched.core.history.why.asked_time import Asked, parse_asked
from psched.core.history.why.explain import explain
from psched.core.history.why.facts import Facts, fires
from psched.core.model import RUNNING, Row
from psched.core.operations.extra_rows import id_of_instant
from psched.core.operations.extra_runs import extra_key
from psched.core.operations.pauses import PausesTypes, as_paused
from psched.core.operations.pausing import zone_of
from psched.core.selection import Selection
from psched.core.shorthands import When
from psched.core.store_protocol import Store
from psched.triggers.zone import Zone

_READS = 3
"""How often everything is read at most, until the row has not changed meanwhile."""

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


def explain_from_store(
    store: Store,
    settings: Config,
    send: Send,
    key: str,
    *,
    time: When | str | None,
    zone: str | Zone | None,
) -> Answer:
    """Explain what became of an occurrence; see `ScheduleCollection.why`."""
    key = stored_key(key)
    row = send(partial(store.get, key))
    explained = partial(_explained, store, settings, send, key, time=time, zone=zone)
    answer = explained(row)
    for _ in range(_READS - 1):
        # A record is written together with the change of the row. So they fit each other if the row
        # has not changed meanwhile.
        former, row = row, send(partial(store.get, key))
        if _progress(former) == _progress(row):
            break
        answer = explained(row)
    return answer


def _progress(row: Row | None) -> tuple[object, ...]:
    """What changes in a row when an attempt begins or ends, and when somebody changes it."""
    if row is None:
        return ()
    return (row.fence, row.owner, row.settled_by, row.status, row.next_time, row.version)


def _explained(
    store: Store,
    settings: Config,
    send: Send,
    key: str,
    row: Row | None,
    *,
    time: When | str | None,
    zone: str | Zone | None,
) -> Answer:
    now = send(store.now)
    if row is not None and isinstance(store, PausesTypes):
        rules = send(store.pause_rules)
        row = as_paused(row, rules, zone_of(row, settings), now)
    similar_keys = partial(_similar, store, send, key)
    off: str | None = "a store of this kind keeps none"
    if isinstance(store, KeepsHistory):
        off = send(store.history_problem)
    facts = Facts(
        key=key, row=row, settings=settings, now=now, no_history=off, similar_keys=similar_keys
    )
    shown = facts.zone(zone)
    asked = None if time is None else parse_asked(time, shown, now)
    if isinstance(store, KeepsHistory) and off is None:
        reader = _Reader(store, store, send, key)
        facts = changed(
            facts,
            audits=reader.audits(),
            latest=reader.latest(),
            workers_since=reader.workers_since,
            covering=reader.covering,
            extra_runs=reader.extra_runs,
            backfilled=reader.backfilled,
            oldest=reader.oldest,
            ran_between=reader.ran_between,
            leased=cache(reader.leased),
        )
        run = None if asked is None else _shown_with(reader, facts, asked)
        if run is not None and run.key != key:
            return explain_from_store(
                store, settings, send, run.key, time=run.scheduled_time, zone=shown
            )
        if run is not None:
            asked = Asked(instants=(run.scheduled_time,))
    return explain(facts, asked, shown)


def _shown_with(reader: "_Reader", facts: Facts, asked: Asked) -> RunRecord | None:
    """The record that the command history shows with the time that is asked about.

    It shows when a run started. None if the time is a scheduled time of the schedule, if it is in
    the future, or if no record is shown with it.
    """
    found = None
    for instant in asked.instants:
        if asked.before or facts.covering(instant) or fires(facts.at(instant).trigger, instant):
            return None
        if found is None and instant <= facts.now:
            found = reader.shown_with(instant)
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the facts about one schedule that the run history tells."""

    store: Store
    history: KeepsHistory
    send: Send
    key: str

    def covering(self, instant: int) -> Sequence[RunRecord]:
        return self._runs(RunSelection(key=self.key, covering=instant, limit=_COVERING))

    def backfilled(self, instant: int) -> Sequence[RunRecord]:
        try:
            key = extra_key(self.key, id_of_instant(instant))
        except InvalidError:
            return ()  # a schedule with so long a key has no extra runs
        return self._runs(RunSelection(key=key, limit=_LATEST))

    def extra_runs(self) -> Sequence[RunRecord]:
        found = self._runs(RunSelection(key=self.key, with_extra_runs=True, limit=_LATEST))
        return [each for each in found if each.key != self.key]

    def shown_with(self, instant: int) -> RunRecord | None:
        """The record of the attempt that started in this second, or of what was decided then."""
        selection = RunSelection(
            key=self.key, with_extra_runs=True, since=instant * 1000, limit=_OF_KEY
        )
        for each in self._runs(selection):
            if (each.ended if each.started is None else each.started) // 1000 == instant:
                return each
        return None

    def latest(self) -> Sequence[RunRecord]:
        return self._runs(RunSelection(key=self.key, limit=_LATEST))

    def oldest(self) -> tuple[RunRecord | None, int]:
        found = self._runs(RunSelection(key=self.key, limit=_OF_KEY))
        return (found[-1] if found else None), len(found)

    def audits(self) -> Sequence[AuditRecord]:
        selection = AuditSelection(key=self.key, limit=_AUDITS)
        return self.send(lambda: [*self.history.audits(selection)])

    def workers_since(self, since: int) -> Sequence[WorkerRecord]:
        # A row that another client has written can have a time that no column can store.
        return self.send(lambda: self.history.workers(max(0, since)))

    def ran_between(self, start: float, end: float) -> Sequence[RunRecord] | None:
        def read() -> Sequence[RunRecord] | None:
            found = list[RunRecord]()
            # The newest record is first, and the records are nearly in the order of their ends.
            for number, record in enumerate(self.history.runs(RunSelection(limit=_OF_ALL)), 1):
                if record.ended < (start - _OUT_OF_ORDER) * 1000:
                    return found
                if number == _OF_ALL:
                    return None
                if record.started is not None and record.started < end * 1000:
                    found.append(record)
            return found

        return self.send(read)

    def leased(self) -> Sequence[Row]:
        running = Selection(statuses=frozenset({RUNNING}), limit=_LEASED)
        return _all(self.send, partial(self.store.rows, running))

    def _runs(self, selection: RunSelection) -> Sequence[RunRecord]:
        return self.send(lambda: [*self.history.runs(selection)])


def _similar(store: Store, send: Send, key: str) -> Sequence[str]:
    """Keys that are spelled like this one: those with the same beginning, or the first ones."""
    if len(key) > _LONGEST_SIMILAR:
        return []
    found = dict[str, None]()
    for prefix in (key[:2], ""):
        rows = partial(store.rows, Selection(prefix=prefix, limit=_SIMILAR, by_key=True))
        found |= dict.fromkeys(row.key for row in _all(send, rows))
    return get_close_matches(key, (each for each in found if len(each) <= _LONGEST_SIMILAR), n=3)


def _all(send: Send, rows: Callable[[], Iterator[Row]]) -> Sequence[Row]:
    return send(lambda: [*rows()])
