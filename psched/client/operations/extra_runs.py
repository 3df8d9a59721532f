"""Adds extra runs of schedules: `ScheduleCollection.trigger` and `ScheduleCollection.backfill`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from math import floor
from typing import Any

from psched.base.errors import AlreadyExistsError, NotSupportedError
from psched.base.retry import Send, read_each
from psched.client.auditor import Auditor
from psched.client.writer import Condition, Writer, read_row, require
from psched.config import Config
from psched.core.columns import encode, parse_options
from psched.core.declare import When
from psched.core.definition import parse_row
from psched.core.history.protocol import KeepsHistory, RunSelection
from psched.core.history.records import Fate, Outcome
from psched.core.model import ENDED, Row
from psched.core.operations.backfills import (
    STAYS,
    Backfill,
    Stagger,
    check_backfill_overlap,
    missed_instants,
    pause_between,
    undecided,
)
from psched.core.operations.extra_rows import (
    extra_row,
    id_of_instant,
    random_id,
    refuse_extra_runs,
)
from psched.core.operations.extra_runs import (
    OVERLAP_OPTION,
    PARALLEL,
    QUEUE,
    check_overlap,
    extra_key,
    prefix_of_extra_runs,
    schedule_of,
)
from psched.core.selection import STATES, Selection
from psched.core.shorthands import instant
from psched.core.store_protocol import HoldsSchedules, Store

_BATCH = 500
"""The most rows that a backfill adds at a time, all or none."""

_LARGEST_BATCH = 4_000_000
"""The most characters of data that a backfill adds at a time, unless one row has more."""

_MEASURED = 50
"""From the durations of so many finished runs, it is estimated how long a run takes."""

_CLOCK_STEP = 3600
"""By how many seconds the store's clock may have been set back since an instant. A run of the
instant that ended so long before it is found nevertheless."""


class ExtraRuns:
    """Adds extra runs, and records who has added them.

    Args:
        store: the store that contains the schedules.
        settings: the installation's settings.
        writer: inserts rows.
        auditor: records the extra runs with the key of their schedule.
        draw_nonce: returns a new random text at each call.
        send: sends a request to the store, again and again while the store is unavailable.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        writer: Writer,
        auditor: Auditor,
        *,
        draw_nonce: Callable[[], str],
        send: Send,
    ) -> None:
        self._store = store
        self._settings = settings
        self._writer = writer
        self._auditor = auditor
        self._draw_nonce = draw_nonce
        self._send = send

    def trigger(
        self,
        key: str,
        data: Mapping[str, Any] | None,
        *,
        overlap: str,
        run_at: When | None,
        only_if: Condition | None = None,
    ) -> str:
        """Add one extra run; see `Schedule.trigger`."""
        check_overlap(overlap)
        starts = None if run_at is None else instant("run_at", run_at)
        seen = self._schedule(key, overlap, only_if)
        now = self._send(self._store.now)
        time = floor(now) if starts is None else starts
        row = extra_row(
            seen,
            random_id(now, self._draw_nonce()),
            self._settings,
            overlap=overlap,
            scheduled_time=time,
            run_at=time,
            data=data,
        )
        self._writer.insert([row], audited=False)
        about: dict[str, Any] = {"extra_run": row.key, "overlap": overlap}
        if starts is not None:
            about["run_at"] = starts
        if data is not None:
            about["data"] = encode("data", data)
        self._auditor.record_about("trigger", key, about)
        return row.key

    def backfill(
        self,
        key: str,
        start: When,
        end: When,
        *,
        stagger: Stagger,
        again: bool,
        overlap: str,
        dry_run: bool,
        only_if: Condition | None = None,
        report: Callable[[Backfill], object] | None = None,
    ) -> Backfill:
        """Add one extra run for each instant from ``start`` to ``end``; see `Schedule.backfill`.

        After each batch of rows, ``report`` is called with what was done so far.
        """
        check_backfill_overlap(overlap, stagger)
        since, until = instant("start", start), instant("end", end)
        seen = self._schedule(key, overlap, only_if)
        now = self._send(self._store.now)
        instants = missed_instants(parse_row(seen, self._settings), since, until, now)
        passed = [each for each in instants if not undecided(seen, each)]
        done = Backfill(key=key, runs=[], regular=len(instants) - len(passed))
        if not passed:
            return done
        finished = set[int]() if again else self._finished(key, passed[0], passed[-1])
        live = self._live(key) if again else set[int]()
        left = [each for each in passed if each not in finished and each not in live]
        done = changed(
            done,
            finished=sum(each in finished for each in passed),
            existing=sum(each in live for each in passed),
        )
        if overlap == QUEUE and not stagger.is_used:
            stagger = Stagger(None, pause=pause_between(self._durations(key)))
        # The rows of the instants differ only in their keys and times.
        model = extra_row(
            seen,
            id_of_instant(since),
            self._settings,
            overlap=overlap,
            scheduled_time=since,
            run_at=floor(now),
            # None of them is gone before the last one runs, so a repeated command adds none again.
            least_retention=STAYS + stagger.length(len(left)),
        )
        size = max(1, min(_BATCH, _LARGEST_BATCH // (len(model.data or "") + 1)))
        for place in range(0, len(left), size):
            batch = left[place : place + size]
            added = self._add(key, model, batch, stagger, again=again, dry_run=dry_run)
            done = _with_added(done, batch, added, now)
            if report is not None:
                report(done)
        return done

    def _schedule(self, key: str, overlap: str, only_if: Condition | None) -> Row:
        """Read the row of a schedule, of which there can be extra runs."""
        kind = self._settings.type
        if not self._settings.store_kind.keeps_options:
            raise NotSupportedError(
                f"a store of type {kind} has no extra runs, because its rows have no options; move"
                " the schedules to a table of psched (psched migrate)"
            )
        if overlap != PARALLEL and not isinstance(self._store, HoldsSchedules):
            raise NotSupportedError(
                f"overlap: a store of type {kind} cannot hold a schedule (HoldsSchedules),"
                f" so only {PARALLEL} is possible, not {overlap}"
            )
        seen = self._send(lambda: read_row(self._store, key))
        require(only_if, seen)
        refuse_extra_runs(seen)
        return seen

    def _add(
        self,
        key: str,
        model: Row,
        instants: Sequence[int],
        stagger: Stagger,
        *,
        again: bool,
        dry_run: bool,
    ) -> Sequence[Row]:
        """Add the rows of some instants, all or none, except those that exist already."""
        keys = {each: extra_key(key, id_of_instant(each)) for each in instants}
        while True:
            found = self._send(lambda: self._store.look([*keys.values()]))
            rows = list[Row]()
            for time, named in keys.items():
                own = named
                if named in found:
                    if not again or found[named].status not in ENDED:
                        continue
                    # The time before the random part sorts the runs by their scheduled times.
                    order = (model.next_run_time or 0) + len(rows) / 1000
                    own = extra_key(key, random_id(order, self._draw_nonce()))
                starts = (model.next_run_time or 0) + stagger.offset(len(rows))
                rows.append(changed(model, key=own, next_time=time, next_run_time=starts))
            try:
                if rows and not dry_run:
                    self._writer.insert(rows, audited=False)
            except AlreadyExistsError:
                continue  # somebody else has added some of them meanwhile
            stagger.advance(len(rows))
            if dry_run or not rows:
                return rows
            about = {
                "first": rows[0].next_time,
                "last": rows[-1].next_time,
                "extra_runs": len(rows),
                "overlap": parse_options(model.options)[OVERLAP_OPTION],
            }
            self._auditor.record_about("backfill", key, about)
            return rows

    def _finished(self, key: str, start: int, end: int) -> set[int]:
        """The scheduled times that have finished already, as far as the run history tells."""
        store = self._store
        if not isinstance(store, KeepsHistory) or self._send(store.history_problem) is not None:
            return set()
        selection = RunSelection(
            key=key,
            with_extra_runs=True,
            fates=frozenset({Fate.FINISHED}),
            since=(start - _CLOCK_STEP) * 1000,
        )
        records = read_each(self._send, self._send(lambda: store.runs(selection)))
        times = (record.scheduled_time for record in records if record.fate == Fate.FINISHED)
        return {time for time in times if start <= time <= end}

    def _durations(self, key: str) -> Sequence[float]:
        """How long the last finished runs of a schedule took, as far as the run history tells."""
        store = self._store
        if not isinstance(store, KeepsHistory) or self._send(store.history_problem) is not None:
            return []
        selection = RunSelection(
            key=key,
            with_extra_runs=True,
            outcomes=frozenset({Outcome.FINISHED}),
            limit=_MEASURED,
        )
        records = read_each(self._send, self._send(lambda: store.runs(selection)))
        return [record.took for record in records if record.took is not None]

    def _live(self, key: str) -> set[int]:
        """The scheduled times of the extra runs of a schedule that have not ended."""
        selection = Selection(statuses=STATES - ENDED, prefix=prefix_of_extra_runs(key))
        rows = read_each(self._send, self._send(lambda: self._store.rows(selection)))
        return {row.next_time or 0 for row in rows if schedule_of(row.key) == key}


def _with_added(done: Backfill, batch: Sequence[int], added: Sequence[Row], now: float) -> Backfill:
    existing = done.existing + len(batch) - len(added)
    if not added:
        return changed(done, existing=existing)
    return changed(
        done,
        runs=[*done.runs, *(row.key for row in added)],
        first=added[0].next_time if done.first is None else done.first,
        last=added[-1].next_time,
        existing=existing,
        within=(added[-1].next_run_time or 0) - floor(now),
    )
