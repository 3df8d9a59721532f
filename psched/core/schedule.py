"""One schedule in the API for programs: a reference by key, and the data that a read returns.

`Schedules` is the interface of a collection of schedules. It is defined here, and not in
`psched.client`, which implements it, because the modules that pass a collection to handlers must
not import `psched.client`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack

from psched.base.compression import LARGEST
from psched.base.errors import NotFoundError
from psched.core.columns import note_of, parse_payload, raw_data
from psched.core.model import DEFAULT_TYPE, Row
from psched.core.operations.extra_runs import QUEUE
from psched.triggers.zone import find_zone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from psched.base.quantities import Duration
    from psched.core.arguments import AddOptions, Changes, NewSchedule, NewTask, PushOptions
    from psched.core.columns import Until, When
    from psched.core.history.answer import Answer
    from psched.core.history.records import AuditRecord
    from psched.core.history.run import Run, TaskEnd
    from psched.core.operations.backfills import Backfill
    from psched.core.operations.rescheduled import Rescheduled
    from psched.core.output import Output
    from psched.core.preview import UpcomingTime

Since = float | str | timedelta | datetime
"""The beginning of a period that ends now, see `Schedules.runs`."""

ListOrder = Literal["next", "key"]
"""The order in which schedules are listed: by the time of the next run, or by key."""


class Schedule:
    """A reference to the schedule with a key. The schedule need not exist.

    For threads and forks, the rules of the collection that it came from apply.
    """

    __slots__ = ("_collection", "key")

    def __init__(self, collection: Schedules, key: str) -> None:
        self._collection = collection
        self.key = key

    def __repr__(self) -> str:
        return f"<Schedule {self.key!r}>"

    def metadata(self) -> ScheduleMetadata:
        """Read the schedule.

        Raises:
            NotFoundError: there is no such schedule.
        """
        return self._collection.read(self.key)

    def exists(self) -> bool:
        """Whether a schedule with this key exists."""
        try:
            self.metadata()
        except NotFoundError:
            return False
        return True

    def next(self, number: int = 10) -> Sequence[UpcomingTime]:
        """The next occurrences, beginning with the one that is due or running.

        The result is empty if the schedule has no next run. If the schedule is paused until a time,
        the result begins with the first occurrence after the pause.

        Args:
            number: the number of occurrences, from 1 to 1000.

        Raises:
            InvalidError: the number or the schedule is invalid.
            NotFoundError: there is no such schedule.
        """
        return self._collection.next(self.key, number)

    def runs(
        self,
        *,
        since: Since | None = None,
        failed: bool = False,
        outcome: str | Iterable[str] | None = None,
        fate: str | Iterable[str] | None = None,
        time: When | None = None,
        limit: int | None = None,
        extra_runs: bool = True,
    ) -> Iterator[Run]:
        """Read the records of the schedule in the run history, the newest first.

        Those of its extra runs (`trigger`, `backfill`) are among them. The records stay when the
        schedule is deleted.

        The arguments are those of `psched.ScheduleCollection.runs`.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: the store keeps no run history; the text names the fix.
        """
        return self._collection.runs(
            self.key,
            since=since,
            failed=failed,
            outcome=outcome,
            fate=fate,
            time=time,
            limit=limit,
            extra_runs=extra_runs,
        )

    def outputs(
        self, *, time: When | None = None, attempt: int | None = None, limit: int | None = None
    ) -> Iterator[Output]:
        """Read what the attempts of the schedule have printed, the newest first.

        The arguments and errors are those of `psched.ScheduleCollection.outputs`.
        """
        return self._collection.outputs(self.key, time=time, attempt=attempt, limit=limit)

    def output(self, *, time: When | None = None, attempt: int | None = None) -> Output | None:
        """Read what the newest attempt that has printed something has printed; None if none has.

        The arguments and errors are those of `psched.ScheduleCollection.outputs`.
        """
        return next(self.outputs(time=time, attempt=attempt, limit=1), None)

    def why(self, time: When | str | None = None, zone: str | None = None) -> Answer:
        """Explain what became of an occurrence, or what will.

        The answer is based on the schedule, on the run history, and on the records of the workers.
        It is also given if the schedule does not exist. No worker needs to run.

        Args:
            time: the scheduled time: Unix seconds, an aware datetime, or a text such as
                ``"2026-11-22 02:30"``, ``"02:30"`` (the last one that is not in the future),
                ``"yesterday 02:30"``, ``"-2h"`` (the last occurrence up to then), or ISO 8601 with
                an offset. None means the last occurrence that was due.
            zone: the time zone of a local time and of the times in the answer; None means that of
                the schedule.

        Raises:
            InvalidError: the time or the zone is invalid.
        """
        return self._collection.why(self.key, time, zone)

    def delete(self) -> bool:
        """Delete the schedule.

        If the schedule's task is running, the schedule is only marked, and the worker stops the
        task and then deletes the schedule. Until then no other schedule can have the key.

        Returns:
            True if the schedule was deleted, False if it was marked.

        Raises:
            NotFoundError: there is no such schedule.
        """
        return self._collection.delete(self.key)

    def cancel(self) -> bool:
        """Cancel the schedule, so that it does not run again.

        If the schedule's task is running, the schedule is only marked, and the worker stops the
        task and then cancels the schedule. If the task succeeds before the worker stops it, a
        schedule that runs only once becomes finished instead of cancelled.

        Returns:
            True if the schedule is cancelled, False if it was marked.

        Raises:
            AlreadyFinishedError: the schedule has ended already.
            NotFoundError: there is no such schedule.
        """
        return self._collection.cancel(self.key)

    def stop(self) -> bool:
        """Stop the present run of the schedule, which then goes on with its next occurrence.

        The row is marked, and the worker stops the task. The run is not tried again; its fate is
        ``stopped``. A schedule that runs only once is cancelled. An occurrence that succeeds before
        its worker stops it is finished.

        Returns:
            False, because the run ends later.

        Raises:
            AlreadyFinishedError: the schedule does not run now, or what runs is an extra run of it.
            NotFoundError: there is no such schedule.
            NotSupportedError: the store keeps no status.
        """
        return self._collection.stop(self.key)

    def force_finish(self) -> bool:
        """Make the schedule finished, whatever its task has done; a running task is stopped.

        Returns:
            True if the schedule is finished now; False if its task is running, so that the schedule
            will be finished when the worker has stopped the task.

        Raises:
            AlreadyFinishedError: the schedule has ended already.
            NotFoundError: there is no such schedule.
        """
        return self._collection.force_finish(self.key)

    def requeue(self, run_at: When | None = None) -> None:
        """Run the schedule again after it has ended or was quarantined or paused.

        The attempts are counted from 1 again. What fell due while the schedule was quarantined or
        paused is not skipped: the setting ``catchup`` decides which of it runs.

        Args:
            run_at: the earliest start; None means now.

        Raises:
            AlreadyExistsError: the schedule is waiting or running already.
            NotFoundError: there is no such schedule.
        """
        self._collection.requeue(self.key, run_at)

    def wait(self, timeout: Duration | None = None) -> str:
        """Wait until a schedule that runs only once has ended.

        Args:
            timeout: the longest wait, in seconds or as in ``"5m"``; None means no limit.

        Returns:
            ``finished``, ``cancelled``, ``expired``, ``failed`` or ``quarantined``.

        Raises:
            InvalidError: the schedule has a trigger, so it does not run only once; or
                ``timeout`` is no duration.
            NotFoundError: there is no such schedule; or it was removed during the wait, because a
                client deleted it, or because it has ended and its ``retention_time`` is 0.
            TimeoutError: the schedule has not ended within ``timeout``.
        """
        return self._collection.wait(self.key, timeout)

    def wait_for_end(
        self,
        timeout: Duration | None = None,
        look: Callable[[ScheduleMetadata], object] | None = None,
    ) -> TaskEnd:
        """Wait as `wait` does; return the status together with the result of the task.

        The result is read from the run history, so it is None if the settings ``history`` of the
        worker exclude the attempt, or if the store keeps no history, or none that can be read.

        Args:
            timeout: the longest wait, in seconds or as in ``"5m"``; None means no limit.
            look: is called each time the wait looks at the schedule and it has not ended, for
                example to tell of failed attempts.

        Raises:
            InvalidError: the schedule has a trigger, so it does not run only once; or
                ``timeout`` is no duration.
            NotFoundError: see `wait`.
            TimeoutError: the schedule has not ended within ``timeout``.
            TransientStoreError: the schedule has ended, but the store became unavailable.
        """
        return self._collection.wait_for_end(self.key, timeout, look)

    def modify(self, **changes: Unpack[Changes]) -> None:
        """Change the schedule's definition; see `ScheduleCollection.modify`.

        Args:
            changes: new values for arguments of `ScheduleCollection.add`.

        Raises:
            NotFoundError: there is no such schedule.
            InvalidError: a value is invalid; the error's ``field`` is the name of the value.
        """
        self._collection.modify(self.key, **changes)

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


class Schedules(Protocol):
    """The schedules of one store. `psched.open` returns such an object, and handlers get one.

    `psched.ScheduleCollection` implements this protocol and documents the methods. The protocol
    contains neither `poll`, which only programs without workers need, nor `select`, the pauses of
    types and alerts, which are for people.

    One thread at a time can use them. `psched.App.schedules` can be used by any number at once.
    """

    def __getitem__(self, key: str) -> Schedule: ...

    def __contains__(self, key: object) -> bool:
        """Whether a schedule with this key exists."""

    def __iter__(self) -> Iterator[Schedule]:
        """Every schedule, in the order of `list`."""

    def __len__(self) -> int:
        """The number of schedules."""

    def __bool__(self) -> bool:
        """Always True, also if there is no schedule."""

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""

    def add(
        self,
        key: str,
        type: str = DEFAULT_TYPE,  # noqa: A002  # the table's word
        *,
        cron: str | None = None,
        delay: Duration = 0,
        timezone: str | None = None,
        next_time: When | None = None,
        next_run_time: When | None = None,
        data: Mapping[str, Any] | None = None,
        **more: Unpack[AddOptions],
    ) -> Schedule:
        """Register a schedule."""

    def add_many(self, schedules: Iterable[NewSchedule]) -> Sequence[Schedule]:
        """Register many schedules, all of them or none."""

    def push(
        self,
        key: str | None = None,
        type: str | None = None,  # noqa: A002  # the table's word
        data: Mapping[str, Any] | None = None,
        *,
        run_at: When | None = None,
        timeout: Duration | None = None,
        connection: Any = None,  # noqa: ANN401  # one of several kinds
        **more: Unpack[PushOptions],
    ) -> Schedule:
        """Submit a task: a schedule that runs only once."""

    def push_many(self, tasks: Iterable[NewTask]) -> Sequence[Schedule]:
        """Submit many tasks, all of them or none."""

    def read(self, key: str) -> ScheduleMetadata:
        """Read one schedule."""

    def read_many(self, keys: Sequence[str]) -> Mapping[str, ScheduleMetadata]:
        """Read the schedules with these keys; the result omits keys that have no schedule."""

    def list(
        self,
        *,
        status: str | Iterable[str] | None = None,
        type: str | Iterable[str] | None = None,  # noqa: A002  # the table's word
        label: str | Iterable[str] | None = None,
        prefix: str | None = None,
        due: bool = False,
        limit: int | None = None,
        order: ListOrder = "next",
    ) -> Iterator[ScheduleMetadata]:
        """Read the schedules that fulfil all conditions; without any, every schedule."""

    def next(self, key: str, number: int = 10) -> Sequence[UpcomingTime]:
        """The next occurrences of a schedule, beginning with the one that is due or running."""

    def runs(
        self,
        key: str | None = None,
        *,
        type: str | Iterable[str] | None = None,  # noqa: A002  # the table's word
        since: Since | None = None,
        failed: bool = False,
        outcome: str | Iterable[str] | None = None,
        fate: str | Iterable[str] | None = None,
        time: When | None = None,
        limit: int | None = None,
        extra_runs: bool = True,
    ) -> Iterator[Run]:
        """Read the records of the run history that fulfil all conditions, the newest first."""

    def last_runs(self, keys: Sequence[str]) -> Mapping[str, Run]:
        """Find the last run of each of these keys: how its last attempt or occurrence ended."""

    def outputs(
        self,
        key: str,
        *,
        time: When | None = None,
        attempt: int | None = None,
        limit: int | None = None,
    ) -> Iterator[Output]:
        """Read what the attempts of a schedule have printed, the newest first."""

    def why(self, key: str, time: When | str | None = None, zone: str | None = None) -> Answer:
        """Explain what became of an occurrence, or what will."""

    def now(self) -> float:
        """The time of the store's clock, in Unix seconds."""

    def modify(
        self,
        key: str,
        decide: Callable[[Row], Mapping[str, Any]] | None = None,
        /,
        **changes: Unpack[Changes],
    ) -> None:
        """Change a schedule's definition."""

    def delete(self, key: str) -> bool:
        """Delete a schedule; False if its task is running, so that it is deleted later."""

    def cancel(self, key: str) -> bool:
        """Cancel a schedule; False if its task is running, so that it is cancelled later."""

    def stop(self, key: str) -> bool:
        """Stop the present run of a schedule; False, because the run ends later."""

    def force_finish(self, key: str) -> bool:
        """Make a schedule finished; False if its task is running, so that this happens later."""

    def requeue(self, key: str, run_at: When | None = None) -> None:
        """Run a schedule again that has ended, is quarantined or is paused."""

    def pause(self, key: str, until: Until | None = None) -> bool:
        """Pause a schedule; False if its task is running, which goes on."""

    def resume(self, key: str, *, backfill: bool = False) -> None:
        """Let a paused schedule run again."""

    def skip(self, key: str, number: int = 1, *, dry_run: bool = False) -> Rescheduled:
        """Leave out the next occurrences of a schedule."""

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

    def trigger(
        self,
        key: str,
        data: Mapping[str, Any] | None = None,
        *,
        overlap: str = QUEUE,
        run_at: When | None = None,
    ) -> Schedule:
        """Run a schedule now, beside its regular occurrences."""

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

    def wait(self, key: str, timeout: Duration | None = None) -> str:
        """Wait until a schedule that runs only once has ended, and return its status."""

    def wait_for_end(
        self,
        key: str,
        timeout: Duration | None = None,
        look: Callable[[ScheduleMetadata], object] | None = None,
    ) -> TaskEnd:
        """Wait in the same way; return the status together with the result of the task."""

    def audited(self, note: str | None) -> AbstractContextManager[None]:
        """Note in the audit trail why the changes in the ``with`` block are made."""

    def audit(
        self, key: str | None = None, since: Since | None = None, limit: int | None = None
    ) -> Iterator[AuditRecord]:
        """Read who has changed which schedule, the newest change first."""


