"""The part of the API for programs with which operators steer schedules by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Unpack

from psched.core.operations.extra_runs import QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psched.core.arguments.fields import Changes
    from psched.core.declare import When
    from psched.core.model import Row
    from psched.core.operations.backfills import Backfill
    from psched.core.operations.rescheduled import Rescheduled
    from psched.core.schedule import Schedule
    from psched.core.shorthands import Until


class OperatesSchedules(Protocol):
    """The part of `psched.core.schedule.Schedules` with which operators steer schedules."""

    def pause(self, key: str, until: Until | None = None) -> bool:
        """Pause a schedule; False if its task is running, which goes on."""
        ...

    def resume(self, key: str, *, backfill: bool = False) -> None:
        """Let a paused schedule run again."""
        ...

    def skip(self, key: str, number: int = 1, *, dry_run: bool = False) -> Rescheduled:
        """Leave out the next occurrences of a schedule."""
        ...

    def edit(
        self,
        key: str,
        decide: Callable[[Row], Mapping[str, Any]] | None = None,
        /,
        *,
        dry_run: bool = False,
        **changes: Unpack[Changes],
    ) -> Rescheduled:
        """Change a schedule's definition, and say what that does."""
        ...

    def trigger(
        self,
        key: str,
        data: Mapping[str, Any] | None = None,
        *,
        overlap: str = QUEUE,
        run_at: When | None = None,
    ) -> Schedule:
        """Run a schedule now, beside its regular occurrences."""
        ...

    def backfill(
        self,
        key: str,
        start: When,
        end: When,
        *,
        rate: str | None = None,
        again: bool = False,
        overlap: str = QUEUE,
        dry_run: bool = False,
    ) -> Backfill:
        """Run the missed occurrences of a period."""
        ...


