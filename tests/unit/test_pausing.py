"""Tests of pauses: what a row says, what a resumption skips, and pauses after failures."""

from dataclasses import replace as changed

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched import config
from psched.base.loader import loading_by
from psched.core.declare import redeclare
from psched.core.definition import parse_row
from psched.core.history.records import MOST_COUNTED, Fate, RunRecord, Skipped
from psched.core.model import (
    CANCELLED,
    FAILED,
    FINISHED,
    PAUSED,
    QUARANTINED,
    STOPPING,
    WAITING,
    Finish,
    Pause,
    ReasonCode,
    Release,
    Retry,
    Row,
)
from psched.core.operations import pausing
from psched.core.operations.pausing import describe, earlier_failures, note_of, resumed
from psched.core.policy import Run, after_claim, after_run, postpone
from psched.core.preview import upcoming_occurrences
from psched.triggers.custom import load_here
from psched.triggers.zone import find_zone

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db", "retry_wait": 300})

NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""

MINUTE, HOUR, DAY = 60, 3600, 86_400

UTC = find_zone("UTC")


def options(**overrides):
    return SETTINGS.with_settings(**overrides)


def paused(until=NOON + HOUR, since=NOON - 30, cron="*/10 * * * *", next_time=NOON, **columns):
    """A row that was paused half a minute before noon, until one o'clock."""
    given = {
        "attempt": 0,
        "status": PAUSED,
        "reason": describe(Pause(since, until, "ann@web1: deploy"), UTC),
        "reason_code": ReasonCode.PAUSED,
        "paused_at": since,
        "paused_until": until,
        "pause_note": "ann@web1: deploy",
        "version": 3,
        "next_run_time": until,
        **columns,
    }
    return Row(key="k", cron=cron, next_time=next_time, **given)


def paused_of(row):
    """A row that runs, as a person has paused it."""
    return pausing.paused(row, paused().pause, UTC)


def claimed(row):
    """The row as a claim returns it."""
    return changed(row, owner="w.1", fence=7, attempt=row.attempt + 1)


def skipped(first, until, count, row):
    return Skipped(
        fate=Fate.SKIPPED_PAUSED, first=first, until=until, count=count, reason=row.reason
    )


class TestPause:
    def test_what_it_looks_like(self):
        row = paused()
        assert row.reason == (
            "paused by ann@web1: deploy"
            " (since 2027-01-15T11:59:30+00:00 until 2027-01-15T13:00+00:00)"
        )
        assert row.pause == Pause(NOON - 30, NOON + HOUR, "ann@web1: deploy")
        berlin = describe(Pause(NOON, None, note_of("ann@web1", None)), find_zone("Europe/Berlin"))
        assert berlin == "paused by ann@web1 (since 2027-01-15T13:00+01:00)"
        assert describe(Pause(), UTC) == "paused"

    @given(st.text(max_size=600))
    def test_a_note_of_any_length_fits(self, note):
        assert len(note_of("ann@web1", note)) <= 500
        assert len(describe(Pause(0, 2**37, note), UTC)) <= 500

    @pytest.mark.parametrize("reason", [None, "deploy, ask ann", "paused 2030-01-01 by bob"])
    def test_no_reason_changes_it(self, reason):
        row = paused(reason=reason)
        assert row.pause == paused().pause
        assert after_claim(claimed(row), SETTINGS, NOON + HOUR).status == WAITING

    def test_only_a_row_that_is_paused_or_will_be_has_one(self):
        assert paused(status=WAITING).pause is None
        assert paused(status=STOPPING).pause == paused().pause
        by_sql = paused(paused_at=None, paused_until=None, pause_note=None)
        assert by_sql.pause == Pause()
        assert changed(by_sql, status=STOPPING).pause is None


