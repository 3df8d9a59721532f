"""Tests of a worker with a manual clock: the end of a pause, and pauses after failures."""

import pytest

from psched.core.history.protocol import RunSelection
from psched.core.model import PAUSED, WAITING
from support.driven import START, driven_host

pytestmark = pytest.mark.slow

MINUTE, HOUR = 60, 3600
NOON = START // HOUR * HOUR + HOUR
"""The next full hour."""


@pytest.fixture
def host(tmp_path):
    with driven_host(tmp_path) as host:
        yield host


@pytest.fixture
def runs(host):
    """The records of a key, the oldest first."""
    store = host.store()
    return lambda key="k": [*store.history.runs(RunSelection(key=key))][::-1]


def spans(runs):
    return [
        (each.scheduled_time - NOON, each.last - NOON, str(each.fate))
        for each in runs
        if each.outcome is None
    ]


POLL_INTERVAL = 15
"""Seconds: so many that an hour costs few requests."""


def worker_of(host, store=None, **settings):
    return host.worker(store or host.store(), poll_interval=POLL_INTERVAL, **settings)


def work(worker, seconds, failures=None):
    """Let a worker run what falls due; return what it has run."""
    done = worker.run_due(failures)
    for passed in range(0, seconds, MINUTE):
        worker.advance(min(MINUTE, seconds - passed))
        done += worker.run_due(failures)
    return [int(each.partition(".")[2]) - NOON for each in done]


class TestEndOfThePause:
    def test_a_worker_that_is_alive_resumes_the_schedule(self, host, runs):
        host.schedules.add("k", "test", cron="*/10 * * * *", next_time=NOON)
        host.schedules["k"].pause(NOON + HOUR)
        worker = worker_of(host)
        ran = work(worker, NOON - START + HOUR + 15 * MINUTE)
        assert ran == [HOUR, HOUR + 10 * MINUTE]
        assert spans(runs()) == [(0, 50 * MINUTE, "skipped_paused")]
        assert host.row("k").status == WAITING

    def test_a_worker_that_comes_later_skips_no_more(self, host, runs):
        host.schedules.add("k", "test", cron="*/10 * * * *", next_time=NOON)
        host.schedules["k"].pause(NOON + HOUR)
        host.clock.advance(NOON - START + 90 * MINUTE)
        ran = work(worker_of(host), 20)
        assert ran == [HOUR + minutes * MINUTE for minutes in (0, 10, 20, 30)]
        assert spans(runs()) == [(0, 50 * MINUTE, "skipped_paused")]

    def test_what_it_finds_missed_after_the_pause_is_subject_to_catch_up(self, host, runs):
        host.schedules.add("k", "test", cron="*/10 * * * *", next_time=NOON, catchup="latest")
        host.schedules["k"].pause(NOON + HOUR)
        host.clock.advance(NOON - START + 90 * MINUTE)
        assert work(worker_of(host), 20) == [90 * MINUTE]
        assert spans(runs()) == [
            (0, 50 * MINUTE, "skipped_paused"),
            (HOUR, 80 * MINUTE, "coalesced"),
        ]

    def test_a_task_that_runs_once_runs(self, host, runs):
        host.add("k")
        host.schedules["k"].pause(START + HOUR)
        worker = worker_of(host)
        assert work(worker, HOUR - 20) == []
        assert work(worker, 40) == [START - NOON]
        assert spans(runs()) == []
        assert host.row("k").status == "finished"

    def test_a_task_that_was_running_goes_on_and_the_pause_follows(self, host, runs):
        host.schedules.add("k", "test", cron="*/10 * * * *", next_time=NOON)
        host.clock.advance(NOON - START)
        worker = worker_of(host)
        worker.tick()
        task = worker.tasks["k"]
        assert host.schedules["k"].pause(NOON + HOUR) is False
        worker.advance(25 * MINUTE)
        assert worker.tasks == {"k": task}
        task.finish()
        worker.advance(5)
        row = host.row("k")
        assert (row.status, row.next_time, row.next_run_time) == (
            PAUSED, NOON + 10 * MINUTE, NOON + HOUR,
        )  # fmt: skip
        assert work(worker, 36 * MINUTE) == [HOUR]
        assert spans(runs()) == [(10 * MINUTE, 50 * MINUTE, "skipped_paused")]

    def test_a_task_may_run_longer_than_the_pause(self, host, runs):
        host.schedules.add("k", "test", cron="*/10 * * * *", next_time=NOON)
        host.clock.advance(NOON - START)
        worker = worker_of(host)
        worker.tick()
        host.schedules["k"].pause(NOON + 15 * MINUTE)
        worker.advance(25 * MINUTE)
        worker.tasks["k"].finish()
        worker.advance(0.5)
        # What fell due during the pause is skipped, and what fell due after it is not.
        assert work(worker, 20)[-1] == 20 * MINUTE
        assert spans(runs()) == [(10 * MINUTE, 10 * MINUTE, "skipped_paused")]

    def test_the_death_of_a_worker_does_not_end_a_pause(self, host, runs):
        host.add("k")
        dead = worker_of(host, nonce="dead", alive_time=60)
        dead.tick()
        host.schedules["k"].pause(START + HOUR)
        other = worker_of(host, alive_time=60)
        assert work(other, 20 * MINUTE) == []  # the lease has expired meanwhile
        row = host.row("k")
        assert (row.status, row.next_run_time) == (PAUSED, START + HOUR)
        assert work(other, 41 * MINUTE) == [START - NOON]
        assert [str(each.outcome) for each in runs()] == ["lost", "finished"]

    def test_a_worker_that_dies_while_it_resumes_has_changed_nothing(self, host, runs):
        host.schedules.add("k", "test", cron="*/10 * * * *", next_time=NOON)
        host.schedules["k"].pause(NOON + HOUR)
        host.clock.advance(NOON - START + HOUR)
        claim = {"limit": 1, "alive_time": 60, "shortest": 6, "horizon": 0}
        assert host.store().claim("dead.1", **claim).rows
        host.clock.advance(70)
        assert work(worker_of(host), 20) == [HOUR]
        assert spans(runs()) == [(0, 50 * MINUTE, "skipped_paused")]

    def test_a_schedule_that_is_paused_for_ever_costs_nothing(self, host):
        host.add("k")
        host.schedules["k"].pause()
        worker = host.worker(poll_interval=POLL_INTERVAL)
        assert work(worker, HOUR) == []
        assert host.row("k").fence == 0


