"""Tests of the policy: pure functions that decide what a worker does with a leased row."""

import sys
from dataclasses import replace as changed

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched import config
from psched.core import definition
from psched.core.catchup import iso
from psched.core.columns import LATEST_TIME
from psched.core.history.records import MOST_COUNTED, Fate, Skipped
from psched.core.model import (
    CANCELLED,
    CANCELLING,
    DELETING,
    ENDED,
    EXPIRED,
    FAILED,
    FINISHED,
    FINISHING,
    PAUSED,
    QUARANTINED,
    SET_ASIDE,
    WAITING,
    Finish,
    Quarantine,
    ReasonCode,
    Release,
    Retry,
    Row,
    Settlement,
)
from psched.core.policy import Run, after_claim, after_run, postpone
from psched.triggers import trigger

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db", "retry_wait": 300})

COMPAT = SETTINGS.with_settings(type="rdb_compat", url="sqlite:///unused.db", table="schedules")

NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""

MINUTE, HOUR, DAY = 60, 3600, 86_400


def leased(cron="* * * * *", next_time=NOON, **columns):
    """A row as a claim returns it."""
    columns = {"owner": "w.1", "fence": 7, "attempt": 1, "version": 3, **columns}
    return Row(key="k", cron=cron, next_time=next_time, next_run_time=NOON + 999, **columns)


def applied(settlement, row):
    """The row as it is claimed again after a settlement."""
    assert (settlement.key, settlement.token, settlement.version) == ("k", row.token, row.version)
    assert not settlement.rest
    return changed(
        row,
        next_time=settlement.next_time,
        attempt=settlement.attempt + 1,
        fence=row.fence + 1,
        status=settlement.status,
        decided_until=settlement.decided_until,
        moved_at=settlement.moved_at,
    )


def options(**overrides):
    return SETTINGS.with_settings(**overrides)