@dataclass(frozen=True, slots=True)
class ScheduleMetadata:
    """The data of a schedule at the time when it was read.

    Attributes:
        row: all columns of the schedule, in their stored form.
        default_zone: the time zone of the settings.
    """

    row: Row
    default_zone: str = field(default="UTC", compare=False)

    def __repr__(self) -> str:
        # The payload is not shown, because this text is logged, and it can contain secrets.
        return f"<ScheduleMetadata {self.key} type={self.type!r} status={self.row.status}>"

    @property
    def key(self) -> str:
        """The schedule's unique name."""
        return self.row.key

    @property
    def type(self) -> str:
        """The type of the schedule's tasks, which selects their handler."""
        return self.row.type

    @property
    def data(self) -> dict[str, Any]:
        """The payload for the handler.

        Raises:
            InvalidError: the stored payload is not a JSON object.
        """
        return parse_payload(self.row.data, LARGEST)

    @property
    def raw_data(self) -> bytes:
        """The payload as it was submitted, byte for byte; see `Task.raw_data`.

        Raises:
            InvalidError: the stored payload is not a JSON object.
        """
        return raw_data(self.row)

    @property
    def cron(self) -> str | None:
        """The trigger's text; None if the schedule runs only once."""
        return self.row.cron

    @property
    def timezone(self) -> str | None:
        """The zone in which ``cron`` is interpreted; None means the zone in the settings."""
        return self.row.timezone

    @property
    def delay(self) -> int:
        """Seconds from an occurrence's scheduled time to its earliest run."""
        return self.row.delay

    @property
    def next_time(self) -> int | None:
        """The scheduled time in Unix seconds of the occurrence that runs now or next.

        None if there is none, or if no time has been computed yet.
        """
        return self.row.next_time

    @property
    def next_run_time(self) -> int | None:
        """The earliest instant in Unix seconds at which a worker can lease the schedule.

        While the task runs, this is the end of its lease; during a pause, the end of the pause.
        None if the schedule has no next run.
        """
        return self.row.next_run_time

    @property
    def next_scheduled_at(self) -> datetime | None:
        """``next_time`` as an aware datetime in the schedule's time zone.

        Raises:
            InvalidError: the stored time zone is unknown.
        """
        return self._local(self.next_time)

    @property
    def next_run_at(self) -> datetime | None:
        """``next_run_time`` as an aware datetime in the schedule's time zone.

        Raises:
            InvalidError: the stored time zone is unknown.
        """
        return self._local(self.next_run_time)

    def _local(self, instant: int | None) -> datetime | None:
        zone = find_zone(self.timezone or self.default_zone)
        return None if instant is None else zone.at(instant)

    @property
    def status(self) -> str:
        """The schedule's status.

        ``waiting`` or ``running``; ``finished``, ``cancelled``, ``expired`` or ``failed`` after its
        end; ``quarantined`` if it is invalid, or ``paused``; ``deleting``, ``cancelling`` or
        ``finishing`` while its task is being stopped; ``migrating`` during `psched migrate`.
        """
        return self.row.state

    @property
    def attempt(self) -> int:
        """The number of attempts so far for the occurrence that runs now or next."""
        return self.row.attempt

    @property
    def created_at(self) -> int | None:
        """When the schedule was added, in Unix seconds; None if plain SQL inserted no time."""
        return self.row.created_at

    @property
    def label(self) -> str | None:
        """The name of the schedule's owner, see `psched.files`; None if there is none."""
        return self.row.label

    @property
    def run_as(self) -> str | None:
        """The Unix user as whom its program runs; None for the user of the service."""
        return self.row.run_as

    @property
    def hosts(self) -> Sequence[str] | None:
        """The names, labels and patterns of the hosts that may run it; None for every host."""
        return self.row.hosts

    @property
    def each_host(self) -> bool:
        """Whether it never runs itself, but each of its hosts runs a row of its own."""
        return self.row.each_host

    @property
    def template(self) -> str | None:
        """The key of the schedule with ``each_host`` of which this is one host's; None without."""
        return self.row.template

    @property
    def note(self) -> str | None:
        """Free text about the schedule; None if there is none."""
        return note_of(self.row)

    @property
    def reason(self) -> str | None:
        """Why the schedule has no next run, or what was last decided about it; None for no text."""
        return self.row.reason

    @property
    def reason_code(self) -> str | None:
        """The `psched.core.model.ReasonCode` of `reason`, for programs; None for no code."""
        return self.row.reason_code

    @property
    def paused_until(self) -> int | None:
        """When the schedule is resumed, in Unix seconds.

        None if it is not paused, or paused until somebody resumes it.
        """
        pause = self.row.pause
        return None if pause is None else pause.until