class TestFailures:
    def add(self, host, **fields):
        host.schedules.add("k", "test", cron="*/10 * * * *", next_time=NOON, **fields)
        host.clock.advance(NOON - START)

    def test_the_attempts_of_one_occurrence(self, host, runs, caplog):
        self.add(host, retry_wait=30, pause_after_failures=3)
        worker = worker_of(host)
        assert work(worker, HOUR, {"k": "ValueError: no"}) == [0, 0, 0]
        row = host.row("k")
        assert (row.status, row.next_run_time) == (PAUSED, None)
        assert row.reason == "paused after 3 failures in a row: ValueError: no"
        assert "k: paused after 3 failures in a row" in caplog.text
        assert runs()[-1].reason == row.reason
        # The occurrence that has failed would run again, but later ones have fallen due.
        host.schedules["k"].resume()
        assert host.row("k").next_time == NOON + HOUR + 10 * MINUTE
        assert len(spans(runs())) == 1

    def test_those_of_occurrences_that_were_given_up(self, host, runs):
        self.add(host, retry_wait=30, max_attempts=2, pause_after_failures=5)
        worker = worker_of(host)
        ran = work(worker, HOUR, {"k": "ValueError: no"})
        assert ran == [0, 0, 10 * MINUTE, 10 * MINUTE, 20 * MINUTE, 20 * MINUTE]
        assert host.row("k").reason.startswith("paused after 6 failures in a row")
        assert [each.fate for each in runs() if each.fate] == ["gave_up"] * 3

    def test_a_success_ends_the_row_of_failures(self, host):
        self.add(host, max_attempts=1, pause_after_failures=3)
        worker = worker_of(host)
        work(worker, 19 * MINUTE, {"k": "ValueError: no"})
        work(worker, 10 * MINUTE)
        work(worker, 20 * MINUTE, {"k": "ValueError: no"})
        assert host.row("k").status == WAITING
        work(worker, 10 * MINUTE, {"k": "ValueError: no"})
        assert host.row("k").status == PAUSED

    @pytest.mark.parametrize("history", ["failures", "none"])
    def test_with_less_history(self, host, history):
        self.add(host, max_attempts=1, pause_after_failures=3, history=history)
        worker = worker_of(host)
        work(worker, 19 * MINUTE, {"k": "ValueError: no"})
        work(worker, 10 * MINUTE)
        work(worker, 20 * MINUTE, {"k": "ValueError: no"})
        assert host.row("k").status == WAITING
        work(worker, HOUR, {"k": "ValueError: no"})
        assert host.row("k").status == (PAUSED if history == "failures" else WAITING)

    def test_after_a_resumption_failures_count_anew(self, host):
        self.add(host, max_attempts=1, pause_after_failures=2)
        worker = worker_of(host)
        work(worker, 15 * MINUTE, {"k": "ValueError: no"})
        assert host.row("k").status == PAUSED
        host.schedules["k"].resume()
        work(worker, 10 * MINUTE, {"k": "ValueError: no"})
        assert host.row("k").status == WAITING
        work(worker, 10 * MINUTE, {"k": "ValueError: no"})
        assert host.row("k").status == PAUSED

    def test_a_worker_that_dies_in_each_last_attempt(self, host):
        self.add(host, max_attempts=1, pause_after_failures=2)
        claim = {"limit": 1, "alive_time": 60, "shortest": 6, "horizon": 0}
        worker = worker_of(host)
        worker.advance(0.5)
        worker.tasks["k"].finish()
        worker.advance(1)
        for number in range(2):
            assert host.row("k").status == WAITING
            host.clock.advance(10 * MINUTE)
            assert host.store().claim(f"dead{number}.1", **claim).rows
            host.clock.advance(70)
            worker.advance(5)
        row = host.row("k")
        assert (row.status, row.next_run_time) == (PAUSED, None)
        assert row.reason.startswith("paused after 2 failures in a row: ")

    def test_the_history_is_read_only_when_an_occurrence_is_given_up(self, host):
        self.add(host, retry_wait=30, max_attempts=3, pause_after_failures=9)
        store, reads = host.store(), []
        runs = store.history.runs
        store.history.runs = lambda selection: reads.append(selection.key) or runs(selection)
        worker = worker_of(host, store)
        work(worker, 9 * MINUTE, {"k": "ValueError: no"})
        assert reads == ["k"]
        host.add("other", max_attempts=1)
        work(worker, 30, {"other": "ValueError: no"})
        assert reads == ["k"]
