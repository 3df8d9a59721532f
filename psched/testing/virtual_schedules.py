"""Schedules on a real store whose time a test moves, and the handlers that run their tasks."""

import json
import random
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import count
from math import floor, inf
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Unpack

from sqlalchemy import Connection
from typing_extensions import override

from psched.application.dispatch import Dispatch, Router, instance
from psched.application.task import Task
from psched.base.clock import Clock, SystemClock
from psched.base.errors import InvalidError, LoadError, described
from psched.client.collection import ScheduleCollection
from psched.config import Config, from_mapping
from psched.core.arguments import Settings
from psched.core.columns import When, instant, payload_text
from psched.core.definition import parse_row
from psched.core.model import ENDED, PAUSED, QUARANTINED, Decision, Retry, Row
from psched.core.schedule import ScheduleMetadata
from psched.handlers.configured import built_in_handlers
from psched.service.functions import App
from psched.stores.sql.store import SqlStore
from psched.testing.handler_runs import HandlerRun, ObservedLease, call, handler_of
from psched.testing.manual_clock import ManualClock

NOW = datetime(2030, 1, 1, tzinfo=UTC)
"""The time at which `Schedules` begin by default. It is a Tuesday."""

Handlers = Dispatch | type[Dispatch] | Mapping[str, Any] | None
"""The handlers of a test: an app, a dispatch, or handlers by type; None if there are none."""

_MOST_AT_ONCE = 1_000
"""The number of tasks at one instant after which `Schedules.run_due` gives up.

Without this limit, the call would never end if a handler released its task every time.
"""

_MOST_IN_A_WAIT = 10_000  # the number of tasks after which a wait for the end of a task gives up

_JULIAN_DAY_OF_1970 = 2_440_587.5


class _StoreClock(SystemClock):
    """Tells the time of a test, but pauses, and gives up, in real time: other threads are real."""

    def __init__(self, clock: Clock) -> None:
        self.wall, self.boottime = clock.wall, clock.boottime


class VirtualStore(SqlStore):
    """SQLite whose functions of time read a clock that a test moves.

    ``pushed`` receives the rows of tasks that are added to run once.
    """

    def __init__(self, settings: Config, clock: Clock, pushed: list[Row]) -> None:
        own, rng = _StoreClock(clock), random.Random(0)  # noqa: S311  # jitter
        super().__init__(settings, clock=own, rng=rng)
        self._test_clock = clock
        self._pushed = pushed

    @override
    def _check(self, connection: Connection) -> None:
        opened: Any = connection.connection.driver_connection
        wall = self._test_clock.wall

        def julian_day(_now: str) -> float:
            return wall() / 86_400 + _JULIAN_DAY_OF_1970

        def seconds(_format: str, _now: str) -> str:
            # Rounded, because a sum of floats can be just below the second that has begun.
            return str(floor(round(wall(), 3)))

        # They replace SQLite's own: psched asks SQLite for nothing but the present time by them.
        opened.create_function("julianday", 1, julian_day)
        opened.create_function("strftime", 2, seconds)
        super()._check(connection)

    @override
    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        super().add(rows, nonce=nonce)
        self._pushed += [row for row in rows if row.cron is None]


