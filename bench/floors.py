"""The yardsticks: what the machine itself can do; `harness.floor` runs them.

    floors.py NAME ARGUMENT... PLACE

PLACE is a number, another one for each of the processes that work at the same time.

Each prints its process's size when it is ready, waits for a line, works, and prints how often it
has done what when.
"""

import contextlib
import gc
import json
import os
import resource
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    """Run one of them."""
    name, *arguments = sys.argv[1:]
    FLOORS[name](*arguments)


def fork(count: str, notes: str, _place: str) -> None:
    """Fork, exit and wait; the child writes a line."""
    with _measured(int(count), large=True):
        for _ in range(int(count)):
            _forked(lambda: _note(notes))


def lean(count: str, notes: str, _place: str) -> None:
    """Do what `fork` does in a Python that is executed anew, and imports next to nothing."""
    program = Path(__file__).with_name("floor_lean.py")
    os.execv(sys.executable, [sys.executable, "-I", "-S", str(program), count, notes])  # noqa: S606


def db(url: str, count: str, notes: str, place: str) -> None:
    """Commit an update of a row by the driver alone, fork, wait, and commit another update."""
    update = _updates(url, int(place))
    with _measured(int(count), large=True):
        for _ in range(int(count)):
            update()
            _forked(lambda: _note(notes))
            update()


def sleep(seconds: str, _place: str) -> None:
    """Sleep to each full second, as barely as can be; how late each wake-up was."""
    with _measured(int(seconds)) as told:
        first = int(time.time()) + 2
        late = []
        for instant in range(first, first + int(seconds)):
            while (left := instant - time.time()) > 0:
                select.select([], [], [], left)
            late.append(time.time() - instant)
        told["late"] = late


def look(url: str, seconds: str, place: str) -> None:
    """Ask the database in each second for rows of which there are none, by the driver alone."""
    ask = _asks(url, f"looked{place}")
    waiter = select.poll()
    with _measured(int(seconds)):
        for _ in range(int(seconds)):
            waiter.poll(1000)
            ask()


FLOORS = {
    "fork": fork,
    "lean": lean,
    "db": db,
    "sleep": sleep,
    "look": look,
}


@contextlib.contextmanager
def _measured(count: int, *, large: bool = False) -> Iterator[dict[str, Any]]:
    if large:
        _grow()
    _say(_rss())
    sys.stdin.readline()
    cpu, faults = _spent()
    told: dict[str, Any] = {"count": count, "begin": time.time()}
    yield told
    end, (cpu_after, faults_after) = time.time(), _spent()
    told |= {"end": end, "cpu": cpu_after - cpu, "faults": faults_after - faults}
    _say(told)


def _grow() -> None:
    """Become as large as a small program with a database: about 44 MiB."""
    import click  # noqa: PLC0415, F401
    import croniter  # noqa: PLC0415, F401
    import pymysql  # noqa: PLC0415, F401
    import sqlalchemy  # noqa: PLC0415, F401

    gc.collect()
    gc.freeze()


def _forked(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    os.waitpid(pid, 0)


def _note(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{time.time():.6f}\n".encode())
    os.close(file)


def _asks(url: str, table: str) -> Callable[[], Any]:
    """A function that finds nothing in a table."""
    cursor = _made(url, table)

    def ask() -> Any:  # noqa: ANN401
        cursor.execute(f"SELECT n FROM {table} WHERE id > 1")  # noqa: S608
        return cursor.fetchall()

    return ask


def _updates(url: str, place: int) -> Callable[[], Any]:
    """A function that updates one row of a table, and commits; on Redis, it increments a key."""
    if url.startswith("redis"):
        from redis import Redis  # noqa: PLC0415

        client = Redis.from_url(url)
        return lambda: client.incr(f"floor{place}")
    table = f"floor{place}"
    cursor = _made(url, table)
    return lambda: cursor.execute(f"UPDATE {table} SET n = n + 1 WHERE id = 1")  # noqa: S608


def _made(url: str, table: str) -> Any:  # noqa: ANN401  # PEP 249
    """A table of one row is made; a cursor."""
    from sqlalchemy.engine import make_url  # noqa: PLC0415

    at = make_url(url)
    make = f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)"
    connection: Any
    if at.drivername.startswith("sqlite"):
        import sqlite3  # noqa: PLC0415

        connection = sqlite3.connect(str(at.database), isolation_level=None, timeout=60)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    elif at.drivername.startswith("mysql"):
        import pymysql  # noqa: PLC0415

        connection = pymysql.connect(
            host=at.host,
            port=at.port or 3306,
            user=at.username,
            password=at.password or "",
            database=at.database,
            autocommit=True,
        )
    else:
        import psycopg  # noqa: PLC0415

        plain = at.set(drivername="postgresql").render_as_string(hide_password=False)
        connection = psycopg.connect(plain, autocommit=True)
    cursor = connection.cursor()
    for statement in make, f"DELETE FROM {table}", f"INSERT INTO {table} VALUES (1, 0)":  # noqa: S608
        cursor.execute(statement)
    return cursor


def _rss() -> float:
    """This process's size, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def _spent() -> tuple[float, int]:
    """The seconds and the page faults of this process and its children that have ended."""
    spent = [*map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))]
    cpu = sum(each.ru_utime + each.ru_stime for each in spent)
    return cpu, sum(each.ru_minflt + each.ru_majflt for each in spent)


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
