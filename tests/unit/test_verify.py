"""What the checker of the run history says about histories that are written by hand."""

import json
from dataclasses import replace as changed
from math import inf
from operator import attrgetter

import pytest

from psched import config
from psched.client.verifier import Verifier
from psched.core.history.changes import Gap, ranges
from psched.core.history.records import FOREVER, AuditRecord, RunRecord, WorkerRecord
from psched.core.model import Row
from psched.reports import verify
from psched.reports.verify import Period, Recorded, check
from psched.testing import Schedules

SETTINGS = config.from_mapping({"url": "sqlite:///unused.db"})

NOON = 1_800_014_400
"""2027-01-15T12:00:00Z."""

MINUTE, HOUR = 60, 3600

START = NOON - HOUR


def row(minutes=10, **columns):
    """A row that has run every minute since noon, and runs next so many minutes after noon."""
    given = {
        "key": "k",
        "cron": "* * * * *",
        "timezone": "UTC",
        "next_time": NOON + minutes * MINUTE,
        "fence": minutes,
        "created_at": NOON,
        **columns,
    }
    return Row(**given)


def once(status="finished", **columns):
    """A row that runs once, at noon."""
    given = {"cron": None, "next_time": NOON, "fence": 1, "status": status, **columns}
    return row(**given)


def run(minute=0, fence=None, **fields):
    """A record of a run that was due so many minutes after noon, and took ten seconds."""
    fence = minute + 1 if fence is None else fence
    time = NOON + minute * MINUTE
    began = fields.pop("at", time) * 1000
    given = {
        "key": "k",
        "type": "default",
        "scheduled_time": time,
        "owner": f"w.{fence}",
        "fence": fence,
        "attempt": 1,
        "due": time * 1000,
        "started": began,
        "ended": began + 10_000,
        "outcome": "finished",
        "fate": "finished",
        **fields,
    }
    return RunRecord(**given)


def skipped(minute, until=None, fate="coalesced", **fields):
    """A record of occurrences that did not run."""
    given = {"started": None, "outcome": None, "attempt": 0, "fate": fate, **fields}
    last = None if until is None else NOON + until * MINUTE
    return run(minute, until=last, count=None if until is None else until - minute + 1, **given)


def audit(minute, before=None, after=None, action="modify"):
    """A change that was made so many minutes after noon."""
    values = [None if each is None else json.dumps(each) for each in (before, after)]
    return AuditRecord(
        key="k",
        action=action,
        user="ann",
        host="h",
        program="psched",
        time=int((NOON + minute * MINUTE) * 1000),
        before=values[0],
        after=values[1],
    )


def check_all(row, runs, audits=(), *, start=START, minutes=10.5, gaps=(), **settings):
    """What the checker finds some minutes after noon."""
    now, kept_since = NOON + minutes * MINUTE, settings.pop("kept_since", 0)
    period = Period(start=start, kept_since=kept_since, now=now, gaps=gaps)
    recorded = Recorded(key="k", row=row, runs=sorted(runs, key=attrgetter("began")), audits=audits)
    return check(recorded, period, SETTINGS.with_settings(**settings))


def kinds(found):
    return [(str(each.kind), each.instant - NOON, each.count) for each in found.violations]


TEN = [run(minute) for minute in range(10)]


def without(*minutes):
    return [each for each in TEN if each.scheduled_time not in {NOON + m * 60 for m in minutes}]


