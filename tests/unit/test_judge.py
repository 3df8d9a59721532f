"""Tests of the judge of expectations, on a real store whose clock a test moves."""

import random
from dataclasses import replace as changed

import pytest

from psched.config import from_mapping
from psched.core.alerts.alert import Rule
from psched.core.alerts.protocol import AlertSelection
from psched.core.history.records import Fate, Outcome
from psched.core.operations.pauses import PauseRule
from psched.reports import judge as module
from psched.reports.judge import PASS_INTERVAL, SWEEP_INTERVAL, Judge
from psched.testing.store_contract.history import made
from support.driven import START, driven_host

MINUTE, HOUR, DAY = 60, 3600, 86_400


@pytest.fixture
def host(tmp_path):
    with driven_host(tmp_path) as host:
        yield host


class Calm(random.Random):
    """Draws numbers from the middle of their range, so that a pass is due in time."""

    def uniform(self, a, b):
        return (a + b) / 2


class Court:
    """A judge of a host's schedules, and what it has done."""

    def __init__(self, host, expect=None, store=None, **more):
        settings = {"url": "sqlite:///unused.db", "expect": expect, **more}
        self.host = host
        self.store = store or host.store()
        self.judge = Judge(
            self.store,
            self.store.alerts,
            from_mapping(settings),
            clock=host.clock,
            rng=Calm(),
        )
        self.notes = []
        self.wait = 0.0

    def judged(self, after=0.0):
        """What is raised and closed once some time has passed."""
        self.host.clock.advance(after)
        raised, closed, wait = [], [], 0.0
        while wait == 0:
            done = self.judge.step()
            raised += [(str(each.rule), each.key) for each in done.raised]
            closed += [(str(each.rule), each.key) for each in done.closed]
            self.notes += done.notes
            self.wait = wait = done.wait
        return raised, closed

    def until_quiet(self, seconds):
        """What is raised and closed while some time passes."""
        raised, closed, left = [], [], seconds
        while left > 0:
            wait = min(left, max(self.wait, seconds / 50))
            found = self.judged(wait)
            raised, closed, left = raised + found[0], closed + found[1], left - wait
        return raised, closed

    def alerts(self, **conditions):
        return [*self.store.alerts.find_alerts(AlertSelection(**conditions))]

    def reasons(self):
        return [alert.closed_text for alert in self.alerts()]


def add(host, key="k", **fields):
    """A schedule that is due now, and then every hour."""
    host.schedules.add(key, "test", every=HOUR, next_time=START, **fields)


def worked(host, seconds, **settings):
    """A worker that has started what is due, and has worked for some time."""
    worker = host.worker(host.store(), **settings)
    worker.advance(seconds)
    return worker


def history(host, *durations, key="k"):
    """Record runs that took so many seconds."""
    host.store().history.record(
        [
            made(
                key,
                scheduled_time=START - DAY + number,
                owner=f"earlier.{number}",
                fate=Fate.FINISHED,
                started=1000 * (START - DAY + number),
                ended=round(1000 * (START - DAY + number + took)),
            )
            for number, took in enumerate(durations)
        ]
    )


def ran(host, seconds, outcome):
    """Record a run that has ended so many seconds after the start."""
    fate = Fate.FINISHED if outcome == Outcome.FINISHED else Fate.GAVE_UP
    time = START + seconds
    record = made(
        "k",
        scheduled_time=time,
        owner=f"w.{seconds}",
        outcome=outcome,
        fate=fate,
        ended=1000 * time,
    )
    host.store().history.record([record])


