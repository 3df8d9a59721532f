"""Workers that a test drives, on a real SQLite database; host and database share one clock."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from psched.base.errors import StoreUnavailableError
from psched.client.collection import ScheduleCollection
from psched.config import from_mapping
from psched.core.model import Row
from psched.testing import ManualClock, WorkerDriver
from support.store_clock import StoreClock, store_clock
from support.stores import Sql, make_store
from support.tables import fill_sqlite

START = 1_700_000_000
"""Unix seconds at which these tests begin."""


class SharedClock(ManualClock):
    """A host's clocks; the store's clock moves with them.

    Args:
        store_clock: the store's.
    """

    def __init__(self, store_clock: StoreClock) -> None:
        super().__init__(wall=store_clock.now)
        self._store_clock = store_clock

    def suspend(self, seconds: float) -> None:
        super().suspend(seconds)
        if seconds:
            self._store_clock.advance(self.wall() - self._store_clock.now)


class Remote:
    """A real store behind a network that a test controls.

    Args:
        store: the real store.
        clock: moves on by the time that an answer takes.

    Attributes:
        away: whether requests fail without being applied.
        answer: seconds that each request takes.
        requests: how often each request was sent, by its name.
    """

    def __init__(self, store: Any, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock
        self.away = False
        self.answer = 0.0
        self.requests: Counter[str] = Counter()

        # Of its parts, it has only these; it is all of them itself.
        self.holds = self.pauses = self
        self.history = self.output = self.alerts = None
        self.announcements = self.light_reads = self.recorded_changes = None

    def hold(self, *args: Any, **kwargs: Any) -> Any:
        return self.__getattr__("hold")(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        part = self._store.pauses if name in {"pause_rules", "change_pause_rules"} else self._store
        request = getattr(part, name)
        if not callable(request):
            return request  # such as a count, which costs no request

        def send(*args: object, **kwargs: object) -> Any:
            self.requests[name] += 1
            self._clock.advance(self.answer)
            if self.away:
                raise StoreUnavailableError("the database is unavailable: test")
            return request(*args, **kwargs)

        return send


class DrivenHost:
    """A host with a database, on which workers are driven.

    Attributes:
        clock: the clock of the host and of the database.
        schedules: the schedules, for the test.
    """

    def __init__(self, url: str, clock: SharedClock, schedules: ScheduleCollection) -> None:
        self.clock = clock
        self.schedules = schedules
        self._url = url
        self._open = contextlib.ExitStack()

    def store(self) -> Any:
        """The store, on another connection to the database."""
        store = make_store(self._url, clock=self.clock)
        self._open.callback(store.disconnect)
        return store

    def remote(self) -> Remote:
        """The store behind a network; of its parts, it has only those of `Remote`."""
        return Remote(self.store(), self.clock)

    def worker(self, store: Any = None, **settings: Any) -> WorkerDriver:
        """A worker that has begun."""
        given = {"poll_interval": 1, "retry_wait": 0, "concurrency": 1, **settings}
        driver = WorkerDriver(store or self.remote(), clock=self.clock, **given)
        self._open.enter_context(driver)
        driver.start()
        return driver

    def add(self, *keys: str, **fields: Any) -> None:
        """Add schedules that are due."""
        given = {"type": "test", "next_time": START, **fields}
        self.schedules.add_many([{"key": key, **given} for key in keys])

    def sql(self, statement: str) -> None:
        """Run a statement, as any client of the database could."""
        with Sql(self._url).session() as run:
            run(statement)

    def row(self, key: str) -> Row:
        return self.schedules.read(key).row

    def close(self) -> None:
        self._open.close()


@contextlib.contextmanager
def driven_host(folder: Path) -> Iterator[DrivenHost]:
    """A host whose clock stands still."""
    url = fill_sqlite(folder / "psched.db")
    with store_clock(url, start=START) as database_clock:
        clock = SharedClock(database_clock)
        store = make_store(url, clock=clock)
        settings, nonces = from_mapping({"url": url}), map(str, count())
        with ScheduleCollection(
            store, settings, clock=clock, draw_nonce=lambda: next(nonces)
        ) as schedules:
            host = DrivenHost(url, clock, schedules)
            with contextlib.closing(host):
                yield host
