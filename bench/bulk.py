"""``add_many`` and ``push_many`` beside the same rows inserted by the database's driver alone.

The driver inserts in one transaction, which is as durable as psched's, and as the driver does it
best: in SQLite and MariaDB with statements of 500 rows, in PostgreSQL with arrays of 500 rows, on
Redis with a pipeline in MULTI. (``executemany`` is slower in all three databases.) It is given the
rows that psched has stored, so it neither checks nor computes anything. Afterwards, both tables
must be equal. ``rows_alone`` leaves out the audit trail, which ``add_many`` writes beside the rows.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from redis import Redis
from sqlalchemy import make_url

import harness
import psched
from harness import Sample
from psched.stores.sql.history import AUDIT_COLUMNS

COLUMNS = (
    "id", "type", "data", "cron", "timezone", "delay", "next_time", "next_run_time", "settled_by",
    "alive_time", "options", "created_at",
)  # fmt: skip
"""The columns that an insert of psched's gives."""

CHUNK = 500
"""Rows in one statement of the driver's."""

Tables = dict[str, list[Any]]
"""What the schedules' table holds, and the audit trail's."""

Side: TypeAlias = "SqlSide | RedisSide"


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=5, kinds=(*harness.KINDS, "redis"))
    parser.add_argument("--rows", type=int, help="default: 10000; with --short, 700")
    given = harness.parsed(parser)
    given.rows = harness.choose(given, 10_000, 700, given.rows)
    harness.report("bulk", given, lambda *where: measured(given, *where))