class TestLate:
    def test_a_row_that_nobody_takes_is_told_once(self, host):
        add(host, label="ours")
        court = Court(host, {"late": "5m"})
        assert court.judged(5 * MINUTE) == ([], [])
        assert court.judged(2 * PASS_INTERVAL) == ([("late", "k")], [])
        assert court.until_quiet(HOUR) == ([], [])
        (alert,) = court.alerts()
        assert (alert.since, alert.scheduled_time) == (1000 * START, START)
        assert (alert.type, alert.label, alert.closed) == ("test", "ours", None)
        assert alert.text.startswith("has been due for 5.")
        assert "since 2023-11-14T22:13:20Z, and has not started (late: 5.0 min)" in alert.text

    def test_an_open_alert_that_is_lost_is_raised_again(self, host):
        add(host)
        court = Court(host, {"late": "5m"})
        assert court.judged(10 * MINUTE) == ([("late", "k")], [])
        host.sql("DELETE FROM psched_alerts")
        assert court.until_quiet(11 * MINUTE) == ([("late", "k")], [])
        assert [alert.since for alert in court.alerts(only_open=True)] == [1000 * START]

    def test_the_store_is_seldom_asked_for_what_it_has_refused(self, host):
        add(host)
        court = Court(host, {"late": "5m"})
        court.judged(10 * MINUTE)
        sent = []
        raise_alerts = court.store.alerts.raise_alerts
        court.store.alerts.raise_alerts = lambda alerts: (
            sent.append(len(alerts)) or raise_alerts(alerts)
        )
        court.store.alerts.close_alerts(court.alerts(), "by hand")
        assert court.until_quiet(HOUR) == ([], [])
        assert sent in ([1] * 5, [1] * 6)

    def test_it_is_over_when_the_row_has_started(self, host):
        add(host)
        court = Court(host, {"late": "5m"})
        assert court.judged(HOUR / 2) == ([("late", "k")], [])
        worker = worked(host, 1)
        assert court.judged(PASS_INTERVAL) == ([], [("late", "k")])
        assert court.reasons() == ["it has started"]
        worker.tasks["k"].finish()

    def test_a_later_occurrence_is_an_alert_of_its_own(self, host):
        add(host)
        court = Court(host, {"late": "5m"})
        court.judged(10 * MINUTE)
        worker = worked(host, 1)
        worker.tasks["k"].finish()
        worker.advance(1)
        worker.close()
        assert court.judged(HOUR) == ([("late", "k")], [("late", "k")])
        assert [alert.since for alert in court.alerts(only_open=True)] == [1000 * (START + HOUR)]

    def test_a_delay_a_jitter_and_a_wait_for_a_retry_are_no_lateness(self, host):
        add(host, delay=HOUR)
        worker = host.worker(host.store(), retry_wait=HOUR)
        add(host, "fails")
        worker.run_due({"fails": "no"})
        worker.close()
        court = Court(host, {"late": "5m"})
        assert court.until_quiet(HOUR) == ([], [])
        raised, _ = court.until_quiet(10 * MINUTE)
        assert sorted(raised) == [("late", "fails"), ("late", "k")]

    def test_a_row_whose_worker_is_gone_is_late_after_its_lease(self, host):
        add(host)
        worked(host, 1, alive_time=60)  # it never extends its lease again, like a dead host
        court = Court(host, {"late": "5m"})
        assert court.until_quiet(6 * MINUTE - 10) == ([], [])
        assert court.until_quiet(MINUTE) == ([("late", "k")], [])
        (alert,) = court.alerts()
        assert alert.text.startswith("its worker has lost the lease, and it has waited")

    def test_a_paused_row_is_not_late(self, host):
        add(host)
        court = Court(host, {"late": "5m"})
        court.judged(HOUR / 2)
        host.schedules["k"].pause()
        assert court.judged(PASS_INTERVAL) == ([], [("late", "k")])
        assert court.reasons() == ["it is paused"]
        assert court.until_quiet(HOUR) == ([], [])

    def test_a_pause_that_nobody_ends_is_late_after_its_end(self, host):
        add(host)
        host.schedules["k"].pause(START + HOUR)
        court = Court(host, {"late": "5m"})
        assert court.until_quiet(HOUR + 4 * MINUTE) == ([], [])
        assert court.until_quiet(2 * MINUTE) == ([("late", "k")], [])
        assert "its pause has ended, and no worker has resumed it" in court.alerts()[0].text

    def test_a_row_of_a_paused_type_is_late_only_after_the_end_of_the_pause(self, host):
        add(host)
        court = Court(host, {"late": "5m"})
        assert court.judged(6 * MINUTE) == ([("late", "k")], [])
        rule = PauseRule(id="a", type="test", since=START, until=START + HOUR, by="ann@web1")
        court.store.pauses.change_pause_rules(drop=(), store=[rule])
        assert court.judged(PASS_INTERVAL) == ([], [("late", "k")])
        assert court.reasons() == ["type test is paused"]
        assert court.until_quiet(HOUR - 5 * MINUTE) == ([], [])
        assert court.until_quiet(10 * MINUTE) == ([("late", "k")], [])
        assert court.alerts()[0].since == 1000 * (START + HOUR)

    def test_it_is_over_when_the_schedule_is_moved_deleted_or_not_expected_any_more(self, host):
        for key in "moved", "deleted", "unexpected", "cancelled":
            add(host, key, expect={"late": "5m"})
        court = Court(host)
        raised, _ = court.until_quiet(HOUR / 2)
        assert len(raised) == 4
        host.schedules["moved"].edit(next_time=START + DAY)
        host.schedules["deleted"].delete()
        host.schedules["unexpected"].edit(expect=None)
        host.schedules["cancelled"].cancel()
        _, closed = court.judged(SWEEP_INTERVAL)
        assert len(closed) == 4
        assert {alert.key: alert.closed_text for alert in court.alerts()} == {
            "moved": "it is not due any more",
            "deleted": "the schedule does not exist any more",
            "unexpected": "expect.late does not apply any more",
            "cancelled": "it has ended: cancelled",
        }

    def test_a_higher_limit_does_not_end_what_has_been_told(self, host):
        add(host, expect={"late": "5m"})
        court = Court(host)
        court.until_quiet(10 * MINUTE)
        host.schedules["k"].edit(expect={"late": "1d"})
        assert court.until_quiet(10 * MINUTE) == ([], [])
        assert len(court.alerts(only_open=True)) == 1

    def test_expectations_of_schedule_and_type_are_those_that_count(self, host):
        add(host, "own", expect={"late": "off"})
        add(host, "other")
        court = Court(host, types={"test": {"expect": {"late": "5m"}}})
        assert court.until_quiet(10 * MINUTE) == ([("late", "other")], [])

    def test_an_invalid_row_is_judged_by_the_rest(self, host):
        add(host)
        host.sql("UPDATE psched SET options = '{\"expect\"\\:7}', cron = '@call evil\\:Code'")
        court = Court(host, {"late": "5m"})
        assert court.until_quiet(10 * MINUTE) == ([("late", "k")], [])

    def test_of_many_due_rows_each_is_judged(self, host, monkeypatch):
        monkeypatch.setattr(module, "MOST_DUE", 3)
        for number in range(8):
            add(host, f"a{number}", expect={"late": "off"})
        add(host, "z")
        court = Court(host, {"late": "5m"})
        assert court.until_quiet(6 * MINUTE) == ([("late", "z")], [])

    def test_not_more_alerts_are_open_than_can_be_read(self, host, monkeypatch):
        monkeypatch.setattr(module, "MOST_OPEN", 3)
        monkeypatch.setattr(module, "MOST_CHECKED", 2)
        for number in range(3):
            add(host, f"k{number}")
        court = Court(host, {"late": "5m"})
        assert len(court.until_quiet(6 * MINUTE)[0]) == 3
        add(host, "more")
        assert court.until_quiet(6 * MINUTE) == ([], [])
        assert court.notes == [
            "expect: 3 alerts are open, so no more are raised until some are over"
        ]
        host.schedules["k1"].delete()
        assert court.until_quiet(6 * MINUTE) == ([("late", "more")], [("late", "k1")])
        worked(host, 1, concurrency=3)
        assert len(court.until_quiet(MINUTE)[1]) == 3


