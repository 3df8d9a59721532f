"""The collection of schedules: a program's interface to the schedules of one store."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from psched.application.task import Task
from psched.base.clock import Clock
from psched.base.errors import (
    InvalidError,
    NotFoundError,
    NotSupportedError,
    TransientStoreError,
)
from psched.base.retry import retry_while_unavailable
from psched.client.poller import Poller
from psched.client.writer import Writer, read_row
from psched.config import Config
from psched.core.declare import When, declare, declare_all
from psched.core.definition import parse_row
from psched.core.model import DEFAULT_TYPE, ENDED, QUARANTINED, Row
from psched.core.preview import UpcomingTime, upcoming_occurrences
from psched.core.schedule import Schedule, ScheduleMetadata
from psched.core.store_protocol import JoinsTransactions, Store

T = TypeVar("T")

_TRIES = 5
"""The largest number of times that a request is sent while the store is unavailable."""

# `ScheduleCollection.wait` pauses between two reads; each pause is twice as long as the last.
_FIRST_PAUSE = 0.05
"""The first pause in seconds."""
_LONGEST_PAUSE = 1.0
"""The longest pause in seconds."""

_PUSHED = {"run_at": "next_time", "timeout": "alive_time"}
"""Arguments of `ScheduleCollection.push` with PerfectQueue's names, and the fields they set."""


