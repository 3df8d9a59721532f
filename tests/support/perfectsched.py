"""A worker that uses the table just as PerfectSched's workers do: a peer for psched, not a mock.

    perfectsched.py URL TABLE RUN_LOG ALIVE_TIME SECONDS

Its statements are those of PerfectSched's rdb_compat backend, one task at a time, by this host's
clock; it never extends a lease, and neither does PerfectSched. A task takes SECONDS and is noted in
the run log. The worker runs until a signal ends it.
"""

import json
import os
import sqlite3
import sys
import time
from pathlib import Path

import pymysql
from sqlalchemy.engine import make_url

from support.minute_by_minute import next_time

POLL_INTERVAL = 0.1
MAX_SELECT_ROW = 4
COLUMNS = "id, timeout, next_time, cron, delay, data, timezone"


class Peer:
    """One worker like PerfectSched's.

    Args:
        url: the database's.
        table: the table's name.
        run_log: where its tasks are noted.
        alive_time: the length of its leases, seconds.
        seconds: how long a task takes.
        now: the worker's clock.
    """

    def __init__(self, url, table, run_log, alive_time, seconds, *, now=time.time):
        self._url = make_url(url)
        self._table = f"`{table}`"
        self._log = Path(run_log)
        self._alive_time = int(alive_time)
        self._seconds = float(seconds)
        self._now = now
        self._connection = self._connect()

    def close(self):
        """Close the worker's connection."""
        self._connection.close()

    def run(self):
        """Run due tasks for ever."""
        print(os.getpid(), "works", flush=True)  # noqa: T201  # to who has started us
        while True:
            row = self.acquire()
            if row is None:
                time.sleep(POLL_INTERVAL)
            else:
                self.process(row)
                self.finish(row)

    def acquire(self):
        """Lease the row that is due first, if there is one."""
        while True:
            now = int(self._now())
            seen = self._all(
                f"SELECT {COLUMNS} FROM {self._table} WHERE timeout <= ?"  # noqa: S608
                f" ORDER BY timeout ASC LIMIT {MAX_SELECT_ROW}",
                now,
            )
            for row in seen:
                if self._take(row, now + self._alive_time):
                    return row
            if len(seen) < MAX_SELECT_ROW:
                return None

    def process(self, row):
        """Run a task: note it, and take some seconds."""
        self._note(row, "start")
        time.sleep(self._seconds)
        self._note(row, "end", how="returned")

    def modify(self, key, **columns):
        """Change some of a schedule's cron, delay, timezone and data."""
        changes = ", ".join(f"{name}=?" for name in columns)
        statement = f"UPDATE {self._table} SET {changes} WHERE id=?"  # noqa: S608
        self._change(statement, *columns.values(), key)

    def finish(self, row):
        """Move the row to its next occurrence; return whether its ``next_time`` was unchanged."""
        key, _, scheduled_time, cron, delay, _, timezone = row
        following = next_time(cron, scheduled_time, timezone)
        return self._change(
            f"UPDATE {self._table} SET timeout=?, next_time=? WHERE id=? AND next_time=?",  # noqa: S608
            following + delay,
            following,
            key,
            scheduled_time,
        )

    def _take(self, row, timeout):
        statement = f"UPDATE {self._table} SET timeout=? WHERE id=? AND timeout=?"  # noqa: S608
        return self._change(statement, timeout, row[0], row[1])

    def _note(self, row, event, **more):
        line = {
            "key": row[0],
            "scheduled_time": row[2],
            "attempt": 1,
            "fence": time.time_ns() if event == "start" else self._fence,
            "event": event,
            "pid": os.getpid(),
            "worker": os.getpid(),
            "at": time.clock_gettime(time.CLOCK_BOOTTIME),
            **more,
        }
        self._fence = line["fence"]
        with self._log.open("ab", buffering=0) as log:
            log.write(f"{json.dumps(line)}\n".encode())

    def _connect(self):
        if self._url.get_backend_name() == "sqlite":
            return sqlite3.connect(self._url.database, timeout=60, isolation_level=None)
        return pymysql.connect(
            ssl_disabled=True,
            host=self._url.host,
            port=self._url.port,
            user=self._url.username,
            database=self._url.database,
            autocommit=True,
        )

    def _execute(self, statement, *values):
        cursor = self._connection.cursor()
        if self._url.get_backend_name() != "sqlite":
            statement = statement.replace("?", "%s")
        cursor.execute(statement, values)
        return cursor

    def _all(self, statement, *values):
        return self._execute(statement, *values).fetchall()

    def _change(self, statement, *values):
        return self._execute(statement, *values).rowcount > 0


if __name__ == "__main__":
    Peer(*sys.argv[1:]).run()