class TestFates:
    def test_a_history_without_gaps_is_clean(self):
        found = check_all(row(), TEN)
        assert found.violations == []
        assert (found.instants, found.runs, found.pending, found.unknown) == (11, 10, 1, {})

    @pytest.mark.parametrize("minute", range(10))
    def test_a_missing_fate_is_found(self, minute):
        # The fence tells that there was a lease before the first record, too.
        found = check_all(row(), without(minute))
        assert kinds(found) == [("missing", minute * MINUTE, 1)]
        assert "1 of its leases" in found.violations[0].text

    def test_neighbours_are_one_violation(self):
        found = check_all(row(), without(3, 4, 5, 8))
        assert kinds(found) == [("missing", 3 * MINUTE, 3), ("missing", 8 * MINUTE, 1)]
        assert found.violations[0].until == NOON + 5 * MINUTE
        assert "2027-01-15T12:03:00Z to 2027-01-15T12:05:00Z" in found.violations[0].text

    def test_an_attempt_without_a_fate_does_not_count(self):
        tried = changed(TEN[4], outcome="failed", fate=None)
        assert kinds(check_all(row(), [*without(4), tried])) == [("missing", 4 * MINUTE, 1)]

    def test_a_jump_of_the_row_that_no_lease_explains_is_found_and_described(self):
        runs = [*TEN[:3], run(8, 4), run(9, 5)]
        [violation] = check_all(row(fence=5), runs).violations
        assert (violation.kind, violation.count) == ("missing", 5)
        assert "none of its leases is without a record" in violation.text

    def test_a_jump_over_an_occurrence_that_was_tried_is_no_lost_record(self):
        tried = changed(run(3, 4), outcome="failed", fate=None)
        runs = [*TEN[:3], tried, run(8, 5), run(9, 6)]
        [violation] = check_all(row(fence=6), runs).violations
        assert (violation.kind, violation.count) == ("missing", 5)
        assert "none of its leases is without a record" in violation.text

    def test_a_span_covers_its_occurrences(self):
        runs = [*without(2, 3, 4, 5), skipped(2, until=5, fence=3)]
        found = check_all(row(), runs)
        assert found.violations == []
        assert found.instants == 11

    def test_a_span_without_an_end_covers_all(self):
        endless = changed(skipped(2, fence=3), until=FOREVER, count=None)
        assert check_all(row(status="finished"), [*TEN[:2], endless]).violations == []

    def test_what_is_due_is_pending(self):
        found = check_all(row(), TEN, minutes=14.5)
        assert (found.violations, found.pending) == ([], 5)

    def test_nothing_is_expected_before_the_first_occurrence_of_a_new_schedule(self):
        assert check_all(row(fence=0), []).violations == []
        assert check_all(row(fence=1, attempt=1, owner="w.1"), []).violations == []
        second = [run(5, 2, attempt=2), *(run(minute, minute - 3) for minute in range(6, 10))]
        assert check_all(row(fence=6), second).violations == []
        late = [run(minute, minute - 4) for minute in range(5, 10)]
        assert check_all(row(fence=5), late).violations == []

    def test_a_schedule_that_is_older_than_the_period_is_checked_from_its_start(self):
        old = row(created_at=NOON - 10 * HOUR)
        assert check_all(old, TEN, start=NOON).violations == []
        assert kinds(check_all(old, TEN, start=NOON - 2 * MINUTE)) == [("missing", -2 * MINUTE, 2)]

    def test_backlog_that_is_older_than_the_schedule_is_checked_from_its_first_record(self):
        new = row(created_at=NOON + 20 * MINUTE)
        runs = [run(minute, at=NOON + (21 + minute) * MINUTE) for minute in range(10)]
        assert check_all(new, runs, minutes=40).violations == []
        assert kinds(check_all(new, runs[:4] + runs[5:], minutes=40)) == [
            ("missing", 4 * MINUTE, 1)
        ]

    def test_only_so_many_instants_are_checked(self, monkeypatch):
        monkeypatch.setattr(verify, "MOST_INSTANTS", 5)
        found = check_all(row(), without(8))
        assert found.violations == []
        assert verify.TOO_MANY in found.unknown

    def test_an_invalid_definition_is_unknown(self):
        found = check_all(row(cron="nonsense"), TEN)
        assert (found.violations, found.unknown) == ([], {verify.INVALID: 1})

    def test_times_that_a_clock_change_skips_are_no_instants(self):
        # In Paris, the clocks show no time from 02:00 to 03:00 on 2027-03-28.
        midnight = 1_806_188_400
        paris = {"cron": "30 * * * *", "timezone": "Europe/Paris", "created_at": midnight}
        times = [midnight + 1800 + hour * HOUR for hour in range(4)]
        runs = [
            run(fence=n + 1, at=time, scheduled_time=time, due=None) for n, time in enumerate(times)
        ]
        end = row(next_time=times[-1] + HOUR, fence=4, **paris)
        recorded = Recorded(key="k", row=end, runs=runs)
        period = Period(start=midnight, kept_since=0, now=times[-1] + 60)
        found = check(recorded, period, SETTINGS.with_settings(dst_policy="wallclock"))
        assert (found.violations, found.instants) == ([], 4)


