"""The collection of schedules: a program's interface to the schedules of one store."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from importlib import import_module
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Self, Unpack

from psched.base.errors import InvalidError, NotSupportedError, StoreError, TransientStoreError
from psched.client.access import (
    Access,
    insert,
    is_possible,
    keeping_history,
    keeping_output,
    longest_wait,
    read_each,
    retry_while_unavailable,
    stored_key,
    wait_for_end,
)
from psched.client.arguments import (
    WITHOUT_TYPE,
    chosen_key,
    data_as_type,
    earliest,
    fields_of_push,
    lacks_type,
    naming_arguments,
    new_key,
)
from psched.client.auditor import Author, this_process
from psched.core.columns import check_number, instant
from psched.core.definition import parse_row
from psched.core.history.protocol import AuditSelection, KeepsHistory, RunSelection
from psched.core.history.records import FAILED_FATES, FAILURES, GONE_AFTER, Fate, Outcome
from psched.core.history.run import Run, TaskEnd
from psched.core.model import DEFAULT_TYPE, Row
from psched.core.operations.extra_runs import QUEUE
from psched.core.operations.overview import DURATIONS, overview_of
from psched.core.operations.pauses import ShownAsPaused
from psched.core.output import Output, OutputSelection
from psched.core.schedule import ListOrder, Schedule, ScheduleMetadata
from psched.core.selection import LARGEST_LIMIT, Selection, check_limit, chosen_texts, selection_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from psched.application.task import Task
    from psched.base.clock import Clock
    from psched.base.quantities import Duration
    from psched.client.poller import Poller
    from psched.client.selected import SelectedSchedules
    from psched.client.verbs.editing import Edit
    from psched.client.verbs.skipping import Skip
    from psched.config import Config
    from psched.core.alerts.alert import Alert
    from psched.core.alerts.protocol import KeepsAlerts
    from psched.core.arguments import (
        AddOptions,
        Changes,
        NewSchedule,
        NewTask,
        PushOptions,
    )
    from psched.core.columns import Until, When
    from psched.core.history.answer import Answer
    from psched.core.history.records import AuditRecord, WorkerRecord
    from psched.core.operations.backfills import Backfill, Stagger
    from psched.core.operations.overview import Overview
    from psched.core.operations.pauses import PauseRule
    from psched.core.operations.rescheduled import Rescheduled
    from psched.core.preview import UpcomingTime
    from psched.core.schedule import Since
    from psched.core.store_protocol import Send, Store
    from psched.triggers.zone import Zone

# What only some programs need is imported in the methods, because a command that lists schedules
# would take longer to import the rest than to list them.

_TRIES = 5
"""The largest number of times that a request is sent while the store is unavailable."""

_NEWEST = 10
"""Among so many of the newest attempts at a task that has ended is its last one, unless other
attempts were recorded late, for example as preempted."""


class ScheduleCollection:
    """Adds, reads, changes and deletes schedules, and leases their occurrences.

    A collection is a context manager: the end of a ``with`` block closes the connection to the
    store. While the store is unavailable, each request is repeated for a few seconds.

    One thread at a time can use a collection, because it has one connection. After a fork, both
    processes can use it: the child opens a connection of its own at its first request. On SQLite,
    those requests raise `StoreError` if another thread was sending a request during the fork.

    ``schedules[key]`` is a `Schedule`. ``key in schedules``, ``for schedule in schedules`` and
    ``len(schedules)`` ask the store each time.

    Args:
        store: the store that contains the schedules.
        settings: the installation's settings.
        clock: measures leases, and sleeps before a request is repeated.
        draw_nonce: returns a new random text at each call.
        tries: the largest number of times that a request is sent while the store is unavailable.
        patience: after how many seconds a request is not sent again.
        warns_without_type: whether `push` and `push_many` issue a ``UserWarning`` if a task is
            given no type, because the settings name no handler for the type ``default``.
        author: returns who makes the changes of this collection, for the audit trail.
        hint: tells the masters of this host that rows may be due; None if nobody is told.

    Attributes:
        access: what the verbs of `psched.client.verbs` need.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        *,
        clock: Clock,
        draw_nonce: Callable[[], str],
        tries: int = _TRIES,
        patience: float = inf,
        warns_without_type: bool = False,
        author: Callable[[], Author] = this_process,
        hint: Callable[[], object] | None = None,
    ) -> None:
        self._warns_without_type = warns_without_type
        self._store = store
        self._settings = settings
        self._zone = settings.timezone
        self._send: Send = partial(
            retry_while_unavailable, clock=clock, tries=tries, patience=patience
        )
        self.access = Access(
            store=store,
            settings=settings,
            clock=clock,
            send=self._send,
            draw_nonce=draw_nonce,
            author=author,
            hint=hint,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __getitem__(self, key: str) -> Schedule:
        return Schedule(self, key)

    def __contains__(self, key: object) -> bool:
        """Whether a schedule with this key exists, like `Schedule.exists`."""
        if isinstance(key, Schedule):
            key = key.key
        return isinstance(key, str) and self[key].exists()

    def __iter__(self) -> Iterator[Schedule]:
        """Return ``self[key]`` for each schedule, in the order and with the limits of `list`.

        To use the schedules' data, call `list`, which returns the data that it reads.
        """
        return (self[metadata.key] for metadata in self.list())

    def __len__(self) -> int:
        """The number of schedules. The result is exact even while schedules run.

        The database counts the schedules. A store of your own without a method `Store.count` is
        read as `list` reads it, so that the result can be wrong while schedules run.
        """
        return self._send(self._store.count)

    def __bool__(self) -> bool:
        """Always True, as for any connection, so that ``if schedules`` does not ask the store."""
        return True

    def close(self) -> None:
        """Close the connection to the store. A later request opens a new connection."""
        self._store.disconnect()

    def now(self) -> float:
        """The present time of the store's clock, in Unix seconds."""
        return self._send(self._store.now)

    # --- adding -----------------------------------------------------------------------------

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
        """Add a schedule.

        Args:
            key: the schedule's unique name.
            type: the type of task, which selects the handler.
            cron: five fields, or a name such as ``@daily``. Without ``cron``, one of ``every``,
                ``at`` and ``trigger`` defines when the schedule runs (see
                `psched.core.declare`). Without all four, the schedule runs once, at
                ``next_time``.
            delay: the duration between an occurrence's scheduled time and its earliest start:
                seconds, a text such as ``"5m"`` (with the unit s, m, h or d), or a `timedelta`.
                All durations in ``more`` can have these forms, too.
            timezone: the IANA time zone that applies to ``cron``; default: the setting
                ``timezone``.
            next_time: the first occurrence is the first match of ``cron`` at or after this
                instant; default: now, by the store's clock.
            next_run_time: the earliest start of the first run. If that is before its scheduled
                time, the first occurrence runs then, and not again at its scheduled time; for a
                schedule without a trigger this is refused. Default: the scheduled time of the first
                occurrence, plus ``delay`` and the occurrence's part of ``jitter``.
            data: the payload for the handler, a JSON object.
            more: the fields ``every``, ``align``, ``at`` and ``trigger``; settings of this
                schedule, such as ``alive_time``, ``catchup``, ``dst_policy``, ``jitter``,
                ``kill_timeout`` and ``retry_wait``; and the annotations ``label`` (the owner) and
                ``note`` (free text).

        Raises:
            AlreadyExistsError: a schedule with this key exists already.
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
        """
        from psched.core.declare import declare  # noqa: PLC0415

        if isinstance(type, Mapping):
            raise data_as_type("add", key, type)
        fields = {
            "type": type,
            "cron": cron,
            "delay": delay,
            "timezone": timezone,
            "next_time": next_time,
            "next_run_time": next_run_time,
            "data": data,
            **more,
        }
        insert(self.access, [declare(key, fields, self._settings, self.now)])
        return self[key]

    submit = add
    """The name of `add` in PerfectSched."""

    def add_many(self, schedules: Iterable[NewSchedule]) -> Sequence[Schedule]:
        """Add many schedules in one transaction: either all of them are added, or none.

        All schedules are checked before any is written.

        Args:
            schedules: for each schedule, a mapping with the ``key`` and any of the other arguments
                of `add`.

        Returns:
            The schedules, in the order of the argument.

        Raises:
            AlreadyExistsError: some of the keys exist already; the error's text lists these keys.
            InvalidError: a value is invalid, or a key is given twice; the error's ``field``
                identifies the schedule and the value, such as ``schedules[17].cron``.
        """
        from psched.core.declare import declare_all  # noqa: PLC0415

        rows = declare_all(schedules, self._settings, self.now)
        insert(self.access, rows)
        return [self[row.key] for row in rows]

    def push(
        self,
        key: str | None = None,
        type: str | None = None,  # noqa: A002  # the table's word
        data: Mapping[str, Any] | None = None,
        *,
        run_at: When | None = None,
        timeout: Duration | None = None,
        connection: Any = None,  # noqa: ANN401  # one of several kinds, of which none is imported here
        **more: Unpack[PushOptions],
    ) -> Schedule:
        """Submit a task, which runs once.

        A task with a key can safely be pushed again: while it waits or runs, and for
        ``retention_time`` after its end, a second push with its key raises an error.

        Args:
            key: the task's unique name. None, if nothing refers to the task by a name of its own:
                psched makes a key of the type and a new identifier, such as
                ``mail-0mwxo2jp6v3eujpd4h2k9q1z``; the result contains it. A second push makes
                a second task then.
            type: the type of task, which selects the handler; default: ``default``. If the settings
                name no handler (``dispatch``, ``exec`` or ``script``), a ``UserWarning`` says when
                the type is missing.
            data: the payload for the handler, a JSON object.
            run_at: the earliest start of the task; default: now, by the store's clock.
            timeout: the length of the task's lease: seconds, a text such as ``"5m"``, or a
                `timedelta`; default: the setting ``alive_time``. If the host that runs the task
                dies, another host can run the task when the lease has ended.
            connection: the caller's own connection to the store's database: one of SQLAlchemy's, of
                Django's, or of the drivers sqlite3, psycopg, pymysql and MySQLdb. The task is
                pushed in the caller's transaction, so the task exists only if the caller commits.
                psched then uses no connection of its own, and sends each request only once. A
                worker is woken after the commit, if psched learns of it: when a connection of
                SQLAlchemy's returns to its pool, or from Django. Otherwise the task starts with the
                next poll. None means that psched uses a connection of its own.
            more: settings of this task, such as ``expire``, ``kill_interval``, ``kill_timeout``,
                ``max_attempts``, ``retention_time``, ``retry_backoff`` and ``retry_wait``.

        Raises:
            AlreadyExistsError: a schedule or task with this key exists already.
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: ``connection`` is given, but a store of this kind cannot join a
                transaction.
        """
        from psched.core.declare import declare  # noqa: PLC0415

        if isinstance(type, Mapping):
            raise data_as_type("push", key, type)
        if type is None and self._warns_without_type:
            warnings.warn(WITHOUT_TYPE, stacklevel=2)
        given = {"type": type, "data": data, "run_at": run_at, "timeout": timeout, **more}
        fields = fields_of_push(given)
        transaction = None if connection is None else self._store.join_transaction(connection)
        now = cache(self.now) if transaction is None else transaction.now
        key = self._new_key(type, now) if key is None else key
        with naming_arguments([given]):
            row = declare(key, fields, self._settings, now)
        if transaction is None:
            insert(self.access, [row], audited=False)
        else:
            transaction.add([row], nonce=self.access.draw_nonce())
            self.access.wake_after(transaction, [row])
        return self[key]

    def push_many(self, tasks: Iterable[NewTask]) -> Sequence[Schedule]:
        """Submit many tasks in a few round trips: either all of them are pushed, or none.

        Args:
            tasks: for each task, a mapping with the arguments of `push`, except ``connection``. A
                task without a key gets one, as in `push`.

        Returns:
            The schedules of the tasks, in the order of the argument.

        Raises:
            AlreadyExistsError: some of the keys exist already; no task was pushed.
            InvalidError: a value is invalid; the error's ``field`` identifies the task and the
                value.
        """
        from psched.core.declare import declare_all  # noqa: PLC0415

        given = [*tasks]
        if self._warns_without_type and any(map(lacks_type, given)):
            warnings.warn(WITHOUT_TYPE, stacklevel=2)
        now = cache(self.now)
        with naming_arguments(given):
            rows = declare_all((self._with_key(task, now) for task in given), self._settings, now)
        insert(self.access, rows, audited=False)
        return [self[row.key] for row in rows]

    def _with_key(self, task: Any, now: Callable[[], float]) -> Mapping[str, Any]:  # noqa: ANN401
        # What is not a mapping is refused later, with an error that contains its number.
        if isinstance(task, Mapping) and task.get("key") is None:
            task = {**task, "key": self._new_key(task.get("type"), now)}
        return fields_of_push(task)

    def _new_key(self, type_: object, now: Callable[[], float]) -> str:
        return new_key(type_, now(), self.access.draw_nonce())

    # --- reading ----------------------------------------------------------------------------

    def read(self, key: str) -> ScheduleMetadata:
        """Read one schedule.

        Raises:
            NotFoundError: no schedule has this key.
        """
        return self._metadata(self._read(key))

    def _read(self, key: str) -> Row:
        return self.access.read(key)

    def read_many(self, keys: Sequence[str]) -> Mapping[str, ScheduleMetadata]:
        """Read the schedules with these keys, in a few round trips.

        Returns:
            The schedules by key. Keys that no schedule has are left out.
        """
        possible = [key for key in keys if is_possible(key)]
        found = self._send(lambda: self._store.look(possible))
        return {key: self._metadata(row) for key, row in found.items()}

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
        """Read the schedules that fulfil all of the given conditions; without any, all schedules.

        A database finds the schedules through its indexes, so few schedules are found quickly among
        many. The schedules are read from the store while the caller consumes the iterator. So a
        schedule that runs meanwhile can be returned twice, or not at all.

        Args:
            status: one or several values of `ScheduleMetadata.status`; None means every status.
            type: one or several types; None means every type.
            label: one or several labels; None means every schedule, with or without a label.
            prefix: the beginning of the key; None means every key.
            due: True for only those that wait and may start now, by the store's clock.
            limit: the largest number of schedules; None means no limit.
            order: ``next`` sorts by the time of the next run, and then by key; schedules without a
                next run are last. ``key`` sorts by key.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
        """
        return self._list(
            selection_of(status, type, label, prefix=prefix, due=due, limit=limit, order=order)
        )

    def _list(self, selection: Selection) -> Iterator[ScheduleMetadata]:
        yield from map(self._metadata, read_each(self._send, lambda: self._store.rows(selection)))

    def _metadata(self, row: Row) -> ScheduleMetadata:
        return ScheduleMetadata(row, self._settings.timezone)

    def next(self, key: str, number: int = 10) -> Sequence[UpcomingTime]:
        """Return the next occurrences of a schedule; see `Schedule.next`."""
        from psched.core.preview import upcoming_occurrences  # noqa: PLC0415

        row = self.shown_as_paused()(self._read(key))
        return upcoming_occurrences(row, parse_row(row, self._settings), number, self.now())

    def wait(self, key: str, timeout: Duration | None = None) -> str:
        """Wait until a schedule that runs only once has ended; see `Schedule.wait`."""
        return self._wait(key, longest_wait(timeout)).status

    def wait_for_end(
        self,
        key: str,
        timeout: Duration | None = None,
        look: Callable[[ScheduleMetadata], object] | None = None,
    ) -> TaskEnd:
        """Wait until a schedule that runs only once has ended; see `Schedule.wait_for_end`."""
        seen = None if look is None else lambda row: look(self._metadata(row))
        row = self._wait(key, longest_wait(timeout), seen)
        return TaskEnd(row, self._last_attempt(row))

    def _wait(
        self, key: str, timeout: float | None, look: Callable[[Row], object] | None = None
    ) -> Row:
        return wait_for_end(self.access, key, timeout, look)

    def _last_attempt(self, row: Row) -> Run | None:
        """The last attempt at a row that has ended; None if the run history does not contain it."""
        try:
            newest = self.runs(row.key, outcome=[*Outcome], limit=_NEWEST, extra_runs=False)
            # Older records can be those of a deleted schedule with the same key. So an attempt is
            # recognized by its lease.
            records = (run.record for run in newest)
            zone = row.timezone or self._zone
            return next((Run(each, zone) for each in records if each.lease == row.settled_by), None)
        except TransientStoreError:
            raise
        except (NotSupportedError, StoreError):
            # The end of the task is known nevertheless. For example, the table of the history is
            # missing, or the user may not read it.
            return None

    def why(
        self, key: str, time: When | str | None = None, zone: str | Zone | None = None
    ) -> Answer:
        """Explain what became of an occurrence, or what will; see `Schedule.why`."""
        from psched.reports.why.explain import explain_from_store  # noqa: PLC0415

        return explain_from_store(
            self._store, self._settings, self._send, stored_key(key), time=time, zone=zone
        )

    def select(
        self,
        *keys: str,
        status: str | Iterable[str] | None = None,
        type: str | Iterable[str] | None = None,  # noqa: A002  # the table's word
        label: str | Iterable[str] | None = None,
        reason: str | None = None,
        every: bool = False,
    ) -> SelectedSchedules:
        """Select the schedules that fulfil all conditions, to change or run them.

        Args:
            keys: keys or patterns, in which ``*`` stands for any characters and ``?`` for one.
            status: one or several values of `ScheduleMetadata.status`; None means every status.
            type: one or several types; None means every type.
            label: one or several labels; None means every schedule, with or without a label.
            reason: a part of the text that says why the schedule does not run, such as
                ``"timeout"``, or a pattern. Capital and small letters are equal.
            every: True to select every schedule, without any other condition.

        Raises:
            InvalidError: a value is invalid, or there is no condition.
        """
        from psched.client.selected import SelectedSchedules, wanted_of  # noqa: PLC0415

        wanted = wanted_of(keys, status, type, label, reason, every=every)
        return SelectedSchedules(self, self.access, wanted)

    # --- the run history --------------------------------------------------------------------

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
        """Read the records of the run history that fulfil all conditions, the newest first.

        Args:
            key: the key of one schedule, which may have been deleted; None means every key.
            type: one or several types; None means every type.
            since: the earliest end of the runs: an age (``"1d"``, a `timedelta`, or a number of
                seconds below 1e9), an aware datetime, or Unix seconds.
            failed: True for only what failed: attempts that neither finished nor were released, and
                occurrences that were given up, cancelled, expired or quarantined.
            outcome: one or several values of `Run.outcome`; None means every record.
            fate: one or several values of `Run.fate`; None means every record.
            time: the scheduled time of an occurrence of the schedule with this ``key``: its
                attempts, or the record that says why it did not run. Records of extra runs are not
                among them. None means every occurrence.
            limit: the largest number of records; None means no limit.
            extra_runs: whether the records of the extra runs of the schedule with this ``key`` are
                among the records, see `Schedule.trigger`. Each of these has a key of its own.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: the store keeps no run history; the text names the fix.
        """
        check_limit(limit)
        if time is not None and key is None:
            raise InvalidError("time", "the scheduled time of which schedule? name its key")
        outcomes, fates = _known("outcome", outcome, Outcome), _known("fate", fate, Fate)
        if failed:
            if outcomes or fates:
                other = "outcome" if outcomes else "fate"
                raise InvalidError("failed", f"and {other} both select records; leave one out")
            outcomes, fates = FAILURES, FAILED_FATES
        types = chosen_texts("type", type)
        # A selection with both returns records that have one of either.
        both = bool(outcomes and fates) and not failed
        history = self._history()
        selection = RunSelection(
            key=chosen_key(key),
            with_extra_runs=key is not None and extra_runs and time is None,
            types=types,
            outcomes=frozenset() if both else outcomes,
            fates=fates,
            since=None if since is None else self._earliest(since),
            covering=None if time is None else instant("time", time),
            limit=None if both else limit,
        )
        records = read_each(self._send, lambda: history.runs(selection))
        if both:
            records = (each for each in records if each.outcome in outcomes)
        return (Run(each, self._zone) for each in islice(records, limit))

    def last_runs(self, keys: Sequence[str]) -> Mapping[str, Run]:
        """Find the last run of each of these keys, in a few round trips.

        That is the newest record of an attempt, or of an occurrence that was given up, cancelled,
        expired, quarantined or marked as finished, even if nothing ran. What was skipped does not
        count. Keys without such a record are left out. ``error`` and ``result`` of the runs are
        None, because they can be large; `runs` reads them.

        Raises:
            NotSupportedError: the store keeps no run history.
        """
        history = self._history()
        found = self._send(lambda: history.last_runs(keys))
        return {key: Run(record, self._zone) for key, record in found.items()}

    def outputs(
        self,
        key: str,
        *,
        time: When | None = None,
        attempt: int | None = None,
        limit: int | None = None,
    ) -> Iterator[Output]:
        """Read what the attempts of a schedule have printed, the newest first.

        Attempts that have printed nothing are left out, and so are those whose output is not kept
        (see the setting ``output``) or was deleted.

        Args:
            key: the key of the schedule, which may have been deleted.
            time: the scheduled time of an occurrence; None means every occurrence.
            attempt: the number of an attempt; None means every attempt.
            limit: the largest number of attempts; None means no limit.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: the store keeps no output; the text names the fix.
        """
        for name, number in (("attempt", attempt), ("limit", limit)):
            if number is not None:
                check_number(name, number, LARGEST_LIMIT)
        selection = OutputSelection(
            key=stored_key(key),
            scheduled_time=None if time is None else instant("time", time),
            attempt=attempt,
            limit=limit,
        )
        store = keeping_output(self._store)
        if (problem := self._send(store.problem)) is not None:
            raise NotSupportedError(f"no output is kept: {problem}")
        records = read_each(self._send, lambda: store.outputs(selection))
        return (Output(each, self._zone) for each in islice(records, limit))

    def audited(self, note: str | None) -> AbstractContextManager[None]:
        """Note in the audit trail why the changes in the ``with`` block are made."""
        return self.access.auditor.noting(note)

    def audit(
        self, key: str | None = None, since: Since | None = None, limit: int | None = None
    ) -> Iterator[AuditRecord]:
        """Read who has changed which schedule, the newest change first.

        Args:
            key: the schedule's key, also of a deleted one; None means every key.
            since: the earliest change, as in `runs`; None means the oldest that is kept.
            limit: the largest number of changes; None means no limit.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: a store of this kind keeps no audit trail.
            SchemaError: the table of the audit trail does not exist.
        """
        check_limit(limit)
        history = keeping_history(self._store)
        selection = AuditSelection(
            key=chosen_key(key),
            since=None if since is None else self._earliest(since),
            limit=limit,
        )
        return read_each(self._send, lambda: history.audits(selection))

    def _earliest(self, since: Since) -> int:
        return earliest(since, lambda: self._send(self._store.now))

    def _history(self) -> KeepsHistory:
        """The store, if it keeps a history now."""
        history = keeping_history(self._store)
        if (problem := self._send(history.problem)) is not None:
            raise NotSupportedError(f"there is no run history: {problem}")
        return history

    # --- alerts -----------------------------------------------------------------------------

    def alerts(
        self,
        key: str | None = None,
        *,
        rule: str | Iterable[str] | None = None,
        only_open: bool = True,
        since: Since | None = None,
        limit: int | None = None,
    ) -> Iterator[Alert]:
        """Read alerts, those that were raised last first.

        Args:
            key: the key of a schedule, also of a deleted one; None means every schedule and host.
            rule: only alerts of this rule, or of these; None means every rule.
            only_open: whether alerts that are over are left out.
            since: the earliest ``raised``, as in `runs`; None means the oldest that is kept.
            limit: the largest number of alerts; None means no limit.

        Raises:
            InvalidError: a value is invalid; the error's ``field`` is the name of the argument.
            NotSupportedError: the store keeps no alerts now; the text names the fix.
        """
        from psched.core.alerts.alert import Rule  # noqa: PLC0415
        from psched.core.alerts.protocol import AlertSelection  # noqa: PLC0415

        rules = chosen_texts("rule", rule)
        if unknown := rules - {*Rule}:
            raise InvalidError(
                "rule", f"{min(unknown)!r} is unknown; choose from {', '.join(Rule)}"
            )
        check_limit(limit)
        store = self._alerts()
        selection = AlertSelection(
            key=chosen_key(key),
            rules=rules,
            only_open=only_open,
            since=None if since is None else self._earliest(since),
            limit=limit,
        )
        return read_each(self._send, lambda: store.find_alerts(selection))

    def close_alerts(self, alerts: Sequence[Alert], text: str) -> Sequence[Alert]:
        """Close open alerts by hand. The same incident is not told of again.

        The audit trail tells of it.

        Args:
            alerts: the alerts.
            text: why, and who says so.

        Returns:
            The alerts that this call has closed.

        Raises:
            NotSupportedError: the store keeps no alerts now; the text names the fix.
        """
        store = self._alerts()
        closed = self._send(lambda: store.close_alerts(alerts, text))
        rules = dict[str, list[str]]()
        for alert in closed:
            if alert.key:
                rules.setdefault(alert.key, []).append(str(alert.rule))
        for key, each in rules.items():
            about = {"rules": ", ".join(sorted(each))}
            self.access.auditor.record_about("acknowledge", key, about)
        return closed

    def _alerts(self) -> KeepsAlerts:
        keeping = self._store.alerts
        if keeping is None:
            raise NotSupportedError(
                "this store keeps no alerts; psched's own table does, and so does a store of your"
                " own that has the methods of KeepsAlerts"
            )
        if (problem := self._send(keeping.problem)) is not None:
            raise NotSupportedError(f"there are no alerts: {problem}")
        return keeping

    # --- the present ------------------------------------------------------------------------

    def overview(self, limit: int = 100) -> Overview:
        """Read what runs, what is late and what is next.

        The cost does not grow with the number of schedules.

        Args:
            limit: the largest number of rows of each kind.
        """
        return self._send(lambda: overview_of(self._store, limit))

    def durations(self, keys: Sequence[str], most: int = DURATIONS) -> Mapping[str, Sequence[int]]:
        """Find how long the newest runs of each key took, in milliseconds, the newest run first.

        Runs that finished, failed or were stopped at their time limit count. Keys without such a
        run are left out.

        Args:
            keys: the keys of schedules.
            most: the largest number of runs of each key.

        Raises:
            NotSupportedError: the store keeps no run history.
            SchemaError: the tables of the run history do not exist.
        """
        history = keeping_history(self._store)
        return self._send(lambda: history.durations(keys, most))

    def failures(self, since: int, *, among: int = 10_000, limit: int = 100) -> Sequence[Run]:
        """Read the newest failures, the newest first; `psched history --failed` shows the same.

        Args:
            since: the earliest end of the runs, in Unix seconds.
            among: among how many of the newest records of all schedules they are searched.
            limit: the largest number of failures.

        Raises:
            NotSupportedError: the store keeps no run history.
            SchemaError: the tables of the run history do not exist.
        """
        history = keeping_history(self._store)
        earliest = 1000 * since
        found = self._send(lambda: history.failures(since=earliest, among=among, limit=limit))
        return [Run(record, self._zone) for record in found]

    def live_workers(self) -> Sequence[WorkerRecord]:
        """The workers that are alive, as far as their records tell; each writes one a minute.

        Raises:
            NotSupportedError: the store keeps no records of workers.
            SchemaError: the tables of the run history do not exist.
        """
        return [worker for worker in self.workers_seen(GONE_AFTER) if worker.ended is None]

    def workers_seen(self, seconds: int) -> Sequence[WorkerRecord]:
        """The workers that were alive at some time in these last seconds; see `live_workers`."""
        history = keeping_history(self._store)
        since = int(self._send(self._store.now)) - seconds
        return self._send(lambda: history.workers(since))

    # --- changing schedules -----------------------------------------------------------------

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
        from psched.client.verbs.editing import modify  # noqa: PLC0415

        modify(self.access, key, decide, changes)

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
        from psched.client.verbs.editing import Edit  # noqa: PLC0415

        verb = Edit(decide or (lambda _: changes))
        return self._previewed(verb, key) if dry_run else verb.apply(self.access, key)

    def delete(self, key: str) -> bool:
        """Delete a schedule. If its task runs, its worker first stops it; see `Schedule.delete`."""
        from psched.client.verbs.ending import delete  # noqa: PLC0415

        return delete(self.access, key)

    def cancel(self, key: str) -> bool:
        """Cancel a schedule, so that it never runs again; see `Schedule.cancel`."""
        from psched.client.verbs.ending import Cancel  # noqa: PLC0415

        return Cancel().apply(self.access, key)

    def stop(self, key: str) -> bool:
        """Stop the present run of a schedule, which then goes on; see `Schedule.stop`."""
        from psched.client.verbs.ending import Stop  # noqa: PLC0415

        return Stop().apply(self.access, key)

    def force_finish(self, key: str) -> bool:
        """Mark a schedule as finished, whatever its task has done; see `Schedule.force_finish`."""
        from psched.client.verbs.ending import ForceFinish  # noqa: PLC0415

        return ForceFinish().apply(self.access, key)

    def requeue(self, key: str, run_at: When | None = None) -> None:
        """Let an ended, quarantined or paused schedule run again; see `Schedule.requeue`."""
        from psched.client.verbs.ending import Requeue  # noqa: PLC0415

        Requeue(run_at).apply(self.access, key)

    def pause(self, key: str, until: Until | None = None) -> bool:
        """Pause a schedule, so that it does not run until it is resumed; see `Schedule.pause`."""
        from psched.client.verbs.pausing import Pause  # noqa: PLC0415

        return Pause(until).apply(self.access, key)

    def resume(self, key: str, *, backfill: bool = False) -> None:
        """Let a paused schedule run again; see `Schedule.resume`."""
        from psched.client.verbs.pausing import Resume  # noqa: PLC0415

        Resume(backfill).apply(self.access, key)

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
        from psched.client.verbs.pausing import pause_type  # noqa: PLC0415

        return pause_type(self.access, type, until)

    def pause_all(self, until: Until | None = None) -> PauseRule:
        """Pause every schedule and task, and those that are added later; see `pause_type`."""
        from psched.client.verbs.pausing import pause_type  # noqa: PLC0415

        return pause_type(self.access, None, until)

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
        from psched.client.verbs.pausing import resume_type  # noqa: PLC0415

        resume_type(self.access, type, backfill=backfill)

    def resume_all(self, *, backfill: bool = False) -> None:
        """End the pause of everything, see `resume_type`; paused types stay paused."""
        from psched.client.verbs.pausing import resume_type  # noqa: PLC0415

        resume_type(self.access, None, backfill=backfill)

    def pauses(self) -> Sequence[PauseRule]:
        """The pauses of types and of everything that hold now."""
        stored = self._store.pauses
        rules = () if stored is None else self._send(stored.pause_rules)
        if not rules:
            return ()
        now = self.now()
        found = [rule for rule in rules if rule.holds(now)]
        found.sort(key=lambda rule: (rule.type is not None, rule.type or "", rule.since))
        return tuple(found)

    def shown_as_paused(self) -> ShownAsPaused:
        """Read the pauses once, and return a function that changes a row as people see it.

        The function returns a waiting row of a paused type as if it were paused by its key.
        """
        rules = self.pauses()
        return ShownAsPaused(rules, self._settings, self.now() if rules else 0)

    def skip(self, key: str, number: int = 1, *, dry_run: bool = False) -> Rescheduled:
        """Leave out the next occurrences of a schedule; see `Schedule.skip`."""
        from psched.client.verbs.skipping import Skip  # noqa: PLC0415

        verb = Skip(number)
        return self._previewed(verb, key) if dry_run else verb.apply(self.access, key)

    def _previewed(self, verb: Edit | Skip, key: str) -> Rescheduled:
        return verb.preview(self.access, self._read(key))

    def trigger(
        self,
        key: str,
        data: Mapping[str, Any] | None = None,
        *,
        overlap: str = QUEUE,
        run_at: When | None = None,
    ) -> Schedule:
        """Run a schedule now, beside its regular occurrences; see `Schedule.trigger`."""
        from psched.client.verbs.extra_runs import Trigger  # noqa: PLC0415

        return self[Trigger(data, overlap=overlap, run_at=run_at).apply(self.access, key)]

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
        from psched.client.verbs.extra_runs import RunMissed  # noqa: PLC0415
        from psched.core.operations.backfills import Stagger  # noqa: PLC0415

        verb = RunMissed(
            start,
            end,
            stagger=rate if isinstance(rate, Stagger) else Stagger(rate),
            again=again,
            overlap=overlap,
            dry_run=dry_run,
            report=report,
        )
        return verb.apply(self.access, key)

    # --- leasing ----------------------------------------------------------------------------

    @cached_property
    def _poller(self) -> Poller:
        from psched.client.poller import Poller  # noqa: PLC0415

        return Poller(self.access, self)

    def poll(self) -> Task | None:
        """Lease one due occurrence, if there is one.

        The lease ends ``alive_time`` seconds after this call. Before that, the caller must either
        settle the task, for example with `Task.finish`, or extend the lease with `Task.extend`. A
        program does not need this method for tasks that handlers run, because workers do all this
        for handlers.

        Returns:
            The task of the leased occurrence; None if no occurrence is due.
        """
        return self._poller.poll()


def _known(
    field: str, values: str | Iterable[str] | None, known: type[Outcome | Fate]
) -> frozenset[str]:
    chosen = chosen_texts(field, values)
    if unknown := chosen - {*known}:
        raise InvalidError(field, f"{min(unknown)!r} is unknown; choose from {', '.join(known)}")
    return chosen


def preload() -> None:
    """Import what a collection else imports when it is needed.

    A worker does this, so that tasks, which are forked from it, need not.
    """
    verbs = ("verbs.editing", "verbs.ending", "verbs.extra_runs", "verbs.pausing", "verbs.skipping")
    for name in ("poller", "selected", *verbs):
        import_module(f"psched.client.{name}")
    for name in ("core.preview", "reports.why.explain"):
        import_module(f"psched.{name}")
