"""Tests of what becomes of occurrences: every way in which a lease can end."""

import sys
from dataclasses import replace as changed

import pytest

from psched import config
from psched.base.loader import loading_by
from psched.core.history.recording import Recorder, StoreClock
from psched.core.history.records import FOREVER, MOST_COUNTED, Attempt, Fate, Outcome, Skipped
from psched.core.model import (
    CANCELLED,
    CANCELLING,
    DELETING,
    EXPIRED,
    FAILED,
    FINISHED,
    FINISHING,
    MIGRATING,
    PAUSED,
    QUARANTINED,
    STOPPING,
    WAITING,
    Finish,
    Quarantine,
    Release,
    Retry,
    Row,
    Settlement,
)
from psched.core.policy import after_claim, after_run
from psched.testing import ManualClock
from psched.triggers.custom import load_here

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})
NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""
MINUTE, HOUR = 60, 3600

ENDING = """
class Ending:
    def next_at(self, after):
        later = (after // 60 + 1) * 60
        return later if later <= 1_800_014_400 + 120 else None
"""
"""A trigger that ends two minutes after noon."""

RETRY = Retry(reason="ValueError: no")
OUTCOMES = {
    Outcome.FINISHED: Finish(),
    Outcome.FAILED: RETRY,
    Outcome.TIMED_OUT: Retry(reason="stopped at its time limit"),
    Outcome.CANCELLED: Release(),
    Outcome.RELEASED: Release(),
    Outcome.LOST: Retry(0, "its fork server died"),
    Outcome.PREEMPTED: Release(),
}


def leased(cron="* * * * *", next_time=NOON, **columns):
    usual = {"owner": "w.1", "fence": 7, "attempt": 1, "version": 3, "next_run_time": next_time}
    return Row(key="k", cron=cron, next_time=next_time, **{**usual, **columns})


def options(**given):
    return SETTINGS.with_settings(**given)


def recorded(row, end, outcome, *, history="all"):
    """The records of an end of a lease."""
    recorder = Recorder(host="h", generation=2, clock=StoreClock(ManualClock()))
    attempt = outcome and Attempt(
        outcome=outcome, pid=9, started=(NOON - 5) * 1000, ended=(NOON + 9) * 1000
    )
    return recorder.records_of(end, row, attempt, history=history)


def fate_after_run(decision, row=None, current=None, now=NOON + 1, **settings):
    row = leased() if row is None else row
    return after_run(
        row, row if current is None else current, decision, options(**settings), now
    ).fate


@pytest.mark.parametrize("outcome", Outcome)
def test_an_attempt_that_is_not_the_last_has_an_outcome_and_only_a_finished_one_a_fate(outcome):
    row = leased()
    end = after_run(row, row, OUTCOMES[outcome], SETTINGS, NOON + 1)
    fate = Fate.FINISHED if outcome is Outcome.FINISHED else None
    assert end.fate is fate
    [record] = recorded(row, end, outcome)
    assert (record.outcome, record.fate) == (outcome, fate)
    assert (record.scheduled_time, record.owner, record.fence) == (NOON, "w.1", 7)
    assert (record.attempt, record.pid, record.generation, record.host) == (1, 9, 2, "h")
    assert record.due == NOON * 1000
    assert (record.started, record.ended) == ((NOON - 5) * 1000, (NOON + 9) * 1000)


@pytest.mark.parametrize("cron", [None, "* * * * *"])
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST])
def test_the_last_allowed_attempt_gives_the_occurrence_up(cron, outcome):
    row = leased(cron, attempt=3)
    end = after_run(row, row, OUTCOMES[outcome], options(max_attempts=3), NOON + 1)
    [record] = recorded(row, end, outcome)
    assert (record.outcome, record.fate) == (outcome, Fate.GAVE_UP)


@pytest.mark.parametrize("decision", [Release(), Retry(), Retry(7)])
def test_what_is_interrupted_or_tried_again_has_no_fate(decision):
    assert fate_after_run(decision) is None


@pytest.mark.parametrize("cron", [None, "* * * * *"])
def test_an_occurrence_whose_worker_died_in_its_last_attempt_is_given_up(cron):
    row = leased(cron, attempt=4)
    end = after_claim(row, options(max_attempts=3), NOON + 1)
    assert end.fate is Fate.GAVE_UP
    [record] = recorded(row, end, None)
    assert (record.outcome, record.attempt, record.fate) == (None, 0, Fate.GAVE_UP)