class TestWhatIsUnknown:
    @pytest.mark.parametrize(
        ("history", "reason"),
        [("none", verify.HISTORY_OFF), ("failures", verify.ONLY_FAILURES)],
    )
    def test_the_setting_history_explains_missing_fates(self, history, reason):
        found = check_all(row(), without(3, 7), history=history)
        assert (found.violations, found.unknown) == ([], {reason: 2})

    def test_the_setting_history_of_the_type_explains_missing_fates(self):
        found = check_all(row(), [], types={"default": {"history": "none"}})
        assert (found.violations, found.unknown) == ([], {verify.HISTORY_OFF: 10})

    def test_a_change_without_an_audit_record_explains_missing_fates(self):
        found = check_all(row(version=2), without(3))
        assert (found.violations, found.unknown) == ([], {verify.UNAUDITED: 1})

    def test_a_change_that_may_be_older_than_the_kept_records_explains_nothing(self):
        old = row(version=2, created_at=NOON - HOUR)
        assert kinds(check_all(old, without(3), start=NOON, kept_since=NOON))

    def test_an_audit_record_with_another_trigger_than_the_row_tells_of_a_later_change(self):
        audits = [audit(0, None, {"cron": "*/5 * * * *", "next_time": NOON}, "add")]
        assert check_all(row(), without(3), audits).unknown == {verify.UNAUDITED: 1}

    def test_a_record_that_is_no_instant_of_the_trigger_tells_of_a_change(self):
        late = NOON + 2 * MINUTE + 7
        odd = run(2, fence=3, scheduled_time=late, at=late)
        found = check_all(row(), [*without(1, 2, 5), odd])
        assert kinds(found) == [("missing", 5 * MINUTE, 1)]
        assert found.unknown == {verify.UNAUDITED: 2}

    def test_deleted_records_explain_what_is_older(self):
        old = row(created_at=START)
        runs = [*without(0, 1, 2, 5), run(3, 4)]
        found = check_all(old, runs[1:], start=NOON - HOUR, history_keep_per_key=6)
        assert kinds(found) == [("missing", 5 * MINUTE, 1)]
        assert set(found.unknown) == {verify.TRIMMED}

    def test_workers_of_perfectsched_on_the_table_explain_missing_fates(self):
        compat = {"type": "rdb_compat", "url": "sqlite:///unused.db", "table": "schedules"}
        found = check_all(row(), without(3), **compat)
        assert (found.violations, found.unknown) == ([], {verify.SHARED_TABLE: 1})


