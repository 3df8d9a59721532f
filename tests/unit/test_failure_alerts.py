"""Tests of the alerts about failed runs, on a real store."""

import random
import sqlite3
from contextlib import closing
from dataclasses import replace as changed

import pytest

import psched
from psched import app
from psched.base.errors import SchemaError
from psched.config import from_mapping
from psched.core.alerts.protocol import AlertSelection
from psched.core.history.records import Fate, Outcome, RunRecord
from psched.core.model import CANCELLED, QUARANTINED, WAITING, ReasonCode, Row
from psched.reports.failures import Failures
from psched.testing import ManualClock
from support.tables import fill_sqlite

HOUR = 3_600_000


class Bench:
    """A store with some schedules, and what judges their failures."""

    def __init__(self, url, **settings):
        self.settings = from_mapping({"url": url, **settings})
        self.clock = ManualClock()
        self.store = self.new_store()
        self.written = 0

    def new_store(self):
        return app.create_store(self.settings, clock=self.clock, rng=random.Random(1))  # noqa: S311  # jitter

    def monitor(self):
        store = self.new_store()
        return Failures(
            store,
            store.history,
            store.alerts,
            self.settings,
            clock=self.clock,
        )

    def add(self, *keys, **fields):
        self.store.add([Row(key=key, next_time=1, **fields) for key in keys], nonce="n")

    def set_status(self, key, status):
        row = self.store.get(key)
        assert self.store.replace(row, changed(row, status=status))

    def run(
        self,
        key,
        outcome,
        fate=None,
        *,
        at=None,
        scheduled_time=1,
        attempt=1,
        reason=None,
        reason_code=None,
    ):
        """Write the record of an attempt; each one ends a second after the one before."""
        self.written += 1
        record = RunRecord(
            key=key,
            type="default",
            scheduled_time=scheduled_time,
            owner=f"worker.{self.written}",
            fence=self.written,
            attempt=attempt,
            ended=HOUR + 1000 * self.written if at is None else at,
            outcome=outcome,
            fate=fate,
            reason=reason,
            reason_code=reason_code,
        )
        self.store.history.record([record])
        return record

    def hide_alerts(self):
        self._rename("psched_alerts", "hidden")

    def show_alerts(self):
        self._rename("hidden", "psched_alerts")

    def _rename(self, old, new):
        path = self.settings.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"ALTER TABLE {old} RENAME TO {new}")
            connection.commit()

    def now(self):
        return round(1000 * self.store.now())

    def open(self):
        return [(alert.key, alert.rule) for alert in self.alerts(only_open=True)]

    def alerts(self, **selection):
        return [*self.store.alerts.find_alerts(AlertSelection(**selection))]


HOOKS = {key: {"command": ["true"]} for key in ("mail", "chat", "late")}


@pytest.fixture
def bench(tmp_path):
    return Bench(fill_sqlite(tmp_path / "psched.db"), hooks=HOOKS, on_recovered="chat")


def test_a_failure_raises_an_alert_and_the_next_success_closes_it(bench):
    bench.add("k", options='{"on_failed": ["mail"], "on_late": ["late"]}', label="nightly")
    monitor = bench.monitor()
    assert not monitor.step().raised
    failed = bench.run("k", Outcome.FAILED, reason="no \x1b space")

    [raised], closed = monitor.step()[:2]
    assert not closed
    assert (raised.key, raised.rule, raised.since) == ("k", "failed", failed.ended)
    assert (raised.label, raised.scheduled_time) == ("nightly", 1)
    assert raised.text == "attempt 1 has failed: no \\x1b space"
    assert (raised.on_raise, raised.on_close) == (("mail",), ("chat",))
    assert not any(monitor.step()[:2])

    bench.run("k", Outcome.FINISHED, Fate.FINISHED, attempt=2)
    raised, [closed] = monitor.step()[:2]
    assert not raised
    assert closed.closed_text == "it has succeeded, attempt 2"
    assert bench.open() == []


