"""A real database whose clock a test sets."""

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace as changed
from math import floor

import pytest
from sqlalchemy.engine import make_url

from psched.stores.redis import scripts
from psched.stores.redis.store import RedisStore
from psched.stores.sql import connector
from psched.stores.sql.dialects import dialect_of
from support.clients import engine_of


class StoreClock:
    """The clock by which stores judge what is due: a table that their statements read.

    Args:
        url: the database's url.
        start: Unix seconds.
    """

    def __init__(self, url, start):
        self._open = contextlib.ExitStack()
        connection = engine_of(url).raw_connection()
        self._open.callback(connection.close)
        # SQLAlchemy would need more time for it than the database.
        self._sql = connection.cursor().execute
        self.now = start
        self._sql("CREATE TABLE store_clock (now DOUBLE PRECISION, second INTEGER)")
        self._sql("INSERT INTO store_clock VALUES (0, 0)")
        self.advance(0)

    def advance(self, seconds):
        """Let time pass, or set the clock back."""
        self.now = round(self.now + seconds, 3)
        self._sql(f"UPDATE store_clock SET now = {self.now!r}, second = {floor(self.now)}")  # noqa: S608

    def close(self):
        self._open.close()


@contextlib.contextmanager
def store_clock(url, *, start, **changes) -> Iterator[StoreClock]:
    """Within this context, new stores read such a clock.

    Args:
        url: the database's url.
        start: Unix seconds.
        changes: further changes of the dialect.
    """
    dialect = changed(
        dialect_of(make_url(url)),
        now="(SELECT now FROM store_clock)",
        now_floor="(SELECT second FROM store_clock)",
        **changes,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connector, "dialect_of", lambda _url: dialect)
        with contextlib.closing(StoreClock(url, start)) as clock:
            yield clock


@contextlib.contextmanager
def redis_clock(server, number) -> Iterator[Callable[[float], None]]:
    """Within this context, new stores in Redis read a clock that the yielded function sets.

    The ids of entries in streams contain the time of this clock, too.

    Args:
        server: the server.
        number: the number of the database, which contains the clock.
    """
    now = 0.0

    def set_to(seconds):
        nonlocal now
        now = seconds
        values = "seconds", floor(now), "micro", floor(now % 1 * 1e6)
        server.query("HSET", "store_clock", *values, db=number)

    with pytest.MonkeyPatch.context() as patch:
        find = scripts.find

        @functools.cache
        def by_the_clock(name, **how):
            script = find(name, **how)
            text = script.text.replace(
                "redis.call('TIME')", "redis.call('HMGET', 'store_clock', 'seconds', 'micro')"
            ).replace("'*', 'key'", "integer(now_ms)..'-*', 'key'")
            digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            return changed(script, text=text, digest=digest)

        patch.setattr(scripts, "find", by_the_clock)
        patch.setattr(RedisStore, "now", lambda _store: now)
        yield set_to
