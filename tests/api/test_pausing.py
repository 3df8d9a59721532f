"""Tests of pauses in Python: schedules[key].pause(), resume(), and those of a selection."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

import psched
from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
    NotSupportedError,
)
from psched.client.auditor import Author
from psched.client.collection import ScheduleCollection
from psched.client.verbs.ending import Stop
from psched.client.verbs.pausing import Pause, Resume
from psched.config import from_mapping
from support.stores import make_store
from support.waiting import wait_until

HOUR = 3600


@pytest.fixture
def row(schedules):
    return lambda key="k": schedules[key].metadata()


@pytest.fixture
def last_hour(now):
    """The last full hour, in Unix seconds."""
    return int(now()) // HOUR * HOUR


def skipped(schedules):
    return [
        (each.scheduled_time, each.record.last) for each in schedules.runs(fate="skipped_paused")
    ]


class TestPause:
    def test_a_paused_schedule_does_not_run(self, schedules, row):
        schedules.push("k")
        with schedules.audited("a note"):
            assert schedules["k"].pause() is True
        assert schedules.poll() is None
        assert (row().status, row().next_run_time, row().paused_until) == ("paused", None, None)
        assert ": a note (since " in row().reason

    @pytest.mark.parametrize(
        "form",
        [
            int,
            lambda time: datetime.fromtimestamp(time, UTC),
            lambda time: datetime.fromtimestamp(time, UTC).isoformat(),
            lambda time: datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M"),
        ],
    )
    def test_the_end_can_be_written_in_several_forms(self, schedules, row, now, form):
        until = int(now()) // 60 * 60 + HOUR
        schedules.add("k", cron="@hourly")
        schedules["k"].pause(form(until))
        assert row().paused_until == row().next_run_time == until

    def test_the_end_can_be_a_time_from_now_on(self, schedules, row, now):
        schedules.add("k", cron="@hourly")
        for until in ("+2h", timedelta(hours=2)):
            before = now()
            schedules["k"].pause(until)
            assert before <= row().paused_until - 2 * HOUR <= now() + 1

    def test_a_local_time_is_in_the_zone_of_the_schedule(self, schedules, row):
        schedules.add("k", cron="@hourly", timezone="Asia/Tokyo")
        schedules["k"].pause("2099-01-01 09:00")
        assert row().paused_until == datetime(2099, 1, 1, tzinfo=UTC).timestamp()
        assert " until 2099-01-01T09:00+09:00)" in row().reason

    @pytest.mark.parametrize(
        "until",
        ["soon", "yesterday 02:30", 5, "-2h", timedelta(-1), datetime(2099, 1, 1), 1.5],  # noqa: DTZ001
    )
    def test_an_invalid_end_is_refused(self, schedules, row, until):
        schedules.add("k", cron="@hourly")
        with pytest.raises(InvalidError) as refused:
            schedules["k"].pause(until)
        assert refused.value.field == "until"
        assert row().status == "waiting"

    def test_a_running_task_goes_on(self, schedules, row, now):
        schedules.add("k", cron="@hourly", next_time=int(now()) // HOUR * HOUR)
        task = schedules.poll()
        until = int(now()) + HOUR
        assert schedules["k"].pause(until) is False
        assert row().next_run_time < until  # the end of the lease
        task.extend()
        task.finish()
        assert (row().status, row().next_run_time, row().paused_until) == ("paused", until, until)
        assert row().next_time % HOUR == 0

    def test_a_second_pause_replaces_the_first(self, schedules, row, now):
        schedules.add("k", cron="@hourly")
        with schedules.audited("first"):
            schedules["k"].pause()
        first = row().reason.split()[1]
        with schedules.audited("second"):
            schedules["k"].pause(int(now()) + HOUR)
        assert ": second (since " in row().reason
        assert row().paused_until == row().next_run_time
        assert row().reason.split()[1] == first  # it has been paused since then
        schedules["k"].pause()
        assert (row().paused_until, row().next_run_time) == (None, None)

    def test_what_cannot_be_paused_is_refused(self, schedules, now):
        schedules.push("k")
        schedules["k"].cancel()
        with pytest.raises(AlreadyFinishedError, match="'k' has ended already: it is cancelled"):
            schedules["k"].pause()
        with pytest.raises(NotFoundError):
            schedules["never"].pause()
        for mark in ("cancel", "delete"):
            schedules.push(mark)
            assert schedules.poll() is not None
            getattr(schedules[mark], mark)()
            with pytest.raises((AlreadyFinishedError, NotFoundError)):
                schedules[mark].pause()
        assert now() > 0

    def test_a_quarantined_schedule_is_refused(self, schedules, sql):
        schedules.add("k", cron="@hourly")
        sql("UPDATE {table} SET status = 'quarantined'")
        with pytest.raises(AlreadyExistsError, match="cannot be paused: it is quarantined"):
            schedules["k"].pause()

    def test_a_store_without_statuses_is_refused(self, schedules, settings):
        own = from_mapping({"url": "sqlite:///unused.db", "type": "rdb_compat", "table": "t"})
        access = replace(schedules.access, settings=own)
        for verb in (Pause(), Resume(), Stop()):
            with pytest.raises(NotSupportedError, match="rdb_compat keeps no status"):
                verb.apply(access, "k")
        assert settings.type != "rdb_compat"


class TestResume:
    def test_what_fell_due_is_skipped_and_recorded(self, schedules, row, last_hour):
        schedules.add("k", cron="@hourly", next_time=last_hour - 5 * HOUR)
        with schedules.audited("deploy"):
            schedules["k"].pause()
        reason = row().reason
        schedules["k"].resume()
        assert (row().status, row().reason) == ("waiting", None)
        assert row().next_time == row().next_run_time >= last_hour + HOUR
        [run] = schedules["k"].runs()
        assert (run.fate, run.outcome, run.record.attempt) == ("skipped_paused", None, 0)
        assert (run.scheduled_time, run.record.last) == (
            last_hour - 5 * HOUR,
            row().next_time - HOUR,
        )
        assert run.record.reason == reason
        assert run.record.count == (row().next_time - run.scheduled_time) // HOUR

    def test_a_store_that_cannot_do_both_at_once_records_it_afterwards(
        self, schedules, row, last_hour, monkeypatch
    ):
        """For example, a store of the user's own."""
        monkeypatch.setattr(schedules._store, "recorded_changes", None)
        schedules.add("k", cron="@hourly", next_time=last_hour - 5 * HOUR)
        schedules["k"].pause()
        schedules["k"].resume()
        assert skipped(schedules) == [(last_hour - 5 * HOUR, row().next_time - HOUR)]

    def test_with_backfill_it_is_not(self, schedules, row, last_hour):
        schedules.add("k", cron="@hourly", next_time=last_hour - 5 * HOUR)
        schedules["k"].pause()
        schedules["k"].resume(backfill=True)
        assert row().next_time == last_hour - 5 * HOUR
        assert schedules.poll().scheduled_time == last_hour - 5 * HOUR
        assert [*schedules["k"].runs()] == []

    def test_a_task_that_runs_once_runs(self, schedules):
        schedules.push("k", data={"n": 1})
        schedules["k"].pause()
        schedules["k"].resume()
        assert schedules.poll().data == {"n": 1}
        assert skipped(schedules) == []

    def test_a_program_that_polls_resumes_it_at_its_end(self, schedules, row, now, last_hour):
        schedules.add("k", cron="* * * * *", next_time=last_hour - 5 * HOUR)
        schedules.push("task")
        until = int(now()) + 2
        schedules["k"].pause(until)
        schedules["task"].pause(until)
        polled = []

        def is_resumed():
            if (task := schedules.poll()) is not None:
                polled.append(task.key)
                task.finish()  # a full minute may begin meanwhile, and "k" would run
            return "task" in polled and row("k").status == "waiting"

        wait_until(is_resumed, what="both are resumed")
        assert now() >= until
        [(begin, end)] = skipped(schedules)
        assert begin == last_hour - 5 * HOUR
        assert end < until <= end + 60

    def test_a_pause_outlives_the_death_of_the_tasks_worker(self, schedules, row, now):
        schedules.push("k")
        until = int(now()) + HOUR
        task = schedules.poll()
        nonce = row().row.owner
        schedules["k"].pause(until)
        schedules._store.recover(nonce.rpartition(".")[0] or nonce, alive_time=60, retry_wait=0)
        assert task is not None
        schedules.poll()
        assert (row().status, row().paused_until) == ("paused", until)

    def test_only_what_is_paused_is_resumed(self, schedules):
        schedules.push("k")
        with pytest.raises(AlreadyExistsError, match="'k' is not paused: it is waiting"):
            schedules["k"].resume()
        schedules["k"].cancel()
        with pytest.raises(AlreadyFinishedError):
            schedules["k"].resume()
        with pytest.raises(NotFoundError):
            schedules["never"].resume()

    def test_what_plain_sql_has_paused_is_resumed(self, schedules, row, sql, last_hour):
        schedules.add("k", cron="@hourly", next_time=last_hour - HOUR)
        sql("UPDATE {table} SET status = 'paused'")
        assert schedules.poll() is None
        schedules["k"].resume()
        assert (row().status, row().next_time) == ("waiting", last_hour + HOUR)
        assert len(skipped(schedules)) == 1

    def test_a_change_of_the_schedule_leaves_it_paused(self, schedules, row):
        schedules.add("k", cron="@hourly")
        schedules["k"].pause()
        schedules["k"].modify(cron="@daily")
        assert (row().status, row().cron, row().next_run_time) == ("paused", "@daily", None)
        schedules["k"].requeue()
        assert row().status == "waiting"

    def test_without_a_history_nothing_is_recorded(self, schedules, row, last_hour):
        schedules.add("k", cron="@hourly", next_time=last_hour - HOUR, history="none")
        schedules["k"].pause()
        schedules["k"].resume()
        assert row().next_time > last_hour
        assert [*schedules["k"].runs()] == []