class ScheduleCollection:
    """Adds, reads, changes and deletes schedules, and leases their occurrences.

    A collection is a context manager: the end of a ``with`` block closes the connection. A request
    is repeated for a few seconds while the store is unavailable.

    Args:
        store: holds the schedules.
        settings: the installation's settings.
        clock: measures leases, and sleeps between two tries.
        draw_nonce: returns a random text that was never returned before.
        tries: the largest number of times that a request is sent while the store is unavailable.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        *,
        clock: Clock,
        draw_nonce: Callable[[], str],
        tries: int = _TRIES,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._draw_nonce = draw_nonce
        self._tries = tries
        self._writer = Writer(store, settings, clock=clock, draw_nonce=draw_nonce, send=self._send)
        self._poller = Poller(
            store, settings, clock=clock, draw_nonce=draw_nonce, send=self._send, schedules=self
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

    def close(self) -> None:
        """Close the connection; a later request opens another."""
        self._store.disconnect()

    def now(self) -> float:
        """The store's clock, Unix seconds."""
        return self._send(self._store.now)

    # --- adding --------------------------------------------------------------------------

    def add(
        self,
        key: str,
        type: str = DEFAULT_TYPE,  # noqa: A002  # the table's word
        *,
        cron: str | None = None,
        delay: int = 0,
        timezone: str | None = None,
        next_time: When | None = None,
        next_run_time: When | None = None,
        data: Mapping[str, Any] | None = None,
        **more: Any,  # noqa: ANN401  # named and checked by psched.core.declare
    ) -> Schedule:
        """Register a schedule.

        Args:
            key: unique name.
            type: selects the handler.
            cron: five fields, or a name such as ``@daily``. Without ``cron``, ``every``, ``at`` or
                ``trigger`` says when the schedule runs (see `psched.core.shorthands`). Without any
                of the four, the schedule runs once, at ``next_time``.
            delay: seconds between an occurrence's scheduled time and its earliest run.
            timezone: IANA zone in which ``cron`` is read; default: the setting.
            next_time: the first occurrence is the first match of ``cron`` at or after this
                instant; default: now, by the store's clock.
            next_run_time: earliest start of the first run; default: the scheduled time of the first
                occurrence, plus ``delay`` and the occurrence's part of ``jitter``.
            data: the handler's payload, a JSON object.
            more: ``every``, ``align``, ``at``, ``trigger``; settings of this schedule:
                ``alive_time``, ``catchup``, ``dst_policy``, ``jitter``, ``kill_timeout``,
                ``retry_wait`` …; and the annotations ``label`` (the owner) and ``note`` (free
                text).

        Raises:
            AlreadyExistsError: the key is taken.
            InvalidError: a value is invalid; the error's ``field`` is its name.
        """
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
    """PerfectSched's older name of `add`."""

    def add_many(self, schedules: Iterable[Mapping[str, Any]]) -> Sequence[Schedule]:
        """Register many schedules, all of them or none, in one transaction.

        All schedules are checked before any is written.

        Args:
            schedules: for each schedule, a mapping with the ``key`` and any of the other arguments
                of `add`.

        Returns:
            The schedules, in the order of the argument.

        Raises:
            AlreadyExistsError: some keys are taken; the error's text names them.
            InvalidError: a value is invalid, or a key is given twice; the error's ``field``
                identifies the schedule and the value, such as ``schedules[17].cron``.
        """
        rows = declare_all(schedules, self._settings, self.now)
        self._writer.insert(rows)
        return [self[row.key] for row in rows]

    def push(
        self,
        key: str,
        type: str = DEFAULT_TYPE,  # noqa: A002  # the table's word
        data: Mapping[str, Any] | None = None,
        *,
        run_at: When | None = None,
        timeout: int | None = None,
        connection: Any = None,  # noqa: ANN401  # SQLAlchemy's, which is not loaded for it
        **more: Any,  # noqa: ANN401  # named and checked by psched.core.declare
    ) -> Schedule:
        """Submit a task, which runs once.

        Pushing is idempotent: the key is taken while the task waits or runs, and for
        ``retention_time`` after its end.

        Args:
            key: unique name.
            type: selects the handler.
            data: the handler's payload, a JSON object.
            run_at: the earliest start of the task; default: now, by the store's clock.
            timeout: the length of the task's lease in seconds (``alive_time``). If the host that
                runs the task dies, another host can run the task when the lease has ended.
            connection: the caller's own SQLAlchemy connection to the store's database. The task is
                pushed in the caller's transaction, so it exists only if the caller commits. psched
                uses no other connection, and repeats no request.
            more: settings of this task: ``expire``, ``kill_interval``, ``kill_timeout``,
                ``max_attempts``, ``retention_time``, ``retry_backoff``, ``retry_wait`` …

        Raises:
            AlreadyExistsError: the key is taken.
            InvalidError: a value is invalid; the error's ``field`` is its name.
            NotSupportedError: this store cannot join a transaction.
        """
        given = {"type": type, "data": data, "run_at": run_at, "timeout": timeout, **more}
        fields = _fields_of_push(given)
        if connection is None:
            return self.add(key, **fields)
        if not isinstance(self._store, JoinsTransactions):
            raise NotSupportedError("connection: this store cannot join a transaction")
        transaction = self._store.join_transaction(connection)
        row = declare(key, fields, self._settings, transaction.now)
        transaction.add([row], nonce=self._draw_nonce())
        return self[key]

    def push_many(self, tasks: Iterable[Mapping[str, Any]]) -> Sequence[Schedule]:
        """Submit many tasks, all of them or none, in a few round trips.

        Args:
            tasks: for each task, a mapping with the arguments of `push`, except ``connection``.

        Returns:
            The schedules of the tasks, in the order of the argument.

        Raises:
            AlreadyExistsError: some keys are taken; nothing was pushed.
            InvalidError: a value is invalid; the error's ``field`` identifies the task and the
                value.
        """
        return self.add_many(_fields_of_push(task) for task in tasks)

    # --- reading -------------------------------------------------------------------------

    def read(self, key: str) -> ScheduleMetadata:
        """Read one schedule.

        Raises:
            NotFoundError: there is no such schedule.
        """
        return ScheduleMetadata(self._read(key))

    def read_many(self, keys: Sequence[str]) -> Mapping[str, ScheduleMetadata]:
        """Read the schedules with these keys, in a few round trips.

        Returns:
            The schedules by key; a key without a schedule is missing.
        """
        found = self._send(lambda: self._store.look(keys))
        return {key: ScheduleMetadata(row) for key, row in found.items()}

    def list(self) -> Iterator[ScheduleMetadata]:
        """Read every schedule in the order of the next runs; those without a next run are last.

        The schedules are read from the store while the caller consumes them, so a schedule that
        runs meanwhile may be returned twice, or not at all.
        """
        rows = self._store.rows()
        while (row := self._send(lambda: next(rows, None))) is not None:
            yield ScheduleMetadata(row)

    def next(self, key: str, number: int = 10) -> Sequence[UpcomingTime]:
        """The next occurrences of a schedule; see `Schedule.next`."""
        row = self._read(key)
        return upcoming_occurrences(row, parse_row(row, self._settings), number, self.now())

    def wait(self, key: str, timeout: float | None = None) -> str:
        """Wait until a schedule that runs only once has ended; see `Schedule.wait`."""
        give_up_at = None if timeout is None else self._clock.monotonic() + timeout
        pause = _FIRST_PAUSE
        row = self._read(key)
        while True:
            # Plain SQL may set the status of a leased row; its task is still running then.
            if row.status in {*ENDED, QUARANTINED} and row.owner is None:
                return row.status
            if row.cron is not None:
                raise InvalidError("key", f"{key!r} has a trigger: it comes to no end")
            if give_up_at is not None:
                left = give_up_at - self._clock.monotonic()
                if left <= 0:
                    raise TimeoutError(f"{key!r} is still {row.state}")
                pause = min(pause, left)
            self._clock.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                row = read_row(self._store, key)
            except TransientStoreError:
                continue  # the task ends whether or not the store answers
            except NotFoundError:
                raise NotFoundError(
                    f"{key!r} is gone: it was deleted, or it has ended and its retention_time is 0"
                ) from None

    # --- changing ------------------------------------------------------------------------

    def modify(
        self,
        key: str,
        decide: Callable[[Row], Mapping[str, Any]] | None = None,
        /,
        **changes: Any,  # noqa: ANN401  # checked by psched.core.declare
    ) -> None:
        """Change a schedule's definition.

        A change of ``cron``, ``timezone`` or ``dst_policy`` computes the next occurrence anew, from
        the present time on. Any change puts a quarantined schedule back into service. A running
        task continues with the definition with which it was started; the later occurrences follow
        the new definition. This does not hold for ``next_run_time``, because it is the end of the
        lease while the task runs. A schedule that has ended does not run again until a change sets
        its trigger or a time.

        Args:
            key: the schedule's key.
            decide: a function that returns the changes, given the row as it is stored now; None:
                ``changes`` applies. The function is called again if the row was changed before
                the result was written. If the result is empty, nothing is changed.
            changes: any of the arguments of `add`. If one of ``more`` is None, the schedule's own
                value is removed, so that the installation's setting applies again.

        Raises:
            NotFoundError: there is no such schedule, or it is being deleted.
            InvalidError: a value is invalid; the error's ``field`` is its name.
        """
        self._writer.modify(key, decide, changes)

    def delete(self, key: str) -> bool:
        """Delete a schedule, or mark it for the worker that runs it; see `Schedule.delete`."""
        return self._writer.delete(key)

    def cancel(self, key: str) -> bool:
        """Never run a schedule again; see `Schedule.cancel`."""
        return self._writer.cancel(key)

    def force_finish(self, key: str) -> bool:
        """Set a schedule to finished, whatever its task has done; see `Schedule.force_finish`."""
        return self._writer.force_finish(key)

    def requeue(self, key: str, run_at: When | None = None) -> None:
        """Run an ended, quarantined or paused schedule again; see `Schedule.requeue`."""
        self._writer.requeue(key, run_at)

    # --- leasing -------------------------------------------------------------------------

    def poll(self) -> Task | None:
        """Lease one due occurrence, if there is one.

        The lease ends ``alive_time`` seconds after this call unless the caller extends it
        (`Task.extend`), and the caller must settle the task before that. A program that uses
        handlers does not need this method, because workers lease, extend and settle for them.

        Returns:
            The task of the leased occurrence; None: no occurrence is due.
        """
        return self._poller.poll()

    def _read(self, key: str) -> Row:
        return self._send(lambda: read_row(self._store, key))

    def _send(self, request: Callable[[], T]) -> T:
        return retry_while_unavailable(request, clock=self._clock, tries=self._tries)


def _fields_of_push(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of `ScheduleCollection.push` as those of `ScheduleCollection.add`."""
    if not isinstance(task, Mapping):
        return task  # `declare_all` refuses such an entry, and its error tells the entry's number
    given = {name for name, value in task.items() if value is not None}
    if recurring := given & {"cron", "every", "trigger"}:
        raise InvalidError(min(recurring), "is for what runs again and again: add that")
    for argument, field in _PUSHED.items():
        if {argument, field} <= given:
            raise InvalidError(argument, f"and {field} say the same; leave one out")
    return {_PUSHED.get(name, name): value for name, value in task.items()}