class TestChanges:
    """Changes of the trigger, of which audit records tell."""

    def test_after_the_last_change_of_the_trigger_its_times_are_checked(self):
        change = audit(4.5, {"cron": "@hourly"}, {"cron": "* * * * *", "next_time": NOON + 300})
        runs = [run(0), *(run(minute, minute - 3) for minute in range(5, 10))]
        changed_row = row(fence=6, version=2)
        assert check_all(changed_row, runs, [change]).violations == []
        assert kinds(check_all(changed_row, runs[:-2] + runs[-1:], [change])) == [
            ("missing", 8 * MINUTE, 1)
        ]

    FORMERLY = (
        audit(
            6.5,
            {"cron": "*/2 * * * *", "next_time": NOON + 8 * MINUTE},
            {"cron": "* * * * *", "next_time": NOON + 7 * MINUTE},
        ),
        audit(
            3.5,
            {"cron": "* * * * *", "next_time": NOON + 4 * MINUTE, "options": {}},
            {"cron": "*/2 * * * *", "next_time": NOON + 4 * MINUTE, "options": {"a": 1}},
        ),
    )
    MINUTES = 0, 1, 2, 3, 4, 6, 7, 8, 9

    @pytest.mark.parametrize("gone", [None, *MINUTES])
    def test_before_each_change_the_times_of_the_former_trigger_are_checked(self, gone):
        """Each minute until 12:03, each second minute until 12:06, and then each minute again."""
        runs = [run(at, fence + 1) for fence, at in enumerate(self.MINUTES) if at != gone]
        found = check_all(row(fence=9, version=3), runs, self.FORMERLY)
        assert kinds(found) == ([] if gone is None else [("missing", gone * MINUTE, 1)])
        assert (found.instants, found.unknown) == (10, {})

    def test_of_a_former_series_whose_end_is_not_known_nothing_is_said(self):
        """No client moves a row that is leased; that its task has failed ended no occurrence."""
        change = audit(2.5, {"cron": "*/7 * * * *"}, {"cron": "* * * * *"})
        failed = changed(TEN[0], ended=(NOON + 160) * 1000, outcome="failed", fate=None)
        found = check_all(row(version=2), [failed, *TEN[3:]], [change])
        assert (found.violations, found.unknown) == ([], {})

    @pytest.mark.parametrize(
        ("history", "reason"),
        [("none", verify.HISTORY_OFF), ("failures", verify.ONLY_FAILURES)],
    )
    def test_what_was_not_recorded_before_the_setting_was_changed_is_unknown(self, history, reason):
        change = audit(4.5, {"options": {"history": history}}, {"options": {}})
        found = check_all(row(version=2), without(2, 3, 8), [change])
        assert kinds(found) == [("missing", 8 * MINUTE, 1)]
        assert found.unknown == {reason: 2}

    def test_what_was_not_recorded_before_the_trigger_was_changed_is_unknown(self):
        change = audit(
            5.5,
            {"cron": "* * * * *", "next_time": NOON + 6 * MINUTE, "options": {"history": "none"}},
            {"cron": "*/2 * * * *", "next_time": NOON + 6 * MINUTE, "options": {}},
        )
        added = audit(0, None, {"next_time": NOON}, "add")
        runs = [run(6, 7), run(8, 8)]
        found = check_all(row(cron="*/2 * * * *", fence=8, version=2), runs, [change, added])
        assert (found.violations, found.unknown) == ([], {verify.HISTORY_OFF: 6})

    def test_a_change_of_something_else_begins_nothing(self):
        change = audit(4.5, {"data": {}}, {"data": {"a": 1}})
        assert kinds(check_all(row(version=2), without(2), [change])) == [
            ("missing", 2 * MINUTE, 1)
        ]

    @pytest.mark.parametrize("started", [0, 3 * MINUTE], ids=["running", "just leased"])
    def test_a_trigger_that_was_changed_during_a_run_begins_after_the_run(self, started):
        """The row is leased a little before its task starts."""
        long = run(0, at=NOON + started, ended=(NOON + 5 * MINUTE) * 1000 + 500)
        change = audit(2, {"cron": "@hourly"}, {"cron": "* * * * *"})
        runs = [long, *(run(minute, minute - 4) for minute in range(6, 10))]
        assert check_all(row(fence=5, version=2), runs, [change]).violations == []

    def test_the_audit_record_of_the_addition_names_the_first_occurrence(self):
        added = audit(0, None, {"cron": "* * * * *", "timezone": "UTC", "next_time": NOON}, "add")
        found = check_all(row(fence=5), [run(5 + n, n + 1) for n in range(5)], [added])
        assert kinds(found) == [("missing", 0, 5)]

    def test_what_is_skipped_in_the_millisecond_of_a_move_back_belongs_to_what_follows(self):
        added = audit(0, None, {"next_time": NOON}, "add")
        earlier = NOON - 45 * MINUTE
        moved = audit(9.5, {"next_time": NOON + 600}, {"next_time": earlier})
        skip = skipped(-45, fate="skipped", fence=0, owner="", ended=moved.time, due=None)
        found = check_all(row(-44, fence=10, version=3), [*TEN, skip], [moved, added])
        assert (found.violations, found.unknown) == ([], {})
        found = check_all(row(-44, fence=10, version=3), [*without(3), skip], [moved, added])
        assert kinds(found) == [("missing", 3 * MINUTE, 1)]

    @pytest.mark.parametrize("odd", [0, 30], ids=["at an instant", "between two"])
    @pytest.mark.parametrize("is_recorded", [True, False])
    def test_between_a_cancel_and_a_requeue_nothing_is_missing(self, is_recorded, odd):
        """A change stands, also if the audit trail could not be written then."""
        added = audit(0, None, {"cron": "* * * * *", "next_time": NOON}, "add")
        before, after = {"status": "waiting"}, {"status": "cancelled"}
        cancel = audit(2.5, {**before, "next_time": NOON + 3 * MINUTE}, after, "cancel")
        requeued = NOON + 6 * MINUTE + odd
        requeue = audit(6.9, after, {**before, "next_time": requeued}, "requeue")
        audits = [requeue, cancel, added] if is_recorded else [cancel, added]
        again = run(6, 4, scheduled_time=requeued, at=requeued)
        runs = [*TEN[:3], again, *(run(minute, minute - 2) for minute in (7, 8, 9))]
        present = row(fence=7, version=3, created_at=requeued)
        assert check_all(present, runs, audits).violations == []
        assert kinds(check_all(present, [*runs[:1], *runs[2:-2], runs[-1]], audits)) == [
            ("missing", 8 * MINUTE, 1),
            ("missing", MINUTE, 1),
        ]

    def test_an_unreadable_audit_record_does_no_harm(self):
        odd = [changed(audit(-1), before="[", after="3")]
        assert check_all(row(), TEN, odd).violations == []