class TestMany:
    def test_a_selection_is_paused_and_resumed(self, schedules, row):
        for number in range(3):
            schedules.add(f"mail-{number}", cron="@hourly", label="mail")
        schedules.add("other", cron="@hourly")
        assert schedules.select(label="mail").pause(dry_run=True).changed == [
            "mail-0", "mail-1", "mail-2",
        ]  # fmt: skip
        assert row("mail-1").status == "waiting"
        assert len(schedules.select("mail-*").pause("+2h").changed) == 3
        assert {each.status for each in schedules.list(label="mail")} == {"paused"}
        assert [each.key for each in schedules.list(status="paused")] == [
            "mail-0", "mail-1", "mail-2",
        ]  # fmt: skip
        assert row("other").status == "waiting"
        assert len(schedules.select(every=True).resume().changed) == 3
        assert row("mail-1").status == "waiting"

    def test_what_is_running_is_marked(self, schedules):
        schedules.push("k")
        schedules.poll()
        assert schedules.select("*").pause().marked == {"k"}

    def test_a_status_that_cannot_be_paused_is_refused(self, schedules):
        with pytest.raises(InvalidError, match="'failed' cannot be paused"):
            schedules.select(status="failed").pause()
        with pytest.raises(InvalidError, match="'waiting' cannot be resumed"):
            schedules.select(status="waiting").resume()

    def test_an_invalid_end_fails_for_each(self, schedules):
        schedules.push("k")
        assert {*schedules.select("*").pause("soon").failed} == {"k"}