class TestEndOfThePause:
    @pytest.mark.parametrize("late", [0, 0.4, 30])
    def test_a_worker_resumes_the_row_and_records_what_fell_due(self, late):
        row = claimed(paused())
        end = after_claim(row, SETTINGS, NOON + HOUR + late)
        assert (end.status, end.rest, end.fate, end.attempt) == (WAITING, False, None, 0)
        assert (end.next_time, end.not_before) == (NOON + HOUR, NOON + HOUR)
        assert end.skipped == (skipped(NOON, NOON + 50 * MINUTE, 6, row),)
        assert "resumed" in end.reason

    def test_nothing_is_skipped_if_nothing_fell_due(self):
        row = claimed(paused(next_time=NOON + 2 * HOUR))
        end = after_claim(row, SETTINGS, NOON + HOUR)
        assert (end.status, end.next_time, end.not_before) == (WAITING, *[NOON + 2 * HOUR] * 2)
        assert (end.skipped, end.reason) == ((), None)

    def test_before_the_end_the_row_is_put_back(self):
        """For example, its worker has died, so that its lease has expired."""
        row = claimed(paused(attempt=2))
        end = after_claim(row, SETTINGS, NOON + HOUR - 1)
        assert (end.status, end.rest, end.not_before, end.wait) == (PAUSED, False, NOON + HOUR, 0)
        assert (end.next_time, end.reason, end.attempt) == (NOON, row.reason, 2)
        assert end.skipped == ()

    @pytest.mark.parametrize("reason", [None, "by hand", "its worker died"])
    def test_a_pause_without_an_end_stays(self, reason):
        for row in (paused(until=None, next_run_time=5), paused(paused_until=None, reason=reason)):
            end = after_claim(claimed(row), SETTINGS, NOON + DAY)
            assert (end.status, end.rest, end.reason) == (PAUSED, True, row.reason)

    def test_a_task_that_runs_once_runs(self):
        row = claimed(paused(cron=None))
        end = after_claim(row, SETTINGS, NOON + HOUR)
        assert (end.status, end.next_time, end.not_before) == (WAITING, NOON, NOON)
        assert (end.skipped, end.reason) == ((), None)

    @pytest.mark.parametrize(
        ("catchup", "next_time", "spans"),
        [
            ("all", NOON + HOUR, []),
            ("latest", NOON + 2 * HOUR, [(NOON + HOUR, Fate.COALESCED)]),
            ("skip", NOON + 2 * HOUR, [(NOON + HOUR, Fate.SKIPPED_CATCHUP)]),
        ],
    )
    def test_what_fell_due_after_the_end_is_subject_to_catch_up(self, catchup, next_time, spans):
        """No worker was alive at the end of the pause, but an hour later."""
        row = claimed(paused())
        end = after_claim(row, options(catchup=catchup), NOON + 2 * HOUR + 5)
        assert end.skipped[0] == skipped(NOON, NOON + 50 * MINUTE, 6, row)
        assert [(each.first, each.fate) for each in end.skipped[1:]] == spans
        assert (end.status, end.next_time, end.not_before) == (WAITING, next_time, next_time)
        now = changed(row, next_time=next_time, next_run_time=NOON + 2 * HOUR + 5, status=WAITING)
        assert isinstance(after_claim(now, options(catchup=catchup), NOON + 2 * HOUR + 6), Run)

    def test_an_occurrence_that_falls_due_before_the_end_and_one_at_the_end(self):
        row = claimed(paused(until=NOON + MINUTE, cron="* * * * *"))
        end = after_claim(row, SETTINGS, NOON + MINUTE)
        assert (end.next_time, end.skipped) == (NOON + MINUTE, (skipped(NOON, NOON, 1, row),))

    def test_what_counts_is_when_it_could_have_started(self):
        row = claimed(paused(delay=20 * MINUTE, since=NOON - DAY))
        end = after_claim(row, SETTINGS, NOON + HOUR)
        assert end.skipped == (skipped(NOON, NOON + 30 * MINUTE, 4, row),)
        assert (end.next_time, end.not_before) == (NOON + 40 * MINUTE, NOON + HOUR)

    @given(st.integers(0, 600), st.integers(0, 900), st.integers(1, 5000))
    def test_with_delay_and_jitter_nothing_is_left_out(self, delay, jitter, length):
        settings = options(jitter=jitter)
        row = claimed(paused(until=NOON + length, delay=delay, cron="* * * * *"))
        definition = parse_row(row, settings)
        end = after_claim(row, settings, NOON + length)
        instant = NOON
        while instant < end.next_time:
            assert definition.first_run(instant) < NOON + length
            assert end.skipped[0].first <= instant <= end.skipped[0].until
            instant += MINUTE
        assert definition.first_run(end.next_time) >= NOON + length or instant == NOON

    def test_many_are_not_counted(self):
        row = claimed(paused(until=NOON + DAY, cron="* * * * *"))
        end = after_claim(row, SETTINGS, NOON + DAY)
        assert MOST_COUNTED < 24 * 60
        assert end.skipped == (skipped(NOON, NOON + DAY - MINUTE, None, row),)

    def test_a_trigger_without_a_further_time_ends_the_schedule(self):
        row = claimed(paused(cron=f"@call tests.unit.test_pausing:{Once.__name__}"))
        with loading_by(load_here):
            end = after_claim(row, options(triggers=["tests"]), NOON + HOUR)
        assert (end.status, end.rest, end.retain) == (FINISHED, True, None)
        assert [(each.first, each.count) for each in end.skipped] == [(NOON, None)]

    def test_an_invalid_row_is_quarantined(self):
        end = after_claim(claimed(paused(cron="nonsense")), SETTINGS, NOON + HOUR)
        assert (end.status, end.rest) == (QUARANTINED, True)

    def test_a_trigger_that_cannot_be_loaded_is_tried_again(self):
        row = claimed(paused(cron="@call nowhere:Nothing"))
        with loading_by(load_here):
            end = after_claim(row, options(triggers=["nowhere"]), NOON + HOUR)
        assert (end.status, end.rest, end.wait, end.reason) == (PAUSED, False, 300, row.reason)

    def test_a_row_that_is_postponed_does_not_forget_the_end(self):
        row = claimed(paused())
        assert postpone(row, 1).reason == row.reason
        assert postpone(changed(row, status=WAITING), 1).reason is None

    def test_a_row_without_a_time_continues_after_what_is_decided(self):
        row = claimed(paused(next_time=None, decided_until=NOON))
        end = after_claim(row, SETTINGS, NOON + HOUR)
        assert end.skipped == (skipped(NOON + 10 * MINUTE, NOON + 50 * MINUTE, 5, row),)
        assert (end.next_time, end.attempt) == (NOON + HOUR, 0)