class TestOneShots:
    @pytest.mark.parametrize("status", ["finished", "failed", "expired"])
    def test_a_task_that_has_ended_has_a_fate(self, status):
        assert check_all(once(status), [run()]).violations == []
        assert kinds(check_all(once(status, settled_by="w.1#1"), [])) == [("missing", 0, 1)]

    @pytest.mark.parametrize("status", ["waiting", "cancelled", "quarantined", "paused"])
    def test_a_task_that_waits_or_was_stopped_needs_no_fate(self, status):
        assert check_all(once(status), []).violations == []

    def test_a_task_that_waits_is_pending_when_it_is_due(self):
        assert check_all(once("waiting"), []).pending == 1
        assert check_all(once("waiting", next_time=NOON + HOUR), []).pending == 0

    def test_a_task_that_a_client_has_ended_is_explained_by_the_audit(self):
        ended = audit(1, {"status": "waiting"}, {"status": "finished"}, "force_finish")
        assert check_all(once(fence=0, version=2), [], [ended]).violations == []

    def test_a_task_that_plain_sql_has_ended_is_unknown(self):
        assert check_all(once(fence=0), []).unknown == {verify.UNAUDITED: 1}
        tried = run(outcome="failed", fate=None)
        found = check_all(once(settled_by="w.1#1"), [tried])
        assert (found.violations, found.unknown) == ([], {verify.UNAUDITED: 1})

    def test_a_task_that_ended_before_the_period_is_not_checked(self):
        found = check_all(once(created_at=NOON - 5 * HOUR, retain_until=START + HOUR - 1), [])
        assert (found.violations, found.instants) == ([], 0)

    def test_successes_are_unknown_where_only_failures_are_kept(self):
        assert check_all(once(), [], history="failures").unknown == {verify.ONLY_FAILURES: 1}
        assert kinds(check_all(once("failed"), [], history="failures"))


