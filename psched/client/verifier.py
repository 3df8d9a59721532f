"""Checks the run history of a store: reads it at once, or key by key if it is large."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from operator import attrgetter
from typing import TypeVar

from psched.base.errors import InvalidError, NotFoundError, NotSupportedError
from psched.client.access import keeping_history, read_each, stored_key
from psched.config import Config
from psched.core.history.changes import GAP, ranges
from psched.core.history.protocol import AuditSelection, RunSelection
from psched.core.history.records import AuditRecord, RunRecord
from psched.core.model import Row
from psched.core.operations.extra_runs import schedule_of
from psched.core.settling import send_once
from psched.core.store_protocol import Send, Store
from psched.reports.findings import Findings, Kind
from psched.reports.verify import (
    EXTRA_RUN_ACTIONS,
    INVALID,
    MOST_RUNS,
    Period,
    Recorded,
    check,
    check_extra_runs,
)

_SLACK = 60
"""The records that ended up to this many seconds before the start are read, too, because the times
of records are estimates."""

_MOST_KEPT = 50_000_000
"""About how many characters of records, and of changes, are kept in memory."""

_RECORD = 1000
"""About how many characters a record takes in memory, besides its long texts."""

A = TypeVar("A")
T = TypeVar("T")
R = TypeVar("R", bound=RunRecord | AuditRecord)


class Verifier:
    """Checks the run history of a store.

    The store may be in use. A violation is reported only if it is found a second time, because a
    schedule can be changed while it is being read.

    Attributes:
        start: the first instant that was checked, in Unix seconds; 0 before `verify` is called.
        is_complete: whether the history goes back as far as was asked.
    """

    def __init__(self, store: Store, settings: Config, send: Send = send_once) -> None:
        self._store = store
        self._history = keeping_history(store)
        self._settings = settings
        self._send = send
        self.start = 0
        self.is_complete = True
        self._known_gaps: Sequence[tuple[int, float]] | None = None
        self._with_extra_runs = set[str]()
        # What was read at once, by key; None if it is to be read key by key.
        self._runs: Mapping[str, Sequence[RunRecord]] | None = None
        self._audits: Mapping[str, Sequence[AuditRecord]] | None = None

    def verify(self, since: float, keys: Sequence[str] = ()) -> Findings:
        """Check everything since a time."""
        keys = [stored_key(key) for key in keys]
        if (problem := self._send(self._history.problem)) is not None:
            raise NotSupportedError(problem)
        now = self._send(self._store.now)
        keep = self._settings.history_keep
        kept_since = int(now) - keep if keep else 0
        wanted = max(int(now - since), kept_since)
        recorded, oldest = self._find_keys(wanted, keys)
        recorded |= self._with_extra_runs if not keys else set()
        self.start = max(wanted, min(oldest, int(now)))
        self.is_complete = self.start <= wanted
        period = Period(start=self.start, kept_since=kept_since, now=now)
        if not keys:
            # A request for each key would take longer than all the rest.
            recent = RunSelection(since=(period.start - _SLACK) * 1000)
            runs = map(_without_texts, self._all(self._history.runs, recent))
            self._runs = _by_key(runs)
            self._audits = _by_key(self._all(self._history.audits, AuditSelection()))
        found = Findings()
        for row in self._rows(keys):
            recorded.discard(row.key)
            found.add(self._checked(row.key, row, period))
        for key in sorted(recorded):
            found.add(self._checked(key, None, period))
        return found

    def _find_keys(self, since: int, keys: Sequence[str]) -> tuple[set[str], int]:
        """The keys of all records since a time, and since when the history is complete.

        Both times are in Unix seconds.
        """
        workers = self._send(self._history.workers)
        oldest = min((worker.started for worker in workers), default=2**53) * 1000
        found: set[str] = set()
        chosen: Sequence[str | None] = keys or (None,)
        for key in chosen:
            selection = RunSelection(key=key, with_extra_runs=key is not None)
            for record in self._all(self._history.runs, selection):
                oldest = min(oldest, record.began)
                if record.ended < since * 1000:
                    break
                if (schedule := schedule_of(record.key)) is not None:
                    self._with_extra_runs.add(schedule)
                if key in {None, record.key}:
                    found.add(record.key)
            for audit in self._all(self._history.audits, AuditSelection(key=key)):
                oldest = min(oldest, audit.time or oldest)
                if oldest < since * 1000:
                    break
        return found, oldest // 1000

    def _rows(self, keys: Sequence[str]) -> Iterator[Row]:
        if not keys:
            yield from self._all(lambda _: self._store.rows(), None)
            return
        for key in keys:
            row = self._get(key)
            if row is not None:
                yield row
            elif not [*self._all(self._history.runs, RunSelection(key=key, limit=1))]:
                raise NotFoundError(f"no schedule and no record has the key {key!r}")

    def _checked(self, key: str, row: Row | None, period: Period) -> Findings:
        """Check one key; again, if there are violations."""
        found = self._check(key, row, period)
        if not found.violations:
            return found
        if any(each.kind is Kind.MISSING for each in found.violations):
            period = changed(period, gaps=self._gaps(period))
        return self._check(key, self._get(key), period, again=True)

    def _gaps(self, period: Period) -> Sequence[tuple[int, float]]:
        """The scheduled times of which records may be missing, because no worker wrote them."""
        if self._known_gaps is None:
            found = self._all(self._history.audits, AuditSelection(key=""))
            notes = [each for each in found if each.action == GAP]
            workers = self._send(self._history.workers) if notes else ()
            self._known_gaps = ranges(notes, workers, period.now)
        return self._known_gaps

    def _check(self, key: str, row: Row | None, period: Period, *, again: bool = False) -> Findings:
        """Check one key; read its records again if they must not be older than the row."""
        with_extra_runs = key in self._with_extra_runs
        if self._runs is None or again:
            selection = RunSelection(
                key=key,
                with_extra_runs=with_extra_runs,
                since=(period.start - _SLACK) * 1000,
                limit=MOST_RUNS,
            )
            runs = [*map(_without_texts, self._all(self._history.runs, selection))]
        else:
            of_key = self._runs.get(key, ())
            runs = [each for each in of_key if with_extra_runs or each.key == key]
        if self._audits is None or again:
            audits = [*self._all(self._history.audits, AuditSelection(key=key))]
        else:
            audits = [*self._audits.get(key, ())]
        own = sorted((each for each in runs if each.key == key), key=attrgetter("began"))
        recorded = Recorded(
            key=key,
            row=row,
            runs=own,
            audits=[each for each in audits if each.action not in EXTRA_RUN_ACTIONS],
            has_extra_runs=len(own) < len(runs) or bool(row and row.held_by),
        )
        try:
            found = check(recorded, period, self._settings)
        except InvalidError:  # a user's trigger has returned an invalid time
            found = Findings(schedules=1, unknown={INVALID: 1})
        if with_extra_runs:
            keys = [*{each.key for each in runs} - {key}]
            rows = self._send(lambda: self._store.look(keys))
            found.violations += check_extra_runs(key, runs, rows, audits)
        return found

    def _get(self, key: str) -> Row | None:
        return self._send(lambda: self._store.get(key))

    def _all(self, query: Callable[[A], Iterator[T]], argument: A) -> Iterator[T]:
        return read_each(self._send, lambda: query(argument))


def _without_texts(record: RunRecord) -> RunRecord:
    """A record without its longest texts, which would take much memory."""
    if record.error is None and record.result is None:
        return record
    return changed(record, error=None, result=None)


def _by_key(found: Iterator[R]) -> Mapping[str, Sequence[R]] | None:
    """Records by their keys, and by those of their schedules; None if they are too many to keep."""
    groups: dict[str, list[R]] = defaultdict(list)
    size = 0
    for record in found:
        texts = (record.before, record.after) if isinstance(record, AuditRecord) else ()
        size += _RECORD + sum(len(text or "") for text in texts)
        if size > _MOST_KEPT:
            return None
        groups[record.key].append(record)
        if isinstance(record, RunRecord) and (schedule := schedule_of(record.key)) is not None:
            groups[schedule].append(record)
    return groups