@pytest.mark.parametrize(
    ("outcome", "fate", "rule", "text"),
    [
        (Outcome.TIMED_OUT, None, "failed", "attempt 2 was stopped at its time limit: why"),
        (Outcome.FAILED, Fate.GAVE_UP, "gave_up", "it was given up after 2 attempts: why"),
        (None, Fate.EXPIRED, "gave_up", "it has expired: why"),
        (Outcome.LOST, None, "lost", "attempt 2 was lost: why"),
        (Outcome.PREEMPTED, None, "lost", "attempt 2 has lost its lease: why"),
        (None, Fate.QUARANTINED, "quarantined", "it was quarantined: why"),
    ],
)
def test_each_kind_of_failure_has_its_rule(bench, outcome, fate, rule, text):
    bench.add("k")
    if fate == Fate.QUARANTINED:
        bench.set_status("k", QUARANTINED)
    bench.run("k", outcome, fate, attempt=2, reason="why")
    [raised], _ = bench.monitor().step()[:2]
    assert (raised.rule, raised.text) == (rule, text)


def test_a_schedule_that_pauses_itself_is_given_up(bench):
    own = '{"max_attempts": 5, "pause_after_failures": 2}'
    bench.add("k", options=own)
    monitor = bench.monitor()
    assert not monitor.step().raised
    bench.run("k", Outcome.FAILED, reason="exit status 1")
    paused = "paused after 2 failures in a row: exit status 1"
    bench.run("k", Outcome.FAILED, reason=paused, reason_code=ReasonCode.PAUSED_AFTER_FAILURES)
    raised = {alert.rule: alert.text for alert in monitor.step().raised}
    assert raised == {
        "failed": "attempt 1 has failed: exit status 1",
        "gave_up": "it does not run any more: paused after 2 failures in a row: exit status 1",
    }
    bench.run("k", Outcome.FINISHED, Fate.FINISHED)
    monitor.step()
    assert not bench.open()


def test_a_time_limit_is_named_once(bench):
    bench.add("k")
    bench.run("k", Outcome.TIMED_OUT, reason="stopped at its time limit")
    [raised], _ = bench.monitor().step()[:2]
    assert raised.text == "attempt 1 was stopped at its time limit"


def test_who_is_given_up_when_it_is_claimed_was_not_tried_0_times(bench):
    bench.add("k")
    bench.run("k", None, Fate.GAVE_UP, attempt=0, reason="gave up: its worker died")
    [raised], _ = bench.monitor().step()[:2]
    assert raised.text == "it was given up: its worker died"


@pytest.mark.parametrize(
    ("outcome", "fate"),
    [
        (Outcome.FINISHED, Fate.FINISHED),
        (Outcome.RELEASED, None),
        (Outcome.CANCELLED, Fate.CANCELLED),
        (None, Fate.SKIPPED_PAUSED),
    ],
)
def test_what_is_no_failure_raises_nothing(bench, outcome, fate):
    bench.add("k")
    bench.run("k", outcome, fate)
    assert not bench.monitor().step().raised


def test_failures_in_a_row_are_one_alert_and_those_after_a_success_another(bench):
    bench.add("k")
    monitor = bench.monitor()
    first = bench.run("k", Outcome.FAILED)
    for attempt in range(2, 5):
        monitor.step()
        bench.run("k", Outcome.FAILED, attempt=attempt)
    monitor.step()
    assert [alert.since for alert in bench.alerts()] == [first.ended]

    bench.run("k", Outcome.FINISHED, Fate.FINISHED)
    again = bench.run("k", Outcome.FAILED, scheduled_time=2)
    monitor.step()
    # The success is not the last run, so the alert stays open: the schedule fails.
    assert bench.open() == [("k", "failed")]
    bench.run("k", Outcome.FINISHED, Fate.FINISHED, scheduled_time=2, attempt=2)
    monitor.step()
    assert bench.open() == []
    assert again.ended > first.ended


