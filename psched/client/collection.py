"""The schedules of one store, as a program sees them."""

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
"""How often a request is sent while the store is unavailable."""

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
"""Seconds between two reads of a task that is waited for; each pause is twice the one before."""

_PUSHED = {"run_at": "next_time", "timeout": "alive_time"}
"""Arguments of `ScheduleCollection.push` that have PerfectQueue's names, and their fields."""


class ScheduleCollection:
    """Adds, reads, changes and deletes schedules, and leases their occurrences.

    A context manager, which closes the connection at its end. A request is repeated for a few
    seconds while the store is unavailable.

    Args:
        clock: measures leases, and sleeps between two tries.
        draw_nonce: draws a text that was never drawn before.
        tries: how often a request is sent while the store is unavailable.
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
            cron: five fields, or ``@daily`` and the like. Without it, ``every``, ``at`` or
                ``trigger`` say when the schedule runs (see `psched.core.shorthands`); without any
                of them it runs once, at ``next_time``.
            delay: seconds between an occurrence's scheduled time and its earliest run.
            timezone: IANA zone in which ``cron`` is read; default: the setting.
            next_time: the first occurrence is the first match of ``cron`` at or after this
                instant; default: now, by the store's clock.
            next_run_time: earliest start of the first run; default: its occurrence + ``delay``.
            data: the handler's payload, a JSON object.
            more: ``every``, ``align``, ``at``, ``trigger``; settings of this schedule:
                ``alive_time``, ``catchup``, ``dst_policy``, ``jitter``, ``kill_timeout``,
                ``retry_wait`` …; and for people ``label`` (the owner) and ``note`` (free text).

        Raises:
            AlreadyExistsError: the key is taken.
            InvalidError: a value makes no sense; its ``field`` names it.
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

        All are checked before anything is written.

        Args:
            schedules: for each its ``key`` and any of the other arguments of `add`.

        Returns:
            Each schedule, in the same order.

        Raises:
            AlreadyExistsError: some keys are taken; its text names them.
            InvalidError: a value makes no sense; its ``field`` names schedule and value:
                ``schedules[17].cron``. Or a key is given twice.
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
            run_at: not before this; default: now, by the store's clock.
            timeout: length of its lease in seconds (``alive_time``): how long the task waits for
                another host when its own dies.
            connection: the caller's own SQLAlchemy connection to the same database. The task is
                pushed in the caller's transaction: it exists if the caller commits. No other
                connection is used, and nothing is repeated.
            more: settings of this task: ``expire``, ``kill_interval``, ``kill_timeout``,
                ``max_attempts``, ``retention_time``, ``retry_backoff``, ``retry_wait`` …

        Raises:
            AlreadyExistsError: the key is taken.
            InvalidError: a value makes no sense; its ``field`` names it.
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
            tasks: for each the arguments of `push`, by name, except ``connection``.

        Returns:
            Each task's schedule, in the same order.

        Raises:
            AlreadyExistsError: some keys are taken; nothing was pushed.
            InvalidError: a value makes no sense; its ``field`` names the task and the value.
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
        """Read those of the schedules that exist, in a few round trips."""
        found = self._send(lambda: self._store.look(keys))
        return {key: ScheduleMetadata(row) for key, row in found.items()}

    def list(self) -> Iterator[ScheduleMetadata]:
        """Read every schedule: those due first, those at rest last.

        They are read from the store as the caller consumes them: a schedule that runs meanwhile may
        be returned twice, or not at all.
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

        A change of ``cron``, ``timezone`` or ``dst_policy`` sets the next occurrence anew, from
        now on; a quarantined schedule is put back into service. A task that is running continues
        with the definition with which it was started; the occurrences after it follow the new one
        (except for ``next_run_time``, which is the end of the lease while the task runs). A
        schedule that has ended stays at rest until it gets a trigger or a time.

        Args:
            key: the schedule's key.
            decide: returns the changes instead, given the schedule as it stands; called again if
                the schedule was changed before they were written. An empty result: no change.
            changes: any of the arguments of `add`; None for one of ``more``: the
                installation's setting applies again.

        Raises:
            NotFoundError: there is no such schedule, or it is being deleted.
            InvalidError: a value makes no sense; its ``field`` names it.
        """
        self._writer.modify(key, decide, changes)

    def delete(self, key: str) -> bool:
        """Delete a schedule, or mark it for the worker that runs it; see `Schedule.delete`."""
        return self._writer.delete(key)

    def cancel(self, key: str) -> bool:
        """Never run a schedule again; see `Schedule.cancel`."""
        return self._writer.cancel(key)

    def force_finish(self, key: str) -> bool:
        """Make a schedule finished, whatever its task has done; see `Schedule.force_finish`."""
        return self._writer.force_finish(key)

    def requeue(self, key: str, run_at: When | None = None) -> None:
        """Run a schedule again that has ended or was set aside; see `Schedule.requeue`."""
        self._writer.requeue(key, run_at)

    # --- leasing -------------------------------------------------------------------------

    def poll(self) -> Task | None:
        """Lease one due occurrence, if there is one.

        Nobody but the caller extends the lease (`Task.extend`). It ends ``alive_time`` seconds
        after this call, and the task must be settled before. For handlers, workers do all this.
        """
        return self._poller.poll()

    def _read(self, key: str) -> Row:
        return self._send(lambda: read_row(self._store, key))

    def _send(self, request: Callable[[], T]) -> T:
        return retry_while_unavailable(request, clock=self._clock, tries=self._tries)


def _fields_of_push(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of `ScheduleCollection.push` as those of `ScheduleCollection.add`."""
    if not isinstance(task, Mapping):
        return task  # `declare_all` refuses it, naming the entry
    given = {name for name, value in task.items() if value is not None}
    if recurring := given & {"cron", "every", "trigger"}:
        raise InvalidError(min(recurring), "is for what runs again and again: add that")
    for argument, field in _PUSHED.items():
        if {argument, field} <= given:
            raise InvalidError(argument, f"and {field} say the same; leave one out")
    return {_PUSHED.get(name, name): value for name, value in task.items()}