class TestLongest:
    @pytest.mark.slow
    def test_a_run_that_takes_too_long_is_told_until_it_ends(self, host):
        add(host, expect={"longest": "10m"})
        worker = worked(host, 9 * MINUTE)
        court = Court(host)
        assert court.judged() == ([], [])
        worker.advance(2 * MINUTE)
        assert court.judged() == ([("longest", "k")], [])
        worker.advance(MINUTE)
        assert court.judged(PASS_INTERVAL) == ([], [])
        (alert,) = court.alerts()
        assert alert.since == 1000 * host.row("k").claimed_at
        assert "has been running for 11." in alert.text
        assert "(longest: 10.0 min)" in alert.text
        worker.tasks["k"].finish()
        worker.advance(1)
        assert court.judged(PASS_INTERVAL) == ([], [("longest", "k")])
        assert court.reasons() == ["the run has ended"]

    @pytest.mark.slow
    def test_the_next_run_is_an_alert_of_its_own(self, host):
        add(host, expect={"longest": "10m"})
        worker = worked(host, 11 * MINUTE)
        court = Court(host)
        court.judged()
        worker.tasks["k"].finish()
        worker.advance(1)
        host.clock.advance(HOUR - 11 * MINUTE)
        worker.advance(11 * MINUTE)
        assert court.judged() == ([("longest", "k")], [("longest", "k")])

    def test_a_lease_that_has_ended_is_no_run(self, host):
        add(host, expect={"longest": "1m"})
        worked(host, 1, alive_time=60)
        court = Court(host)
        court.judged(59)
        court.until_quiet(10 * MINUTE)
        assert [(alert.rule, alert.closed is None) for alert in court.alerts()] in (
            [],
            [(Rule.LONGEST, False)],
        )