def test_two_monitors_raise_and_close_each_alert_once(bench):
    bench.add("k")
    one, other = bench.monitor(), bench.monitor()
    one.step()
    other.step()
    for scheduled_time in range(5):
        bench.run("k", Outcome.FAILED, scheduled_time=scheduled_time)
        bench.run("k", Outcome.FAILED, scheduled_time=scheduled_time, attempt=2)
        raised = [*one.step().raised, *other.step().raised]
        assert len(raised) == 1
        bench.run("k", Outcome.FINISHED, Fate.FINISHED, scheduled_time=scheduled_time, attempt=3)
        assert len([*other.step().closed, *one.step().closed]) == 1
    assert len(bench.alerts()) == 5


def test_a_monitor_that_was_away_raises_nothing_that_another_one_has_closed(bench):
    bench.add("k")
    one, slow = bench.monitor(), bench.monitor()
    one.step()
    slow.step()
    bench.run("k", Outcome.FAILED)
    one.step()
    bench.run("k", Outcome.FAILED, attempt=2)
    bench.run("k", Outcome.FINISHED, Fate.FINISHED, attempt=3)
    assert one.step().closed
    assert not slow.step().raised


def test_a_failure_that_is_over_before_anybody_looks_is_told_nevertheless(bench):
    bench.add("k")
    monitor = bench.monitor()
    monitor.step()
    bench.run("k", Outcome.FAILED, Fate.GAVE_UP)
    bench.run("k", Outcome.FINISHED, Fate.FINISHED, scheduled_time=2)
    raised, closed = monitor.step()[:2]
    assert [alert.rule for alert in raised] == [alert.rule for alert in closed] == ["gave_up"]


def test_a_new_monitor_tells_what_is_wrong_now_but_nothing_that_is_over(bench):
    bench.add("over", "wrong")
    bench.run("over", Outcome.FAILED)
    bench.run("gone", Outcome.FAILED)
    bench.run("over", Outcome.FINISHED, Fate.FINISHED)
    bench.run("wrong", Outcome.FAILED)
    assert [alert.key for alert in bench.monitor().step().raised] == ["wrong"]


def test_an_alert_is_over_when_its_schedule_is_deleted_cancelled_or_requeued(bench):
    bench.add("deleted", "cancelled", "requeued")
    bench.set_status("requeued", QUARANTINED)
    for key in "deleted", "cancelled":
        bench.run(key, Outcome.FAILED)
    bench.run("requeued", None, Fate.QUARANTINED)
    monitor = bench.monitor()
    assert len(monitor.step().raised) == 3

    bench.store.delete("deleted")
    bench.set_status("cancelled", CANCELLED)
    bench.set_status("requeued", WAITING)
    assert {alert.key: alert.closed_text for alert in monitor.step().closed} == {
        "deleted": "the schedule was deleted",
        "cancelled": "it is cancelled",
        "requeued": "it is not quarantined any more",
    }


def test_where_only_failures_are_recorded_a_settle_without_a_record_is_a_success(bench):
    bench.add("k", options='{"history": "failures"}', cron="@every 1h", next_run_time=1)
    failed = bench.run("k", Outcome.FAILED)
    monitor = bench.monitor()
    assert [alert.since for alert in monitor.step().raised] == [failed.ended]
    assert not monitor.step().closed

    row = bench.store.get("k")
    assert bench.store.replace(row, changed(row, next_time=3601))
    [closed] = monitor.step().closed
    assert closed.closed_text == "a later run has succeeded"
    # Each occurrence is an incident of its own.
    later = bench.run("k", Outcome.FAILED, scheduled_time=3601)
    assert [alert.since for alert in monitor.step().raised] == [later.ended]


@pytest.mark.slow
def test_a_flood_of_failures_raises_all_alerts(bench):
    keys = [f"k{n}" for n in range(450)]
    bench.add(*keys)
    monitor = bench.monitor()
    monitor.step()
    for key in keys:
        bench.run(key, Outcome.FAILED)
    assert {alert.key for alert in monitor.step().raised} == {*keys}