class TestLeases:
    def test_two_runs_that_overlap(self):
        runs = [changed(TEN[0], ended=(NOON + 3 * MINUTE) * 1000), *TEN[1:]]
        found = check_all(row(), runs)
        assert kinds(found) == [("overlap", MINUTE, 1), ("overlap", 2 * MINUTE, 1)]
        assert "w.2#2" in found.violations[0].text

    def test_a_preempted_run_must_have_ended_before_the_next_one_starts(self):
        preempted = run(0, 1, outcome="preempted", fate=None, ended=(NOON + 30) * 1000)
        again = run(0, 2, attempt=2, at=NOON + 20)
        found = check_all(row(1, fence=2), [preempted, again])
        assert kinds(found) == [("overlap", 0, 1)]

    def test_a_short_run_that_seems_to_start_after_the_one_that_followed_it(self):
        """The times of different workers' records differ by up to the tolerance."""
        short = run(0, 1, at=NOON)
        short = changed(short, started=short.started + 54, ended=short.started + 72)
        followed = changed(run(1, 2, at=NOON), started=short.started - 20, ended=short.ended + 9000)
        found = check_all(row(2), [short, changed(followed, due=None)])
        assert [each.kind for each in found.violations] == ["early"]

    def test_a_short_run_in_the_middle_of_another_one(self):
        long = run(0, 1)
        short = changed(run(0, 2), started=long.started + 4000, ended=long.started + 4010)
        assert ("overlap", 0, 1) in kinds(check_all(row(1, fence=2), [long, short]))

    def test_nobody_knows_when_a_lost_run_has_ended(self):
        lost = run(0, 1, outcome="lost", fate=None, ended=(NOON + 30) * 1000)
        assert check_all(row(1, fence=2), [lost, run(0, 2, at=NOON + 20)]).violations == []

    def test_a_second_is_within_the_tolerance(self):
        runs = [run(0), changed(run(1), started=TEN[0].ended - 999), *TEN[2:]]
        late = [changed(each, due=None) for each in runs]
        assert [each.kind for each in check_all(row(), late).violations] == ["early"]

    @pytest.mark.parametrize("fence", [1, 4, 5])
    def test_a_fence_that_does_not_grow(self, fence):
        runs = [*without(5), changed(run(5, fence), owner="other.1")]
        kind, instant, _ = kinds(check_all(row(), runs))[0]
        assert (kind, instant) == ("fence", 5 * MINUTE)

    def test_fences_restart_when_a_schedule_is_added_again(self):
        old = [run(minute, minute + 7) for minute in range(5)]
        new = [run(minute, minute - 4) for minute in range(5, 10)]
        assert check_all(row(fence=5, created_at=NOON + 290), old + new).violations == []
        assert check_all(None, old + new).violations == []
        assert kinds(check_all(row(fence=5), old + new))[0][0] == "fence"

    @pytest.mark.parametrize("own", [{"due": None}, {"due": (NOON + 5 * MINUTE) * 1000}])
    def test_a_run_that_starts_before_its_scheduled_time(self, own):
        early = run(5, at=NOON + 5 * MINUTE - 20, **own)
        assert kinds(check_all(row(), [*without(5), early])) == [("early", 5 * MINUTE, 1)]

    def test_the_first_run_may_have_been_added_with_an_earlier_time(self):
        times = {"next_time": NOON + 5 * MINUTE, "next_run_time": NOON + MINUTE}
        added = [audit(0.5, after=times, action="add")]
        first = run(5, 1, at=NOON + MINUTE, due=(NOON + MINUTE) * 1000)
        later = [run(minute, minute - 4) for minute in range(6, 10)]
        fresh = row(fence=5, created_at=NOON + 30)
        assert check_all(fresh, [first, *later], added).violations == []
        # Without the change that has set the time, or before that time, it is a violation.
        assert kinds(check_all(fresh, [first, *later])) == [("early", 5 * MINUTE, 1)]
        sooner = changed(first, started=(NOON + 50) * 1000)
        assert kinds(check_all(fresh, [sooner, *later], added)) == [("early", 5 * MINUTE, 1)]
        # The record can be older than the period that is checked.
        since = NOON + 3 * MINUTE
        found = check_all(fresh, later, added, start=since, kept_since=since)
        assert found.violations == []
        lost = check_all(fresh, later[1:], added, start=since)
        assert kinds(lost) == [("missing", 6 * MINUTE, 1)]

    def test_a_run_that_starts_before_its_row_was_due(self):
        early = changed(run(5), due=(NOON + 5 * MINUTE + 30) * 1000)
        assert kinds(check_all(row(), [*without(5), early])) == [("early", 5 * MINUTE, 1)]

    def test_a_run_that_starts_before_the_delay_has_passed(self):
        delayed = [run(minute, at=NOON + minute * MINUTE + 30) for minute in range(10)]
        assert check_all(row(delay=30), delayed).violations == []
        found = check_all(row(delay=30), [*delayed[:5], run(5), *delayed[6:]])
        assert kinds(found) == [("early", 5 * MINUTE, 1)]


