"""Tests of skips in Python: schedules[key].skip(), and those of a selection."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import psched
from psched.app import make_store as make_compat_store
from psched.base.errors import (
    AlreadyExistsError,
    AlreadyFinishedError,
    InvalidError,
    NotFoundError,
)
from psched.client.auditor import Author
from psched.client.collection import ScheduleCollection
from psched.client.verifier import Verifier
from psched.config import from_mapping
from psched.testing import ManualClock
from support.stores import make_store

HOUR = 3600


@pytest.fixture
def hour(schedules):
    """The last full hour, in Unix seconds."""
    return int(schedules.now()) // HOUR * HOUR


@pytest.fixture
def later(schedules, hour):
    """A schedule that runs every hour, from tomorrow on; returns its first time."""
    schedules.add("k", "report", cron="@hourly", next_time=hour + 24 * HOUR)
    return hour + 24 * HOUR


def spans(schedules, key="k"):
    return [
        (each.fate, each.scheduled_time, each.record.last, each.count)
        for each in reversed([*schedules.runs(key)])
    ]


def times(upcoming):
    return [each.time for each in upcoming]


def violations(settings):
    return Verifier(make_store(settings.url), settings).verify(100 * HOUR).violations


class TestSkip:
    def test_the_next_occurrence_is_left_out(self, schedules, later, settings):
        with schedules.audited("holiday"):
            done = schedules["k"].skip()
        assert (done.key, done.status) == ("k", "waiting")
        assert times(done.before) == [later + n * HOUR for n in range(3)]
        assert times(done.after) == [later + n * HOUR for n in range(1, 4)]
        assert (done.skipped.first, done.skipped.until, done.skipped.count) == (later, later, 1)
        row = schedules["k"].metadata().row
        assert (row.next_time, row.next_run_time) == (later + HOUR, later + HOUR)
        assert spans(schedules) == [("skipped", later, later, 1)]
        [run] = schedules.runs("k")
        assert run.reason.startswith("skipped by ")
        assert run.reason.endswith(": holiday")
        [audited, _] = schedules.audit("k")
        assert (audited.action, audited.note) == ("skip", "holiday")
        assert violations(settings) == []

    def test_several_are_one_span_that_is_counted(self, schedules, later, settings):
        schedules["k"].skip(40)
        assert spans(schedules) == [("skipped", later, later + 39 * HOUR, 40)]
        assert schedules["k"].metadata().next_time == later + 40 * HOUR
        assert violations(settings) == []

    def test_delay_and_jitter_apply_to_the_next_run(self, schedules, later):
        schedules["k"].modify(delay="5m", jitter="1m")
        done = schedules["k"].skip()
        start = schedules["k"].metadata().next_run_time
        assert later + HOUR + 300 <= start <= later + HOUR + 360
        assert done.after[0].run_at == start

    def test_a_dry_run_changes_nothing(self, schedules, later):
        before = schedules["k"].metadata().row
        done = schedules.skip("k", 2, dry_run=True)
        assert (done.skipped.first, done.skipped.count) == (later, 2)
        assert times(done.after)[0] == later + 2 * HOUR
        assert schedules["k"].metadata().row == before
        assert spans(schedules) == []

    def test_an_occurrence_that_is_tried_again_is_skipped(self, schedules, hour, settings):
        schedules.add("k", cron="@hourly", next_time=hour)
        schedules.poll().retry()
        assert schedules["k"].metadata().attempt == 1
        schedules["k"].skip()
        row = schedules["k"].metadata().row
        assert (row.next_time, row.attempt, row.reason) == (hour + HOUR, 0, None)
        assert [(each.outcome, each.fate) for each in schedules.runs("k")] == [
            (None, "skipped"), ("failed", None),
        ]  # fmt: skip
        answer = schedules["k"].why(hour)
        assert (answer.code, answer.state) == ("skipped", "did not run")
        assert "after attempt 1 failed" in answer.sentence
        assert violations(settings) == []

    def test_what_the_catch_up_policy_drops_gets_its_own_fate(self, schedules, hour, settings):
        schedules.add("k", cron="@hourly", next_time=hour - 5 * HOUR, catchup="latest")
        done = schedules["k"].skip()
        assert times(done.before)[0] == hour
        assert spans(schedules) == [
            ("coalesced", hour - 5 * HOUR, hour - HOUR, 5),
            ("skipped", hour, hour, 1),
        ]
        assert schedules.poll() is None
        assert schedules["k"].metadata().next_time == hour + HOUR
        assert violations(settings) == []

    def test_with_catchup_all_the_oldest_one_is_skipped(self, schedules, hour, settings):
        schedules.add("k", cron="@hourly", next_time=hour - 2 * HOUR, catchup="all")
        schedules["k"].skip()
        assert spans(schedules) == [("skipped", hour - 2 * HOUR, hour - 2 * HOUR, 1)]
        assert schedules.poll().scheduled_time == hour - HOUR
        assert violations(settings) == []

    def test_a_paused_schedule_stays_paused(self, schedules, later, settings):
        schedules["k"].pause(later - HOUR)
        paused = schedules["k"].metadata().row
        done = schedules["k"].skip()
        row = schedules["k"].metadata().row
        assert (row.status, row.reason) == ("paused", paused.reason)
        assert (row.next_time, row.next_run_time) == (later + HOUR, later - HOUR)
        assert times(done.before)[0] == later
        assert times(done.after)[0] == later + HOUR
        schedules["k"].resume()
        assert schedules["k"].metadata().next_run_time == later + HOUR
        assert spans(schedules) == [("skipped", later, later, 1)]
        assert violations(settings) == []

    def test_a_running_occurrence_is_not_skipped(self, schedules, hour):
        schedules.add("k", cron="@hourly", next_time=hour)
        task = schedules.poll()
        before = schedules["k"].metadata().row
        with pytest.raises(InvalidError, match=r"runs now .*skip again when this run has ended"):
            schedules["k"].skip()
        assert schedules["k"].metadata().row == before
        task.finish()
        assert schedules["k"].skip().skipped.first == hour + HOUR

    def test_without_a_history_the_row_moves_only(self, schedules, later):
        schedules["k"].modify(history="none")
        schedules["k"].skip()
        assert schedules["k"].metadata().next_time == later + HOUR
        assert spans(schedules) == []

    def test_why_answers_for_a_time_that_is_not_over_yet(self, schedules, later):
        with schedules.audited("holiday"):
            schedules["k"].skip(2)
        answer = schedules["k"].why(later + HOUR)
        assert (answer.code, answer.state) == ("skipped", "did not run")
        assert "was skipped by " in answer.sentence
        assert "holiday" in answer.sentence
        assert schedules["k"].why(later + 2 * HOUR).code == "will_run"

    def test_a_skip_is_undone_by_setting_the_next_time(self, schedules, later, settings):
        schedules["k"].skip()
        schedules["k"].edit(next_time=later)
        assert schedules["k"].metadata().next_time == later
        assert violations(settings) == []


class TestRefusals:
    def test_a_schedule_that_runs_only_once(self, schedules):
        schedules.push("once", run_at=4_000_000_000)
        with pytest.raises(InvalidError, match=r"runs only once; .* cancel it") as raised:
            schedules["once"].skip()
        assert raised.value.field == "key"

    @pytest.mark.parametrize("number", [0, 1001, "2", True, 1.5])
    def test_a_number_that_cannot_be(self, schedules, later, number):  # noqa: ARG002
        with pytest.raises(InvalidError) as raised:
            schedules["k"].skip(number)
        assert raised.value.field == "number"

    def test_other_statuses(self, schedules, later):  # noqa: ARG002
        schedules["k"].cancel()
        with pytest.raises(AlreadyFinishedError, match="cancelled"):
            schedules["k"].skip()
        with pytest.raises(NotFoundError):
            schedules["none"].skip()

    def test_a_quarantined_schedule(self, schedules, later, sql):  # noqa: ARG002
        sql("UPDATE {table} SET status = 'quarantined', reason = 'x' WHERE id = :k", k="k")
        with pytest.raises(AlreadyExistsError, match="quarantined"):
            schedules["k"].skip()

    def test_the_last_occurrences(self, schedules):
        schedules.add("k", trigger="tests.api.test_skipping:Once")
        with pytest.raises(InvalidError, match="no run after these; to end it, cancel it"):
            schedules["k"].skip()


class Once:
    """A trigger with one time."""

    def next_at(self, after):
        return 4_000_000_000 if after < 4_000_000_000 else None


class TestMany:
    @pytest.fixture
    def many(self, schedules, hour):
        for key in ("a", "b"):
            schedules.add(key, "report", cron="@hourly", next_time=hour + 24 * HOUR)
        schedules.add("busy", "report", cron="@hourly", next_time=hour)
        schedules.push("once", "report", run_at=4_000_000_000)
        schedules.poll()
        return schedules

    def test_each_is_skipped_and_those_that_run_are_refused(self, many, hour):
        told = []
        done = many.select(type="report").skip(2, report=lambda *each: told.append(each))
        assert done.changed == ["a", "b"]
        assert {*done.failed} == {"busy"}
        assert [key for key, _ in told] == ["a", "b", "busy"]
        assert done.rescheduled["a"].after[0].time == hour + 26 * HOUR
        assert many["b"].metadata().next_time == hour + 26 * HOUR
        assert many["once"].metadata().next_time == 4_000_000_000

    def test_a_dry_run_says_the_same(self, many, hour):
        done = many.select(type="report").skip(dry_run=True)
        assert (done.changed, {*done.failed}) == (["a", "b"], {"busy"})
        assert done.rescheduled["a"].skipped.first == hour + 24 * HOUR
        assert many["a"].metadata().next_time == hour + 24 * HOUR

    def test_a_status_that_cannot_be_skipped(self, many):
        with pytest.raises(InvalidError, match="'failed' cannot be skipped"):
            many.select(status="failed").skip()
        with pytest.raises(InvalidError) as raised:
            many.select(type="report").skip(0)
        assert raised.value.field == "number"


class TestOthers:
    def test_two_operators_at_once_skip_one_occurrence_each(self, schedules, later, settings):
        def skip(_):
            with psched.open(settings) as own:
                own["k"].skip()

        with ThreadPoolExecutor(4) as pool:
            [*pool.map(skip, range(8))]
        assert schedules["k"].metadata().next_time == later + 8 * HOUR
        assert spans(schedules) == [
            ("skipped", later + n * HOUR, later + n * HOUR, 1) for n in range(8)
        ]
        assert violations(settings) == []

    def test_a_claim_in_between_refuses_the_skip(self, settings, schedules, hour):
        schedules.add("k", cron="@hourly", next_time=hour)

        def claim_first():
            if not tasks:
                tasks.append(schedules.poll())
            return Author("ann", "web1", "tests")

        tasks = []
        with ScheduleCollection(
            make_store(settings.url), settings, clock=ManualClock(), draw_nonce=iter("ab").__next__,
            author=claim_first,
        ) as other, pytest.raises(InvalidError, match="runs now"):  # fmt: skip
            other["k"].skip()
        tasks[0].finish()
        assert [each.fate for each in schedules.runs("k")] == ["finished"]
        assert violations(settings) == []


class TestStoreWithoutTheCapability:
    def test_perfectscheds_table(self, tmp_path):
        settings = from_mapping(
            {"type": "rdb_compat", "url": f"sqlite:///{tmp_path}/db", "table": "t"}
        )
        make_compat_store(settings).init()
        with psched.open(settings) as schedules:
            schedules.add("k", "t", cron="0 * * * *", next_time=2_000_001_600)
            done = schedules["k"].skip()
            assert done.skipped.count == 1
            assert schedules["k"].metadata().next_time == done.after[0].time
