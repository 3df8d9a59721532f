"""Changes many schedules: those that a selection finds, one after the other."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from dataclasses import replace as changed
from math import inf
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
    ScheduleError,
)
from psched.base.quantities import RATES, as_rate
from psched.client.arguments import stored_key
from psched.client.finding import find, is_pattern, matches
from psched.client.operations.extra_runs import ExtraRuns
from psched.client.writer import CAN_BE_REQUEUED, ChangedMeanwhileError, Condition, Writer
from psched.core.columns import annotation
from psched.core.declare import When
from psched.core.model import CANCELLED, ENDED, FINISHED, PAUSED, RUNNING, WAITING, Row
from psched.core.operations.backfills import Backfill, Stagger, check_backfill_overlap
from psched.core.operations.extra_runs import QUEUE, check_overlap, schedule_of
from psched.core.schedule import Schedules
from psched.core.schedule_metadata import ScheduleMetadata
from psched.core.selection import STATES, chosen_texts, selection_of
from psched.core.shorthands import instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The conditions of a selection; each one that is empty or None is fulfilled by every row.

    Attributes:
        keys: keys or patterns, one of which the key must match.
        statuses: values of `Row.state`.
        types: the types.
        labels: the labels.
        reason: a pattern for the column ``reason``, in which capital and small letters are equal;
            without a wildcard, a part of the text.
        extra_runs: whether the row of an extra run fulfils the conditions, too.
    """

    keys: Sequence[str] = ()
    statuses: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    reason: str | None = None
    extra_runs: bool = True

    def among(
        self, statuses: frozenset[str], what: str, unless_named: AbstractSet[str] = frozenset()
    ) -> "Wanted":
        """Return these conditions, limited to rows that have one of some statuses.

        Args:
            statuses: the statuses.
            what: says what is done with rows that have these statuses, for the error.
            unless_named: those of the statuses that are left out if the conditions name none.

        Raises:
            InvalidError: a status is wanted that is none of these.
        """
        if others := self.statuses - statuses:
            known = ", ".join(sorted(statuses))
            raise InvalidError("status", f"{min(others)!r} cannot be {what}; choose from {known}")
        return changed(self, statuses=self.statuses or statuses - unless_named)

    def has(self, row: Row) -> bool:
        """Whether a row fulfils the conditions; its key is not compared."""
        return (
            (not self.statuses or row.state in self.statuses)
            and (not self.types or row.type in self.types)
            and (not self.labels or annotation(row, "label") in self.labels)
            and (self.reason is None or _contains(row.reason or "", self.reason))
            and (self.extra_runs or schedule_of(row.key) is None)
        )

    def rows(self, schedules: Schedules) -> Iterator[Row]:
        """Read the rows that fulfil all conditions."""
        named = schedules.read_many(self.keys) if self.keys else {}
        yield from filter(self.has, (named[key].row for key in self.keys if key in named))
        # A key can contain an asterisk. If it exists, it is no pattern.
        patterns = [key for key in self.keys if key not in named and is_pattern(key)]
        if self.keys and not patterns:
            return
        conditions = {
            "status": self.statuses or None,
            "type": self.types or None,
            "label": self.labels or None,
        }
        found = find(schedules, patterns, conditions, order="key")
        yield from (row for row in found if row.key not in named and self.has(row))