class TestOpening:
    @pytest.mark.parametrize("catchup", ["all", "latest", "skip"])
    @pytest.mark.parametrize("late", [0, 0.5, 59.9])
    def test_an_occurrence_that_is_due_is_run(self, catchup, late):
        verdict = after_claim(leased(), options(catchup=catchup), NOON + late)
        assert isinstance(verdict, Run)
        assert verdict.scheduled_time == NOON
        assert verdict.definition.key == "k"

    def test_missed_occurrences_are_run_one_after_the_other_oldest_first(self):
        row, ran = leased(), []
        now = NOON + 5 * MINUTE + 30
        while row.next_time <= now:
            ran.append(after_claim(row, SETTINGS, now).scheduled_time)
            row = applied(after_run(row, row, Finish(), SETTINGS), row)
        assert ran == [NOON + number * MINUTE for number in range(6)]

    def test_of_more_than_the_limit_the_newest_are_kept_and_the_rest_is_told(self):
        row, settings = leased(delay=10), options(catchup_limit=3)
        now = NOON + 10 * MINUTE + 30
        settlement = after_claim(row, settings, now)
        why = (
            "catch-up (all, limit 3) dropped the occurrences"
            " from 2027-01-15T12:00:00Z to before 2027-01-15T12:08:00Z"
        )
        assert settlement == Settlement(
            key="k",
            token=row.token,
            version=row.version,
            next_time=NOON + 8 * MINUTE,
            not_before=NOON + 8 * MINUTE + 10,
            reason=why,
            reason_code=ReasonCode.CATCHUP,
            skipped=(
                Skipped(
                    fate=Fate.SKIPPED_CATCHUP,
                    first=NOON,
                    until=NOON + 7 * MINUTE,
                    count=8,
                    reason=why,
                ),
            ),
        )
        run = after_claim(applied(settlement, row), settings, now)
        assert run.scheduled_time == NOON + 8 * MINUTE

    def test_exactly_the_limit_is_kept(self):
        now = NOON + 2 * MINUTE + 30
        assert after_claim(leased(), options(catchup_limit=3), now).scheduled_time == NOON
        assert after_claim(leased(), options(catchup_limit=2), now).next_time == NOON + MINUTE
        # This is true even at the instant at which a further occurrence is due.
        now = NOON + 3 * MINUTE
        assert after_claim(leased(), options(catchup_limit=3), now).next_time == NOON + MINUTE

    def test_the_latest_may_be_all_that_is_kept(self):
        row, settings, now = leased(), options(catchup="latest"), NOON + 5 * MINUTE + 30
        settlement = after_claim(row, settings, now)
        assert settlement.next_time == NOON + 5 * MINUTE
        assert settlement.reason.startswith("catch-up (latest) dropped")
        assert (
            after_claim(applied(settlement, row), settings, now).scheduled_time == NOON + 5 * MINUTE
        )

    @pytest.mark.parametrize(
        ("late", "kept"),
        [
            (60, NOON),
            (61, NOON + HOUR),
            (HOUR - 1, NOON + HOUR),
            (HOUR + 60, NOON + HOUR),  # this occurrence is on time
            (HOUR + 61, NOON + 2 * HOUR),
        ],
    )
    def test_what_is_too_late_may_be_skipped(self, late, kept):
        row, settings = leased(cron="0 * * * *"), options(catchup="skip", catchup_grace=60)
        verdict = after_claim(row, settings, NOON + late)
        if kept == NOON:
            assert verdict.scheduled_time == NOON
        else:
            assert verdict.next_time == kept
            assert verdict.reason.startswith("catch-up (skip) dropped")
            assert verdict.status == WAITING

    def test_no_occurrence_is_left_out_within_the_grace(self):
        row, settings = leased(cron="* * * * *"), options(catchup="skip", catchup_grace=120)
        assert after_claim(row, settings, NOON + 120).scheduled_time == NOON
        assert after_claim(row, settings, NOON + 121).next_time == NOON + 120

    def test_a_delay_makes_nothing_late(self):
        row = leased(cron="0 * * * *", delay=30 * MINUTE)
        settings = options(catchup="skip", catchup_grace=60)
        assert after_claim(row, settings, NOON + 31 * MINUTE).scheduled_time == NOON
        assert after_claim(row, settings, NOON + 32 * MINUTE).next_time == NOON + HOUR

    def test_a_schedule_may_have_its_own_policy(self):
        row = leased(options='{"catchup":"latest"}')
        assert after_claim(row, SETTINGS, NOON + HOUR).next_time == NOON + HOUR

    @pytest.mark.parametrize("catchup", ["all", "latest", "skip"])
    def test_what_has_been_tried_is_carried_through(self, catchup):
        settings = options(catchup=catchup, catchup_limit=1)
        verdict = after_claim(leased(attempt=2), settings, NOON + 10 * DAY)
        assert isinstance(verdict, Run)
        assert verdict.scheduled_time == NOON

    @pytest.mark.parametrize("catchup", ["all", "latest", "skip"])
    def test_a_one_shot_is_never_too_late(self, catchup):
        verdict = after_claim(leased(cron=None), options(catchup=catchup), NOON + 1000 * DAY)
        assert verdict.scheduled_time == NOON

    def test_a_run_before_its_time_is_what_was_asked_for(self):
        """Somebody has set ``next_run_time`` to a time before ``next_time``."""
        assert after_claim(leased(), SETTINGS, NOON - DAY).scheduled_time == NOON

    def test_a_trigger_that_has_come_to_its_end_is_finished(self):
        last = LATEST_TIME // DAY * DAY - DAY
        row = leased(cron=f"@every {DAY}", next_time=last)
        settlement = after_claim(row, options(catchup="skip"), last + DAY / 2)
        assert (settlement.rest, settlement.status) == (True, FINISHED)
        assert settlement.next_time == last
        assert "to the last one" in settlement.reason

    def test_a_row_without_a_time_is_given_one_before_it_is_run(self):
        settlement = after_claim(leased(cron="0 * * * *", next_time=None), SETTINGS, NOON + 0.5)
        assert (settlement.next_time, settlement.not_before) == (NOON + HOUR, NOON + HOUR)
        settlement = after_claim(leased(cron="0 * * * *", next_time=None), SETTINGS, NOON)
        assert settlement.next_time == NOON
        settlement = after_claim(leased(cron=None, next_time=None, delay=9), SETTINGS, NOON + 0.5)
        assert (settlement.next_time, settlement.not_before) == (NOON + 1, NOON + 10)
        assert (settlement.attempt, settlement.status) == (0, WAITING)

    def test_a_row_without_a_time_catches_up_when_it_is_given_one(self):
        row = leased(next_time=None, decided_until=NOON)
        settlement = after_claim(row, options(catchup="latest"), NOON + 10 * MINUTE + 30)
        assert (settlement.next_time, settlement.attempt) == (NOON + 10 * MINUTE, 0)
        [span] = settlement.skipped
        assert (span.first, span.until, span.count) == (NOON + MINUTE, NOON + 9 * MINUTE, 9)

    def test_a_row_whose_time_was_wiped_out_has_had_no_attempt(self):
        """Plain SQL has set ``next_time`` to NULL after the worker died in the last attempt."""
        for cron in (None, "* * * * *"):
            row = leased(cron, next_time=None, attempt=4)
            settlement = after_claim(row, options(max_attempts=3), NOON)
            assert (settlement.status, settlement.rest, settlement.fate) == (WAITING, False, None)
            assert (settlement.next_time, settlement.attempt) == (NOON, 0)

    def test_a_row_without_a_time_and_without_a_further_one_is_finished(self):
        decided = LATEST_TIME // DAY * DAY
        row = leased(cron=f"@every {DAY}", next_time=None, decided_until=decided)
        settlement = after_claim(row, SETTINGS, NOON)
        assert (settlement.rest, settlement.status, settlement.skipped) == (True, FINISHED, ())

    def test_a_row_inserted_by_plain_sql_is_run_if_it_is_due(self):
        assert isinstance(after_claim(leased(fence=1), SETTINGS, NOON), Run)
        assert after_claim(leased(fence=1), SETTINGS, NOON - 1).not_before == NOON

    @pytest.mark.parametrize("next_time", [0, LATEST_TIME])
    def test_the_first_and_the_last_time_are_times(self, next_time):
        row = leased(cron=None, next_time=next_time)
        assert after_claim(row, SETTINGS, NOON).scheduled_time == next_time

    @pytest.mark.parametrize("next_time", [-1, LATEST_TIME + 1, 2**62])
    def test_a_time_that_is_none_is_quarantined(self, next_time):
        settlement = after_claim(leased(next_time=next_time), SETTINGS, NOON)
        assert (settlement.status, settlement.rest) == (QUARANTINED, True)
        assert settlement.reason.startswith("next_time: ")

    def test_a_row_that_cannot_be_understood_is_quarantined_with_the_reason(self):
        settlement = after_claim(leased(cron="\x1b[2J" + "x" * 200), SETTINGS, NOON)
        assert (settlement.status, settlement.rest) == (QUARANTINED, True)
        assert settlement.next_time == NOON
        assert settlement.reason.startswith("cron: ")
        assert settlement.reason.isprintable()
        assert len(settlement.reason) <= 500

    def test_a_row_that_is_being_deleted_is_removed_whatever_it_holds(self):
        settlement = after_claim(leased(cron="nonsense", status=DELETING), SETTINGS, NOON)
        assert settlement.remove
        assert settlement.version == 3

    def test_a_row_that_is_postponed_has_had_no_attempt(self):
        settlement = postpone(leased(attempt=3, reason="ValueError", reason_code="c"), 7)
        assert (settlement.next_time, settlement.wait, settlement.attempt) == (NOON, 7, 2)
        assert (settlement.status, settlement.reason) == (WAITING, None)
        assert settlement.reason_code is None
        held = postpone(leased(status=PAUSED, reason="hold", reason_code="c"), 7)
        assert (held.reason, held.reason_code) == ("hold", "c")

    def test_a_time_that_was_set_under_a_lease_nobody_settled_is_waited_for(self):
        """A schedule was modified while it ran, and its worker died. The new time must be kept."""
        row = leased(next_time=NOON + DAY, attempt=2, moved_at=NOON, delay=5)
        settlement = after_claim(row, SETTINGS, NOON)
        assert (settlement.next_time, settlement.not_before) == (NOON + DAY, NOON + DAY + 5)
        assert after_claim(applied(settlement, row), SETTINGS, NOON + DAY + 5).scheduled_time == (
            NOON + DAY
        )