def test_of_many_open_alerts_all_are_closed_at_last(bench, monkeypatch):
    monkeypatch.setattr("psched.reports.failures._CHECKED", 7)
    keys = [f"k{n:02}" for n in range(30)]
    bench.add(*keys)
    monitor = bench.monitor()
    for key in keys:
        bench.run(key, Outcome.FAILED)
    monitor.step()
    # Only the oldest ones are over.
    for key in keys[:5]:
        bench.run(key, Outcome.FINISHED, Fate.FINISHED, attempt=2)
    closed = [alert.key for _ in range(10) for alert in monitor.step().closed]
    assert sorted(closed) == keys[:5]


def test_many_failed_tasks_do_not_silence_a_schedule(bench, monkeypatch):
    monkeypatch.setattr("psched.reports.failures.MOST_OPEN", 3)
    bench.add("k0", "k1", "k2", "more")
    bench.add("nightly", cron="@daily")
    monitor = bench.monitor()
    for number in range(3):
        bench.run(f"k{number}", Outcome.FAILED)
    assert len(monitor.step().raised) == 3
    bench.run("more", Outcome.FAILED)
    bench.run("nightly", Outcome.FAILED)
    raised, _, [note], _ = monitor.step()
    assert [alert.key for alert in raised] == ["nightly"]
    assert "one-off tasks" in note
    assert not monitor.step().notes


@pytest.mark.slow
@pytest.mark.parametrize("failures", [2, 40])
def test_an_incident_that_is_over_is_not_told_again_however_many_runs_follow(bench, failures):
    bench.add("k")
    one, other = bench.monitor(), bench.monitor()
    raised, closed = [], []

    def step():
        for monitor in one, other, bench.monitor():
            done = monitor.step()
            raised.extend(done.raised)
            closed.extend(done.closed)

    step()
    for attempt in range(failures):
        bench.run("k", Outcome.FAILED, attempt=attempt + 1)
        step()
    for number in range(45):
        bench.run("k", Outcome.FINISHED, Fate.FINISHED, scheduled_time=number + 2)
        step()
    assert (len(raised), len(closed)) == (1, 1)


def test_an_alert_that_was_closed_by_hand_is_not_raised_again_by_the_same_incident(bench):
    bench.add("k")
    monitor = bench.monitor()
    bench.run("k", Outcome.FAILED)
    bench.store.alerts.close_alerts(monitor.step().raised, "closed by ann")
    for attempt in range(2, 42):
        bench.run("k", Outcome.FAILED, attempt=attempt)
        assert not any(monitor.step()[:2])
    assert not any(bench.monitor().step()[:2])


def cancel_and_requeue(schedules):
    schedules.cancel("k")
    yield
    schedules.requeue("k")


def finish_and_requeue(schedules):
    schedules.force_finish("k")
    yield
    schedules.requeue("k")


def cancel_and_edit(schedules):
    schedules.cancel("k")
    yield
    schedules.edit("k", cron="@hourly")


def cancel_and_set_a_time(schedules):
    schedules.cancel("k")
    yield
    schedules.edit("k", next_time=int(schedules.now()) + 5)


def delete_and_add(schedules):
    schedules.delete("k")
    yield
    schedules.add("k", cron="@daily")