class TestUnusual:
    def test_a_run_that_takes_much_longer_than_usual_is_told_until_it_ends(self, host):
        add(host, expect={"unusual": 3})
        history(host, *[10, 12, 11, 9, 900])
        worker = worked(host, 30)
        court = Court(host)
        assert court.judged() == ([], [])
        worker.advance(5)
        assert court.judged() == ([("unusual", "k")], [])
        (alert,) = court.alerts()
        assert "the median of its last 5 runs is 11.0 s (unusual: 3)" in alert.text
        worker.advance(MINUTE)
        worker.tasks["k"].finish()
        worker.advance(1)
        assert court.judged(PASS_INTERVAL) == ([], [("unusual", "k")])
        assert court.reasons() == ["the run has ended"]

    def test_few_runs_or_short_ones_say_nothing(self, host):
        for key in "few", "short":
            add(host, key, expect={"unusual": 2})
        history(host, *[1] * 4, key="few")
        history(host, *[0.001] * 9, key="short")
        worker = worked(host, 0.9, concurrency=2)
        court = Court(host)
        assert len(worker.tasks) == 2
        assert court.judged() == ([], [])
        worker.advance(MINUTE)
        assert court.judged() == ([("unusual", "short")], [])

    def test_the_history_is_asked_once_for_each_run(self, host):
        add(host, expect={"unusual": 100})
        history(host, *[10] * 9)
        worker = worked(host, 30)
        court = Court(host, store=(remote := Counting(host)))
        court.judged()
        for _ in range(5):
            worker.advance(PASS_INTERVAL)
            court.judge.step()
        assert remote.asked == 1

    def test_an_extra_run_is_compared_with_the_runs_of_its_schedule(self, host):
        add(host, expect={"unusual": 3})
        history(host, *[10] * 9)
        host.schedules["k"].pause()
        extra = host.schedules["k"].trigger().key
        worked(host, MINUTE)
        assert Court(host).judged() == ([("unusual", extra)], [])


class Counting:
    """A store that counts how often it is asked for durations."""

    def __new__(cls, host):
        store = host.store()

        def durations(keys, most):
            store.asked += 1
            return read(keys, most)

        read, store.asked, store.history.durations = store.history.durations, 0, durations
        return store