class Once:
    """A trigger with one time."""

    def next_at(self, after):
        return NOON if after < NOON else None


class TestWhatWasDueBefore:
    """An occurrence that was due or tried before the pause."""

    def test_it_runs_if_no_later_one_fell_due(self):
        row = claimed(paused(next_time=NOON - DAY, cron="0 12 * * *", until=NOON))
        end = after_claim(row, SETTINGS, NOON)
        assert (end.next_time, end.skipped, end.attempt) == (NOON - DAY, (), 0)

    def test_it_runs_again_if_it_was_tried(self):
        row = claimed(paused(next_time=NOON - DAY, cron="0 12 * * *", until=NOON, attempt=2))
        end = after_claim(row, options(catchup="skip"), NOON + 1)
        assert (end.next_time, end.skipped, end.attempt) == (NOON - DAY, (), 2)
        now = claimed(changed(row, status=WAITING, attempt=end.attempt))
        assert isinstance(after_claim(now, options(catchup="skip"), NOON + 2), Run)

    def test_the_death_of_a_worker_during_the_resumption_is_no_attempt(self):
        row = claimed(paused(cron="0 12 * * *", attempt=1))
        end = after_claim(row, SETTINGS, NOON + HOUR)
        assert end.skipped == (skipped(NOON, NOON, 1, row),)
        assert (end.next_time, end.attempt) == (NOON + DAY, 0)

    @pytest.mark.parametrize("attempt", [0, 2])
    def test_it_is_skipped_with_later_ones(self, attempt):
        row = claimed(paused(next_time=NOON - HOUR, attempt=attempt))
        end = after_claim(row, SETTINGS, NOON + HOUR)
        assert end.skipped == (skipped(NOON - HOUR, NOON + 50 * MINUTE, 12, row),)
        assert (end.next_time, end.attempt) == (NOON + HOUR, 0)


