"""The methods of a collection of schedules that change schedules."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from psched.client.collection_history import CollectionHistory
from psched.client.operations.type_pauses import ShownAsPaused, TypePauser
from psched.client.operations.waking import Waker
from psched.client.writer import Writer
from psched.core.operations.extra_runs import QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from psched.base.clock import Clock
    from psched.base.retry import Send
    from psched.client.author import Author
    from psched.client.operations.editing import Editor
    from psched.client.operations.extra_runs import ExtraRuns
    from psched.client.operations.pausing import Pauser
    from psched.client.operations.skipping import Skipper
    from psched.config import Config
    from psched.core.arguments.fields import Changes
    from psched.core.declare import When
    from psched.core.model import Row
    from psched.core.operations.backfills import Backfill, Stagger
    from psched.core.operations.changes.rescheduled import Rescheduled
    from psched.core.operations.pauses import PauseRule
    from psched.core.schedule import Schedule
    from psched.core.shorthands import Until
    from psched.core.store_protocol import Store


class CollectionChanges(CollectionHistory):
    """The part of `psched.ScheduleCollection` that changes schedules.

    Args:
        store: the store that contains the schedules.
        settings: the installation's settings.
        clock: measures how long a request takes, and the rate of many changes.
        author: returns who makes the changes of this collection, for the audit trail.
        send: sends a request to the store, again and again while the store is unavailable.
        draw_nonce: returns a new random text at each call.
        hint: tells the masters of this host that rows may be due; None if nobody is told.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        *,
        clock: Clock,
        author: Callable[[], Author],
        send: Send,
        draw_nonce: Callable[[], str],
        hint: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(store, settings, clock=clock, author=author, send=send)
        self._clock = clock
        self._draw_nonce = draw_nonce
        self._waker = Waker(store, settings, clock, hint)
        self._writer = Writer(
            store,
            settings,
            self.auditor,
            waker=self._waker,
            clock=clock,
            draw_nonce=draw_nonce,
            send=send,
        )
        self._type_pauser = TypePauser(store, settings, self.auditor, self._waker, send, draw_nonce)

    # What only some programs need is imported when it is needed, because a command that lists
    # schedules would take longer to import the rest than to list them.

    @cached_property
    def _pauser(self) -> Pauser:
        from psched.client.operations.pausing import Pauser  # noqa: PLC0415

        return Pauser(self._store, self._settings, self.auditor, self._writer, self._draw_nonce)

    @cached_property
    def _skipper(self) -> Skipper:
        from psched.client.operations.skipping import Skipper  # noqa: PLC0415

        return Skipper(self._store, self._settings, self.auditor, self._writer, self._draw_nonce)

    @cached_property
    def _editor(self) -> Editor:
        from psched.client.operations.editing import Editor  # noqa: PLC0415

        return Editor(self._store, self._settings, self._writer)

    @cached_property
    def _extra_runs(self) -> ExtraRuns:
        from psched.client.operations.extra_runs import ExtraRuns  # noqa: PLC0415

        return ExtraRuns(
            self._store,
            self._settings,
            self._writer,
            self.auditor,
            draw_nonce=self._draw_nonce,
            send=self._send,
        )

    @abstractmethod
    def __getitem__(self, key: str) -> Schedule: ...

    def modify(
        self,
        key: str,
        decide: Callable[[Row], Mapping[str, Any]] | None = None,
        /,
        **changes: Unpack[Changes],
    ) -> None:
        """Change a schedule's definition.

        If ``cron``, ``timezone`` or ``dst_policy`` is changed, the next occurrence is computed
        anew, from the present time on. Any change puts a quarantined schedule back into service. A
        schedule that has ended does not run again until a change sets its trigger or a time. A
        paused schedule stays paused until a change sets a time.

        If the schedule's task is running, it continues with the definition with which it was
        started. The new definition applies to later occurrences. A new ``next_run_time`` is
        ignored while the task runs, because the stored ``next_run_time`` is then the end of the
        task's lease.

        A ``next_run_time`` before the scheduled time of the next occurrence is refused, because
        that run would take the place of the scheduled run. For an extra run, call `trigger`. A task
        that runs only once is moved by ``next_time``.

        Args:
            key: the schedule's key.
            decide: a function that returns the changes, given the row as it is stored now. It is
                called again if the row was changed before the result was written. If the result
                is empty, nothing is changed. None means that ``changes`` are the changes.
            changes: new values for arguments of `add`. If a setting among them is None, the
                schedule's own value is removed, so that the installation's setting applies again.

        Raises:
            NotFoundError: no schedule has this key, or the schedule is being deleted.
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
        """
        self._writer.modify(key, decide, changes)

    def edit(
        self,
        key: str,
        decide: Callable[[Row], Mapping[str, Any]] | None = None,
        /,
        *,
        dry_run: bool = False,
        **changes: Unpack[Changes],
    ) -> Rescheduled:
        """Change a schedule's definition as `modify` does, and say what that does.

        Args:
            key: the schedule's key.
            decide: see `modify`.
            dry_run: True to change nothing, and return what would be changed.
            changes: see `modify`.

        Returns:
            The changed fields, and the next runs before and after the change.

        Raises:
            NotFoundError: no schedule has this key, or the schedule is being deleted.
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
        """
        return self._editor.edit(key, decide or (lambda _: changes), dry_run=dry_run)

    def try_to_modify(self, changes: Sequence[tuple[Row, Mapping[str, Any]]]) -> Sequence[bool]:
        """Change the definitions of many schedules in one transaction, if nothing prevents that.

        Args:
            changes: for each schedule, its row as the caller has read it, and the changes as in
                `modify`.

        Returns:
            For each schedule, whether it was changed. If not, `modify` finds out why: the row may
            have changed since it was read, a change may be invalid, the store may be unavailable or
            unable to change many schedules at once, or the answer to the change may be lost.
        """
        return self._writer.try_to_modify(changes)

    def delete(self, key: str) -> bool:
        """Delete a schedule. If its task runs, its worker first stops it; see `Schedule.delete`."""
        return self._writer.delete(key)

    def cancel(self, key: str) -> bool:
        """Cancel a schedule, so that it never runs again; see `Schedule.cancel`."""
        return self._writer.cancel(key)

    def stop(self, key: str) -> bool:
        """Stop the present run of a schedule, which then goes on; see `Schedule.stop`."""
        return self._pauser.stop(key)

    def force_finish(self, key: str) -> bool:
        """Mark a schedule as finished, whatever its task has done; see `Schedule.force_finish`."""
        return self._writer.force_finish(key)

    def requeue(self, key: str, run_at: When | None = None) -> None:
        """Let an ended, quarantined or paused schedule run again; see `Schedule.requeue`."""
        self._writer.requeue(key, run_at)

    def pause(self, key: str, until: Until | None = None) -> bool:
        """Pause a schedule, so that it does not run until it is resumed; see `Schedule.pause`."""
        return self._pauser.pause(key, until)

    def resume(self, key: str, *, backfill: bool = False) -> None:
        """Let a paused schedule run again; see `Schedule.resume`."""
        self._pauser.resume(key, backfill=backfill)

    def pause_type(
        self,
        type: str,  # noqa: A002  # the table's word
        until: Until | None = None,
    ) -> PauseRule:
        """Pause every schedule and task of a type, and those of the type that are added later.

        No worker starts one of them from its next claim on. Running tasks go on. If the type is
        paused already, the new end and the new note replace the former ones. The note is that of
        `audited`.

        Args:
            type: the type.
            until: when the pause ends, as in `Schedule.pause`; a local time is in the time zone of
                the settings. None means not before `resume_type`.

        Raises:
            InvalidError: ``type`` is invalid; or ``until`` is invalid, or not in the future.
            NotSupportedError: the store cannot pause types.
        """
        return self._type_pauser.pause(type, until)

    def pause_all(self, until: Until | None = None) -> PauseRule:
        """Pause every schedule and task, and those that are added later; see `pause_type`."""
        return self._type_pauser.pause(None, until)

    def resume_type(
        self,
        type: str,  # noqa: A002  # the table's word
        *,
        backfill: bool = False,
    ) -> None:
        """End the pause of a type.

        Workers skip what fell due during the pause when they find it, and the run history says so.
        A task that runs only once runs now if it was due. Occurrences that were due before the
        pause run, too. Schedules of the type that were paused by their keys stay paused.

        Args:
            type: the type.
            backfill: True to skip nothing: the setting ``catchup`` decides which of the missed
                occurrences run.

        Raises:
            AlreadyExistsError: the type is not paused.
            NotSupportedError: the store cannot pause types.
        """
        self._type_pauser.resume(type, backfill=backfill)

    def resume_all(self, *, backfill: bool = False) -> None:
        """End the pause of everything, see `resume_type`; paused types stay paused."""
        self._type_pauser.resume(None, backfill=backfill)

    def pauses(self) -> Sequence[PauseRule]:
        """The pauses of types and of everything that hold now."""
        return self._type_pauser.active()

    def shown_as_paused(self) -> ShownAsPaused:
        """Read the pauses once, and return a function that changes a row as people see it.

        The function returns a waiting row of a paused type as if it were paused by its key.
        """
        return self._type_pauser.shown()

    def skip(self, key: str, number: int = 1, *, dry_run: bool = False) -> Rescheduled:
        """Leave out the next occurrences of a schedule; see `Schedule.skip`."""
        return self._skipper.skip(key, number, dry_run=dry_run)

    def trigger(
        self,
        key: str,
        data: Mapping[str, Any] | None = None,
        *,
        overlap: str = QUEUE,
        run_at: When | None = None,
    ) -> Schedule:
        """Run a schedule now, beside its regular occurrences; see `Schedule.trigger`."""
        return self[self._extra_runs.trigger(key, data, overlap=overlap, run_at=run_at)]

    def backfill(
        self,
        key: str,
        start: When,
        end: When,
        *,
        rate: str | Stagger | None = None,
        again: bool = False,
        overlap: str = QUEUE,
        dry_run: bool = False,
        report: Callable[[Backfill], object] | None = None,
    ) -> Backfill:
        """Run the missed occurrences of a period; see `Schedule.backfill`.

        Several calls can share the `Stagger` of a rate, so that their runs together become due at
        this rate. After each part of the runs, ``report`` is called with what was done so far.
        """
        from psched.core.operations.backfills import Stagger  # noqa: PLC0415

        return self._extra_runs.backfill(
            key,
            start,
            end,
            stagger=rate if isinstance(rate, Stagger) else Stagger(rate),
            again=again,
            overlap=overlap,
            dry_run=dry_run,
            report=report,
        )