@pytest.mark.slow
class TestSilent:
    def test_a_schedule_without_a_success_is_told_until_it_succeeds(self, host):
        add(host, expect={"silent": "1d"})
        court = Court(host)
        worker = host.worker(host.store(), retry_wait=HOUR)
        worker.run_due({"k": "no"})
        worker.close()
        assert court.until_quiet(DAY - MINUTE) == ([], [])
        assert court.until_quiet(10 * MINUTE) == ([("silent", "k")], [])
        (alert,) = court.alerts()
        assert alert.since == 1000 * host.row("k").created_at
        assert alert.text == "has never succeeded since it was added (silent: 1.0 d)"
        assert court.until_quiet(DAY) == ([], [])
        host.worker(host.store()).run_due()
        assert court.judged(PASS_INTERVAL) == ([], [("silent", "k")])
        assert court.reasons()[0].startswith("it has succeeded at 2023-11-")

    def test_it_counts_from_the_last_success_however_many_have_failed_since(self, host):
        add(host, expect={"silent": "1d"})
        worker = host.worker(host.store(), retry_wait=HOUR)
        worker.run_due()
        host.clock.advance(2 * HOUR)
        worker.run_due({"k": "no"})
        worker.close()
        court = Court(host)
        assert court.until_quiet(DAY - 3 * HOUR) == ([], [])
        assert court.until_quiet(2 * HOUR) == ([("silent", "k")], [])
        (alert,) = court.alerts()
        assert alert.text.startswith("has last succeeded 1.0 d ago, at 2023-11-14T22:13:20Z")
        (success,) = [run for run in host.store().history.runs() if run.outcome == Outcome.FINISHED]
        assert alert.since == success.ended

    def test_a_success_whose_record_is_too_old_to_be_kept_is_not_denied(self, host):
        add(host, expect={"silent": "3d"})
        ran(host, 2 * DAY, Outcome.FINISHED)
        court = Court(host, history_keep="2d")
        host.clock.advance(4 * DAY + HOUR)
        host.store().history.trim(before=1000 * (START + 3 * DAY), limit=9)
        assert court.until_quiet(DAY - HOUR) == ([], [])
        assert court.until_quiet(2 * HOUR) == ([("silent", "k")], [])
        (alert,) = court.alerts()
        assert alert.text == (
            "has not succeeded for 3.0 d or longer; the records of earlier runs are deleted"
            " (silent: 3.0 d)"
        )
        assert START + 2 * DAY < alert.since / 1000 <= START + 2 * DAY + 2 * HOUR
        ran(host, 5 * DAY + HOUR, Outcome.FINISHED)
        assert court.until_quiet(MINUTE) == ([], [("silent", "k")])

    def test_a_success_before_as_many_records_as_are_kept_is_not_denied(self, host):
        add(host, expect={"silent": "1d"})
        ran(host, 10 * HOUR, Outcome.FINISHED)
        for hour in 20, 21, 22:
            ran(host, hour * HOUR, Outcome.FAILED)
        host.store().history.trim_key("k", 3)
        court = Court(host, history_keep_per_key=3)
        host.clock.advance(25 * HOUR)
        court.judged()
        # The judge remembers what it has seen, and what is deleted later does not matter.
        ran(host, 26 * HOUR, Outcome.FAILED)
        host.store().history.trim_key("k", 3)
        assert court.until_quiet(18 * HOUR) == ([], [])
        assert court.until_quiet(2 * HOUR) == ([("silent", "k")], [])
        (alert,) = court.alerts()
        assert alert.since == 1000 * (START + 20 * HOUR)
        assert alert.text.startswith("has not succeeded for 1.0 d or longer; the records of")

    def test_a_schedule_all_of_whose_records_are_kept_has_never_succeeded(self, host):
        add(host, expect={"silent": "1d"})
        for hour in 2, 3, 4:
            ran(host, hour * HOUR, Outcome.FAILED)
        court = Court(host, history_keep_per_key=4, history_keep=0)
        assert court.until_quiet(DAY + HOUR) == ([("silent", "k")], [])
        (alert,) = court.alerts()
        assert alert.since == 1000 * START
        assert alert.text.startswith("has never succeeded since it was added")

    def test_what_was_closed_by_hand_is_not_told_again_when_records_are_deleted(self, host):
        add(host, expect={"silent": "1d"})
        ran(host, HOUR, Outcome.FINISHED)
        court = Court(host, history_keep="2d")
        assert court.until_quiet(DAY + 2 * HOUR) == ([("silent", "k")], [])
        court.store.alerts.close_alerts(court.alerts(), "by hand")
        host.clock.advance(DAY)
        host.store().history.trim(before=1000 * (START + 2 * HOUR), limit=9)
        assert Court(host, history_keep="2d").until_quiet(HOUR) == ([], [])
        assert len(court.alerts()) == 1

    def test_after_a_success_it_can_be_told_again(self, host):
        add(host, expect={"silent": "1d"})
        court = Court(host)
        assert court.until_quiet(DAY + HOUR) == ([("silent", "k")], [])
        worker = host.worker(host.store(), catchup="latest")
        worker.advance(3)
        worker.run_due()
        worker.close()
        assert court.until_quiet(DAY + HOUR) == ([("silent", "k")], [("silent", "k")])
        assert len(court.alerts(only_open=True)) == 1

    def test_after_it_was_cancelled_and_requeued_it_can_be_told_again(self, host):
        add(host, expect={"silent": "1d"})
        ran(host, HOUR, Outcome.FINISHED)
        court = Court(host)
        assert court.until_quiet(DAY + 2 * HOUR) == ([("silent", "k")], [])
        host.schedules["k"].cancel()
        assert court.until_quiet(MINUTE) == ([], [("silent", "k")])
        host.schedules["k"].requeue()
        assert court.until_quiet(DAY - HOUR) == ([], [])
        assert court.until_quiet(2 * HOUR) == ([("silent", "k")], [])
        assert court.until_quiet(DAY) == ([], [])

    def test_only_recurring_schedules_are_judged_that_are_not_paused_and_have_not_ended(self, host):
        host.schedules.add("once", "test", next_time=START + 9 * DAY)
        for key in "paused", "cancelled", "quarantined":
            add(host, key)
        host.schedules["paused"].pause()
        host.schedules["cancelled"].cancel()
        court = Court(host, {"silent": "1d"})
        host.sql(
            "UPDATE psched SET status = 'quarantined', next_run_time = NULL"
            " WHERE id = 'quarantined'"
        )
        assert court.until_quiet(2 * DAY) == ([("silent", "quarantined")], [])
        assert "; it is quarantined" in court.alerts()[0].text

    def test_the_time_of_a_pause_does_not_count(self, host):
        add(host, expect={"silent": "1d"})
        add(host, "type", expect={"silent": "1d"}, retry_wait=0)
        host.schedules["k"].pause()
        rule = PauseRule(id="a", type="test", since=START, until=START + 2 * DAY, by="ann@web1")
        court = Court(host)
        court.store.pauses.change_pause_rules(drop=(), store=[rule])
        assert court.until_quiet(2 * DAY - MINUTE) == ([], [])
        host.clock.advance(2 * MINUTE)
        host.schedules["k"].resume()
        assert court.until_quiet(DAY - 5 * MINUTE) == ([], [])
        raised, _ = court.until_quiet(10 * MINUTE)
        assert sorted(raised) == [("silent", "k"), ("silent", "type")]

    def test_without_a_history_it_is_said_once_and_nothing_is_judged(self, host):
        add(host, expect={"silent": "1m"}, history="failures")
        court = Court(host)
        assert court.until_quiet(HOUR) == ([], [])
        assert court.notes == ["expect.silent is not judged where history is not all"]
        host.schedules["k"].edit(history=None)
        assert court.until_quiet(10 * MINUTE) == ([("silent", "k")], [])
        host.schedules["k"].edit(history="none")
        assert court.until_quiet(MINUTE) == ([], [("silent", "k")])
        assert court.reasons() == ["its successes are not recorded any more (history: none)"]


