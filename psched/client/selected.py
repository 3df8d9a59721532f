"""Changes many schedules: those that a selection finds, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as changed
from typing import TYPE_CHECKING, Any, Unpack

from psched.client.operations.many import Confirm, Manner, ManyChanged, Outcome, Report, change_many
from psched.client.operations.pausing import CAN_BE_PAUSED, CAN_BE_RESUMED, Pauser
from psched.client.operations.skipping import CAN_BE_SKIPPED, Skipper
from psched.client.writer import CAN_BE_REQUEUED, Condition, Writer
from psched.core.model import (
    BEING_DELETED,
    CANCELLED,
    ENDED,
    FINISHED,
    MIGRATING,
    PAUSED,
    RUNNING,
    STOPPING,
    WAITING,
    Row,
)
from psched.core.operations.backfills import Backfill, Stagger, check_backfill_overlap
from psched.core.operations.changes.skipping import check_count
from psched.core.operations.extra_runs import QUEUE, check_overlap
from psched.core.schedule_metadata import ScheduleMetadata
from psched.core.selection import STATES
from psched.core.shorthands import Until, instant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from psched.base.clock import Clock
    from psched.client.operations.editing import Decide, Editor
    from psched.client.operations.extra_runs import ExtraRuns
    from psched.client.operations.wanted import Wanted
    from psched.core.arguments.fields import Changes
    from psched.core.declare import When
    from psched.core.operations.changes.rescheduled import Rescheduled
    from psched.core.schedule import Schedules

CAN_BE_TRIGGERED = frozenset({WAITING, RUNNING, PAUSED, STOPPING})
"""The statuses of schedules of which there can be extra runs."""

CAN_BE_EDITED = STATES - {*BEING_DELETED, MIGRATING}
"""The statuses of schedules that can be edited."""


@dataclass(frozen=True, slots=True)
class Changers:
    """What changes the schedules of one store.

    Attributes:
        writer: changes their definitions and statuses.
        pauser: pauses and resumes them.
        extra_runs: adds extra runs.
        skipper: leaves out occurrences.
        editor: changes definitions, and says what that does.
    """

    writer: Writer
    pauser: Pauser
    extra_runs: ExtraRuns
    skipper: Skipper
    editor: Editor


class SelectedSchedules:
    """The schedules that `psched.ScheduleCollection.select` has selected.

    Iteration reads them: first those that were named by their keys, then the others, sorted by key.
    Each of the other methods reads the keys, and then changes one schedule after the other. It
    skips a schedule that does not fulfil the conditions any more when its turn has come. A call
    that was interrupted can be repeated: it changes the schedules that fulfil the conditions then.

    For threads and forks, the rules of the collection apply.

    Args:
        schedules: reads the schedules.
        changers: change them.
        wanted: the conditions.
        clock: measures the rate.
    """

    def __init__(
        self, schedules: Schedules, changers: Changers, wanted: Wanted, clock: Clock
    ) -> None:
        self._schedules = schedules
        self._changers = changers
        self._wanted = wanted
        self._clock = clock

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
            self._changers.writer.requeue(key, run_at, only_if)
            return True

        return self._change(wanted, requeue, Manner(rate, dry_run, report, confirm))

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
        cancel = self._changers.writer.cancel
        return self._change(wanted, cancel, Manner(rate, dry_run, report, confirm))

    def stop(
        self,
        *,
        rate: str | None = None,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
    ) -> ManyChanged:
        """Stop the present runs of those that run; see `Schedule.stop`.

        Those that were paused meanwhile are left out. The arguments and errors are as in `requeue`.
        """
        wanted = self._wanted.among(frozenset({RUNNING}), "stopped")
        stop = self._changers.pauser.stop
        return self._change(wanted, stop, Manner(rate, dry_run, report, confirm))

    def force_finish(
        self,
        *,
        rate: str | None = None,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
    ) -> ManyChanged:
        """Make those finished that have not ended. The arguments and errors are as in `requeue`."""
        wanted = self._wanted.among(STATES - ENDED, "finished")
        finish = self._changers.writer.force_finish
        return self._change(wanted, finish, Manner(rate, dry_run, report, confirm))

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
            return self._changers.extra_runs.trigger(
                key, data, overlap=overlap, run_at=run_at, only_if=only_if
            )

        return self._change(wanted, trigger, Manner(rate, dry_run, report, confirm))

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
        stagger = Stagger(rate)
        check_backfill_overlap(overlap, stagger)
        start, end = instant("start", start), instant("end", end)
        backfills: dict[str, Backfill] = {}

        def backfill(key: str, only_if: Condition) -> bool:
            backfills[key] = self._changers.extra_runs.backfill(
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

        manner = Manner(None, dry_run=False, report=report, confirm=None if dry_run else confirm)
        return changed(self._change(self._missed(), backfill, manner), backfills=backfills)

    def to_backfill(self) -> Iterator[ScheduleMetadata]:
        """Read those that `backfill` chooses.

        Raises:
            InvalidError: a status was selected of which there can be no extra run.
        """
        return map(ScheduleMetadata, self._missed().rows(self._schedules))

    def pause(
        self,
        until: Until | None = None,
        *,
        rate: str | None = None,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
    ) -> ManyChanged:
        """Pause those that wait, run, or are paused already; see `Schedule.pause`.

        If ``until`` is invalid, each schedule is in `ManyChanged.failed`. The other arguments are
        those of `requeue`.

        Raises:
            InvalidError: ``rate`` is invalid, or a status was selected that cannot be paused.
        """
        wanted = self._wanted.among(CAN_BE_PAUSED, "paused")

        def pause(key: str, only_if: Condition) -> bool:
            return self._changers.pauser.pause(key, until, only_if)

        return self._change(wanted, pause, Manner(rate, dry_run, report, confirm))

    def resume(
        self,
        *,
        backfill: bool = False,
        rate: str | None = None,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
    ) -> ManyChanged:
        """Let those that are paused run again; see `Schedule.resume`.

        The other arguments and errors are those of `requeue`.
        """
        wanted = self._wanted.among(CAN_BE_RESUMED, "resumed")

        def resume(key: str, only_if: Condition) -> bool:
            self._changers.pauser.resume(key, backfill=backfill, only_if=only_if)
            return True

        return self._change(wanted, resume, Manner(rate, dry_run, report, confirm))

    def skip(
        self,
        number: int = 1,
        *,
        rate: str | None = None,
        dry_run: bool = False,
        report: Report | None = None,
        confirm: Confirm | None = None,
    ) -> ManyChanged:
        """Leave out the next occurrences of those that have a trigger and have not ended.

        ``rescheduled`` of the result says what was skipped; those that run now are among the
        ``failed``. See `Schedule.skip`; the other arguments are those of `requeue`.

        Raises:
            InvalidError: a value is invalid, or a status was selected that cannot be skipped.
        """
        check_count(number)
        skipper = self._changers.skipper
        wanted = changed(self._wanted.among(CAN_BE_SKIPPED, "skipped"), one_shots=False)

        def skip(key: str, only_if: Condition) -> Rescheduled:
            return skipper.skip(key, number, dry_run=False, only_if=only_if)

        manner = Manner(rate, dry_run, report, confirm)
        return self._change(wanted, skip, manner, lambda row: skipper.preview(row, number))

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
        editor, decides = self._changers.editor, decide or (lambda _: changes)
        wanted = self._wanted.among(CAN_BE_EDITED, "edited", unless_named={FINISHED, CANCELLED})
        wanted = changed(wanted, extra_runs=False)

        def edit(key: str, only_if: Condition) -> Rescheduled:
            return editor.edit(key, decides, dry_run=False, only_if=only_if)

        manner = Manner(rate, dry_run, report, confirm)
        return self._change(wanted, edit, manner, lambda row: editor.preview(row, decides))

    def _missed(self) -> Wanted:
        wanted = self._wanted.among(CAN_BE_TRIGGERED, "backfilled")
        return changed(wanted, extra_runs=False, one_shots=False)

    def _change(
        self,
        wanted: Wanted,
        change: Callable[[str, Condition], Outcome],
        manner: Manner,
        preview: Callable[[Row], Outcome] | None = None,
    ) -> ManyChanged:
        return change_many(
            self._schedules, wanted, change, manner, clock=self._clock, preview=preview
        )
