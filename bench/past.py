"""Fills an empty database with schedules and a made-up past, for pictures of the web pages.

python bench/past.py sqlite:////tmp/past.db 40
"""

import sys
from typing import Any

from sqlalchemy import Connection, text

import psched
from psched.core.history.records import WorkerRecord
from psched.web.demo import past

HOURS = 13
"""For so many hours before now there are records."""

SLOTS = 18
"""How many tasks the worker can run at the same time."""

RUNNING = {"backup.files": 1500, "recommend.train": 2600, "search.index": 420, "crm.sync": 90}
"""Which schedules run now, and since how many seconds."""

LATE = {"feeds.import": 1300}
"""Which schedules are late, and by how many seconds."""


def fill(url: str, number: int) -> None:
    """Add so many schedules with their past; some seem to run now, although there is no master."""
    past.fill(url, number, HOURS)
    with psched.open({"url": url, "timezone": "UTC"}) as schedules:
        store: Any = schedules._store
        store.history.beat(
            WorkerRecord(
                nonce="n", host=past.HOST, pid=1, number=0, generation=1, slots=SLOTS, busy=4,
                types=None, started=0, seen=0,
            )
        )  # fmt: skip
        keys = {past.plan_of(place).key for place in range(number)}
        _move(store, int(schedules.now()), keys)


def _move(store: Any, now: int, keys: set[str]) -> None:  # noqa: ANN401  # of SQL
    """Let some schedules run since some time, and others be late."""
    table = store._table
    runs = text(
        f"UPDATE {table} SET leased_by = :owner, claimed_at = :since, next_time = :since,"  # noqa: S608  # ours
        " next_run_time = :ends WHERE id = :key"
    )
    late = text(f"UPDATE {table} SET next_time = :at, next_run_time = :at WHERE id = :key")  # noqa: S608  # ours

    def change(connection: Connection) -> None:
        for number, (key, since) in enumerate(RUNNING.items()):
            if key in keys:
                values = {"owner": f"n.{number}", "since": now - since, "ends": now + 3600}
                connection.execute(runs, {**values, "key": key})
        for key, since in LATE.items():
            connection.execute(late, {"at": now - since, "key": key})

    store._connector.run(change)


if __name__ == "__main__":
    fill(sys.argv[1], int(sys.argv[2]))
