"""Calls that mypy and pyright must accept. Nothing runs this file."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import assert_type

import psched


class Tides:
    def next_at(self, after: float) -> float | None:
        return None if after > 0 else 1


def report() -> None:
    pass


def calls(schedules: psched.ScheduleCollection, at: datetime) -> None:
    assert_type(schedules.add("k", "t", cron="@daily", data={"n": 1}), psched.Schedule)
    schedules.add("k", "t", every="1h", align=True, jitter=timedelta(minutes=1), max_attempts=3)
    schedules.add("k", at=at, label="owner", note="text", expect={"late": "5m", "unusual": 3})
    schedules.add("k", trigger=("app:Tides", {"port": "Brest"}), catchup="latest", expect="off")
    schedules.add("k", trigger=Tides, on_failed=["mail"], on_late="chat", output_limit="16K")
    schedules.add_many([{"key": "a", "cron": "@daily"}, {"key": "b", "type": "t", "every": 60}])
    later: list[psched.NewTask] = [{"key": "a", "type": "t"}, {"type": "t", "run_at": 5}]
    assert_type(schedules.push_many(later), Sequence[psched.Schedule])
    schedules.push_many([{"type": "t", "data": {"n": 1}, "max_attempts": 3}])
    task = schedules.push(type="mail", data={"to": "ann@example.com"}, timeout="5m")
    assert_type(task.key, str)
    schedules.push("k", "t", {"n": 1}, run_at=at, max_attempts=3, retry_backoff="exponential")
    schedules.push("k", delay="5m", expire=None, label=None)
    assert_type(schedules.wait("k", timeout=1), str)
    schedules.modify("k", cron="0 3 * * *", retry_wait=None)
    schedules.modify("k", lambda row: {"type": row.type})
    schedules["k"].modify(type="t", every="5m")
    schedules["k"].edit(dry_run=True, data={"n": 2})
    schedules.edit("k", timezone="Asia/Tokyo")
    schedules.select("k*").edit(dry_run=True, kill_timeout="1h")
    assert_type(schedules["k"].metadata().next_scheduled_at, datetime | None)


def handler(task: psched.Task) -> None:
    assert_type(task.scheduled_at, datetime)
    assert_type(task.scheduled_time, int)
    task.schedules.push(type="mail", data=task.data, run_at=datetime(2030, 1, 1, tzinfo=UTC))
    task.schedules.add("k", "t", every=60)


def serve() -> None:
    with psched.start(url="memory:", concurrency=3, poll_interval="1s", log_level="debug") as jobs:
        jobs.add("report", run=report, every=3600, max_attempts=3)
        jobs.add("queued", run=handler)

        @jobs.task("nightly", cron="@daily", kill_timeout="1h")
        def nightly() -> None:
            pass

        assert_type(nightly(), None)
