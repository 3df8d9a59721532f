"""Tests of edits in Python: schedules[key].edit(), and those of a selection."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import psched
from psched.base.errors import InvalidError, NotFoundError
from psched.client.verifier import Verifier
from support.stores import make_store

HOUR = 3600
LATER = 4_000_003_200


def times(upcoming):
    return [each.time for each in upcoming]


@pytest.fixture
def schedules(schedules):
    schedules.add("k", "report", cron="@hourly", next_time=LATER, data={"a": 1}, jitter=0)
    return schedules


class TestEdit:
    def test_it_changes_as_modify_does_and_says_what(self, schedules):
        with schedules.audited("less load"):
            done = schedules["k"].edit(cron="@daily", delay="5m", jitter=None, data={"a": 2})
        assert {name: (each.old, each.new) for name, each in done.changes.items()} == {
            "cron": ("@hourly", "@daily"),
            "delay": (0, 300),
            "jitter": (0, None),
            "data": ({"a": 1}, {"a": 2}),
        }
        assert times(done.before) == [LATER + n * HOUR for n in range(3)]
        row = schedules["k"].metadata()
        assert (row.cron, row.delay, row.data) == ("@daily", 300, {"a": 2})
        assert row.next_time == done.after[0].time == done.after[1].time - 24 * HOUR
        assert done.after[0].run_at == row.next_run_time
        assert (done.key, done.status) == ("k", "waiting")
        [audited, _] = schedules.audit("k")
        assert (audited.action, audited.note) == ("edit", "less load")

    def test_a_dry_run_changes_nothing(self, schedules):
        before = schedules["k"].metadata().row
        done = schedules.edit("k", dry_run=True, delay=60)
        assert done.changes["delay"].new == 60
        assert done.after[0].run_at == LATER + 60
        assert schedules["k"].metadata().row == before

    def test_a_function_can_decide(self, schedules):
        done = schedules.edit("k", lambda row: {"delay": row.delay + 1})
        assert done.changes["delay"] == (0, 1)
        assert schedules.edit("k", lambda _: {}).changes_nothing

    def test_what_stays_the_same_is_not_written(self, schedules):
        schedules["k"].edit(label="a", retry_wait=5)
        version = schedules["k"].metadata().row.version
        done = schedules["k"].edit(label="a")
        assert done.changes_nothing
        assert schedules["k"].metadata().row.version == version

    def test_a_running_schedule(self, schedules):
        schedules["k"].modify(next_time=0, catchup="latest")
        task = None
        while task is None:
            task = schedules.poll()
        done = schedules["k"].edit(cron="@daily")
        assert done.before[0].note == done.after[0].note == "runs now"
        assert done.status == "running"
        task.finish()
        assert schedules["k"].metadata().next_time == done.after[1].time

    def test_a_paused_schedule_shows_its_runs(self, schedules):
        schedules["k"].pause()
        done = schedules["k"].edit(delay=5)
        assert (done.status, times(done.after)[0]) == ("paused", LATER)

    def test_a_task_that_runs_once(self, schedules):
        schedules.push("once", run_at=LATER)
        done = schedules["once"].edit(next_time=LATER + 5)
        assert done.changes == {"next_time": (LATER, LATER + 5)}
        assert times(done.after) == [LATER + 5]

    def test_invalid_values_are_refused(self, schedules):
        with pytest.raises(InvalidError) as raised:
            schedules["k"].edit(cron="@horly")
        assert raised.value.field == "cron"
        with pytest.raises(InvalidError) as raised:
            schedules["k"].edit(crn="@daily")
        assert raised.value.field == "crn"
        with pytest.raises(NotFoundError):
            schedules["none"].edit(delay=5)

    def test_two_at_once_lose_nothing(self, schedules, settings):
        def edit(name):
            with psched.open(settings) as own:
                return own.edit("k", lambda row: {"delay": row.delay + 1, name: 9})

        names = ["retry_wait", "jitter", "expire", "max_attempts", "kill_timeout", "kill_interval"]
        with ThreadPoolExecutor(3) as pool:
            done = [*pool.map(edit, names)]
        assert sorted(each.changes["delay"].new for each in done) == [1, 2, 3, 4, 5, 6]
        row = schedules["k"].metadata()
        assert row.delay == 6
        assert len([*schedules.audit("k")]) == 7
        found = Verifier(make_store(settings.url), settings).verify(100 * HOUR)
        assert found.violations == []


class TestMany:
    def test_each_is_edited(self, schedules):
        schedules.add("other", "report", cron="@daily", next_time=LATER)
        told = []
        chosen = schedules.select(type="report")
        shown = chosen.edit(cron="@daily", dry_run=True)
        assert shown.changed == ["k", "other"]
        assert {*shown.rescheduled["k"].changes} == {"cron"}
        done = chosen.edit(delay=3, report=lambda *each: told.append(each))
        assert [key for key, _ in told] == done.changed == ["k", "other"]
        assert done.rescheduled["k"].changes["delay"] == (0, 3)
        assert schedules["other"].metadata().delay == 3

    def test_invalid_values_fail_for_each(self, schedules):
        done = schedules.select("k").edit(cron="@horly")
        assert {key: error.field for key, error in done.failed.items()} == {"k": "cron"}