def test_both_are_in_the_audit_trail(schedules, last_hour):
    schedules.add("k", cron="@hourly", next_time=last_hour)
    with schedules.audited("deploy"):
        schedules["k"].pause()
    schedules["k"].resume()
    found = [(each.action, each.note) for each in schedules.audit("k")]
    assert found == [("resume", None), ("pause", "deploy"), ("add", None)]


def test_why_names_who_has_paused_the_schedule(schedules, row, last_hour):
    schedules.add("k", cron="@hourly", next_time=last_hour - HOUR)
    with schedules.audited("deploy"):
        schedules["k"].pause()
    now = schedules["k"].why()
    assert (now.code, now.state) == ("paused", "did not run")
    assert "paused the schedule at " in now.sentence
    schedules["k"].resume()
    then = schedules["k"].why(last_hour)
    assert (then.code, then.state) == ("skipped_paused", "did not run")
    assert ": deploy (since " in then.sentence
    assert row().status == "waiting"


@pytest.mark.parametrize("until", [None, "+2h"])
def test_why_tells_that_a_task_runs_on(schedules, until):
    schedules.push("k")
    task = schedules.poll()
    with schedules.audited("lunch"):
        assert schedules["k"].pause(until) is False
    answer = schedules["k"].why()
    assert (answer.code, answer.state) == ("running", "ran")
    assert "; the pause applies when this run has ended: " in answer.sentence
    assert answer.sentence.endswith(": lunch.")
    task.finish()
    assert schedules["k"].why().code == "ran"


def test_two_operators_at_once(settings, schedules, last_hour):
    """Each of their changes applies to a row as the other has left it."""
    names = ["ann", "bob"]
    collections = [
        ScheduleCollection(
            make_store(settings.url),
            settings,
            clock=psched.base.clock.SystemClock(),
            draw_nonce=lambda name=name: name,
            author=lambda name=name: Author(name, "desk", "test"),
        )
        for name in names
    ]

    def operate(mine):
        done = 0
        for _ in range(15):
            for change in (mine["k"].pause, mine["k"].resume):
                try:
                    change()
                    done += 1
                except AlreadyExistsError:
                    pass  # the other one has resumed it
        return done

    schedules.add("k", cron="* * * * *", next_time=last_hour - 600 * 60)
    with ThreadPoolExecutor() as pool:
        done = [*pool.map(operate, collections)]
    for each in collections:
        each.close()
    assert min(done) >= 15
    spans = sorted(skipped(schedules))
    assert spans[0][0] == last_hour - 600 * 60
    # No occurrence was skipped twice.
    assert all(end < begin for (_, end), (begin, _) in pairwise(spans))