class TestRepetitions:
    def test_a_second_fate(self):
        again = run(4, 11, at=NOON + 10 * MINUTE)
        found = check_all(row(fence=11), [*TEN, again])
        assert kinds(found) == [("repeated", 4 * MINUTE, 1)]
        assert "has the fate finished" in found.violations[0].text

    def test_a_run_after_the_fate(self):
        again = run(4, 11, at=NOON + 10 * MINUTE, outcome="failed", fate=None)
        found = check_all(row(fence=11), [*TEN, again])
        assert kinds(found) == [("repeated", 4 * MINUTE, 1)]
        assert "ran again" in found.violations[0].text

    def test_an_attempt_that_was_recorded_late_is_no_repetition(self):
        lost = run(4, 4, started=None, ended=TEN[4].ended + 5000, outcome="lost", fate=None)
        runs = [*TEN[:3], run(3, 3, at=NOON + 200), *TEN[4:], lost]
        assert "repeated" not in {kind for kind, *_ in kinds(check_all(row(), runs))[1:]}

    def test_a_span_over_an_occurrence_that_ran(self):
        span = skipped(3, until=5, fence=11, ended=(NOON + 10 * MINUTE) * 1000)
        found = check_all(row(fence=11), [*TEN, span])
        assert ("repeated", 3 * MINUTE, 1) in kinds(found)

    def test_a_span_over_a_part_of_another_span(self):
        spans = [skipped(2, until=5, fence=3), skipped(4, until=6, fence=7)]
        found = check_all(row(), [*without(2, 3, 4, 5, 6), *spans])
        [violation] = found.violations
        assert (violation.instant, violation.until) == (NOON + 4 * 60, NOON + 5 * 60)

    @pytest.mark.parametrize("fate", ["quarantined", "cancelled"])
    def test_a_schedule_that_was_requeued_may_run_again(self, fate):
        ended = changed(TEN[4], fate=fate)
        again = [run(minute, minute + 2) for minute in range(5, 10)]
        runs = [*TEN[:4], ended, run(4, 6, at=NOON + 4 * MINUTE + 30), *again]
        assert check_all(row(fence=11), runs).violations == []

    def test_a_task_that_gave_up_and_was_requeued_may_run_again(self):
        runs = [changed(TEN[0], fate="gave_up"), run(0, 2, at=NOON + HOUR)]
        assert check_all(once(fence=2), runs).violations == []
        assert kinds(check_all(row(1, fence=2), runs))[0][0] == "repeated"

    @pytest.mark.parametrize(
        ("action", "before", "after"),
        [
            ("skip", {"next_time": NOON + 240}, {"next_time": NOON + 300}),
            ("pause", {"status": "waiting"}, {"status": "paused"}),
            ("resume", {"status": "paused"}, {"status": "waiting"}),
            ("edit", {"note": "a"}, {"note": "b"}),
        ],
    )
    @pytest.mark.parametrize("skipped_first", [True, False])
    def test_what_has_nothing_run_again_does_not_explain_a_run_and_a_skip(
        self, action, before, after, skipped_first
    ):
        fate = {"skip": "skipped"}.get(action, "skipped_paused")
        at = TEN[4].began - 1 if skipped_first else TEN[4].ended + 1000
        skip = skipped(4, fate=fate, fence=0, owner="", ended=at, due=None)
        change = audit((at / 1000 - NOON) / MINUTE, before, after, action)
        found = check_all(row(version=2), [*TEN, skip], [change])
        assert kinds(found) == [("repeated", 4 * MINUTE, 1)]

    def test_a_change_of_the_next_time_explains_a_repetition(self):
        change = audit(9.9, {"next_time": NOON + 600}, {"next_time": NOON + 240})
        again = [run(4 + n, 11 + n, at=NOON + (10 + n) * MINUTE) for n in range(6)]
        found = check_all(row(fence=16, version=2), [*TEN, *again], [change], minutes=20)
        assert found.violations == []

    def test_a_change_without_an_audit_record_makes_it_unknown(self):
        again = run(4, 11, at=NOON + 10 * MINUTE)
        found = check_all(row(fence=11, version=2), [*TEN, again])
        assert found.violations == []
        assert len(found.unknown) == 1

    def test_a_key_that_was_pushed_again_is_another_task(self):
        runs = [run(0, 1), run(0, 1, at=NOON + 40, owner="other.1")]
        assert check_all(None, runs).violations == []
        assert check_all(once(created_at=NOON + 30), runs).violations == []
        assert kinds(check_all(once(created_at=NOON - HOUR), runs)) != []