def test_a_one_shot_expires():
    row = leased(None, attempt=1, created_at=NOON - HOUR)
    end = after_claim(row, options(expire=60), NOON + HOUR)
    assert (end.status, end.fate) == (EXPIRED, Fate.EXPIRED)


@pytest.mark.parametrize(
    ("mark", "fate"),
    [
        (CANCELLING, Fate.CANCELLED), (DELETING, Fate.CANCELLED), (FINISHING, Fate.FINISHED),
        (CANCELLED, Fate.CANCELLED), (FINISHED, Fate.FINISHED), (EXPIRED, Fate.EXPIRED),
        (FAILED, Fate.GAVE_UP),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cron", [None, "* * * * *"])
def test_a_mark_decides_unless_the_run_has_succeeded(cron, mark, fate):
    row = leased(cron)
    marked = changed(row, status=mark, version=4)
    for decision in Release(), RETRY:
        assert fate_after_run(decision, row, marked) is fate
    assert fate_after_run(Finish(), row, marked) is Fate.FINISHED
    # The worker of a marked row has died.
    assert after_claim(marked, SETTINGS, NOON + 1).fate is fate


@pytest.mark.parametrize("status", [PAUSED, QUARANTINED, MIGRATING])
def test_a_row_that_was_set_aside_while_it_ran_keeps_its_occurrence(status):
    row = leased()
    aside = changed(row, status=status, version=4)
    assert fate_after_run(Finish(), row, aside) is Fate.FINISHED
    assert fate_after_run(RETRY, row, aside) is None
    assert after_claim(aside, SETTINGS, NOON + 1).fate is None


def test_an_invalid_row_is_quarantined_unless_its_run_has_succeeded():
    bad = leased("nonsense")
    assert after_claim(bad, SETTINGS, NOON).fate is Fate.QUARANTINED
    row = leased()
    spoilt = changed(row, cron="nonsense", version=4)
    assert fate_after_run(RETRY, row, spoilt) is Fate.QUARANTINED
    assert fate_after_run(Finish(), row, spoilt) is Fate.FINISHED
    unknown = changed(row, status="unheard of")
    assert fate_after_run(RETRY, row, unknown) is Fate.QUARANTINED
    assert fate_after_run(Finish(), row, unknown) is Fate.FINISHED


def test_an_invalid_payload_is_quarantined():
    row = leased()
    assert fate_after_run(Quarantine("data: is no JSON")) is Fate.QUARANTINED
    # The payload was corrected meanwhile, so the occurrence runs again.
    assert fate_after_run(Quarantine("x"), row, changed(row, version=4)) is None


def test_a_run_that_was_to_be_stopped_ends_its_occurrence():
    for cron, status, fate in (
        ("* * * * *", WAITING, Fate.STOPPED), (None, CANCELLED, Fate.CANCELLED),
    ):  # fmt: skip
        row = leased(cron)
        stopped = changed(row, status=STOPPING, reason="stopped by ann@web1: it hangs", version=4)
        for decision in Release(), RETRY:
            end = after_run(row, stopped, decision, SETTINGS, NOON + 1)
            assert (end.status, end.fate, end.reason) == (status, fate, stopped.reason)
            assert end.seen_status == STOPPING
        done = after_run(row, stopped, Finish(), SETTINGS, NOON + 1)
        assert (done.fate, done.reason, done.seen_status) == (Fate.FINISHED, None, STOPPING)
        # The worker of a run that is being stopped has died.
        assert after_claim(stopped, SETTINGS, NOON + 1).fate is fate


def test_a_run_that_was_to_be_stopped_does_not_hide_that_its_row_is_invalid():
    row = leased()
    spoilt = changed(row, cron="nonsense", status=STOPPING, reason="stopped by ann", version=4)
    end = after_run(row, spoilt, RETRY, SETTINGS, NOON + 1)
    assert (end.status, end.fate, end.reason[:6]) == (QUARANTINED, Fate.STOPPED, "cron: ")


@pytest.mark.parametrize(
    ("decision", "fate"),
    [(Finish(), Fate.FINISHED), (RETRY, Fate.CANCELLED), (Release(), Fate.CANCELLED)],
)
def test_a_time_that_a_client_has_moved_cancels_what_has_not_succeeded(decision, fate):
    row = leased()
    moved = changed(row, next_time=NOON + HOUR, version=4)
    end = after_run(row, moved, decision, SETTINGS, NOON + 1)
    assert (end.fate, end.next_time) == (fate, NOON + HOUR)


def test_a_trigger_that_cannot_be_loaded_leaves_the_occurrence_to_others():
    row = leased("@call psched_missing:Trigger")
    assert after_claim(row, SETTINGS, NOON).fate is None
    assert fate_after_run(RETRY, row) is None
    assert fate_after_run(Finish(), row) is Fate.FINISHED


def test_a_one_shot_has_finished():
    row = leased(None)
    end = after_run(row, row, Finish(), SETTINGS, NOON)
    assert (end.status, end.fate, end.rest) == (FINISHED, Fate.FINISHED, True)


class TestChangedTrigger:
    def skipped(self, before, after, now):
        row = leased(before)
        current = changed(row, cron=after, version=4)
        end = after_run(row, current, Finish(), SETTINGS, now)
        assert end.fate is Fate.FINISHED
        return end, end.skipped

    def test_the_times_of_the_old_one_that_have_passed_are_cancelled(self):
        end, [dropped] = self.skipped("* * * * *", "0 * * * *", NOON + 150.5)
        assert end.next_time == NOON + HOUR
        assert (dropped.fate, dropped.first, dropped.until, dropped.count) == (
            Fate.CANCELLED,
            NOON + MINUTE,
            NOON + 150,
            None,
        )

    def test_nothing_is_dropped_if_nothing_has_passed(self):
        assert self.skipped("* * * * *", "0 * * * *", NOON + 30)[1] == ()

    def test_the_old_ones_occurrence_at_this_very_instant_is_cancelled(self):
        _, [dropped] = self.skipped("* * * * *", "0 * * * *", NOON + MINUTE)
        assert (dropped.first, dropped.until) == (NOON + MINUTE, NOON + MINUTE)

    def test_the_new_ones_occurrence_a_second_ago_is_left_out(self):
        end, [dropped] = self.skipped("* * * * *", "0 * * * *", NOON + HOUR + 1)
        assert (end.next_time, dropped.until) == (NOON + 2 * HOUR, NOON + HOUR + 1)

    def test_the_old_ones_occurrence_a_second_before_the_new_ones_is_cancelled(self):
        end, [dropped] = self.skipped("@every 60 +59", "* * * * *", NOON + MINUTE)
        assert end.next_time == NOON + MINUTE
        assert (dropped.first, dropped.until) == (NOON + 59, NOON + 59)

    def test_the_new_ones_occurrence_at_this_very_instant_is_not_dropped(self):
        end, [dropped] = self.skipped("* * * * *", "*/2 * * * *", NOON + 2 * MINUTE)
        assert end.next_time == NOON + 2 * MINUTE
        assert dropped.until < end.next_time
        assert self.skipped("* * * * *", "* * * * 5", NOON + MINUTE)[1] == ()


class TestDropped:
    def drop(self, now, row=None, **settings):
        end = after_claim(leased() if row is None else row, options(**settings), now)
        assert isinstance(end, Settlement)
        assert end.fate is None
        assert end.next_time is None or all(each.until < end.next_time for each in end.skipped)
        return end.skipped

    @staticmethod
    def seen(skipped):
        return [
            (each.fate, (each.first - NOON) // 60, (each.until - NOON) // 60, each.count)
            for each in skipped
        ]

    def test_by_skip(self):
        found = self.drop(NOON + 10.5 * MINUTE, catchup="skip", catchup_grace=5)
        assert self.seen(found) == [(Fate.SKIPPED_CATCHUP, 0, 10, 11)]

    def test_by_latest(self):
        found = self.drop(NOON + 10.5 * MINUTE, catchup="latest")
        assert self.seen(found) == [(Fate.COALESCED, 0, 9, 10)]

    def test_by_the_limit(self):
        found = self.drop(NOON + 10.5 * MINUTE, catchup_limit=4)
        assert self.seen(found) == [(Fate.SKIPPED_CATCHUP, 0, 6, 7)]

    def test_by_the_window(self):
        found = self.drop(NOON + 10.5 * MINUTE, catchup_window=150)
        assert self.seen(found) == [(Fate.SKIPPED_CATCHUP, 0, 7, 8)]

    def test_by_an_overlap(self):
        """The run of 11:59 has ended 5.5 minutes after noon, and the row was claimed at once."""
        row = leased(next_run_time=NOON + 330)
        found = self.drop(NOON + 330, row, catchup="skip", catchup_grace=5)
        assert self.seen(found) == [(Fate.SKIPPED_OVERLAP, 0, 5, 6)]

    def test_by_an_overlap_and_after_it_because_no_worker_was_alive(self):
        row = leased(next_run_time=NOON + 330)
        found = self.drop(NOON + 20.5 * MINUTE, row, catchup="skip", catchup_grace=5)
        assert self.seen(found) == [
            (Fate.SKIPPED_OVERLAP, 0, 5, 6),
            (Fate.SKIPPED_CATCHUP, 6, 20, 15),
        ]

    def test_by_an_overlap_of_a_schedule_with_a_delay(self):
        row = leased(next_run_time=NOON + 330, delay=60)
        found = self.drop(NOON + 330, row, catchup="skip", catchup_grace=5)
        assert self.seen(found) == [(Fate.SKIPPED_OVERLAP, 0, 4, 5)]
        found = self.drop(NOON + 20.5 * MINUTE, row, catchup="skip", catchup_grace=5)
        assert self.seen(found) == [
            (Fate.SKIPPED_OVERLAP, 0, 4, 5),
            (Fate.SKIPPED_CATCHUP, 5, 19, 15),
        ]

    def test_if_it_is_not_known_when_the_row_fell_due(self):
        row = leased(next_run_time=None)
        found = self.drop(NOON + 330, row, catchup="skip", catchup_grace=5)
        assert [each.fate for each in found] == [Fate.SKIPPED_CATCHUP]

    def test_a_long_span_is_not_counted_and_has_an_end(self):
        [found] = self.drop(NOON + 1000.5 * MINUTE, catchup="latest")
        assert (found.count, found.until) == (None, NOON + 999 * MINUTE)
        [found] = self.drop(NOON + MOST_COUNTED * MINUTE, catchup="latest")
        assert (found.count, found.until) == (MOST_COUNTED, NOON + (MOST_COUNTED - 1) * MINUTE)

    def test_the_last_occurrences_of_a_users_trigger_are_not_counted(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "path", [*sys.path])
        (tmp_path / "psched_ending.py").write_text(ENDING)
        row, given = leased("@call psched_ending:Ending"), {"load_path": str(tmp_path)}
        with loading_by(load_here):
            [found] = self.drop(NOON + 10.5 * MINUTE, row, catchup="latest", **given)
            assert (found.first, found.until, found.count) == (NOON, NOON + 119, None)
            end = after_claim(row, options(catchup_window=60, **given), NOON + HOUR)
        assert (end.status, end.fate, end.rest) == (FINISHED, None, True)
        [found] = end.skipped
        assert (found.first, found.until) == (NOON, NOON + HOUR)
        sys.modules.pop("psched_ending", None)


def test_a_span_is_one_record_and_neither_an_attempt_nor_an_outcome():
    row = leased()
    end = after_claim(row, options(catchup="latest"), NOON + 10.5 * MINUTE)
    [record] = recorded(row, end, None)
    assert (record.scheduled_time, record.until, record.count) == (NOON, NOON + 9 * MINUTE, 10)
    assert (record.outcome, record.attempt, record.started) == (None, 0, None)
    assert record.covers(NOON + MINUTE)
    assert not record.covers(NOON + 10 * MINUTE)


def test_the_record_of_one_occurrence_has_no_until_and_that_of_an_endless_span_has_forever():
    row, end = leased(), Settlement.of(leased())
    one = Skipped(fate=Fate.COALESCED, first=NOON, until=NOON, count=1)
    endless = Skipped(fate=Fate.COALESCED, first=NOON, until=None, count=None)
    found = recorded(row, changed(end, skipped=(one, endless)), None)
    assert [record.until for record in found] == [None, FOREVER]


@pytest.mark.parametrize(
    ("outcome", "decision", "history", "kept"),
    [
        (Outcome.FINISHED, Finish(), "failures", 0),
        (Outcome.RELEASED, Release(), "failures", 0),
        (Outcome.FAILED, RETRY, "failures", 1),
        (Outcome.LOST, RETRY, "failures", 1),
        (Outcome.FAILED, RETRY, "none", 0),
        (Outcome.RELEASED, Release(), "all", 1),
    ],
)
def test_the_setting_decides_which_records_are_kept(outcome, decision, history, kept):
    row = leased()
    end = after_run(row, row, decision, SETTINGS, NOON + 1)
    assert len(recorded(row, end, outcome, history=history)) == kept


def test_failures_include_what_never_ran():
    row = leased()
    end = after_claim(row, options(catchup="latest"), NOON + 10.5 * MINUTE)
    assert len(recorded(row, end, None, history="failures")) == 1
    assert recorded(row, end, None, history="none") == ()


def test_a_lease_that_only_gives_the_row_its_time_leaves_no_record():
    row = leased(next_time=None, next_run_time=None)
    assert recorded(row, after_claim(row, SETTINGS, NOON), None) == ()
