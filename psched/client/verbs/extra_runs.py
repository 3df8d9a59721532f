"""Adds extra runs of schedules: `ScheduleCollection.trigger` and `ScheduleCollection.backfill`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from math import floor
from typing import Any, ClassVar

from typing_extensions import override

from psched.base.errors import AlreadyExistsError, NotSupportedError
from psched.client.access import (
    Access,
    Condition,
    insert,
    read_each,
    refuse_template,
    require,
)
from psched.client.verbs import Verb
from psched.core.columns import When, encode, instant, parse_options
from psched.core.definition import parse_row
from psched.core.history.protocol import RunSelection
from psched.core.history.records import Fate, Outcome, RunRecord
from psched.core.model import ENDED, PAUSED, RUNNING, STOPPING, WAITING, Row
from psched.core.operations.backfills import (
    STAYS,
    Backfill,
    Stagger,
    check_backfill_overlap,
    extra_row,
    missed_instants,
    pause_between,
    refuse_extra_runs,
    undecided,
)
from psched.core.operations.extra_runs import (
    OVERLAP_OPTION,
    PARALLEL,
    QUEUE,
    check_overlap,
    extra_key,
    id_of_instant,
    prefix_of_extra_runs,
    random_id,
    schedule_of,
)
from psched.core.selection import STATES, Selection

CAN_HAVE_EXTRA_RUNS = frozenset({WAITING, RUNNING, PAUSED, STOPPING})
"""The states of schedules of which a selection adds extra runs."""

_BATCH = 500
"""The most rows that a backfill adds at a time, all or none."""

_LARGEST_BATCH = 4_000_000
"""The most characters of data that a backfill adds at a time, unless one row has more."""

_MEASURED = 50
"""From the durations of so many finished runs, it is estimated how long a run takes."""

_CLOCK_STEP = 3600
"""By how many seconds the store's clock may have been set back since an instant. A run of the
instant that ended so long before it is found nevertheless."""


class Trigger(Verb[str]):
    """Add one extra run, and return its key; see `Schedule.trigger`."""

    name: ClassVar = "trigger"
    done: ClassVar = "triggered"
    states: ClassVar = CAN_HAVE_EXTRA_RUNS
    takes_extra_runs: ClassVar = False
    leaves_changed: ClassVar = False

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        overlap: str = QUEUE,
        run_at: When | None = None,
    ) -> None:
        self._data = data
        self._overlap = check_overlap(overlap)
        self._starts = None if run_at is None else instant("run_at", run_at)

    @override
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> str:
        seen = _schedule(access, key, self._overlap, only_if)
        now = access.send(access.store.now)
        time = floor(now) if self._starts is None else self._starts
        row = extra_row(
            seen,
            random_id(now, access.draw_nonce()),
            access.settings,
            overlap=self._overlap,
            scheduled_time=time,
            run_at=time,
            data=self._data,
        )
        insert(access, [row], audited=False)
        about: dict[str, Any] = {"extra_run": row.key, "overlap": self._overlap}
        if self._starts is not None:
            about["run_at"] = self._starts
        if self._data is not None:
            about["data"] = encode("data", self._data)
        access.auditor.record_about(self.name, key, about)
        return row.key


class RunMissed(Verb[Backfill]):
    """Add one extra run for each instant from ``start`` to ``end``; see `Schedule.backfill`.

    ``report`` is called after each batch of rows with what was done so far.
    """

    name: ClassVar = "backfill"
    done: ClassVar = "backfilled"
    states: ClassVar = CAN_HAVE_EXTRA_RUNS
    takes_extra_runs: ClassVar = False
    takes_one_shots: ClassVar = False

    def __init__(
        self,
        start: When,
        end: When,
        *,
        stagger: Stagger,
        again: bool,
        overlap: str,
        dry_run: bool,
        report: Callable[[Backfill], object] | None = None,
    ) -> None:
        self._overlap = check_backfill_overlap(overlap, stagger)
        self._start, self._end = instant("start", start), instant("end", end)
        self._stagger = stagger
        self._again = again
        self._dry_run = dry_run
        self._report = report

    @override
    def apply(self, access: Access, key: str, only_if: Condition | None = None) -> Backfill:
        seen = _schedule(access, key, self._overlap, only_if)
        now = access.send(access.store.now)
        definition = parse_row(seen, access.settings)
        instants = missed_instants(definition, self._start, self._end, now)
        passed = [each for each in instants if not undecided(seen, each)]
        done = Backfill(key=key, runs=[], regular=len(instants) - len(passed))
        if not passed:
            return done
        finished = set[int]() if self._again else _finished(access, key, passed[0], passed[-1])
        live = _live(access, key) if self._again else set[int]()
        left = [each for each in passed if each not in finished and each not in live]
        done = changed(
            done,
            finished=sum(each in finished for each in passed),
            existing=sum(each in live for each in passed),
        )
        stagger = self._stagger
        if self._overlap == QUEUE and not stagger.is_used:
            stagger = Stagger(None, pause=pause_between(_durations(access, key)))
        # The rows of the instants differ only in their keys and times.
        model = extra_row(
            seen,
            id_of_instant(self._start),
            access.settings,
            overlap=self._overlap,
            scheduled_time=self._start,
            run_at=floor(now),
            # None of them is gone before the last one runs, so a repeated command adds none again.
            least_retention=STAYS + stagger.length(len(left)),
        )
        size = max(1, min(_BATCH, _LARGEST_BATCH // (len(model.data or "") + 1)))
        for place in range(0, len(left), size):
            batch = left[place : place + size]
            added = self._add(access, key, model, batch, stagger)
            done = _with_added(done, batch, added, now)
            if self._report is not None:
                self._report(done)
        return done

    def _add(
        self, access: Access, key: str, model: Row, instants: Sequence[int], stagger: Stagger
    ) -> Sequence[Row]:
        """Add the rows of some instants, all or none, except those that exist already."""
        keys = {each: extra_key(key, id_of_instant(each)) for each in instants}
        while True:
            found = access.send(lambda: access.store.look([*keys.values()]))
            rows = list[Row]()
            for time, named in keys.items():
                own = named
                if named in found:
                    if not self._again or found[named].status not in ENDED:
                        continue
                    # The time before the random part sorts the runs by their scheduled times.
                    order = (model.next_run_time or 0) + len(rows) / 1000
                    own = extra_key(key, random_id(order, access.draw_nonce()))
                starts = (model.next_run_time or 0) + stagger.offset(len(rows))
                rows.append(changed(model, key=own, next_time=time, next_run_time=starts))
            try:
                if rows and not self._dry_run:
                    insert(access, rows, audited=False)
            except AlreadyExistsError:
                continue  # somebody else has added some of them meanwhile
            stagger.advance(len(rows))
            if self._dry_run or not rows:
                return rows
            about = {
                "first": rows[0].next_time,
                "last": rows[-1].next_time,
                "extra_runs": len(rows),
                "overlap": parse_options(model.options)[OVERLAP_OPTION],
            }
            access.auditor.record_about(self.name, key, about)
            return rows


def _schedule(access: Access, key: str, overlap: str, only_if: Condition | None) -> Row:
    """Read the row of a schedule, of which there can be extra runs."""
    kind = access.settings.type
    if not access.settings.store_kind.keeps_options:
        raise NotSupportedError(
            f"a store of type {kind} has no extra runs, because its rows have no options; move"
            " the schedules to a table of psched (psched migrate)"
        )
    if overlap != PARALLEL and access.store.holds is None:
        raise NotSupportedError(
            f"overlap: a store of type {kind} cannot hold a schedule (HoldsSchedules),"
            f" so only {PARALLEL} is possible, not {overlap}"
        )
    seen = access.read(key)
    require(only_if, seen)
    refuse_extra_runs(seen)
    refuse_template(seen)
    return seen


def _finished(access: Access, key: str, start: int, end: int) -> set[int]:
    """The scheduled times that have finished already, as far as the run history tells."""
    fates, since = frozenset({Fate.FINISHED}), (start - _CLOCK_STEP) * 1000
    found = _records(access, RunSelection(key=key, with_extra_runs=True, fates=fates, since=since))
    times = (record.scheduled_time for record in found if record.fate == Fate.FINISHED)
    return {time for time in times if start <= time <= end}


def _durations(access: Access, key: str) -> Sequence[float]:
    """How long the last finished runs of a schedule took, as far as the run history tells."""
    outcomes = frozenset({Outcome.FINISHED})
    selection = RunSelection(key=key, with_extra_runs=True, outcomes=outcomes, limit=_MEASURED)
    return [record.took for record in _records(access, selection) if record.took is not None]


def _records(access: Access, selection: RunSelection) -> Iterator[RunRecord]:
    history = access.store.history
    if history is None or access.send(history.problem) is not None:
        return iter(())
    return read_each(access.send, lambda: history.runs(selection))


def _live(access: Access, key: str) -> set[int]:
    """The scheduled times of the extra runs of a schedule that have not ended."""
    selection = Selection(statuses=STATES - ENDED, prefix=prefix_of_extra_runs(key))
    rows = read_each(access.send, lambda: access.store.rows(selection))
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
