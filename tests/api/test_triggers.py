"""Other triggers than cron lines, and previews, through the Python API."""

from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import floor

import pytest

from psched import InvalidError, NotFoundError

LATER = 4_000_000_000


class Tides:
    """A custom trigger."""

    wrong = False

    def __init__(self, gap):
        self.gap = gap

    def next_at(self, after):
        return after if self.wrong else (after // self.gap + 1) * self.gap


def test_an_interval_a_time_and_a_class_of_ones_own(schedules):
    every = schedules.add("every", every=timedelta(minutes=1), data={"n": 1}).metadata()
    assert every.cron.startswith("@every 60 +")
    aligned = schedules.add("aligned", every=60, align=True).metadata()
    assert (aligned.cron, aligned.next_time % 60) == ("@every 60", 0)
    at = schedules.add("at", at=datetime.fromtimestamp(LATER, UTC)).metadata()
    assert (at.cron, at.next_time, at.next_run_time) == (None, LATER, LATER)
    own = schedules.add("own", trigger=(Tides, {"gap": 7}), next_time=LATER).metadata()
    assert own.cron == f'@call {Tides.__module__}:Tides {{"gap":7}}'
    assert own.next_time % 7 == 0
    schedules.add_many([{"key": "many", "every": 60}, {"key": "many at", "at": LATER}])


def test_what_is_declared_again_is_the_same(schedules):
    for fields in ({"every": 3600}, {"trigger": (Tides, {"gap": 7})}):
        before = schedules.add(f"k {fields}", **fields).metadata()
        schedules[before.key].modify(**fields)
        assert schedules[before.key].metadata().cron == before.cron


def test_a_change_of_the_jitter_sets_the_next_run_anew(schedules):
    key = schedules.add("k", cron="@hourly", next_time=LATER, jitter=3600)
    first = key.metadata()
    assert first.next_time < first.next_run_time <= first.next_time + 3600
    key.modify(jitter=None)
    assert key.metadata().next_run_time == first.next_time
    key.modify(jitter=3600)
    assert key.metadata().next_run_time == first.next_run_time


def test_an_occurrence_that_is_settled_is_followed_by_the_one_that_was_foretold(schedules):
    schedules.add("k", cron="@yearly", next_time=LATER, jitter=600, delay=3)
    seen = schedules["k"].metadata().row
    assert schedules._store.replace(seen, changed(seen, next_run_time=0))  # as plain SQL can
    task = schedules.poll()
    running, following = schedules["k"].next(2)
    assert (running.time, running.note) == (task.scheduled_time, "runs now")
    task.finish()
    row = schedules["k"].metadata()
    assert (row.next_time, row.next_run_time) == (following.time, following.run_at)
    assert schedules["k"].next(1) == [following]


class TestATriggerThatFailsWhileItsTaskRuns:
    """An occurrence that has run is not run again when the trigger was repaired."""

    @pytest.fixture
    def task(self, schedules):
        schedules.add(
            "k", trigger=(Tides, {"gap": 3600}), next_time=0, next_run_time=0, catchup="latest"
        )
        while (task := schedules.poll()) is None:
            continue  # the missed occurrences are dropped
        return task

    def test_it_is_set_aside_and_goes_on_from_then_on(self, schedules, task, now, monkeypatch):
        monkeypatch.setattr(Tides, "wrong", True)
        task.finish()
        found = schedules["k"].metadata()
        assert (found.status, found.next_time) == ("quarantined", None)
        assert "which is not later" in found.reason
        monkeypatch.undo()
        schedules["k"].modify(delay=0)
        found = schedules["k"].metadata()
        assert (found.status, found.next_time > task.scheduled_time) == ("waiting", True)
        assert found.next_time >= floor(now()) - 5

    def test_code_that_is_not_here_leaves_it_without_a_time(self, schedules, task, sql):
        elsewhere = "@call psched_elsewhere:Tides"
        sql("UPDATE {table} SET cron = :cron, version = version + 1", cron=elsewhere)
        task.finish()
        found = schedules["k"].metadata()
        assert (found.status, found.next_time) == ("waiting", None)
        assert "no module 'psched_elsewhere'" in found.reason
        with pytest.raises(InvalidError, match="no module 'psched_elsewhere'"):
            schedules["k"].next()


class TestLookingAhead:
    def test_the_coming_occurrences_are_listed(self, schedules):
        key = schedules.add("k", cron="0 9 * * *", timezone="Asia/Tokyo", next_time=LATER, delay=5)
        coming = key.next(3)
        assert [b.time - a.time for a, b in pairwise(coming)] == [86_400, 86_400]
        assert [each.run_at - each.time for each in coming] == [5, 5, 5]
        assert coming[0].local == "2096-10-03T09:00:00+09:00"
        assert len(key.next()) == 10

    def test_what_has_ended_has_none(self, schedules):
        schedules.add("k", cron="@daily").cancel()
        assert schedules["k"].next() == []

    @pytest.mark.parametrize("number", [-1, 1001, 1.5])
    def test_a_number_that_is_none_is_refused(self, schedules, number):
        with pytest.raises(InvalidError, match=r"^number: "):
            schedules.add("k", cron="@daily").next(number)

    def test_a_schedule_that_is_not_there_has_none(self, schedules):
        with pytest.raises(NotFoundError):
            schedules["k"].next()