class OperatedSchedule:
    """The part of `psched.core.schedule.Schedule` with which operators steer a schedule."""

    __slots__ = ()

    _collection: OperatesSchedules
    key: str

    def pause(self, until: Until | None = None) -> bool:
        """Pause the schedule, so that it does not run until it is resumed.

        A running task goes on; the pause applies when the task has ended. If the schedule is paused
        already, the new end and the new note replace the former ones. The note is that of
        `Schedules.audited`.

        Args:
            until: when the schedule is resumed: Unix seconds, an aware datetime, a `timedelta` from
                now on, or a text such as ``"18:00"`` (the next one, in the schedule's time zone),
                ``"tomorrow 08:00"``, ``"2026-11-26T08:00"`` or ``"+2h"``. None means not before
                `resume`.

        Returns:
            True if the schedule rests now; False if its task is running.

        Raises:
            AlreadyFinishedError: the schedule has ended, or is about to.
            AlreadyExistsError: the schedule is quarantined or is being migrated.
            InvalidError: ``until`` is invalid, or not in the future.
            NotFoundError: there is no such schedule.
            NotSupportedError: the store keeps no status.
        """
        return self._collection.pause(self.key, until)

    def resume(self, *, backfill: bool = False) -> None:
        """Let the paused schedule run again.

        What fell due during the pause is skipped, and the run history says so. A schedule that runs
        only once runs now if it was due. An occurrence that was due or had been tried before the
        pause runs, too, unless later ones fell due during the pause.

        Args:
            backfill: True to skip nothing: the setting ``catchup`` decides which of the missed
                occurrences run.

        Raises:
            AlreadyExistsError: the schedule is not paused.
            AlreadyFinishedError: the schedule has ended, or is about to.
            InvalidError: the schedule is invalid, or its trigger cannot be loaded here.
            NotFoundError: there is no such schedule.
            NotSupportedError: the store keeps no status.
        """
        self._collection.resume(self.key, backfill=backfill)

    def skip(self, number: int = 1, *, dry_run: bool = False) -> Rescheduled:
        """Leave out the next occurrences of the schedule, beginning with the one that is due next.

        The run history says that they were skipped, by whom, and why: the note is that of
        `Schedules.audited`. If the next occurrence has been tried already and would be tried again,
        it is skipped, too. A paused schedule stays paused; its next occurrence is the oldest one
        that was not decided before the pause.

        Args:
            number: how many occurrences are left out, from 1 to 1000.
            dry_run: True to change nothing, and return what would be changed.

        Returns:
            What was skipped, and the next runs before and after that.

        Raises:
            AlreadyExistsError: the schedule is quarantined or is being migrated.
            AlreadyFinishedError: the schedule has ended, or is about to.
            InvalidError: the number or the schedule is invalid; or the schedule runs only once,
                runs now, or has no run after these. The error's ``field`` is the name of the
                argument, or ``key``.
            NotFoundError: there is no such schedule.
        """
        return self._collection.skip(self.key, number, dry_run=dry_run)

    def edit(
        self,
        *,
        dry_run: bool = False,
        **changes: Unpack[Changes],
    ) -> Rescheduled:
        """Change the schedule's definition, and say what that does.

        The arguments and errors are those of `psched.ScheduleCollection.edit`.
        """
        return self._collection.edit(self.key, dry_run=dry_run, **changes)

    def trigger(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        overlap: str = QUEUE,
        run_at: When | None = None,
    ) -> Schedule:
        """Run the schedule now, beside its regular occurrences, which stay as they are.

        The run is a task of its own: it has the schedule's type, data and options, but a key of its
        own, which is the schedule's key, an exclamation mark and 16 letters and digits. It also
        runs while the schedule is paused. `runs` of the schedule returns its records, too.

        Args:
            data: the payload, a JSON object; None means that of the schedule.
            overlap: what happens if another run of the schedule is going on when this one is to
                start: ``queue`` waits for its end, ``skip`` cancels this run, and ``parallel``
                starts it nevertheless. With ``queue`` and ``skip``, no regular run of the schedule
                starts while this one is going on.
            run_at: the earliest start; None means now.

        Returns:
            The extra run, for whose end `wait` can wait.

        Raises:
            AlreadyFinishedError: the schedule has ended; `requeue` runs it again.
            InvalidError: a value is invalid; or the schedule is quarantined, or is an extra run
                itself. The error's ``field`` is the name of the argument.
            NotFoundError: there is no such schedule.
            NotSupportedError: the store cannot do it.
        """
        return self._collection.trigger(self.key, data, overlap=overlap, run_at=run_at)

    def backfill(
        self,
        start: When,
        end: When,
        *,
        rate: str | None = None,
        again: bool = False,
        overlap: str = QUEUE,
        dry_run: bool = False,
    ) -> Backfill:
        """Run the missed occurrences of a period, each as an extra run like those of `trigger`.

        There is one extra run for each instant of the schedule's present trigger from ``start`` to
        ``end``, with this instant as its scheduled time. Left out are instants that have an extra
        run of a backfill already, those that have finished according to the run history, and those
        that the schedule itself still has to run. So a call that was interrupted can be repeated,
        and several calls at once run no instant twice.

        Args:
            start: the first instant that is run, if it is an instant of the trigger.
            end: the last instant that is run, which must not be in the future.
            rate: how many of the runs become due in a time, such as ``"10/m"``. None means that all
                of them are due now if ``overlap`` is ``parallel``; otherwise that each of them
                becomes due when the last one is expected to end: after the median duration of the
                last 50 finished runs, and at least a second.
            again: True to run instants again that have ended already.
            overlap: see `trigger`; ``skip`` needs a rate.
            dry_run: True to change nothing, and return what would be added.

        Raises:
            AlreadyFinishedError: the schedule has ended.
            InvalidError: a value is invalid; the schedule runs only once, is quarantined, or is an
                extra run itself; or the period contains more than 10,000 instants. The error's
                ``field`` is the name of the argument.
            NotFoundError: there is no such schedule.
            NotSupportedError: the store cannot do it.
        """
        return self._collection.backfill(
            self.key, start, end, rate=rate, again=again, overlap=overlap, dry_run=dry_run
        )