def _contains(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern, or contains it if it has no wildcard."""
    return matches(text.lower(), (pattern if is_pattern(pattern) else f"*{pattern}*").lower())


def wanted_of(
    keys: Sequence[str],
    status: str | Iterable[str] | None,
    type_: str | Iterable[str] | None,
    label: str | Iterable[str] | None,
    reason: str | None,
    *,
    every: bool,
) -> Wanted:
    """Check the arguments of `psched.ScheduleCollection.select`.

    Raises:
        InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
    """
    selection = selection_of(status, type_, label)
    chosen_texts("keys", keys or None)
    chosen_texts("reason", reason)
    if reason == "":
        raise InvalidError("reason", "must not be empty")
    if not (every or keys or not selection.selects_all or reason):
        raise InvalidError("keys", "name keys or a condition, or pass every=True")
    return Wanted(
        keys=[*dict.fromkeys(map(stored_key, keys))],
        statuses=selection.statuses,
        types=selection.types,
        labels=selection.labels,
        reason=reason,
    )


@dataclass(frozen=True, slots=True)
class ManyChanged:
    """What became of selected schedules.

    Attributes:
        changed: the keys of those that were changed; with ``dry_run``, that would be.
        marked: those of them whose task runs; its worker stops the task, and then changes them.
        skipped: why others were not changed, by key: somebody else has changed or deleted them
            after the selection was read.
        failed: why others could not be changed, by key: they are invalid.
        extra_runs: the extra run of each schedule that was triggered, by the schedule's key.
        backfills: what was done for each schedule that was backfilled, by the schedule's key.
    """

    changed: list[str] = field(default_factory=list)
    marked: set[str] = field(default_factory=set)
    skipped: dict[str, ScheduleError] = field(default_factory=dict)
    failed: dict[str, InvalidError] = field(default_factory=dict)
    extra_runs: dict[str, str] = field(default_factory=dict)
    backfills: dict[str, Backfill] = field(default_factory=dict)


CAN_BE_TRIGGERED = frozenset({WAITING, RUNNING, PAUSED})
"""The statuses of schedules of which there can be extra runs."""

_CHANGED_MEANWHILE = (
    AlreadyExistsError,
    AlreadyFinishedError,
    ChangedMeanwhileError,
    NotFoundError,
)
"""The errors about a schedule that somebody has changed since the selection was read."""

Outcome = bool | str | ScheduleError | InvalidError
"""What became of a schedule: what `Schedule.cancel` has returned; the key of the extra run that was
triggered; or the error."""

Report = Callable[[str, Outcome], object]
"""Is called after each change, with the key and the outcome."""

Confirm = Callable[[Sequence[str]], bool]
"""Is called with the keys of all selected schedules before the first change. If it returns False,
nothing is changed."""


class SelectedSchedules:
    """The schedules that `psched.ScheduleCollection.select` has selected.

    Iteration reads them: first those that were named by their keys, then the others, sorted by key.
    Each of the other methods reads the keys, and then changes one schedule after the other. It
    skips a schedule that does not fulfil the conditions any more when its turn has come. A call
    that was interrupted can be repeated: it changes the schedules that fulfil the conditions then.

    Args:
        schedules: reads the schedules.
        writer: changes them.
        wanted: the conditions.
        clock: measures the rate.
        extra_runs: adds extra runs.
    """

    def __init__(
        self,
        schedules: Schedules,
        writer: Writer,
        wanted: Wanted,
        clock: Clock,
        extra_runs: ExtraRuns,
    ) -> None:
        self._schedules = schedules
        self._writer = writer
        self._wanted = wanted
        self._clock = clock
        self._extra_runs = extra_runs

    def __iter__(self) -> Iterator[ScheduleMetadata]:
        return map(ScheduleMetadata, self._wanted.rows(self._schedules))

    def requeue(
        self,
        run_at: When | None = None,
        *,
        rate: str | None = None,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
    ) -> ManyChanged:
        """Let those that have failed or expired, or were quarantined or paused, run again.

        Those that have finished or were cancelled run again only if their status is a condition.

        Args:
            run_at: the earliest start; None means now.
            rate: the most changes in a time, such as ``"10/s"``, ``"30/m"`` or ``"100/h"``; None
                means no limit.
            dry_run: True to change nothing, and return what would be changed.
            report: is called after each change.
            confirm: is called before the first change.

        Raises:
            InvalidError: ``run_at`` or ``rate`` is invalid, or a status was selected that cannot be
                requeued.
        """
        if run_at is not None:
            run_at = instant("run_at", run_at)
        wanted = self._wanted.among(CAN_BE_REQUEUED, "requeued", unless_named={FINISHED, CANCELLED})

        def requeue(key: str, only_if: Condition) -> bool:
            self._writer.requeue(key, run_at, only_if)
            return True

        return self._change(wanted, requeue, _Manner(rate, dry_run, report, confirm))

    def cancel(
        self,
        *,
        rate: str | None = None,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
    ) -> ManyChanged:
        """Cancel those that have not ended. The arguments and errors are those of `requeue`."""
        wanted = self._wanted.among(STATES - ENDED, "cancelled")
        cancel = self._writer.cancel
        return self._change(wanted, cancel, _Manner(rate, dry_run, report, confirm))

    def trigger(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        overlap: str = QUEUE,
        run_at: When | None = None,
        rate: str | None = None,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
    ) -> ManyChanged:
        """Run those that have not ended now, once each, beside their regular occurrences.

        Extra runs are left out, and so are quarantined schedules. ``extra_runs`` of the result are
        the keys of the runs.

        ``data``, ``overlap`` and ``run_at`` are those of `Schedule.trigger`; the other arguments
        are those of `requeue`.

        Raises:
            InvalidError: a value is invalid, or a status was selected of which there can be no
                extra run.
            NotSupportedError: the store cannot do it.
        """
        check_overlap(overlap)
        if run_at is not None:
            run_at = instant("run_at", run_at)
        wanted = changed(self._wanted.among(CAN_BE_TRIGGERED, "triggered"), extra_runs=False)

        def trigger(key: str, only_if: Condition) -> str:
            return self._extra_runs.trigger(
                key, data, overlap=overlap, run_at=run_at, only_if=only_if
            )

        return self._change(wanted, trigger, _Manner(rate, dry_run, report, confirm))

    def backfill(
        self,
        start: When,
        end: When,
        *,
        rate: str | None = None,
        again: bool = False,
        overlap: str = QUEUE,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
    ) -> ManyChanged:
        """Run the missed occurrences of a period, of those that have not ended.

        Extra runs are left out, and so are quarantined schedules. ``backfills`` of the result says
        what was done, by the schedule's key. Schedules without a trigger are among the ``failed``.
        The first arguments are those of `Schedule.backfill`; the runs of all schedules together
        become due at the ``rate``. ``report`` and ``confirm`` are those of `requeue`.

        Raises:
            InvalidError: a value is invalid, or a status was selected of which there can be no
                extra run.
            NotSupportedError: the store cannot do it.
        """
        stagger = Stagger(rate)
        check_backfill_overlap(overlap, stagger)
        start, end = instant("start", start), instant("end", end)
        wanted = changed(self._wanted.among(CAN_BE_TRIGGERED, "backfilled"), extra_runs=False)
        backfills: dict[str, Backfill] = {}

        def backfill(key: str, only_if: Condition) -> bool:
            backfills[key] = self._extra_runs.backfill(
                key,
                start,
                end,
                stagger=stagger,
                again=again,
                overlap=overlap,
                dry_run=dry_run,
                only_if=only_if,
            )
            return True

        manner = _Manner(None, dry_run=False, report=report, confirm=None if dry_run else confirm)
        return changed(self._change(wanted, backfill, manner), backfills=backfills)

    def _change(
        self, wanted: Wanted, change: Callable[[str, Condition], bool | str], manner: "_Manner"
    ) -> ManyChanged:
        pace = Pace(manner.rate, self._clock)
        # All keys are read first, because the changes would change what is read next.
        keys = [row.key for row in wanted.rows(self._schedules)]
        if manner.dry_run:
            return ManyChanged(keys)
        result = ManyChanged()
        if manner.confirm is not None and not manner.confirm(keys):
            return result
        for key in keys:
            pace.wait()
            outcome: Outcome
            try:
                outcome = change(key, wanted.has)
                result.changed.append(key)
                if isinstance(outcome, str):
                    result.extra_runs[key] = outcome
                elif not outcome:
                    result.marked.add(key)
            except _CHANGED_MEANWHILE as error:
                outcome = result.skipped[key] = error
            except InvalidError as error:
                outcome = result.failed[key] = error
            if manner.report is not None:
                manner.report(key, outcome)
        return result


class _Manner(NamedTuple):
    """How selected schedules are changed; see `SelectedSchedules.requeue`."""

    rate: str | None
    dry_run: bool
    report: Report | None
    confirm: Confirm | None


class Pace:
    """Limits how many changes are made in a time.

    Args:
        rate: the most changes in a time, such as ``"10/s"``; None means no limit.
        clock: measures the time, and sleeps.

    Raises:
        InvalidError: the rate is invalid.
    """

    def __init__(self, rate: str | None, clock: Clock) -> None:
        per_second = inf if rate is None else as_rate(rate)
        if per_second is None:
            raise InvalidError("rate", f"must be a number per time ({RATES}), not {rate!r}")
        self.pause = 1 / per_second
        self._clock = clock
        self._next = -inf

    def wait(self) -> None:
        """Wait until the next change may be made."""
        now = self._clock.monotonic()
        if self._next > now:
            self._clock.sleep(self._next - now)
        self._next = max(self._next, now) + self.pause