class Counting:
    """A trigger that counts the calls of `next_after`."""

    def __init__(self, trigger):
        self.trigger = trigger
        self.calls = 0

    def next_after(self, instant):
        self.calls += 1
        return self.trigger.next_after(instant)


@pytest.fixture
def count_calls(monkeypatch):
    """A function that applies `after_claim` to a row, and counts the calls of the row's trigger."""

    def count_calls(row, settings, now):
        counting = Counting(trigger.parse(row.cron, "UTC"))
        monkeypatch.setattr(definition.triggers, "parse", lambda *_args, **_kw: counting)
        return after_claim(row, settings, now), counting.calls

    return count_calls


class TestCost:
    """Tests that ten years of missed minutes are handled without computing every minute.

    The dropped occurrences are counted for the run history, which takes at most `MOST_COUNTED`
    questions more.
    """

    @pytest.mark.parametrize("catchup", ["latest", "skip"])
    @pytest.mark.parametrize(
        "cron", ["* * * * *", "*/7 * * * *", "0 3 * * *", "0 0 29 2 *", "@yearly", "@every 1"]
    )
    def test_to_find_the_newest_takes_a_few_questions(self, catchup, cron, count_calls):
        row = leased(cron, next_time=NOON - 3650 * DAY)
        verdict, calls = count_calls(row, options(catchup=catchup), NOON + 30)
        assert isinstance(verdict, Settlement)
        assert calls <= 50 + MOST_COUNTED

    @pytest.mark.parametrize("limit", [1, 10, 1000])
    @pytest.mark.parametrize(
        "cron", ["* * * * *", "*/7 * * * *", "0 * * * *", "0 3 * * 1", "@every 1"]
    )
    def test_to_keep_a_number_takes_a_few_times_that_many(self, limit, cron, count_calls):
        row = leased(cron, next_time=NOON - 3650 * DAY)
        verdict, calls = count_calls(row, options(catchup_limit=limit), NOON + 30)
        assert calls <= 4 * limit + 50 + MOST_COUNTED
        kept = verdict.next_time if isinstance(verdict, Settlement) else verdict.scheduled_time
        assert NOON - 3650 * DAY <= kept <= NOON + 30

    @pytest.mark.parametrize("cron", ["0 * * * *", "0 3 * * *", "*/7 * * * *"])
    def test_a_backlog_that_is_worked_off_is_counted_once(self, cron, monkeypatch):
        counting = Counting(trigger.parse(cron, "UTC"))
        monkeypatch.setattr(definition.triggers, "parse", lambda *_args, **_kw: counting)
        row, settings = leased(cron, next_time=NOON - 3650 * DAY), options(catchup_limit=500)
        # Each run takes a minute, and further occurrences are missed meanwhile.
        row = applied(after_claim(row, settings, NOON), row)
        for number in range(300):
            before, now = counting.calls, NOON + number * 60
            verdict = after_claim(row, settings, now)
            if isinstance(verdict, Settlement):
                row = applied(verdict, row)
            else:
                row = applied(after_run(row, row, Finish(), settings), row)
            assert number == 0 or counting.calls - before <= 30
        assert row.next_time > NOON - 3650 * DAY

    def test_what_is_not_late_takes_hardly_a_question(self, count_calls):
        for catchup in ("all", "latest", "skip"):
            _, calls = count_calls(leased(), options(catchup=catchup), NOON + 5)
            assert calls <= 1


class TestJitter:
    def test_each_occurrence_has_a_share_of_its_own_which_everybody_finds(self):
        settings, row, shares = options(jitter=60), leased(delay=10), []
        for _ in range(200):
            settlement = after_run(row, row, Finish(), settings)
            shares.append(settlement.not_before - settlement.next_time - 10)
            assert after_run(row, row, Finish(), settings) == settlement
            assert settlement.next_time == row.next_time + MINUTE
            row = applied(settlement, row)
        assert min(shares) >= 0
        assert max(shares) <= 60
        assert len({*shares}) > 40
        other = after_run(changed(row, key="other"), changed(row, key="other"), Finish(), settings)
        assert other.not_before != after_run(row, row, Finish(), settings).not_before

    def test_another_attempt_has_none(self):
        row = leased(attempt=1)
        for decision, wait in ((Retry(7), 7), (Retry(), 300), (Release(), 0)):
            settlement = after_run(row, row, decision, options(jitter=3600))
            assert (settlement.wait, settlement.not_before) == (wait, None)

    @pytest.mark.parametrize("catchup", ["all", "latest", "skip"])
    def test_it_makes_nothing_late(self, catchup):
        """Jitter makes no occurrence late, even if it is longer than the time between two."""
        settings = options(jitter=HOUR, catchup=catchup, catchup_grace=0, catchup_window=1)
        assert isinstance(after_claim(leased(), settings, NOON + HOUR), Run)

    def test_a_row_inserted_by_plain_sql_waits_for_its_share(self):
        row = leased(fence=1, created_at=None)
        settlement = after_claim(row, options(jitter=HOUR), NOON)
        assert NOON < settlement.not_before <= NOON + HOUR
        assert isinstance(after_claim(changed(row, fence=2), options(jitter=HOUR), NOON), Run)

    def test_what_runs_once_has_none(self):
        row = leased(cron=None, next_time=None, delay=5)
        assert after_claim(row, options(jitter=HOUR), NOON).not_before == NOON + 5