class Schedules(ScheduleCollection):
    """Schedules for a test: a real store with a clock that only the test moves.

    The store is an SQLite database in a temporary folder. The methods are those of
    `psched.ScheduleCollection`; `run_due` runs what is due, in this process. An app that is given
    pushes its tasks here until `close`, in all threads. Use it as a context manager::

        with psched.testing.Schedules(jobs.app) as schedules:
            jobs.mail.options(delay="1h").push(to="ann")
            [run] = schedules.run_due(timedelta(hours=2))
            assert run.outcome == "finished"

    Args:
        handlers: the handlers that run the tasks: a `psched.App`, a `Dispatch` (class or object),
            or a mapping of types to handlers as `psched.testing.run` accepts them. The types
            ``exec`` and ``push`` are built in.
        now: the time at which the test begins: Unix seconds or an aware datetime.
        settings: psched's settings, such as ``retry_wait`` and ``timezone``.

    Attributes:
        clock: the clock; `ManualClock.advance` moves it without running anything.

    Raises:
        ConfigError: a setting is invalid.
        InvalidError: ``now`` is not an instant, or ``url`` is given.
        LoadError: a handler cannot be a handler.
    """

    def __init__(
        self,
        handlers: Handlers = None,
        /,
        *,
        now: When = NOW,
        **settings: Unpack[Settings],
    ) -> None:
        if "url" in settings:
            raise InvalidError("url", "is that of a temporary database; leave it out")
        self.clock = ManualClock(wall=instant("now", now))
        self._at_once = (0.0, 0)
        dispatch = None if handlers is None else _dispatch_of(handlers)
        with ExitStack() as undo:
            folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="psched-test-"))
            url = f"sqlite:///{Path(folder) / 'psched.db'}"
            self._all_settings = from_mapping({**settings, "url": url})
            self._pushed: list[Row] = []
            self._numbers = count(1)
            self._router = Router(dispatch, built_in_handlers(self._all_settings))
            self._thread = threading.get_ident()
            self._of_threads: list[ScheduleCollection] = []
            super().__init__(**self._parts())
            self._store.init()
            if isinstance(dispatch, App):
                undo.enter_context(dispatch.using(self._for_this_thread))
            self._undo = undo.pop_all()

    def _parts(self) -> dict[str, Any]:
        """The arguments of a collection on the store of this test."""
        return {
            "store": VirtualStore(self._all_settings, self.clock, self._pushed),
            "settings": self._all_settings,
            "clock": self.clock,
            "draw_nonce": lambda: f"test-{next(self._numbers)}",
        }

    def _for_this_thread(self) -> ScheduleCollection:
        if threading.get_ident() == self._thread:
            return self
        made = ScheduleCollection(**self._parts())
        self._of_threads.append(made)
        return made

    @override
    def close(self) -> None:
        """Delete the store. The app uses its own settings again."""
        for each in self._of_threads:
            each.close()
        super().close()
        self._undo.close()

    def pushed(self, type: str | None = None) -> Sequence[ScheduleMetadata]:  # noqa: A002
        """The tasks that were pushed, in their order, as they were pushed.

        They include those that have run and those that were deleted. Whatever runs only once counts
        as pushed.

        Args:
            type: the type of the tasks; None means every type.
        """
        return [ScheduleMetadata(row) for row in self._pushed if type in {None, row.type}]

    def run_due(
        self, until: When | timedelta | None = None, *, catch_exceptions: bool = False
    ) -> Sequence[HandlerRun]:
        """Run everything that is due up to an instant, in this process and one after another.

        The clock moves to the time of each task before it is run, and to ``until`` at the end. A
        run takes no time. What a task pushes is run, too, if it is due up to that instant, and so
        are further attempts.

        Args:
            until: Unix seconds or an aware datetime; a ``timedelta`` counts from now. None means
                now.
            catch_exceptions: whether the exception of a handler is kept in `HandlerRun.error`, and
                the test goes on: the task is then tried again, as by a worker. If not, the
                exception is raised here, after the failure was recorded.

        Returns:
            The runs, in their order.

        Raises:
            InvalidError: ``until`` is not an instant.
            LoadError: a task that is due has a type without a handler, also with
                `catch_exceptions`.
            RuntimeError: 1,000 tasks were run at one instant, and further ones are due.
        """
        end = self._end(until)
        runs: list[HandlerRun] = []
        while (run := self._run_next(end, catch_exceptions=catch_exceptions)) is not None:
            runs.append(run)
        self._move_to(end)
        return runs

    def _end(self, until: When | timedelta | None) -> float:
        now = self.clock.wall()
        if until is None:
            return now
        return (
            now + until.total_seconds() if isinstance(until, timedelta) else instant("until", until)
        )

    def _move_to(self, time: float) -> None:
        if time > self.clock.wall():
            self.clock.advance(time - self.clock.wall())

    def _run_next(self, end: float, *, catch_exceptions: bool) -> HandlerRun | None:
        """Run the task that is due next; None if none is due up to the end."""
        before: list[tuple[str, int]] = []
        while True:
            due = [*self._due(end)]
            for _, time in due:
                self._move_to(time)
                if (task := self.poll()) is not None:
                    return self._run(task, catch_exceptions=catch_exceptions)
            # A poll also settles rows that have nothing to run, so further ones may be due then.
            if due == before:
                return None
            before = due

    def _due(self, end: float) -> Iterator[tuple[str, int]]:
        """What may be due up to an instant, and when: rows, and what a type's pause has held."""
        now = self.clock.wall()
        over = sorted(
            (rule.until, rule.type or "")
            for rule in self.pauses()
            if rule.until is not None and now < rule.until <= end
        )
        ends = ((type_, until) for until, type_ in over)
        return merge(self._rows_due(end), ends, key=itemgetter(1))

    def _rows_due(self, end: float) -> Iterator[tuple[str, int]]:
        for metadata in self.list(status=("waiting", "running", "paused")):
            time = metadata.row.next_run_time
            if time is None or time > end:
                return
            yield metadata.key, time

    def _run(self, leased: Task, *, catch_exceptions: bool) -> HandlerRun:
        """Run a task that was leased, and settle its lease."""
        now = self.clock.wall()
        self._at_once = (now, self._at_once[1] + 1 if now == self._at_once[0] else 1)
        if self._at_once[1] > _MOST_AT_ONCE:
            raise RuntimeError(f"{_MOST_AT_ONCE} tasks were run at one instant; next is {leased!r}")
        row, settings = self.read(leased.key).row, self._all_settings
        values = parse_row(row, settings).assignment(row, leased.scheduled_time)
        values["data"] = payload_text(row.data, settings.data_limit)
        lease = _PassedOn(leased, self)
        try:
            run = call(self._handler(leased.type), values, lease, catch_exceptions=catch_exceptions)
        except BaseException as error:
            lease.settle(Retry(reason=described(error)))
            raise
        lease.settle()
        return run

    def _handler(self, type_: str) -> Any:  # noqa: ANN401  # see dispatch.Target
        handler = self._router.find(type_)
        if handler is None:
            raise LoadError(f"no handler for the type {type_!r}; give one to Schedules")
        return handler

    @override
    def _wait(
        self, key: str, timeout: float | None, look: Callable[[Row], object] | None = None
    ) -> Row:
        # Nobody else runs tasks, and the clock stands still: so the wait itself runs them.
        end = inf if timeout is None else self.clock.wall() + timeout
        for _ in range(_MOST_IN_A_WAIT):
            row = self._read(key)
            has_ended = row.status in {*ENDED, QUARANTINED} and row.owner is None
            if has_ended or row.status == PAUSED or row.cron is not None:
                break
            if self._run_next(end, catch_exceptions=True) is None:
                break
        return super()._wait(key, 0, look)


class _PassedOn(ObservedLease):
    """Observes what a task does with its lease, and does it with the lease of the store.

    As in a worker, the decision of the task is carried out when its handler has ended.
    """

    def __init__(self, leased: Task, schedules: Schedules) -> None:
        super().__init__(schedules)
        self._leased = leased

    @override
    def extend(self) -> None:
        super().extend()
        self._leased.extend()

    @override
    def update_data(self, data: Mapping[str, Any]) -> None:
        self._leased.update_data(data)

    def settle(self, usual: Decision | None = None) -> None:
        """End the lease as the task has decided."""
        decision = self.decision or usual
        if self.result is not None:
            self._leased.result = json.loads(self.result)
        if decision is not None:
            self._leased._decide(decision)  # noqa: SLF001  # its methods take no reason of a failure


def _dispatch_of(handlers: Dispatch | type[Dispatch] | Mapping[str, Any]) -> Dispatch:
    """The dispatch of a test."""
    if not isinstance(handlers, Mapping):
        return instance(handlers, "handlers")
    found = {type_: handler_of(each, type_) for type_, each in handlers.items()}

    class Routes(Dispatch):
        routes: ClassVar[Mapping[Any, Any]] = found

    return Routes()