class TestTogether:
    @pytest.mark.slow
    def test_of_two_judges_one_raises_and_one_closes(self, host):
        for key in "a", "b":
            add(host, key, expect={"late": "5m", "silent": "1h"})
        courts = [Court(host), Court(host, expect={})]
        raised, closed = [], []
        for before in 4 * MINUTE, 46 * MINUTE:
            host.clock.advance(before)
            for court in 4 * courts:
                done = court.until_quiet(MINUTE)
                raised, closed = raised + done[0], closed + done[1]
        assert sorted(raised) == [("late", "a"), ("late", "b"), ("silent", "a"), ("silent", "b")]
        worker = host.worker(host.store(), catchup="latest", concurrency=2)
        worker.advance(3)
        worker.run_due()
        worker.close()
        for court in courts:
            closed += court.until_quiet(10)[1]
        assert sorted(closed) == sorted(raised)

    def test_a_judge_with_old_knowledge_raises_no_incident_that_was_closed(self, host):
        add(host)
        court, stale = (Court(host, {"late": "5m"}) for _ in range(2))
        host.clock.advance(10 * MINUTE)
        old = stale.store.light_reads.active_rows(None, 10)
        court.judged()
        worked(host, 1)
        court.judged(PASS_INTERVAL)
        stale.store.light_reads.active_rows = lambda *_: old
        done = stale.judge.step()
        assert ([*done.raised], [alert.closed is None for alert in stale.alerts()]) == ([], [False])

    @pytest.mark.slow
    def test_what_an_operator_has_closed_is_not_raised_again(self, host):
        add(host)
        court = Court(host, {"late": "5m"})
        court.until_quiet(10 * MINUTE)
        court.store.alerts.close_alerts(court.alerts(), "closed by ann@web1")
        assert court.until_quiet(HOUR) == ([], [])
        assert Court(host, {"late": "5m"}).until_quiet(HOUR) == ([], [])

    def test_the_alerts_have_the_hooks_of_their_rule_and_settings(self, host):
        own = {"on_late": ["slack", "mail"], "on_failed": "pager"}
        add(host, "k", expect={"late": "5m"}, **own)
        hooks = {key: {"command": ["true"]} for key in ("slack", "mail", "pager")}
        court = Court(host, hooks=hooks, on_late="pager", on_recovered="slack")
        court.until_quiet(10 * MINUTE)
        (alert,) = court.alerts(key="k")
        assert (alert.on_raise, alert.on_close) == (("slack", "mail"), ("slack",))


