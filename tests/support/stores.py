"""Stores on a test's database, and plain SQL beside them."""

import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import text

from psched.app import create_store
from psched.base.clock import SystemClock
from psched.base.errors import InvalidError
from psched.config import Config
from psched.config.urls import Tls, aws_kind, is_redis
from psched.core.columns import parse_payload
from psched.core.model import Decision, Finish, Quarantine, Row
from psched.stores.observations import Takeover
from psched.stores.sql.store import SqlStore
from support.clients import engine_of

KINDS = ("sqlite", "mariadb", "postgresql", "redis")
"""The kinds of databases on which tests run."""

if "PSCHED_TEST_NO_SERVERS" in os.environ:  # a test that is not made need not be left out
    KINDS = KINDS[:1]

LONG = 30.0
"""Seconds that an answer may take where a test does not wait for an answer that never comes."""


@dataclass(frozen=True, kw_only=True)
class Given(Config):
    """Settings of which a test gives what it needs; by default nothing is limited."""

    processors: int = 1
    driver_timeout: float = LONG
    tls: Tls | None = None
    compress_above: int = 0
    history_keep: int = 0
    history_keep_per_key: int = 0
    output_keep: int = 0
    output_budget: int = 0


def make_store(url, *, clock=None, table="psched", timeout=None, **more):
    """A store as a worker makes it; not yet connected."""
    store = SqlStore
    if is_redis(url):
        from psched.stores.redis.store import RedisStore  # noqa: PLC0415  # it need not be there

        store, more["type"] = RedisStore, "redis"
    if kind := aws_kind(url):
        given = Given(url=url, table=table, driver_timeout=timeout or LONG, type=kind, **more)
        return create_store(given, clock=clock or SystemClock(), rng=random.Random())  # noqa: S311
    given = Given(url=url, table=table, driver_timeout=timeout or LONG, **more)
    return store(given, clock=clock or SystemClock(), rng=random.Random())  # noqa: S311  # jitter


@contextlib.contextmanager
def store_factory(url, **how) -> Iterator:
    """Makes stores on one database, and disconnects them at the end."""
    opened = []

    def open_store():
        opened.append(make_store(url, **how))
        return opened[-1]

    try:
        yield open_store
    finally:
        for store in opened:
            store.disconnect()


@contextlib.contextmanager
def observing_factory(url, **how) -> Iterator:
    """Makes stores with `takeover: observed` that have seen each lease for long at each claim."""
    with store_factory(url, takeover="observed", **how) as open_store:

        def open_observing():
            store = open_store()
            store._takeover = LongObserving(store._takeover._ended, SystemClock())
            return store

        yield open_observing


class LongObserving(Takeover):
    """Takes over each lease that has ended by the store's clock."""

    is_due = True

    def next(self, most, **lease):
        self._observed.left = lambda *_: 0.0
        return super().next(most, **lease)


class Sql:
    """Plain SQL on a database, as any client would send it.

    Args:
        url: the database's url.
        table: what ``{table}`` in a statement stands for.
    """

    def __init__(self, url, table="psched"):
        self._engine = engine_of(url)
        self._table = self._engine.dialect.identifier_preparer.quote(table)

    def __call__(self, statement, **values):
        """Run one statement; return its rows, if it has any."""
        with self._engine.connect() as connection:
            result = connection.execute(self._text(statement), values)
            return result.all() if result.returns_rows else []

    @contextlib.contextmanager
    def session(self) -> Iterator:
        """Runs many statements on one connection."""
        with self._engine.connect() as connection:
            yield lambda statement, **values: connection.execute(self._text(statement), values)

    def _text(self, statement):
        return text(statement.replace("{table}", self._table))


SOME = ("b'o\"o", "ours")
"""The types that the second store of `takes_some_types` claims."""


def takes_some_types(store, some):
    """Check that a store that claims some types leaves the rows of other types alone.

    Args:
        store: claims all types.
        some: claims only the types `SOME`.
    """
    soon = int(store.now()) + 2
    rows = [
        Row(key=f"{type_}{time}", type=type_, next_time=time, next_run_time=time)
        for time in (1, 2, soon)
        for type_ in ("ours", "its", SOME[0])
    ]
    store.add(rows, nonce="n")
    claim = {"limit": 2, "alive_time": 60, "shortest": 6, "horizon": 30}
    assert (store.backlog(10).due, some.backlog(10).due, some.backlog(3).due) == (6, 4, 3)
    first, second = some.claim("w.1", **claim), some.claim("w.2", **claim)
    assert {row.key for row in first.rows} == {"ours1", f"{SOME[0]}1"}
    assert {row.key for row in second.rows} == {"ours2", f"{SOME[0]}2"}
    assert (first.more, second.more) == (True, True)
    last = some.claim("w.3", **claim)
    assert last.rows or last.next_due == soon
    assert {row.key for row in store.claim("w.4", **claim).rows} == {"its1", "its2"}


def decision_of(row: Row, settings: Config) -> Decision:
    """How a runner ends a task that does nothing: quarantined if its payload is invalid."""
    try:
        parse_payload(row.data, settings.data_limit)
    except InvalidError as error:
        return Quarantine(str(error))
    return Finish()
