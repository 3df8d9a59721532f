"""The collection of schedules: a program's interface to the schedules of one store."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, Unpack

from psched.base.errors import NotSupportedError
from psched.base.retry import read_each, retry_while_unavailable
from psched.client.arguments import is_possible
from psched.client.author import Author, this_process
from psched.client.operations.alerts import CollectionOfAlerts
from psched.client.push_arguments import (
    WITHOUT_TYPE,
    fields_of_push,
    lacks_type,
    naming_arguments,
    new_key,
    refuse_data_as_type,
)
from psched.client.waiting import longest_wait, wait_for_end
from psched.client.writer import read_row
from psched.core.declare import When, declare, declare_all
from psched.core.definition import parse_row
from psched.core.history.run import TaskEnd
from psched.core.model import DEFAULT_TYPE, Row
from psched.core.schedule import ListOrder, Schedule
from psched.core.schedule_metadata import ScheduleMetadata
from psched.core.selection import Selection, selection_of
from psched.core.store_protocol import CountsRows, JoinsTransactions, Store

if TYPE_CHECKING:
    from types import TracebackType

    from psched.application.task import Task
    from psched.base.clock import Clock
    from psched.base.quantities import Duration
    from psched.client.poller import Poller
    from psched.client.selected import SelectedSchedules
    from psched.config import Config
    from psched.core.arguments.fields import AddOptions, NewSchedule, NewTask, PushOptions
    from psched.core.preview import UpcomingTime

_TRIES = 5
"""The largest number of times that a request is sent while the store is unavailable."""


class ScheduleCollection(CollectionOfAlerts):
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
        warns_without_type: whether `push` and `push_many` issue a ``UserWarning`` if a task is
            given no type, because the settings name no handler for the type ``default``.
        author: returns who makes the changes of this collection, for the audit trail.
        hint: tells the masters of this host that rows may be due; None if nobody is told.

    Attributes:
        auditor: records the changes that this collection makes.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        *,
        clock: Clock,
        draw_nonce: Callable[[], str],
        tries: int = _TRIES,
        warns_without_type: bool = False,
        author: Callable[[], Author] = this_process,
        hint: Callable[[], object] | None = None,
    ) -> None:
        self._warns_without_type = warns_without_type
        send = partial(retry_while_unavailable, clock=clock, tries=tries)
        super().__init__(
            store, settings, clock=clock, author=author, send=send, draw_nonce=draw_nonce, hint=hint
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

        The database counts the schedules. A store of your own that cannot count (see `CountsRows`)
        is read as `list` reads it, so that the result can be wrong while schedules run.
        """
        store = self._store
        return self._send(store.count) if isinstance(store, CountsRows) else sum(1 for _ in self)

    def __bool__(self) -> bool:
        """Always True, as for any connection, so that ``if schedules`` does not ask the store."""
        return True

    def close(self) -> None:
        """Close the connection to the store. A later request opens a new connection."""
        self._store.disconnect()

    def now(self) -> float:
        """The present time of the store's clock, in Unix seconds."""
        return self._send(self._store.now)

    # --- adding --------------------------------------------------------------------------

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
                `psched.core.shorthands`). Without all four, the schedule runs once, at
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
        refuse_data_as_type("add", key, type)
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
        self._writer.insert([declare(key, fields, self._settings, self.now)])
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
        return self._add_many(declare_all(schedules, self._settings, self.now), audited=True)

    def _add_many(self, rows: Sequence[Row], *, audited: bool) -> Sequence[Schedule]:
        self._writer.insert(rows, audited=audited)
        return [self[row.key] for row in rows]

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Add the rows of new schedules in one transaction: either all of them, or none.

        Args:
            rows: rows that `psched.core.declare.declare` or `psched.core.declare.restart` has
                created with the settings of this collection.

        Raises:
            AlreadyExistsError: some of the keys exist already; the error's text lists these keys.
        """
        self._writer.insert(rows)

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
        refuse_data_as_type("push", key, type)
        if type is None and self._warns_without_type:
            warnings.warn(WITHOUT_TYPE, stacklevel=2)
        given = {"type": type, "data": data, "run_at": run_at, "timeout": timeout, **more}
        fields = fields_of_push(given)
        if connection is None:
            now = cache(self.now)
            key = self._new_key(type, now) if key is None else key
            with naming_arguments([given]):
                row = declare(key, fields, self._settings, now)
            self._writer.insert([row], audited=False)
            return self[key]
        if not isinstance(self._store, JoinsTransactions):
            raise NotSupportedError("connection: this store cannot join a transaction")
        transaction = self._store.join_transaction(connection)
        key = self._new_key(type, transaction.now) if key is None else key
        with naming_arguments([given]):
            row = declare(key, fields, self._settings, transaction.now)
        transaction.add([row], nonce=self._draw_nonce())
        self._waker.joined(transaction, [row])
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
        given = [*tasks]
        if self._warns_without_type and any(map(lacks_type, given)):
            warnings.warn(WITHOUT_TYPE, stacklevel=2)
        now = cache(self.now)
        with naming_arguments(given):
            rows = declare_all((self._with_key(task, now) for task in given), self._settings, now)
        return self._add_many(rows, audited=False)

    def _with_key(self, task: Any, now: Callable[[], float]) -> Mapping[str, Any]:  # noqa: ANN401
        # What is not a mapping is refused later, with an error that contains its number.
        if isinstance(task, Mapping) and task.get("key") is None:
            task = {**task, "key": self._new_key(task.get("type"), now)}
        return fields_of_push(task)

    def _new_key(self, type_: object, now: Callable[[], float]) -> str:
        return new_key(type_, now(), self._draw_nonce())

    # --- reading -------------------------------------------------------------------------

    def read(self, key: str) -> ScheduleMetadata:
        """Read one schedule.

        Raises:
            NotFoundError: no schedule has this key.
        """
        return self._metadata(self._read(key))

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
        rows = self._send(lambda: self._store.rows(selection))
        yield from map(self._metadata, read_each(self._send, rows))

    def _metadata(self, row: Row) -> ScheduleMetadata:
        return ScheduleMetadata(row, self._settings.timezone)

    def next(self, key: str, number: int = 10) -> Sequence[UpcomingTime]:
        """Return the next occurrences of a schedule; see `Schedule.next`."""
        # Imported here, as in `CollectionChanges`.
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
        return wait_for_end(
            self._store, key, timeout, clock=self._clock, send=self._send, look=look
        )

    # --- many at once --------------------------------------------------------------------

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
        # Imported here, as in `CollectionChanges`.
        from psched.client.operations.wanted import wanted_of  # noqa: PLC0415
        from psched.client.selected import Changers, SelectedSchedules  # noqa: PLC0415

        wanted = wanted_of(keys, status, type, label, reason, every=every)
        changers = Changers(
            self._writer, self._pauser, self._extra_runs, self._skipper, self._editor
        )
        return SelectedSchedules(self, changers, wanted, self._clock)

    # --- leasing -------------------------------------------------------------------------

    @cached_property
    def _poller(self) -> Poller:
        from psched.client.poller import Poller  # noqa: PLC0415  # as in `CollectionChanges`

        return Poller(
            self._store,
            self._settings,
            waker=self._waker,
            clock=self._clock,
            draw_nonce=self._draw_nonce,
            send=self._send,
            schedules=self,
        )

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

    def _read(self, key: str) -> Row:
        return self._send(lambda: read_row(self._store, key))


def preload() -> None:
    """Import what a collection else imports when it is needed.

    A worker does this, so that tasks, which are forked from it, need not.
    """
    for name in (
        *("poller", "selected", "operations.editing", "operations.extra_runs"),
        *("operations.pausing", "operations.skipping", "operations.wanted"),
    ):
        import_module(f"psched.client.{name}")
    import_module("psched.core.preview")
    import_module("psched.core.history.why.explain")
