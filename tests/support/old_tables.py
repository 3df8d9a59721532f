"""The tables of PerfectSched and PerfectQueue, and a stand-in for PerfectSched's worker.

Its statements are those of PerfectSched 0.8 (lib/perfectsched/backend/rdb_compat.rb in
treasure-data/perfectsched): a lease is a ``timeout`` in the future and nothing else.
"""

import itertools
import os
import time
from pathlib import Path

from sqlalchemy import text

import psched
from psched.triggers import trigger
from support.clients import engine_of
from support.waiting import wait_until

ALIVE_TIME = 300

_BLOB = {"sqlite": "BLOB", "mysql": "LONGBLOB", "postgresql": "BYTEA"}

_PERFECTSCHED = """CREATE TABLE schedules (id VARCHAR(256) NOT NULL, timeout INT NOT NULL,
    next_time INT NOT NULL, cron VARCHAR(128) NOT NULL, delay INT NOT NULL, data {blob} NOT NULL,
    timezone VARCHAR(256) NULL, PRIMARY KEY (id))"""
_PERFECTQUEUE = """CREATE TABLE tasks (id VARCHAR(255) NOT NULL, timeout INT NOT NULL,
    data {blob} NOT NULL, created_at INT{more}, PRIMARY KEY (id))"""
_NEWER = ", resource VARCHAR(255), max_running INT, owner BIGINT NOT NULL DEFAULT 0"


class OldTable:
    """A table of an old system, which any client may write.

    Args:
        url: the database's.
        name: the table's.
    """

    def __init__(self, url, name="schedules"):
        self.url, self.name = url, name
        self._engine = engine_of(url)
        self._connection = self._engine.connect()

    def close(self):
        self._connection.close()

    def __call__(self, statement, **values):
        """Run one statement; return its rows, or the number of rows that it changed."""
        result = self._connection.execute(text(statement), values)
        return result.mappings().all() if result.returns_rows else result.rowcount

    def create(self, *, newer=True):
        form = _PERFECTSCHED if self.name == "schedules" else _PERFECTQUEUE
        blob = _BLOB[self._engine.dialect.name]
        self(form.format(blob=blob, more=_NEWER if newer else ""))

    def insert(self, *rows):
        names = ", ".join(rows[0])
        values = ", ".join(f":{name}" for name in rows[0])
        statement = text(f"INSERT INTO {self.name} ({names}) VALUES ({values})")  # noqa: S608
        with self._engine.begin() as connection:
            connection.execute(statement, rows)

    @property
    def rows(self):
        found = self(f"SELECT * FROM {self.name} ORDER BY id")  # noqa: S608
        return {row["id"]: dict(row) for row in found}

    @property
    def keys(self):
        return [*self.rows]

    def claim(self, now, limit=4):
        """Lease one due row, as an old worker does; return the row, or None."""
        due = self(
            "SELECT * FROM schedules WHERE timeout <= :now ORDER BY timeout LIMIT :limit",
            now=now,
            limit=limit,
        )
        for row in due:
            values = {"end": now + ALIVE_TIME, "id": row["id"], "seen": row["timeout"]}
            if self(
                "UPDATE schedules SET timeout = :end WHERE id = :id AND timeout = :seen", **values
            ):
                return row
        return None

    def finish(self, row):
        """Settle a row that `claim` has returned."""
        line = trigger.parse(row["cron"], row["timezone"] or "UTC", dst_policy="wallclock")
        following = line.next_after(row["next_time"])
        return self(
            "UPDATE schedules SET timeout = :run, next_time = :new"
            " WHERE id = :id AND next_time = :seen",
            run=following + row["delay"],
            new=following,
            id=row["id"],
            seen=row["next_time"],
        )


def schedule(key, *, at, **columns):
    """Insert a waiting schedule of PerfectSched, by default one that runs every minute."""
    row = {"id": key, "timeout": at, "next_time": at, "cron": "* * * * *", "delay": 0}
    return {**row, "data": b'{"type":"t.x","n":1}', "timezone": None, **columns}


def task(key, *, at, **columns):
    """Insert a waiting task of PerfectQueue."""
    return {"id": key, "timeout": at, "data": b'{"type":"t.x","n":1}', "created_at": 7, **columns}


ALONE = 50
"""How much an old worker runs before a migration begins, so that there is something to move."""


TASK = 0.005
"""Seconds that a task takes an old worker: so it is not through before anything has moved."""


def old_worker(url, log, end):
    """Works on PerfectSched's table until a file exists; runs isolated."""
    table = OldTable(url)
    ran = itertools.count(1)

    def idle():
        while (row := table.claim(int(time.time()))) is not None:
            _note(log, "old", row["id"], row["next_time"])
            time.sleep(TASK)
            table.finish(row)
            if next(ran) == ALONE:
                wait_until(Path(f"{log}.moving").exists, what="the migration's beginning")
        return Path(end).exists()

    wait_until(idle, what="the end")


def new_worker(url, log, end):
    """Works on psched's table until a file exists; runs isolated."""
    with psched.open({"url": url}) as schedules:

        def idle():
            while (task := schedules.poll()) is not None:
                _note(log, "new", task.key, task.scheduled_time)
                task.finish()
            return Path(end).exists()

        wait_until(idle, what="the end")


def _note(log, system, key, scheduled_time):
    line = f"{system} {key} {scheduled_time}\n"
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def runs(log):
    """The scheduled times that have run, by key, in the order of the runs."""
    lines = sorted(line.split()[1:] for line in Path(log).read_text().splitlines())
    return {
        key: [int(time) for _, time in group]
        for key, group in itertools.groupby(lines, key=lambda line: line[0])
    }
