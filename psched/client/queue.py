"""The queue: tasks that run once are schedules with one occurrence."""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as changed
from math import ceil, floor
from typing import Any, TypeVar

from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
    NotSupportedError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.client.schedule import Schedule
from psched.config import Config
from psched.core.declare import When, declare, redeclare
from psched.core.definition import parse_row
from psched.core.model import (
    CANCELLED,
    CANCELLING,
    DEFAULT_TYPE,
    DELETING,
    ENDED,
    FINISHED,
    FINISHING,
    PAUSED,
    QUARANTINED,
    Row,
)
from psched.core.store_protocol import Store

T = TypeVar("T")

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
"""Seconds between two looks at a task that is waited for."""

_CAN_GO_ON = frozenset({QUARANTINED, PAUSED})
"""Statuses of rows that continue at their cursor when they are requeued."""

_COLUMNS = {"run_at": "next_time", "timeout": "alive_time"}
"""PerfectQueue's words, and the fields that they mean."""


class Queue(abc.ABC):
    """What a collection can do with tasks that run once."""

    _store: Store
    _settings: Config
    _clock: Clock
    _draw_nonce: Callable[[], str]

    @abc.abstractmethod
    def __getitem__(self, key: str) -> Schedule: ...

    @abc.abstractmethod
    def add(self, key: str, type: str = DEFAULT_TYPE, **fields: Any) -> Schedule:  # noqa: A002, ANN401, D102
        ...

    @abc.abstractmethod
    def add_many(self, schedules: Iterable[Mapping[str, Any]]) -> Sequence[Schedule]: ...  # noqa: D102

    @abc.abstractmethod
    def _row(self, key: str) -> Row: ...

    @abc.abstractmethod
    def _now(self) -> float: ...

    @abc.abstractmethod
    def _patiently(self, request: Callable[[], T]) -> T: ...

    def push(
        self,
        key: str,
        type: str = DEFAULT_TYPE,  # noqa: A002  # the word of the table
        data: Mapping[str, Any] | None = None,
        *,
        run_at: When | None = None,
        timeout: int | None = None,
        connection: Any = None,  # noqa: ANN401  # a store's own
        **more: Any,  # noqa: ANN401  # named and checked by psched.declare
    ) -> Schedule:
        """Submit a task that runs once.

        Pushing is idempotent: the key is taken as long as the task waits or runs, and for
        ``retention_time`` after its end.

        Args:
            key: unique name.
            type: which handler runs it.
            data: the handler's payload, a JSON object.
            run_at: not before this; default: now, by the store's clock.
            timeout: seconds of a lease (``alive_time``): how long it waits when its host dies.
            connection: a connection of the caller's own to the same database (SQLAlchemy's): the
                task is there when, and only if, the caller commits.
            more: settings of its own: ``expire``, ``kill_interval``, ``kill_timeout``,
                ``max_attempts``, ``retention_time``, ``retry_backoff``, ``retry_wait`` …

        Raises:
            AlreadyExistsError: the key is taken.
            InvalidError: a value makes no sense; its ``field`` names it.
            NotSupportedError: this store has no such connections.
        """
        fields = _fields({"type": type, "data": data, "run_at": run_at, "timeout": timeout, **more})
        if connection is None:
            return self.add(key, **fields)
        add_through = getattr(self._store, "add_through", None)
        if add_through is None:
            raise NotSupportedError("connection: this store has none that others could share")
        row = declare(key, fields, self._settings, lambda: self._patiently(self._now))
        add_through(connection, [row], nonce=self._draw_nonce())
        return self[key]

    def push_many(self, tasks: Iterable[Mapping[str, Any]]) -> Sequence[Schedule]:
        """Submit tasks, all or none, in a few round trips.

        Args:
            tasks: for each the arguments of `push`, by name, but for ``connection``.

        Returns:
            Each, in the same order.

        Raises:
            AlreadyExistsError: keys are taken; nothing was pushed.
            InvalidError: a value makes no sense; its ``field`` names the task and the value.
        """
        return self.add_many(_fields(task) for task in tasks)

    def cancel(self, key: str) -> bool:
        """See `Schedule.cancel`."""
        return self._end(key, CANCELLED, CANCELLING)

    def force_finish(self, key: str) -> bool:
        """See `Schedule.force_finish`."""
        return self._end(key, FINISHED, FINISHING)

    def requeue(self, key: str, run_at: When | None = None) -> None:
        """See `Schedule.requeue`."""
        unsure: Row | None = None

        def request() -> bool:
            nonlocal unsure
            seen = self._row(key)
            if unsure and seen.version > unsure.version and seen.created_at == unsure.created_at:
                return True  # it was written; by now it may have run, and ended again
            if seen.status not in {*ENDED, *_CAN_GO_ON}:
                raise AlreadyExistsError(f"{key!r} has not ended: it is {seen.state}")
            now = self._now()
            start = floor(now) if run_at is None else run_at
            # A row that was set aside continues at its cursor, as after a quarantine.
            stays = run_at is None and seen.status in _CAN_GO_ON
            times = {} if stays else {"next_time": start}
            aside = changed(seen, status=QUARANTINED) if stays else seen
            new = redeclare(aside, times, self._settings, self._now)
            new = changed(new, created_at=floor(now))
            try:
                return self._store.replace(seen, new)
            except UnknownOutcomeError:
                unsure = new
                raise

        while not self._patiently(request):
            continue  # it has changed since it was read

    def wait(self, key: str, timeout: float | None = None) -> str:
        """See `Schedule.wait`."""
        give_up_at = None if timeout is None else self._clock.monotonic() + timeout
        pause = _FIRST_PAUSE
        row = self._patiently(lambda: self._row(key))
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
                row = self._row(key)
            except StoreUnavailableError:
                continue  # a store that goes away for a while has no part in how the task ends
            except NotFoundError:
                raise NotFoundError(
                    f"{key!r} is gone: it was deleted, or it has ended and its retention_time is 0"
                ) from None

    def _end(self, key: str, status: str, mark: str) -> bool:
        """Put a schedule at rest, or mark it for its holder; whether it rests."""
        unknown = False

        def request() -> bool | None:
            nonlocal unknown
            try:
                seen = self._row(key)
            except NotFoundError:
                if unknown:
                    return True  # it was removed by the try whose answer was lost
                raise
            if seen.status == DELETING:
                raise NotFoundError(f"the schedule {key!r} is being deleted")
            if seen.status == mark or (unknown and seen.status == status):
                return seen.status == status
            if seen.status in ENDED:
                raise AlreadyFinishedError(f"{key!r} has ended already: it is {seen.status}")
            new = self._ended(seen, status, mark)
            try:
                if new is None:
                    return self._store.delete(key)
                return new.status == status if self._store.replace(seen, new) else None
            except UnknownOutcomeError:
                unknown = True
                raise

        while (rests := self._patiently(request)) is None:
            continue  # it has changed since it was read
        return rests

    def _ended(self, seen: Row, status: str, mark: str) -> Row | None:
        """The row at rest, or marked for its holder; None: it is kept no longer."""
        if self._settings.type == "rdb_compat":
            raise NotSupportedError("PerfectSched's table knows no schedules that have ended")
        if seen.owner is not None:
            return changed(seen, status=mark)
        keep = seen.cron is not None
        try:
            retention = parse_row(seen, self._settings).settings.retention_time
        except InvalidError:
            retention = self._settings.retention_time
        if not keep and not retention:
            return None
        return changed(
            seen,
            status=status,
            next_run_time=None,
            reason=None,
            retain_until=None if keep else ceil(self._now()) + retention,
        )


def _fields(task: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `add` calls the arguments of `push`."""
    if not isinstance(task, Mapping):
        return task  # to be refused by name
    given = {name for name, value in task.items() if value is not None}
    if recurring := given & {"cron", "every", "trigger"}:
        raise InvalidError(min(recurring), "is for what runs again and again: add that")
    for word, name in _COLUMNS.items():
        if {word, name} <= given:
            raise InvalidError(word, f"and {name} say the same; leave one out")
    return {_COLUMNS.get(name, name): value for name, value in task.items()}