@pytest.mark.parametrize(
    "restart",
    [
        cancel_and_requeue,
        finish_and_requeue,
        cancel_and_edit,
        cancel_and_set_a_time,
        delete_and_add,
    ],
)
@pytest.mark.parametrize("is_closed_by_hand", [False, True])
def test_what_fails_after_it_was_ended_and_runs_again_is_a_new_incident(
    bench, restart, is_closed_by_hand
):
    bench.add("k", cron="@daily")
    monitor = bench.monitor()
    monitor.step()
    first = bench.run("k", Outcome.FAILED, at=bench.now() - HOUR)
    raised = monitor.step().raised
    assert [alert.since for alert in raised] == [first.ended]
    if is_closed_by_hand:
        bench.store.alerts.close_alerts(raised, "closed by ann")
    with closing(psched.open({"url": bench.settings.url})) as schedules:
        steps = restart(schedules)
        next(steps)
        monitor.step()
        assert bench.open() == []
        next(steps, None)
    for attempt in 1, 2:
        bench.run("k", Outcome.FAILED, at=bench.now() + 1000 * attempt, attempt=attempt)
        assert len(monitor.step().raised) == (attempt == 1)
    assert not bench.monitor().step().raised
    bench.store.alerts.close_alerts(bench.alerts(only_open=True), "closed by ann")
    bench.run("k", Outcome.FAILED, at=bench.now() + 3000, attempt=3)
    assert not monitor.step().raised


def test_each_quarantine_is_an_incident_of_its_own(bench):
    bench.add("k", cron="@daily")
    monitor = bench.monitor()
    for number in range(3):
        bench.set_status("k", QUARANTINED)
        bench.run("k", None, Fate.QUARANTINED)
        assert len(monitor.step().raised) == 1, number
        assert not monitor.step().raised
        bench.set_status("k", WAITING)  # as plain SQL does
        assert len(monitor.step().closed) == 1


def test_an_extra_run_counts_as_a_run_of_its_schedule(bench):
    bench.add("k", cron="@daily")
    monitor = bench.monitor()
    bench.run("k!0123456789abcdef", Outcome.FAILED, reason="why")
    [raised], _ = monitor.step()[:2]
    assert (raised.key, raised.text) == (
        "k",
        "extra run k!0123456789abcdef: attempt 1 has failed: why",
    )
    row = bench.store.get("k")
    assert bench.store.replace(row, changed(row, next_time=3601))
    assert not any(monitor.step()[:2])
    bench.run("k!0123456789abcdef", Outcome.FINISHED, Fate.FINISHED, attempt=2)
    _, [closed] = monitor.step()[:2]
    assert closed.closed_text == "an extra run has succeeded"


def test_a_task_that_is_gone_tells_the_hooks_of_its_type(tmp_path):
    own = {"hooks": HOOKS, "types": {"default": {"on_failed": "mail", "on_recovered": "late"}}}
    bench = Bench(fill_sqlite(tmp_path / "psched.db"), **own)
    monitor = bench.monitor()
    monitor.step()
    bench.run("gone", Outcome.FAILED, Fate.GAVE_UP)
    [raised], [closed] = monitor.step()[:2]
    assert (raised.on_raise, raised.on_close) == (("mail",), ("late",))
    assert closed.closed_text == "the schedule was deleted"


def test_an_alert_is_over_at_the_next_occurrence_if_the_history_is_switched_off(bench):
    bench.add("k", cron="@every 1h")
    monitor = bench.monitor()
    bench.run("k", Outcome.FAILED)
    assert monitor.step().raised
    row = bench.store.get("k")
    assert bench.store.replace(
        row, changed(row, options='{"history": "none"}', next_time=3601, next_run_time=3601)
    )
    assert [alert.closed_text for alert in monitor.step().closed] == ["a later run has succeeded"]


def test_a_store_that_fails_in_between_is_asked_again_for_the_same(bench):
    bench.add("k")
    monitor = bench.monitor()
    monitor.step()
    bench.run("k", Outcome.FAILED)
    bench.hide_alerts()
    with pytest.raises(SchemaError):
        monitor.step()
    bench.show_alerts()
    assert len(monitor.step().raised) == 1


def test_values_of_fields_that_are_redacted_are_not_in_the_text(tmp_path):
    bench = Bench(fill_sqlite(tmp_path / "psched.db"), redact=["password"])
    bench.add("k")
    bench.run("k", Outcome.FAILED, reason='cannot log in: {"password": "secret"}')
    [alert], _ = bench.monitor().step()[:2]
    assert "secret" not in alert.text
    assert "password" in alert.text