class TestOverlap:
    """Tests of occurrences that become due while an earlier occurrence of their schedule runs."""

    @pytest.mark.parametrize(
        ("settings", "minutes"),
        [
            ({"catchup": "all"}, [0, 1, 2, 3, 4, 5, 6, 7]),  # all run later
            ({"catchup": "latest"}, [0, 5, 6, 7]),  # only the newest one runs
            ({"catchup": "skip", "catchup_grace": 10}, [0, 6, 7]),  # none runs
            ({"catchup": "skip"}, [0, 5, 6, 7]),  # none runs except an only slightly late one
        ],
    )
    def test_occurrences_queue_become_one_or_are_dropped(self, settings, minutes):
        row, own, now, ran = leased(), options(**settings), float(NOON), []
        while now < NOON + 7 * MINUTE + 30:
            verdict = after_claim(row, own, now)
            if isinstance(verdict, Run):
                ran.append((verdict.scheduled_time - NOON) // MINUTE)
                # The first run takes five and a half minutes, each other run one second.
                now += 5.5 * MINUTE if len(ran) == 1 else 1
                verdict = after_run(row, row, Finish(), own)
            else:
                assert "dropped the occurrences from" in verdict.reason
            row = applied(verdict, row)
            now = max(now, verdict.not_before)
        assert ran == minutes

    @pytest.mark.parametrize("catchup", ["all", "latest", "skip"])
    def test_a_job_due_at_midnight_in_a_pause_of_two_minutes_runs_once(self, catchup):
        """The workers are paused from 23:59 to 00:01; then they run the present occurrence only."""
        midnight = NOON + 12 * HOUR
        row, own = leased(cron="0 0 * * *", next_time=midnight), options(catchup=catchup)
        assert after_claim(row, own, midnight + MINUTE).scheduled_time == midnight
        settlement = after_run(row, row, Finish(), own)
        assert (settlement.next_time, settlement.not_before) == (midnight + DAY, midnight + DAY)


class TestWindow:
    def test_what_is_older_is_dropped_and_told(self):
        now = NOON + 10 * MINUTE + 30
        settings = options(catchup_window=150)
        settlement = after_claim(leased(), settings, now)
        assert settlement.next_time == NOON + 8 * MINUTE
        assert settlement.reason == (
            "catch-up (all, limit 1000, window 150 s) dropped the occurrences"
            " from 2027-01-15T12:00:00Z to before 2027-01-15T12:08:00Z"
        )
        assert isinstance(after_claim(applied(settlement, leased()), settings, now), Run)

    def test_nothing_may_be_left(self):
        row = leased(cron="0 * * * *", next_time=NOON)
        settings = options(catchup="latest", catchup_window=60)
        assert isinstance(after_claim(row, settings, NOON + 60), Run)
        assert after_claim(row, settings, NOON + 61).next_time == NOON + HOUR


TROUBLE = """
class Missing:
    pass

class Fickle:
    def next_at(self, after):
        if after > {noon}:
            raise OSError("the sea is away")
        return after + 60

class Hourly:
    def next_at(self, after):
        return (after // 3600 + 1) * 3600
"""


class TestTriggersOfOnesOwn:
    @pytest.fixture
    def settings(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", [*sys.path])
        (tmp_path / "psched_trouble.py").write_text(TROUBLE.format(noon=NOON))
        yield options(load_path=[str(tmp_path)])
        sys.modules.pop("psched_trouble", None)

    def test_one_runs_like_any_other(self, settings):
        row = leased(cron="@call psched_trouble:Hourly")
        assert after_claim(row, settings, NOON).scheduled_time == NOON
        assert after_run(row, row, Finish(), settings).next_time == NOON + HOUR
        assert after_claim(row, settings.with_settings(catchup="latest"), NOON + DAY).next_time == (
            NOON + DAY
        )

    def test_code_that_is_not_here_is_waited_for_and_that_is_no_attempt(self, settings):
        row = leased(cron="@call psched_absent:Hourly", attempt=1)
        settlement = after_claim(row, settings, NOON)
        assert settlement.reason.startswith("cron: there is no module 'psched_absent' on the load")
        assert settlement.reason.endswith("; tried again every 300 s")
        assert (settlement.status, settlement.rest, settlement.wait) == (WAITING, False, 300)
        assert (settlement.next_time, settlement.attempt) == (NOON, 0)

    def test_a_mark_and_a_time_in_reserve_survive_that(self, settings):
        row = leased(cron="@call psched_absent:Hourly")
        # A cancelled row does not run, so the code of its trigger is not needed.
        ended = after_claim(changed(row, status=CANCELLING), settings, NOON)
        assert (ended.status, ended.rest) == (CANCELLED, True)
        # The next claim still knows that ``next_time`` was set during a lease.
        assert after_claim(changed(row, moved_at=7), settings, NOON).moved_at == 7

    def test_what_has_run_is_over_also_if_nobody_knows_what_comes_next(self, settings):
        row = leased()
        current = changed(row, cron="@call psched_absent:Hourly", version=4)
        settlement = after_run(row, current, Finish(), settings)
        assert (settlement.next_time, settlement.wait, settlement.rest) == (None, 300, False)
        settlement = after_run(row, current, Retry(5), settings)
        assert (settlement.next_time, settlement.wait, settlement.attempt) == (NOON, 300, 1)

    def test_what_comes_next_begins_where_the_host_that_could_not_load_the_code_left_off(
        self, settings
    ):
        row = leased(cron="@call psched_trouble:Hourly")
        end = after_run(row, row, Finish(), SETTINGS, NOON + 1)
        assert (end.next_time, end.wait, end.rest) == (None, 300, False)
        assert (end.attempt, end.decided_until) == (0, NOON)
        claimed = changed(row, next_time=None, attempt=1, decided_until=NOON)
        again = after_claim(claimed, SETTINGS, NOON + DAY)
        assert (again.next_time, again.attempt, again.decided_until) == (None, 0, NOON)

        late = after_claim(claimed, settings, NOON + 2.5 * HOUR)

        assert (late.next_time, late.attempt, late.skipped) == (NOON + HOUR, 0, ())
        assert late.decided_until is None
        on_time = after_claim(claimed, settings, NOON + 60)
        assert (on_time.next_time, on_time.not_before) == (NOON + HOUR, NOON + HOUR)

    def test_the_times_of_a_new_trigger_begin_when_the_task_ended(self, settings):
        row = leased("*/5 * * * *")
        current = changed(row, cron="@call psched_trouble:Hourly", version=4)

        end = after_run(row, current, Finish(), SETTINGS, NOON + HOUR + 0.5)

        [dropped] = end.skipped
        assert (dropped.fate, dropped.first, dropped.until) == (
            Fate.CANCELLED,
            NOON + 300,
            NOON + HOUR,
        )
        claimed = changed(current, next_time=None, decided_until=end.decided_until)
        assert after_claim(claimed, settings, NOON + 9 * HOUR).next_time == NOON + 2 * HOUR

    @pytest.mark.parametrize(
        ("decision", "fate"), [(Finish(), Fate.FINISHED), (Retry(5), Fate.CANCELLED)]
    )
    def test_a_time_that_a_client_has_set_meanwhile_is_kept(self, settings, decision, fate):
        row = leased(cron="@call psched_trouble:Hourly")
        moved = changed(row, next_time=NOON + DAY, version=4)

        end = after_run(row, moved, decision, SETTINGS, NOON + 1)

        assert (end.next_time, end.fate, end.wait, end.attempt) == (NOON + DAY, fate, 300, 0)
        claimed = changed(moved, attempt=end.attempt + 1, moved_at=end.moved_at)
        timed = after_claim(claimed, settings, NOON + 301)
        assert (timed.next_time, timed.not_before) == (NOON + DAY, NOON + DAY)

    def test_one_that_raises_or_is_none_is_quarantined_with_the_reason(self, settings):
        row = leased(cron="@call psched_trouble:Fickle", next_time=NOON + 60)
        settlement = after_run(row, row, Finish(), settings)
        assert (settlement.status, settlement.rest) == (QUARANTINED, True)
        assert settlement.next_time is None  # the last occurrence has run
        assert settlement.fate is Fate.FINISHED
        assert settlement.reason == (
            f"cron: next_at({NOON + 60}) of psched_trouble:Fickle raised OSError: the sea is away"
        )
        failed = after_run(row, row, Retry(), settings.with_settings(max_attempts=1))
        assert (failed.status, failed.next_time, failed.fate) == (QUARANTINED, None, Fate.GAVE_UP)
        late = after_claim(row, settings, NOON + DAY)
        assert (late.status, late.next_time) == (QUARANTINED, NOON + 60)
        row = leased(cron="@call psched_trouble:Missing")
        assert after_claim(row, settings, NOON).reason == (
            "cron: 'psched_trouble:Missing' is not a class with a method next_at(after)"
        )


LINES = ("* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *", "0 3 * * 1", "@every 90")


def missed(line, zone, cursor, until):
    """All occurrences after ``cursor``, up to ``until``; before them ``cursor`` itself."""
    each, found = trigger.parse(line, zone), [cursor]
    while (following := each.next_after(found[-1])) is not None and following <= until:
        found.append(following)
    return found


@given(
    line=st.sampled_from(LINES),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
    catchup=st.sampled_from(["all", "latest", "skip"]),
    limit=st.integers(1, 12),
    grace=st.sampled_from([0, 60, 4000]),
    window=st.sampled_from([0, 1, 300, 50_000]),
    jitter=st.sampled_from([0, 40, 5000]),
    delay=st.sampled_from([0, 1, 1000]),
    cursor=st.integers(NOON - 2 * DAY, NOON),
    late=st.integers(-100, 2 * DAY),
)
def test_what_is_kept_is_what_a_look_at_every_occurrence_finds(  # noqa: PLR0917  # by name
    line, zone, catchup, limit, grace, window, jitter, delay, cursor, late
):
    settings = options(
        catchup=catchup,
        catchup_limit=limit,
        catchup_grace=grace,
        catchup_window=window,
        jitter=jitter,
    )
    now = cursor + delay + late
    ready = now - delay - jitter
    occurrences = missed(line, zone, cursor, ready)
    newest = occurrences[-1]
    following = trigger.parse(line, zone).next_after(newest)
    if catchup != "skip":
        occurrences = occurrences[-limit:] if catchup == "all" else [newest]
        recent = [time for time in occurrences if not window or ready - time <= window]
        expected = (recent or [following])[0]
    elif ready - cursor <= grace:
        expected = cursor
    elif ready - newest <= grace:
        expected = newest
    else:
        expected = following
    row = leased(line, next_time=cursor, timezone=zone, delay=delay)
    verdict = after_claim(row, settings, now)
    if expected == cursor:
        assert isinstance(verdict, Run)
        assert verdict.scheduled_time == cursor
    else:
        assert verdict.next_time == expected
        assert expected + delay <= verdict.not_before <= expected + delay + jitter
        assert verdict.reason


class TestConclusion:
    def test_a_finished_occurrence_is_followed_by_the_next(self):
        row = leased(delay=10, attempt=4)
        assert after_run(row, row, Finish(), SETTINGS) == Settlement(
            key="k",
            token=row.token,
            version=row.version,
            next_time=NOON + MINUTE,
            not_before=NOON + MINUTE + 10,
            fate=Fate.FINISHED,
        )

    def test_the_next_one_is_counted_from_the_scheduled_time_and_not_from_now(self):
        row = leased(cron="0 0 * * *", next_time=NOON - 12 * HOUR, timezone="Asia/Tokyo")
        assert after_run(row, row, Finish(), SETTINGS).next_time == NOON + 3 * HOUR

    def test_a_finished_one_shot_rests(self):
        row = leased(cron=None)
        settlement = after_run(row, row, Finish(), SETTINGS)
        assert (settlement.rest, settlement.status) == (True, FINISHED)
        assert settlement.next_time == NOON

    def test_after_the_last_occurrence_a_schedule_rests(self):
        row = leased(cron=f"@every {DAY}", next_time=LATEST_TIME // DAY * DAY)
        settlement = after_run(row, row, Finish(), SETTINGS)
        assert (settlement.rest, settlement.status) == (True, FINISHED)

    def test_a_failed_occurrence_is_tried_again_after_retry_wait(self):
        row = leased(attempt=2)
        assert after_run(row, row, Retry(reason="ZeroDivisionError: é"), SETTINGS) == Settlement(
            key="k",
            token=row.token,
            version=row.version,
            next_time=NOON,
            wait=300,
            attempt=2,
            reason="ZeroDivisionError: é",
            reason_code=ReasonCode.ATTEMPT_FAILED,
        )

    @pytest.mark.parametrize(("wait", "seconds"), [(0, 0), (0.2, 1), (7, 7), (7.0, 7), (7.01, 8)])
    def test_a_wait_of_its_own_is_never_cut_short(self, wait, seconds):
        assert after_run(leased(), leased(), Retry(wait), SETTINGS).wait == seconds

    def test_a_schedule_may_have_a_retry_wait_of_its_own(self):
        row = leased(options='{"retry_wait":5}')
        assert after_run(row, row, Retry(), SETTINGS).wait == 5

    def test_a_reason_is_short_and_in_one_line(self):
        reason = "Error: \x1b[31m\nTraceback\x00" + "x" * 1000
        settlement = after_run(leased(), leased(), Retry(reason=reason), SETTINGS)
        assert settlement.reason.isprintable()
        assert len(settlement.reason) <= 500

    def test_a_release_is_no_try(self):
        row = leased(attempt=2)
        settlement = after_run(row, row, Release(), SETTINGS)
        assert (settlement.next_time, settlement.wait, settlement.attempt) == (NOON, 0, 1)
        assert (settlement.status, settlement.rest) == (WAITING, False)
        row = leased(attempt=1)
        assert after_run(row, row, Release(), SETTINGS).attempt == 0


class TestRedefinition:
    """Tests that a definition which was changed while the task ran determines the next run."""

    def test_the_next_time_comes_from_the_new_trigger(self):
        row = leased(cron="* * * * *")
        current = changed(row, cron="0 * * * *", delay=5, version=4)
        settlement = after_run(row, current, Finish(), SETTINGS)
        assert (settlement.next_time, settlement.not_before) == (NOON + HOUR, NOON + HOUR + 5)
        assert settlement.version == 4

    @pytest.mark.parametrize(
        ("before", "after", "now", "next_time"),
        [
            # The backlog continues from the occurrence that ran, not from now.
            ("*/5 * * * *", "*/10 * * * *", NOON + DAY, NOON + 5 * MINUTE),
            ("*/10 * * * *", "*/5 * * * *", NOON + DAY, NOON + 5 * MINUTE),
            ("0 0 1 1 *", "* * * * *", NOON + DAY, NOON + MINUTE),
            ("* * * * *", "0 * * * *", NOON + MINUTE, NOON + MINUTE),
            # Later times of the old trigger are not scheduled any more.
            ("* * * * *", "0 * * * *", NOON + MINUTE - 1, NOON + HOUR),
        ],
    )
    def test_in_perfectscheds_table_nothing_that_was_due_is_dropped(
        self, before, after, now, next_time
    ):
        row = leased(cron=before)
        current = changed(row, cron=after, delay=5, version=4)
        settlement = after_run(row, current, Finish(), COMPAT, now)
        assert (settlement.next_time, settlement.not_before) == (next_time, next_time + 5)
        assert "while 2027-01-15T12:00:00Z ran, its trigger was changed from" in settlement.reason
        assert settlement.reason.endswith(f": it goes on with {iso(next_time)}")
        same = after_run(row, changed(row, delay=5, version=4), Finish(), COMPAT, now)
        assert same.reason is None

    def test_in_perfectscheds_table_a_schedule_that_has_become_a_one_shot_rests(self):
        row = leased()
        settlement = after_run(row, changed(row, cron=None, version=4), Finish(), COMPAT, NOON + 1)
        assert (settlement.status, settlement.rest) == (FINISHED, True)
        assert settlement.reason.endswith(": it rests")

    def test_a_one_shot_may_become_a_schedule_and_a_schedule_a_one_shot(self):
        row = leased(cron=None)
        current = changed(row, cron="0 * * * *", version=4)
        assert after_run(row, current, Finish(), SETTINGS).next_time == NOON + HOUR
        row = leased()
        current = changed(row, cron=None, version=4)
        assert after_run(row, current, Finish(), SETTINGS).status == FINISHED

    @pytest.mark.parametrize("decision", [Finish(), Retry(), Release()])
    def test_a_next_time_that_was_set_meanwhile_stands(self, decision):
        row = leased(attempt=3)
        current = changed(row, next_time=NOON + DAY, version=4)
        settlement = after_run(row, current, decision, SETTINGS)
        assert (settlement.next_time, settlement.not_before) == (NOON + DAY, NOON + DAY)
        assert (settlement.attempt, settlement.wait, settlement.version) == (0, 0, 4)

    def test_a_time_that_was_set_to_itself_meanwhile_begins_its_attempts_anew(self):
        """A client that sets ``next_time`` during a lease also sets ``moved_at``."""
        row = leased(attempt=3)
        moved = changed(row, attempt=0, moved_at=NOON, version=4)
        settlement = after_run(row, moved, Retry(), SETTINGS)
        assert (settlement.next_time, settlement.wait, settlement.attempt) == (NOON, 300, 0)
        assert settlement.moved_at == NOON

    def test_a_row_without_a_time_that_is_released_knows_until_when_it_is_decided(self):
        row = leased(next_time=None, decided_until=NOON)
        settlement = after_run(row, row, Release(), SETTINGS)
        assert (settlement.next_time, settlement.attempt) == (None, 0)
        assert settlement.decided_until == NOON

    def test_a_next_time_that_was_wiped_out_meanwhile_loses_nothing(self):
        """Somebody has set ``next_time`` to NULL by plain SQL; psched then computes it again."""
        row = leased()
        current = changed(row, next_time=None, version=4)
        settlement = after_run(row, current, Finish(), SETTINGS)
        assert (settlement.next_time, settlement.status) == (NOON + MINUTE, WAITING)

    def test_a_payload_that_makes_no_sense_is_quarantined_with_what_the_runner_says(self):
        row = leased()
        settlement = after_run(row, row, Quarantine("data: is not\x1b JSON"), SETTINGS)
        assert (settlement.status, settlement.rest) == (QUARANTINED, True)
        assert settlement.reason == "data: is not\\x1b JSON"
        assert settlement.next_time == row.next_time

    def test_a_payload_that_was_changed_meanwhile_is_looked_at_again(self):
        row = leased(attempt=3)
        mended = changed(row, data='{"a":1}', version=4)
        settlement = after_run(row, mended, Quarantine("data: is not JSON"), SETTINGS, NOON)
        assert (settlement.status, settlement.wait, settlement.attempt) == (WAITING, 0, 2)

    @pytest.mark.parametrize("decision", [Finish(), Retry(), Release()])
    def test_a_definition_that_makes_no_sense_any_more_is_quarantined(self, decision):
        row = leased()
        settlement = after_run(row, changed(row, cron="x", version=4), decision, SETTINGS)
        assert (settlement.status, settlement.rest, settlement.version) == (QUARANTINED, True, 4)

    @pytest.mark.parametrize("decision", [Finish(), Retry(), Release()])
    def test_a_row_that_was_deleted_meanwhile_is_removed(self, decision):
        row = leased()
        current = changed(row, status=DELETING, cron="x", version=4)
        settlement = after_run(row, current, decision, SETTINGS)
        assert settlement.remove
        assert settlement.version == 4

    def test_a_payload_that_the_task_has_replaced_changes_nothing_else(self):
        row = leased(attempt=2)
        current = changed(row, data='{"page":2}', version=4)
        for decision in (Finish(), Retry(), Release()):
            assert after_run(row, current, decision, SETTINGS) == changed(
                after_run(row, row, decision, SETTINGS), version=4
            )


ONCE = {"cron": None, "created_at": NOON - 5}
RETENTION = SETTINGS.retention_time


class TestEnding:
    """Tests of a leased row that somebody has cancelled or finished by force."""

    MARKS = pytest.mark.parametrize(
        ("mark", "status"), [(CANCELLING, CANCELLED), (FINISHING, FINISHED)]
    )

    @MARKS
    def test_who_finds_it_marked_after_its_holder_died_runs_nothing(self, mark, status):
        for cron, retain in ((None, RETENTION), ("* * * * *", None)):
            settlement = after_claim(leased(cron, status=mark), SETTINGS, NOON)
            assert isinstance(settlement, Settlement)
            assert (settlement.status, settlement.rest, settlement.retain) == (status, True, retain)
            assert settlement.next_time == NOON
            assert not settlement.remove

    @MARKS
    @pytest.mark.parametrize("decision", [Retry(reason="stopped"), Release()])
    def test_a_task_that_was_stopped_for_it_ends_as_it_was_to(self, mark, status, decision):
        row = leased(**ONCE)
        current = changed(row, status=mark, version=4)
        settlement = after_run(row, current, decision, SETTINGS)
        assert (settlement.status, settlement.rest, settlement.version) == (status, True, 4)
        assert settlement.retain == RETENTION

    @MARKS
    def test_a_task_that_completes_first_has_finished(self, mark, status):
        row = leased(**ONCE)
        current = changed(row, status=mark, version=4)
        settlement = after_run(row, current, Finish(), SETTINGS)
        assert (settlement.status, settlement.retain) == (FINISHED, RETENTION)
        # The mark still applies to a schedule, because it has further occurrences.
        row = leased()
        current = changed(row, status=mark, version=4)
        settlement = after_run(row, current, Finish(), SETTINGS)
        assert (settlement.status, settlement.rest, settlement.retain) == (status, True, None)

    @MARKS
    def test_no_limit_hides_the_mark(self, mark, status):
        row = leased(**ONCE, status=mark, attempt=9)
        for settings in (options(max_attempts=3), options(expire=1)):
            assert after_claim(row, settings, NOON + DAY).status == status


class TestStatusesOfOtherClients:
    """Tests of rows whose status somebody has set by plain SQL, without other columns."""

    SET_BY_SQL = pytest.mark.parametrize("status", sorted(ENDED))

    @SET_BY_SQL
    @pytest.mark.parametrize("data", ["{}", "no JSON"])
    def test_what_has_ended_comes_to_rest(self, status, data):
        row = leased(**ONCE, status=status, data=data, reason="by hand", attempt=4)
        end = after_claim(row, SETTINGS, NOON)
        assert (end.status, end.rest, end.reason, end.seen_status) == (
            status, True, "by hand", status,
        )  # fmt: skip
        # The row is retained as after `cancel`, but a failed row stays until somebody deletes it.
        assert end.retain == (None if status == FAILED else RETENTION)
        assert end.attempt == (0 if status == FINISHED else 3)
        assert after_claim(changed(row, cron="* * * * *"), SETTINGS, NOON).retain is None
        own = changed(row, data="{}", options='{"retention_time": 9}')
        assert after_claim(own, SETTINGS, NOON).retain == (None if status == FAILED else 9)

    @pytest.mark.parametrize("status", sorted(SET_ASIDE))
    def test_what_is_set_aside_rests_where_it_stands(self, status):
        row = leased(**ONCE, status=status, reason="by hand", attempt=4)
        end = after_claim(row, SETTINGS, NOON)
        assert (end.status, end.rest, end.retain, end.reason) == (status, True, None, "by hand")
        assert (end.next_time, end.attempt) == (NOON, 3)

    @pytest.mark.parametrize("status", ["", "Cancelled", "running", "nonsense", "waiting "])
    def test_an_unknown_word_is_quarantined_whenever_it_is_seen(self, status):
        row = leased(status=status)
        for end in (
            after_claim(row, SETTINGS, NOON),
            *(after_run(leased(), row, how, SETTINGS) for how in (Finish(), Retry(), Release())),
        ):
            assert (end.status, end.rest, end.seen_status) == (QUARANTINED, True, None)
            assert end.reason.startswith(f"status: {status!r} is unknown; there are cancelled, ")

    @SET_BY_SQL
    def test_a_task_that_was_stopped_for_it_ends_as_it_was_to(self, status):
        row = leased(**ONCE)
        current = changed(row, status=status, data="no JSON")
        for decision in (Retry(reason="stopped"), Release()):
            end = after_run(row, current, decision, SETTINGS)
            assert (end.status, end.rest, end.seen_status) == (status, True, status)
        assert after_run(row, changed(row, status=status), Finish(), SETTINGS).status == FINISHED

    def test_a_running_task_may_end_and_then_the_row_is_paused(self):
        row = leased(attempt=2)
        current = changed(row, status=PAUSED)
        end = after_run(row, current, Finish(), SETTINGS)
        assert (end.status, end.rest, end.next_time) == (PAUSED, True, NOON + MINUTE)
        end = after_run(row, current, Retry(reason="ValueError"), SETTINGS)
        assert (end.status, end.rest, end.next_time, end.attempt) == (PAUSED, True, NOON, 2)
        assert end.reason == "ValueError"
        once = leased(**ONCE)
        end = after_run(once, changed(once, status=PAUSED), Finish(), SETTINGS)
        assert (end.status, end.retain) == (FINISHED, RETENTION)


class TestGivingUp:
    def test_a_task_that_used_up_its_attempts_has_failed_and_is_never_purged(self):
        row, settings = leased(**ONCE, attempt=3), options(max_attempts=3)
        settlement = after_run(row, row, Retry(reason="ValueError: x"), settings)
        assert (settlement.status, settlement.rest, settlement.retain) == (FAILED, True, None)
        assert settlement.attempt == 3
        assert settlement.reason == "gave up after 3 attempts: ValueError: x"
        assert settlement.reason_code == ReasonCode.GAVE_UP

    def test_before_that_it_is_tried_again(self):
        row, settings = leased(**ONCE, attempt=2), options(max_attempts=3)
        settlement = after_run(row, row, Retry(), settings)
        assert (settlement.status, settlement.wait, settlement.attempt) == (WAITING, 300, 2)
        assert isinstance(after_claim(applied(settlement, row), settings, NOON), Run)

    def test_a_wait_that_the_handler_asked_for_is_no_further_attempt(self):
        row, settings = leased(**ONCE, attempt=3), options(max_attempts=3)
        assert after_run(row, row, Retry(5), settings).status == FAILED

    def test_a_release_uses_up_nothing(self):
        row, settings = leased(**ONCE, attempt=3), options(max_attempts=3)
        settlement = after_run(row, row, Release(), settings)
        assert (settlement.status, settlement.attempt) == (WAITING, 2)
        assert isinstance(after_claim(applied(settlement, row), settings, NOON), Run)

    def test_a_schedule_goes_on_to_its_next_occurrence(self):
        row, settings = leased(attempt=2, delay=7), options(max_attempts=2)
        settlement = after_run(row, row, Retry(reason="x"), settings)
        assert (settlement.status, settlement.rest, settlement.attempt) == (WAITING, False, 0)
        assert (settlement.next_time, settlement.not_before) == (NOON + MINUTE, NOON + MINUTE + 7)
        assert settlement.reason == "2027-01-15T12:00:00Z: gave up after 2 attempts: x"

    def test_what_lost_its_worker_in_the_last_attempt_is_given_up_when_it_is_claimed(self):
        settings = options(max_attempts=2)
        settlement = after_claim(leased(**ONCE, attempt=3), settings, NOON)
        assert (settlement.status, settlement.rest, settlement.retain) == (FAILED, True, None)
        settlement = after_claim(leased(attempt=3), settings, NOON)
        assert (settlement.status, settlement.next_time) == (WAITING, NOON + MINUTE)
        assert "its worker died in the last of 2" in settlement.reason

    def test_a_row_may_have_a_number_of_its_own(self):
        row = leased(**ONCE, attempt=1, options='{"max_attempts":1}')
        assert after_run(row, row, Retry(), SETTINGS).status == FAILED

    def test_what_has_expired_is_not_run_and_is_purged_later(self):
        row = leased(**ONCE)
        assert isinstance(after_claim(row, options(expire=HOUR), NOON + HOUR - 1), Run)
        settlement = after_claim(row, options(expire=HOUR), NOON + HOUR)
        assert (settlement.status, settlement.rest) == (EXPIRED, True)
        assert settlement.retain == RETENTION
        assert settlement.reason.startswith("expired")
        assert settlement.reason_code == ReasonCode.EXPIRED

    def test_a_success_comes_never_too_late(self):
        row = leased(**ONCE)
        assert after_run(row, row, Finish(), options(expire=1), NOON + DAY).status == FINISHED

    def test_a_failure_is_followed_by_a_wait_that_grows(self):
        settings = options(retry_backoff="exponential", retry_wait=100)
        for attempt in (1, 4):
            row = leased(attempt=attempt)
            wait = after_run(row, row, Retry(), settings).wait
            assert 50 * 2 ** (attempt - 1) < wait <= 100 * 2 ** (attempt - 1)


class TestRetention:
    def test_what_runs_once_is_kept_for_its_retention_time(self):
        row = leased(**ONCE)
        assert after_run(row, row, Finish(), SETTINGS).retain == RETENTION
        assert not after_run(row, row, Finish(), SETTINGS).remove
        row = leased(**ONCE, options='{"retention_time":7}')
        assert after_run(row, row, Finish(), SETTINGS).retain == 7

    @pytest.mark.parametrize("mark", [None, CANCELLING, FINISHING])
    def test_with_no_retention_time_what_runs_once_goes_as_it_ends(self, mark):
        row = leased(**ONCE, status=mark or WAITING)
        assert after_run(row, row, Finish(), options(retention_time=0)).remove
        expired = after_claim(leased(**ONCE), options(retention_time=0, expire=HOUR), NOON + HOUR)
        assert (expired.remove, expired.reason[:7]) == (True, "expired")

    def test_with_no_retention_time_all_else_is_kept(self):
        settings = options(retention_time=0, max_attempts=1)
        row = leased(**ONCE)
        assert not after_run(row, row, Retry(), settings).remove
        assert not after_run(leased(), leased(), Finish(), settings).remove
        last = leased(cron=f"@every {DAY}", next_time=LATEST_TIME // DAY * DAY)
        assert not after_run(last, last, Finish(), settings).remove

    def test_a_schedule_that_ended_is_kept(self):
        row = leased(cron=f"@every {DAY}", next_time=LATEST_TIME // DAY * DAY)
        settlement = after_run(row, row, Finish(), SETTINGS)
        assert (settlement.status, settlement.retain) == (FINISHED, None)

    def test_what_goes_on_or_is_quarantined_is_kept(self):
        for row, decision in ((leased(), Finish()), (leased(**ONCE), Retry())):
            assert after_run(row, row, decision, SETTINGS).retain is None
        assert after_claim(leased(cron="x"), SETTINGS, NOON).retain is None