class TestRecordsThatWereNotWritten:
    def test_what_a_gap_contains_is_unknown(self):
        found = check_all(
            row(), without(2, 5, 6), gaps=[(NOON + 5 * MINUTE - 1, NOON + 6 * MINUTE)]
        )
        assert found.unknown == {verify.NOT_WRITTEN: 2}
        assert kinds(found) == [("missing", 2 * MINUTE, 1)]

    def test_the_last_note_of_a_worker_counts_and_an_open_one_until_it_was_seen_last(self):
        def note(nonce, first, last=None, lost=0, time=NOON):
            gap = Gap(nonce=nonce, first=first, last=last, lost=lost)
            return changed(gap.note("h"), time=time * 1000)

        workers = [
            WorkerRecord(nonce=nonce, host="h", pid=1, number=0, generation=1, slots=1, busy=0,
                         types=None, started=NOON, seen=NOON + seen, ended=None, clock_offset=0)
            for nonce, seen in (("gone", 100), ("alive", 990))
        ]  # fmt: skip
        notes = [
            note("alive", 6),
            note("gone", 5),
            note("forgotten", 4, time=NOON + 7),
            note("written", 3, 3),
            note("lost", 1, 2, lost=9),
            note("written", 3),
            note("lost", 1),
        ]
        assert ranges(notes, workers, NOON + 1000) == [
            (6, inf),
            (5, NOON + 190),
            (4, NOON + 97),
            (1, 2),
        ]


class TestPauses:
    PAUSE = audit(2.5, {"status": "waiting"}, {"status": "paused"}, "pause")
    RESUME = audit(
        6.5,
        {"status": "paused", "next_time": NOON + 3 * MINUTE},
        {"status": "waiting", "next_time": NOON + 7 * MINUTE},
        "resume",
    )
    SPAN = skipped(3, until=6, fate="skipped_paused", owner="of-a-client", fence=0)
    RUNS = (*TEN[:3], SPAN, run(7, 4), run(8, 5), run(9, 6))

    def test_what_a_client_has_skipped_has_a_fate(self):
        found = check_all(row(fence=6, version=3), self.RUNS, [self.RESUME, self.PAUSE])
        assert (found.violations, found.unknown) == ([], {})
        assert found.instants == 11

    def test_a_resumption_without_a_record_is_found(self):
        runs = [each for each in self.RUNS if each is not self.SPAN]
        found = check_all(row(fence=6, version=3), runs, [self.RESUME, self.PAUSE])
        assert kinds(found) == [("missing", 3 * MINUTE, 4)]

    def test_what_was_missing_before_the_pause_is_found_too(self):
        runs = [each for each in self.RUNS if each is not TEN[1]]
        found = check_all(row(fence=6, version=3), runs, [self.RESUME, self.PAUSE])
        assert kinds(found) == [("missing", MINUTE, 1)]

    def test_what_a_worker_has_skipped_has_a_fate(self):
        span = skipped(3, until=6, fate="skipped_paused", fence=4)
        runs = [*TEN[:3], span, run(7, 5), run(8, 6), run(9, 7)]
        found = check_all(row(fence=7, version=2), runs, [self.PAUSE])
        assert (found.violations, found.unknown) == ([], {})

    def test_what_was_skipped_twice_is_found(self):
        again = skipped(5, until=6, fate="skipped_paused", owner="other", fence=0, at=NOON + 390)
        found = check_all(row(fence=6, version=2), [*self.RUNS, again], [self.PAUSE])
        assert [str(each.kind) for each in found.violations] == ["repeated"]


def test_a_template_has_no_occurrences():
    period = Period(start=START, kept_since=0, now=NOON + HOUR)
    found = check(Recorded(key="k", row=row(lane="&*"), runs=[]), period, SETTINGS)
    assert (found.instants, found.pending, found.violations) == (0, 0, [])


def test_what_is_recorded_in_the_millisecond_of_a_change_belongs_to_what_follows():
    with Schedules({"t": lambda _task: None}) as schedules:
        schedules.add("k", "t", cron="* * * * *")
        schedules.run_due()
        schedules["k"].cancel()
        schedules.clock.advance(1)
        schedules["k"].modify(next_time=int(schedules.now()) - HOUR)
        schedules["k"].skip()
        access = schedules.access
        assert not Verifier(access.store, access.settings).verify(10**9).violations


def test_what_is_recorded_in_the_millisecond_of_a_change_may_have_come_before_it():
    with Schedules({"t": lambda _task: None}) as schedules:
        schedules.add("k", "t", cron="* * * * *")
        schedules.run_due()
        schedules["k"].modify(next_time=int(schedules.now()) + 2 * MINUTE)
        schedules.clock.advance(2 * MINUTE)
        schedules.run_due()
        access = schedules.access
        assert not Verifier(access.store, access.settings).verify(10**9).violations