def measured(given: Any, kind: str, url: str, _folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database."""
    side: type[Side] = RedisSide if kind == "redis" else SqlSide
    ours, drivers = side(url, "ours"), side(url, "drivers")
    found: dict[str, Any] = {}
    with psched.open({"url": url, "table": "ours"}) as schedules:
        for name, add, entries in (
            ("add_many", schedules.add_many, recurring(given.rows)),
            ("push_many", schedules.push_many, tasks(given.rows)),
        ):
            samples = harness.rounds(
                given.rounds,
                {
                    name: lambda add=add, entries=entries: bulk(add, entries, ours),
                    "driver": lambda: again(ours, drivers),
                    "driver, rows only": lambda: again(ours, drivers, audit=False),
                },
            )
            found[name] = harness.medians(samples[name])
            for beside, figure in (("driver", "driver"), ("driver, rows only", "rows_alone")):
                found[name][f"{figure}_ms"] = harness.medians(samples[beside])["ms"]
                found[name][f"{figure}_cpu_ms"] = harness.medians(samples[beside])["cpu_ms"]
                found[name][f"of_{figure}"] = harness.ratio(
                    samples[name], "ms", samples[beside], "ms"
                )
    ours.close()
    drivers.close()
    return found


def recurring(count: int) -> list[dict[str, Any]]:
    """Schedules with different crons, as a program declares them."""
    return [
        {
            "key": f"report.{n}",
            "type": "report",
            "cron": f"{n % 60} {n // 60 % 24} * * *",
            "timezone": "Europe/Paris",
            "data": {"customer": n},
        }
        for n in range(count)
    ]


def tasks(count: int) -> list[dict[str, Any]]:
    """Tasks, as a program pushes them."""
    return [{"key": f"mail.{n}", "type": "mail", "data": {"to": n}} for n in range(count)]


def bulk(
    add: Callable[[Sequence[Any]], Sequence[Any]], entries: list[dict[str, Any]], side: Side
) -> Sample:
    """What psched takes, into an empty table."""
    side.empty()
    with timed() as sample:
        added = add(entries)
    assert len(added) == len(entries)
    return sample


def again(ours: Side, drivers: Side, *, audit: bool = True) -> Sample:
    """What the driver takes for the rows that psched has just stored; with the audit trail's."""
    wanted = ours.read()
    if not audit:
        wanted |= {table: [] for table in wanted if table.endswith("audit")}
    drivers.empty()
    insert = drivers.inserting(wanted)
    with timed() as sample:
        insert()
    assert drivers.read() == wanted, "the tables differ"
    return sample


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """The milliseconds that the block takes, and those for which this process works."""
    sample = dict[str, float]()
    begun, worked = time.perf_counter(), time.process_time()
    yield sample
    sample["ms"] = 1000 * (time.perf_counter() - begun)
    sample["cpu_ms"] = 1000 * (time.process_time() - worked)


class SqlSide:
    """The tables of a store on a relational database, by the driver alone."""

    def __init__(self, url: str, name: str) -> None:
        store = harness.make_store(url, table=name, timeout=60)
        store.init()
        store.disconnect()
        at = make_url(url)
        self._kind = at.get_backend_name()
        self._connection = connected(at, self._kind)
        self._cursor = self._connection.cursor()
        quote = at.get_dialect()().identifier_preparer.quote
        # The server numbers the records of the audit trail.
        self._tables = {
            "rows": (name, COLUMNS),
            "audit": (f"{name}_audit", [quote(each) for each in AUDIT_COLUMNS if each != "id"]),
        }
        numbers = {"delay", "next_time", "next_run_time", "alive_time", "created_at", "time"}
        self._types = {
            name: ["bigint" if each.strip('"') in numbers else "text" for each in columns]
            for name, (_, columns) in self._tables.items()
        }

    def empty(self) -> None:
        """Remove all rows."""
        remove = "DELETE FROM" if self._kind == "sqlite" else "TRUNCATE TABLE"
        for table, _ in self._tables.values():
            self._cursor.execute(f"{remove} {table}")
        self._connection.commit()

    def read(self) -> Tables:
        """All rows."""
        found = {}
        for name, (table, columns) in self._tables.items():
            self._cursor.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id")  # noqa: S608
            found[name] = [*map(tuple, self._cursor.fetchall())]
        self._connection.commit()
        return found

    def inserting(self, wanted: Tables) -> Callable[[], None]:
        """A function that inserts rows."""

        def insert() -> None:
            for name, (table, columns) in self._tables.items():
                head = f"INSERT INTO {table} ({', '.join(columns)})"
                for start in range(0, len(wanted[name]), CHUNK):
                    rows = wanted[name][start : start + CHUNK]
                    if self._kind == "postgresql":
                        arrays = ", ".join(f"%s::{of}[]" for of in self._types[name])
                        values = [[*column] for column in zip(*rows, strict=True)]
                        self._cursor.execute(f"{head} SELECT * FROM unnest({arrays})", values)  # noqa: S608
                    else:
                        mark = "?" if self._kind == "sqlite" else "%s"
                        one = f"({', '.join([mark] * len(columns))})"
                        values = [value for row in rows for value in row]
                        self._cursor.execute(
                            f"{head} VALUES {', '.join([one] * len(rows))}", values
                        )
            self._connection.commit()

        return insert

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


class RedisSide:
    """The data of a store on Redis, by the driver alone."""

    def __init__(self, url: str, name: str) -> None:
        store = harness.make_store(url, table=name, timeout=60)
        store.init()
        store.disconnect()
        self._client = Redis.from_url(url)
        self._row, self._due = f"{{{name}}}:row:".encode(), f"{{{name}}}:due"
        self._audit = f"{{{name}}}:audit"

    def empty(self) -> None:
        """Remove all rows."""
        keys = self._client.zrange(self._due, 0, -1)
        self._client.delete(self._due, self._audit, *(self._row + key for key in keys))

    def read(self) -> Tables:
        """All rows."""
        times = self._client.zrange(self._due, 0, -1, withscores=True)
        with self._client.pipeline(transaction=False) as pipeline:
            for key, _ in times:
                pipeline.hgetall(self._row + key)
            hashes = pipeline.execute()
        rows = [(*of, fields) for of, fields in zip(times, hashes, strict=True)]
        return {"rows": rows, "audit": [each for _, each in self._client.xrange(self._audit)]}

    def inserting(self, wanted: Tables) -> Callable[[], None]:
        """A function that inserts rows."""

        def insert() -> None:
            with self._client.pipeline() as pipeline:
                for key, time_, fields in wanted["rows"]:
                    pipeline.hset(self._row + key, mapping=fields)
                    pipeline.zadd(self._due, {key: time_})
                pipeline.execute()
            with self._client.pipeline() as pipeline:
                for record in wanted["audit"]:
                    pipeline.xadd(self._audit, record)
                pipeline.execute()

        return insert

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


def connected(at: Any, kind: str) -> Any:  # noqa: ANN401  # PEP 249
    """A connection of the driver's, on which a commit is durable."""
    if kind == "sqlite":
        connection = sqlite3.connect(str(at.database), timeout=60)
        connection.execute("PRAGMA synchronous = FULL")
        return connection
    if kind == "mysql":
        import pymysql  # noqa: PLC0415

        return pymysql.connect(
            host=at.host,
            port=at.port or 3306,
            user=at.username,
            password=at.password or "",
            database=at.database,
        )
    import psycopg  # noqa: PLC0415

    return psycopg.connect(at.set(drivername="postgresql").render_as_string(hide_password=False))


if __name__ == "__main__":
    main()