class TestCost:
    def test_nothing_is_read_but_once_a_minute_if_nothing_is_expected(self, host):
        for number in range(20):
            add(host, f"k{number}")
        court = Court(host)
        counted = Requests(court.store)
        assert court.until_quiet(60 * MINUTE) == ([], [])
        assert counted.sent <= 60 * 4

    def test_a_schedule_that_begins_to_expect_something_is_noticed_within_two_minutes(self, host):
        add(host)
        court = Court(host)
        court.until_quiet(10 * MINUTE)
        host.schedules["k"].edit(expect={"late": "5m"})
        assert court.until_quiet(2 * MINUTE) == ([("late", "k")], [])

    @pytest.mark.parametrize(
        ("takes", "least", "most"), [(0.0, 55, 61), (0.05, 22, 25), (4.0, 6, 7)]
    )
    def test_the_longer_a_page_takes_the_fewer_are_read(
        self, host, monkeypatch, takes, least, most
    ):
        monkeypatch.setattr(module, "MENTIONING_PAGE", 1)
        for number in range(70):
            add(host, f"k{number}")
        court, pages = Court(host), []
        read = court.store.light_reads.row_page

        def slow(*arguments):
            host.clock.advance(takes)
            pages.append(arguments)
            return read(*arguments)

        court.store.light_reads.row_page = slow
        end = host.clock.monotonic() + MINUTE
        while host.clock.monotonic() < end:
            host.clock.advance(court.judge.step().wait)
        assert least <= len(pages) <= most

    def test_two_judges_do_not_ask_at_the_same_time(self, host):
        settings = from_mapping({"url": "sqlite:///unused.db", "expect": {"late": "5m"}})
        draws = [random.Random(seed) for seed in range(9)]  # noqa: S311  # jitter
        stores = [host.store() for _ in draws]
        judges = [
            Judge(store, store.alerts, settings, clock=host.clock, rng=rng)
            for store, rng in zip(stores, draws, strict=True)
        ]
        waits = {judge.step().wait for judge in judges}
        assert len(waits) == 9


class Requests:
    """Counts the statements that a store sends."""

    def __init__(self, store):
        self.sent = 0
        query = store._query

        def counting(*arguments):
            self.sent += 1
            return query(*arguments)

        store._query = counting


class TestStores:
    def test_after_a_fault_the_judge_continues(self, host):
        add(host)
        court = Court(host, {"late": "5m"})
        host.clock.advance(10 * MINUTE)
        read = court.store.light_reads.active_rows

        def fail(*_):
            raise OSError("away")

        court.store.light_reads.active_rows = fail
        with pytest.raises(OSError, match="away"):
            court.judge.step()
        court.store.light_reads.active_rows = read
        assert court.until_quiet(MINUTE) == ([("late", "k")], [])

    def test_every_kind_of_reading_gives_the_same(self, host):
        add(host, expect={"late": "5m"})
        store = host.store()
        for name in "active_rows", "row_page", "light_rows":
            row = {
                "active_rows": lambda: store.light_reads.active_rows(None, 9).due[0],
                "row_page": lambda: store.light_reads.row_page(None, 9, "expect").rows[0],
                "light_rows": lambda: store.light_reads.light_rows(["k"])["k"],
            }[name]()
            assert row == changed(store.get("k"), data=None)
