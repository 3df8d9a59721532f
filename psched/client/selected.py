"""Changes many schedules: those that a selection finds, one after the other."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import partial
from math import inf
from typing import Any, TypedDict, Unpack

from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
    ScheduleError,
)
from psched.base.quantities import RATES, as_rate
from psched.client.access import Access, ChangedMeanwhileError, stored_key
from psched.client.verbs import Verb
from psched.client.verbs.editing import Decide, Edit
from psched.client.verbs.ending import Cancel, ForceFinish, Requeue, Stop
from psched.client.verbs.extra_runs import RunMissed, Trigger
from psched.client.verbs.pausing import Pause, Resume
from psched.client.verbs.skipping import Skip
from psched.core.arguments import Changes
from psched.core.columns import Until, When, instant
from psched.core.model import Row
from psched.core.operations.backfills import Backfill, Stagger
from psched.core.operations.extra_runs import QUEUE, schedule_of
from psched.core.operations.rescheduled import Rescheduled
from psched.core.schedule import ScheduleMetadata, Schedules
from psched.core.selection import (
    EVERY_ROW,
    Selection,
    chosen_texts,
    find,
    is_pattern,
    matches,
    selection_of,
)

_CHANGED_MEANWHILE = (
    AlreadyExistsError,
    AlreadyFinishedError,
    ChangedMeanwhileError,
    NotFoundError,
)
"""The errors about a schedule that somebody has changed since the selection was read."""

Outcome = bool | str | Rescheduled | ScheduleError | InvalidError
"""What became of a schedule: whether it was changed, False if its worker will do it; the key of the
extra run that was triggered; how the schedule runs before and after the change; or the error."""

Report = Callable[[str, Outcome], object]
"""Is called after each change, with the key and the outcome."""

Confirm = Callable[[Sequence[str]], bool]
"""Is called with the keys of all selected schedules before the first change. If it returns False,
nothing is changed."""


@dataclass(frozen=True, slots=True)
class ManyChanged:
    """What became of selected schedules.

    Attributes:
        changed: the keys of those that were changed; with ``dry_run``, that would be.
        marked: those of them whose task runs; they are changed when it has ended.
        skipped: why others were not changed, by key: somebody else has changed or deleted them
            after the selection was read.
        failed: why others could not be changed, by key: they are invalid.
        extra_runs: the extra run of each schedule that was triggered, by the schedule's key.
        backfills: what was done for each schedule that was backfilled, by the schedule's key.
        rescheduled: how each schedule that was skipped or edited runs before and after that, by the
            schedule's key; also with ``dry_run``.
    """

    changed: list[str] = field(default_factory=list)
    marked: set[str] = field(default_factory=set)
    skipped: dict[str, ScheduleError] = field(default_factory=dict)
    failed: dict[str, InvalidError] = field(default_factory=dict)
    extra_runs: dict[str, str] = field(default_factory=dict)
    backfills: dict[str, Backfill] = field(default_factory=dict)
    rescheduled: dict[str, Rescheduled] = field(default_factory=dict)

    def note(self, key: str, change: Callable[[], Outcome | Backfill]) -> Outcome:
        """Change a schedule by a call; note and return what became of it."""
        try:
            outcome = change()
        except _CHANGED_MEANWHILE as error:
            self.skipped[key] = error
            return error
        except InvalidError as error:
            self.failed[key] = error
            return error
        self.changed.append(key)
        if isinstance(outcome, Backfill):
            self.backfills[key] = outcome
            return True
        if isinstance(outcome, str):
            self.extra_runs[key] = outcome
        elif isinstance(outcome, Rescheduled):
            self.rescheduled[key] = outcome
        elif outcome is False:
            self.marked.add(key)
        return outcome


class Manner(TypedDict, total=False):
    """How selected schedules are changed; see `SelectedSchedules.requeue`."""

    rate: str | None
    dry_run: bool
    report: Report | None
    confirm: Confirm | None


class SelectedSchedules:
    """The schedules that `psched.ScheduleCollection.select` has selected.

    Iteration reads them: first those that were named by their keys, then the others, sorted by key.
    Each of the other methods reads the keys, and then changes one schedule after the other. It
    skips a schedule that does not fulfil the conditions any more when its turn has come. A call
    that was interrupted can be repeated: it changes the schedules that fulfil the conditions then.

    For threads and forks, the rules of the collection apply.

    Args:
        schedules: reads the schedules.
        access: changes them.
        wanted: the conditions.
    """

    def __init__(self, schedules: Schedules, access: Access, wanted: "Wanted") -> None:
        self._schedules = schedules
        self._access = access
        self._wanted = wanted

    def __iter__(self) -> Iterator[ScheduleMetadata]:
        return map(ScheduleMetadata, self._wanted.rows(self._schedules))

    def requeue(self, run_at: When | None = None, **manner: Unpack[Manner]) -> ManyChanged:
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
        run_at = None if run_at is None else instant("run_at", run_at)
        return self.change(Requeue(run_at), **manner)

    def cancel(self, **manner: Unpack[Manner]) -> ManyChanged:
        """Cancel those that have not ended. The arguments and errors are those of `requeue`."""
        return self.change(Cancel(), **manner)

    def stop(self, **manner: Unpack[Manner]) -> ManyChanged:
        """Stop the present runs of those that run; see `Schedule.stop`.

        Those that were paused meanwhile are left out. The arguments and errors are as in `requeue`.
        """
        return self.change(Stop(), **manner)

    def force_finish(self, **manner: Unpack[Manner]) -> ManyChanged:
        """Make those finished that have not ended. The arguments and errors are as in `requeue`."""
        return self.change(ForceFinish(), **manner)

    def trigger(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        overlap: str = QUEUE,
        run_at: When | None = None,
        **manner: Unpack[Manner],
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
        return self.change(Trigger(data, overlap=overlap, run_at=run_at), **manner)

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

        Extra runs are left out, and so are quarantined schedules and what runs only once.
        ``backfills`` of the result says what was done, by the schedule's key. The first
        arguments are those of `Schedule.backfill`; the runs of all schedules together become due at
        the ``rate``. ``report`` and ``confirm`` are those of `requeue`.

        Raises:
            InvalidError: a value is invalid, or a status was selected of which there can be no
                extra run.
            NotSupportedError: the store cannot do it.
        """
        verb = RunMissed(
            start,
            end,
            stagger=Stagger(rate),
            again=again,
            overlap=overlap,
            dry_run=dry_run,
        )
        return self.change(verb, report=report, confirm=None if dry_run else confirm)

    def to_backfill(self) -> Iterator[ScheduleMetadata]:
        """Read those that `backfill` chooses; an error if a status has no extra runs."""
        return map(ScheduleMetadata, self._wanted.for_verb(RunMissed).rows(self._schedules))

    def pause(self, until: Until | None = None, **manner: Unpack[Manner]) -> ManyChanged:
        """Pause those that wait, run, or are paused already; see `Schedule.pause`.

        If ``until`` is invalid, each schedule is in `ManyChanged.failed`. The other arguments are
        those of `requeue`.

        Raises:
            InvalidError: ``rate`` is invalid, or a status was selected that cannot be paused.
        """
        return self.change(Pause(until), **manner)

    def resume(self, *, backfill: bool = False, **manner: Unpack[Manner]) -> ManyChanged:
        """Let those that are paused run again; see `Schedule.resume`.

        The other arguments and errors are those of `requeue`.
        """
        return self.change(Resume(backfill), **manner)

    def skip(self, number: int = 1, **manner: Unpack[Manner]) -> ManyChanged:
        """Leave out the next occurrences of those that have a trigger and have not ended.

        ``rescheduled`` of the result says what was skipped; those that run now are among the
        ``failed``. See `Schedule.skip`; the other arguments are those of `requeue`.

        Raises:
            InvalidError: a value is invalid, or a status was selected that cannot be skipped.
        """
        return self.change(Skip(number), **manner)

    def edit(
        self,
        decide: Decide | None = None,
        /,
        *,
        rate: str | None = None,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
        **changes: Unpack[Changes],
    ) -> ManyChanged:
        """Change the definitions of those that are not being deleted or moved.

        Those that have finished or were cancelled are changed only if their status is a condition.
        Extra runs are left out. ``rescheduled`` of the result says what was changed; those of which
        a value is invalid are among the ``failed``. For ``decide`` and ``changes`` see
        `psched.ScheduleCollection.modify`; the other arguments are those of `requeue`.

        Raises:
            InvalidError: the rate is invalid, or a status was selected that cannot be edited.
        """
        verb = Edit(decide or (lambda _: changes))
        return self.change(verb, rate=rate, dry_run=dry_run, report=report, confirm=confirm)

    def change(
        self,
        verb: Verb[Outcome | Backfill],
        *,
        rate: str | None = None,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
    ) -> ManyChanged:
        """Do something of `psched.client.verbs` with those with which it can be done.

        psched's own commands call this. The arguments and errors are as in `requeue`.
        """
        wanted = self._wanted.for_verb(type(verb))
        pace, result = Pace(rate, self._access.clock), ManyChanged()
        rows = wanted.rows(self._schedules)
        if dry_run:
            for row in rows:
                result.note(row.key, partial(verb.preview, self._access, row))
            return result
        # All keys are read first, because the changes would change what is read next.
        keys = [row.key for row in rows]
        if confirm is not None and not confirm(keys):
            return result
        for key in keys:
            pace.wait()
            outcome = result.note(key, partial(verb.apply, self._access, key, wanted.has))
            if report is not None:
                report(key, outcome)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The conditions of a selection; each one that is empty or None is fulfilled by every row.

    Attributes:
        keys: keys or patterns, one of which the key must match.
        selection: the statuses, types and labels.
        reason: a pattern for the column ``reason``, in which capital and small letters are equal;
            without a wildcard, a part of the text.
        extra_runs: whether the row of an extra run fulfils the conditions, too.
        one_shots: whether the row of a schedule that runs only once does, too.
        templates: whether templates do, or the rows of their hosts; None means both.
    """

    keys: Sequence[str] = ()
    selection: Selection = EVERY_ROW
    reason: str | None = None
    extra_runs: bool = True
    one_shots: bool = True
    templates: bool | None = None

    def for_verb(self, verb: type[Verb[Any]]) -> "Wanted":
        """Return these conditions, limited to rows with which the verb can be done."""
        chosen = self.selection.statuses
        if others := chosen - verb.states:
            known = ", ".join(sorted(verb.states))
            text = f"{min(others)!r} cannot be {verb.done}; choose from {known}"
            raise InvalidError("status", text)
        return changed(
            self,
            selection=changed(self.selection, statuses=chosen or verb.states - verb.unless_named),
            extra_runs=verb.takes_extra_runs,
            one_shots=verb.takes_one_shots,
            templates=verb.takes_templates,
        )

    def has(self, row: Row) -> bool:
        """Whether a row fulfils the conditions; its key is not compared."""
        return (
            self.selection.matches(row)
            and (self.reason is None or _contains(row.reason or "", self.reason))
            and (self.extra_runs or schedule_of(row.key) is None)
            and (self.one_shots or row.cron is not None)
            and (self.templates is not False or not row.each_host)
            and (self.templates is not True or row.template is None)
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
            "status": self.selection.statuses or None,
            "type": self.selection.types or None,
            "label": self.selection.labels or None,
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
    """Check the arguments of `psched.ScheduleCollection.select`."""
    selection = selection_of(status, type_, label)
    chosen_texts("keys", keys or None)
    chosen_texts("reason", reason)
    if reason == "":
        raise InvalidError("reason", "must not be empty")
    if not (every or keys or not selection.selects_all or reason):
        raise InvalidError("keys", "name keys or a condition, or pass every=True")
    keys = [*dict.fromkeys(map(stored_key, keys))]
    return Wanted(keys=keys, selection=selection, reason=reason)


class Pace:
    """Limits how many changes are made in a time, by a rate such as ``"10/s"``."""

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