class TestRunningTask:
    """A row that is paused while its task runs."""

    @pytest.mark.parametrize(
        ("decision", "next_time", "attempt"),
        [
            (Finish(), NOON + 10 * MINUTE, 0),
            (Retry(reason="ValueError"), NOON, 1),
            (Release(), NOON, 0),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("until", [NOON + HOUR, None])
    def test_the_end_of_the_pause_outlives_the_settlement(
        self, decision, next_time, attempt, until
    ):
        leased = claimed(paused(status=WAITING, reason=None, reason_code=None))
        pause = paused(until).pause
        current = changed(pausing.paused(leased, pause, UTC), version=4)
        end = after_run(leased, current, decision, SETTINGS, NOON + 5)
        assert (end.status, end.next_time, end.attempt) == (PAUSED, next_time, attempt)
        assert (end.rest, end.reason) == (until is None, current.reason)
        assert Pause(end.paused_at, end.paused_until, end.pause_note) == pause
        assert end.rest or (end.not_before, end.wait) == (until, 0)

    def test_a_task_that_runs_once_and_finishes_is_finished(self):
        leased = claimed(paused(cron=None, status=WAITING, reason=None, reason_code=None))
        current = changed(paused_of(leased), version=4)
        assert after_run(leased, current, Finish(), SETTINGS, NOON + 5).status == FINISHED

    def test_a_trigger_that_cannot_be_loaded_does_not_end_the_pause(self):
        leased = claimed(
            paused(cron="@call nowhere:Nothing", status=WAITING, reason=None, reason_code=None)
        )
        current = changed(paused_of(leased), version=4)
        with loading_by(load_here):
            end = after_run(leased, current, Finish(), options(triggers=["nowhere"]), NOON + 5)
        assert (end.status, end.not_before, end.reason) == (PAUSED, NOON + HOUR, current.reason)
        assert end.fate is Fate.FINISHED

    def test_cancelling_is_stronger(self):
        leased = claimed(paused(status=WAITING, reason=None, reason_code=None))
        current = changed(leased, status=CANCELLED, reason=paused().reason, version=4)
        end = after_run(leased, current, Release(), SETTINGS, NOON + 5)
        assert (end.status, end.rest) == (CANCELLED, True)


class TestResumption:
    """The row that the command writes."""

    def test_what_fell_due_is_skipped(self):
        row = paused(until=None, next_run_time=None)
        back, span = resumed(row, SETTINGS, NOON + 25 * MINUTE, backfill=False)
        assert (back.status, back.reason, back.attempt) == (WAITING, None, 0)
        assert (back.next_time, back.next_run_time) == (NOON + 30 * MINUTE, NOON + 30 * MINUTE)
        assert span == skipped(NOON, NOON + 20 * MINUTE, 3, row)

    def test_what_falls_due_now_is_skipped(self):
        row = paused(until=None, next_run_time=None)
        _, span = resumed(row, SETTINGS, NOON + 20 * MINUTE + 0.3, backfill=False)
        assert span == skipped(NOON, NOON + 20 * MINUTE, 3, row)

    def test_what_fell_due_after_the_end_is_not_skipped(self):
        back, span = resumed(paused(), SETTINGS, NOON + DAY, backfill=False)
        assert span.until == NOON + 50 * MINUTE
        assert (back.next_time, back.next_run_time) == (NOON + HOUR, NOON + HOUR)

    def test_with_backfill_the_times_stay(self):
        row = paused(until=None, next_run_time=None, attempt=2, delay=7)
        back, span = resumed(row, SETTINGS, NOON + DAY, backfill=True)
        assert span is None
        assert (back.next_time, back.next_run_time, back.attempt) == (NOON, NOON + 7, 2)

    def test_during_the_run_nothing_is_skipped(self):
        row = claimed(paused())
        back, span = resumed(row, SETTINGS, NOON + DAY, backfill=False)
        none = dict.fromkeys(["reason", "reason_code", "paused_at", "paused_until", "pause_note"])
        assert (back, span) == (changed(row, status=WAITING, **none), None)

    def test_a_row_that_plain_sql_has_paused(self):
        row = Row(key="k", cron="*/10 * * * *", next_time=NOON, next_run_time=None, status=PAUSED)
        back, span = resumed(row, SETTINGS, NOON + 5, backfill=False)
        assert (back.status, back.next_time) == (WAITING, NOON + 10 * MINUTE)
        assert (span.first, span.count, span.reason) == (NOON, 1, "paused")
        _, span = resumed(changed(row, reason="deploy"), SETTINGS, NOON + 5, backfill=False)
        assert span.reason == "paused: deploy"


class TestChangeOfThePausedSchedule:
    def test_it_stays_paused(self):
        row = paused()
        for fields in ({"data": {"n": 1}}, {"cron": "@hourly"}, {"every": "5m"}):
            new = redeclare(row, fields, SETTINGS, lambda: NOON + 5)
            assert (new.status, new.reason, new.next_run_time) == (PAUSED, row.reason, NOON + HOUR)
        assert redeclare(row, {"cron": "@hourly"}, SETTINGS, lambda: NOON + 5).next_time > NOON

    def test_a_time_resumes_it(self):
        new = redeclare(paused(), {"next_time": NOON + DAY}, SETTINGS, lambda: NOON + 5)
        assert (new.status, new.reason, new.next_run_time) == (WAITING, None, NOON + DAY)


class TestForecast:
    def test_the_next_times_begin_after_the_pause(self):
        row = paused()
        found = upcoming_occurrences(row, parse_row(row, SETTINGS), 2, NOON + 5)
        assert [each.time for each in found] == [NOON + HOUR, NOON + HOUR + 10 * MINUTE]
        once = paused(cron=None)
        [found] = upcoming_occurrences(once, parse_row(once, SETTINGS), 2, NOON + 5)
        assert (found.time, found.run_at) == (NOON, NOON + HOUR)

    def test_there_are_none_without_an_end(self):
        row = paused(until=None, next_run_time=None)
        assert upcoming_occurrences(row, parse_row(row, SETTINGS), 2, NOON + 5) == []


class TestAfterFailures:
    def fail(self, earlier=0, attempt=3, cron="*/10 * * * *", **settings):
        row = Row(key="k", cron=cron, next_time=NOON, owner="w.1", fence=7, attempt=attempt)
        failure = Retry(reason="ValueError: no", earlier=earlier)
        return after_run(row, row, failure, options(**settings), NOON + 5)

    def test_the_attempts_of_an_occurrence_count(self):
        assert self.fail(pause_after_failures=4).status == WAITING
        end = self.fail(pause_after_failures=3)
        assert (end.status, end.rest, end.next_time, end.attempt) == (PAUSED, True, NOON, 3)
        assert end.reason == "paused after 3 failures in a row: ValueError: no"
        assert end.fate is None
        assert self.fail(pause_after_failures=0, attempt=900).status == WAITING
        one = self.fail(pause_after_failures=1, attempt=1)
        assert one.reason == "paused after 1 failure: ValueError: no"

    def test_those_of_earlier_occurrences_count_too(self):
        given = {"pause_after_failures": 9, "max_attempts": 3}
        assert self.fail(earlier=5, **given).status == WAITING
        end = self.fail(earlier=6, **given)
        assert (end.status, end.rest, end.attempt) == (PAUSED, True, 0)
        assert (end.next_time, end.fate) == (NOON + 10 * MINUTE, Fate.GAVE_UP)

    def test_a_schedule_can_have_its_own_number(self):
        row = Row(key="k", cron="@hourly", next_time=NOON, owner="w.1", attempt=2)
        row = changed(row, options='{"pause_after_failures":2}')
        assert after_run(row, row, Retry(), SETTINGS, NOON).status == PAUSED

    def test_a_task_that_runs_once_is_paused_or_has_failed(self):
        assert self.fail(cron=None, pause_after_failures=3).status == PAUSED
        assert self.fail(cron=None, pause_after_failures=3, max_attempts=3).status == FAILED

    def test_a_success_and_a_release_do_not_pause(self):
        row = Row(key="k", cron="@hourly", next_time=NOON, owner="w.1", attempt=5)
        for decision in (Finish(), Release()):
            end = after_run(row, row, decision, options(pause_after_failures=1), NOON + 5)
            assert end.status == WAITING

    def test_the_pause_of_a_person_stays(self):
        leased = Row(key="k", cron="@hourly", next_time=NOON, owner="w.1", attempt=5)
        current = changed(paused_of(leased), version=4)
        end = after_run(leased, current, Retry(), options(pause_after_failures=1), NOON + 5)
        assert (end.reason, end.not_before) == (current.reason, NOON + HOUR)

    def test_after_it_the_occurrence_runs_again_and_failures_count_anew(self):
        end = self.fail(pause_after_failures=3)
        row = Row(key="k", cron="0 12 * * *", next_time=NOON, attempt=3, status=PAUSED)
        row = changed(row, reason=end.reason, reason_code=end.reason_code)
        back, span = resumed(row, SETTINGS, NOON + HOUR, backfill=False)
        assert (back.status, back.next_time, back.attempt, span) == (WAITING, NOON, 1, None)
        settings = options(pause_after_failures=3, catchup="skip")
        again = claimed(back)
        assert isinstance(after_claim(again, settings, NOON + HOUR), Run)
        assert after_run(again, again, Retry(), settings, NOON + HOUR).status == WAITING


class TestEarlierFailures:
    ROW = Row(key="k", next_time=NOON, owner="w.1", fence=20, created_at=NOON - DAY)

    def record(self, fence, outcome="failed", **fields):
        given = {"key": "k", "type": "t", "owner": f"w.{fence}", "ended": (NOON - 60) * 1000}
        given |= {"scheduled_time": NOON - (20 - fence) * 60, "outcome": outcome, "attempt": 1}
        return RunRecord(**{**given, "fence": fence, **fields})

    def count(self, *records, history="all"):
        return earlier_failures(records, self.ROW, history)

    def test_they_count_back_to_the_last_success(self):
        records = [self.record(19), self.record(18, "timed_out"), self.record(17, "lost")]
        assert self.count(*records) == 3
        assert self.count(*records, self.record(16, "finished"), self.record(15)) == 3
        marked = self.record(16, "cancelled", fate="finished")
        assert self.count(*records, marked, self.record(15)) == 3
        assert self.count() == 0

    def test_those_of_the_present_occurrence_do_not(self):
        own = self.record(19, scheduled_time=NOON)
        assert self.count(own, self.record(18)) == 1

    def test_what_was_interrupted_or_skipped_does_not_count_and_does_not_end_them(self):
        others = [self.record(18, "released"), self.record(17, "preempted")]
        span = self.record(16, None, fate="skipped_catchup", until=NOON, attempt=0)
        by_client = self.record(0, None, fate="skipped_paused", attempt=0)
        found = [self.record(19), *others, span, by_client, self.record(15)]
        assert self.count(*found) == 2

    def test_they_end_at_the_last_pause_and_at_the_creation(self):
        pause = self.record(18, reason_code=ReasonCode.PAUSED_AFTER_FAILURES)
        assert self.count(self.record(19), pause, self.record(17)) == 1
        old = self.record(18, ended=(NOON - 2 * DAY) * 1000)
        assert self.count(self.record(19), old, self.record(17)) == 1

    def test_if_a_success_leaves_no_record_a_gap_is_taken_for_one(self):
        records = [self.record(19), self.record(18), self.record(16)]
        assert self.count(*records, history="failures") == 2
        assert self.count(*records, history="all") == 3
