"""Tests of ``stop``, which ends one run, with driven workers on a real database."""

import pytest

from psched.base.errors import AlreadyExistsError, AlreadyFinishedError, NotFoundError
from psched.cli.schedules.listing import SHOWN_STATES
from psched.cli.shown import STOPPED_AS, shown_reason, shown_status
from psched.client.auditor import this_process
from psched.client.verifier import Verifier
from psched.config import from_mapping
from psched.core.history.records import Fate, Outcome
from psched.core.model import RUNS_NO_MORE
from support.driven import START, driven_host

MINUTE = 60
NAME = this_process().name


@pytest.fixture
def host(tmp_path):
    with driven_host(tmp_path) as host:
        yield host


def add(host, key="k", **fields):
    host.schedules.add(key, "test", every=MINUTE, next_time=START, **fields)


def begun(host, **settings):
    """A worker that runs what is due."""
    worker = host.worker(host.store(), **settings)
    worker.tick()
    assert worker.tasks
    return worker


def end(worker, key="k", failure="Terminated"):
    """Let the worker notice the mark, and the task end."""
    runner = worker.tasks[key]
    worker.advance(2)
    assert runner.stop_reason == "cancelled"
    runner.finish(failure)
    worker.advance(1)


def runs(host, key="k"):
    return [(run.scheduled_time - START, run.outcome, run.fate) for run in host.schedules.runs(key)]


def violations(host):
    settings = from_mapping({"url": "sqlite:///unused.db"})
    return Verifier(host.store(), settings).verify(since=60 * MINUTE).violations


def test_a_stopped_run_is_not_tried_again_and_its_schedule_goes_on(host):
    add(host, retry_wait=1)
    worker = begun(host)
    with host.schedules.audited("it hangs"):
        assert host.schedules["k"].stop() is False
    assert host.row("k").status == "stopping"
    assert host.row("k").status in STOPPED_AS
    assert len({*SHOWN_STATES}) == len(SHOWN_STATES)
    assert shown_status(host.row("k"), START) == "stopping"
    end(worker)
    row = host.row("k")
    assert (row.status, row.next_time, row.next_run_time) == (
        "waiting", START + MINUTE, START + MINUTE,
    )  # fmt: skip
    assert (row.owner, row.attempt) == (None, 0)
    (run,) = host.schedules.runs("k")
    assert (run.outcome, run.fate) == (Outcome.CANCELLED, Fate.STOPPED)
    assert row.reason == run.reason == f"stopped by {NAME}: it hangs"
    worker.advance(MINUTE)
    assert worker.tasks["k"].occurrence == f"k.{START + MINUTE}"
    answer = host.schedules.why("k", START)
    assert (answer.code, answer.state) == ("stopped", "did not run")
    assert f"was stopped at 22:13:22 UTC: stopped by {NAME}: it hangs" in answer.sentence
    assert violations(host) == []


def test_a_run_that_succeeds_before_it_is_stopped_has_succeeded(host):
    add(host)
    worker = begun(host)
    host.schedules["k"].stop()
    end(worker, failure=None)
    assert runs(host) == [(0, Outcome.FINISHED, Fate.FINISHED)]
    row = host.row("k")
    assert (row.status, row.next_time, row.reason) == ("waiting", START + MINUTE, None)


def test_a_task_that_runs_once_is_cancelled(host):
    host.schedules.add("k", "test", next_time=START)
    worker = begun(host)
    host.schedules["k"].stop()
    end(worker)
    assert host.row("k").status == "cancelled"
    assert runs(host) == [(0, Outcome.CANCELLED, Fate.CANCELLED)]
    assert host.row("k").reason.startswith("stopped by ")


def test_only_what_runs_can_be_stopped(host):
    add(host)
    with pytest.raises(AlreadyFinishedError, match="'k' does not run now: it is waiting"):
        host.schedules["k"].stop()
    host.schedules["k"].pause()
    with pytest.raises(AlreadyFinishedError, match="'k' does not run now: it is paused"):
        host.schedules["k"].stop()
    host.schedules["k"].cancel()
    with pytest.raises(AlreadyFinishedError, match="has ended already"):
        host.schedules["k"].stop()
    with pytest.raises(NotFoundError):
        host.schedules["other"].stop()


def test_what_is_being_stopped_can_be_stopped_and_cancelled(host):
    add(host)
    worker = begun(host)
    host.schedules["k"].stop()
    version = host.row("k").version
    host.schedules["k"].stop()
    assert host.row("k").version == version
    host.schedules["k"].cancel()
    end(worker)
    assert host.row("k").status == "cancelled"


@pytest.mark.parametrize("until", [None, START + 3 * MINUTE])
@pytest.mark.parametrize("verbs", ["pause stop", "stop pause"])
def test_a_pause_beside_the_stop_applies_afterwards(host, verbs, until):
    add(host)
    worker = begun(host)
    for verb in verbs.split():
        schedule = host.schedules["k"]
        with host.schedules.audited("it hangs" if verb == "stop" else "hold"):
            schedule.stop() if verb == "stop" else schedule.pause(until)
    row = host.row("k")
    assert row.status == "stopping"
    assert host.schedules["k"].metadata().paused_until == until
    ends = "" if until is None else " until 2023-11-14 22:16:20 UTC"
    assert shown_reason(row) == (
        f"stopped by {NAME}: it hangs; then paused since 2023-11-14 22:13:20 UTC{ends} by {NAME}:"
        " hold"
    )
    assert host.schedules.why("k").sentence == (
        f"The occurrence of 2023-11-14 22:13:20 UTC is running, but its task is being stopped by"
        f" {NAME}: it hangs; {NAME} paused the schedule at 22:13:20 UTC"
        f"{'' if until is None else ' until 22:16:20 UTC'}: hold."
    )
    end(worker)
    row = host.row("k")
    assert (row.status, row.next_time, row.next_run_time) == ("paused", START + MINUTE, until)
    assert runs(host) == [(0, Outcome.CANCELLED, Fate.STOPPED)]
    (run,) = host.schedules.runs("k")
    assert run.reason == f"stopped by {NAME}: it hangs"
    assert shown_reason(row).endswith(f"by {NAME}: hold")
    assert f"was stopped at 22:13:22 UTC: stopped by {NAME}: it hangs" in (
        host.schedules.why("k", START).sentence
    )
    worker.advance(2 * MINUTE)
    assert not worker.tasks
    host.schedules["k"].resume()
    worker.advance(2 * MINUTE)
    assert worker.tasks


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE psched SET status = 'paused'",
        "UPDATE psched SET status = 'paused', reason = 'hold; on'",
    ],
)
def test_what_plain_sql_has_paused_stays_paused(host, statement):
    add(host)
    worker = begun(host)
    host.sql(statement)
    host.schedules["k"].stop()
    end(worker)
    assert host.row("k").status == "paused"
    (run,) = host.schedules.runs("k")
    assert run.reason == f"stopped by {NAME}"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE psched SET status = 'stopping'",
        "UPDATE psched SET status = 'stopping', reason = 'too slow'",
    ],
)
def test_a_pause_beside_a_stop_by_plain_sql_applies(host, statement):
    add(host)
    worker = begun(host)
    host.sql(statement)
    host.schedules["k"].pause(START + 3 * MINUTE)
    end(worker)
    row = host.row("k")
    assert (row.status, row.next_run_time) == ("paused", START + 3 * MINUTE)


def test_a_pause_is_taken_back_while_the_run_is_stopped(host):
    add(host)
    worker = begun(host)
    with host.schedules.audited("it hangs"):
        host.schedules["k"].stop()
    host.schedules["k"].pause()
    host.schedules["k"].resume()
    row = host.row("k")
    assert (row.status, row.reason) == ("stopping", f"stopped by {NAME}: it hangs")
    with pytest.raises(AlreadyExistsError, match="'k' is not paused: it is stopping"):
        host.schedules["k"].resume()
    end(worker)
    assert (host.row("k").status, host.row("k").next_time) == ("waiting", START + MINUTE)


def test_a_run_that_ends_before_a_pause_has_no_words_of_the_pause(host):
    add(host)
    worker = begun(host)
    host.schedules["k"].pause()
    worker.tasks["k"].finish()
    worker.advance(1)
    (run,) = host.schedules.runs("k")
    assert (run.fate, run.reason) == (Fate.FINISHED, None)
    assert host.row("k").pause.note == NAME


def test_a_task_that_runs_once_and_is_stopped_and_paused_is_cancelled(host):
    host.schedules.add("k", "test", next_time=START)
    worker = begun(host)
    host.schedules["k"].pause()
    host.schedules["k"].stop()
    end(worker)
    row = host.row("k")
    assert (row.status, row.reason) == ("cancelled", f"stopped by {NAME}")
    sentence = host.schedules.why("k").sentence
    assert sentence.count(f"stopped by {NAME}") == 1


@pytest.mark.parametrize("end_it", ["cancel", "force_finish"])
def test_that_a_schedule_runs_no_more_is_said_as_soon_as_it_is_decided(host, end_it):
    add(host)
    worker = begun(host)
    for is_over in False, True:
        end(worker) if is_over else getattr(host.schedules["k"], end_it)()
        assert shown_reason(host.row("k")) == RUNS_NO_MORE
        assert host.schedules.why("k").sentence.endswith(f"; the schedule {RUNS_NO_MORE}.")
    host.schedules["k"].edit(every=2 * MINUTE)
    assert shown_reason(host.row("k")) == ""
    assert RUNS_NO_MORE not in host.schedules.why("k").sentence


def test_an_edit_does_not_undo_a_stop(host):
    add(host)
    worker = begun(host)
    host.schedules["k"].stop()
    change = host.schedules["k"].edit(every=2 * MINUTE)
    assert [each.note for each in change.before[:1]] == ["is being stopped"]
    assert len(change.after) == len(change.before) == 3
    assert change.after[2].time - change.after[1].time == 2 * MINUTE
    end(worker)
    row = host.row("k")
    assert row.status == "waiting"
    assert row.next_time > START
    assert runs(host)[-1] == (0, Outcome.CANCELLED, Fate.STOPPED)
    assert violations(host) == []


def test_a_run_whose_worker_dies_while_it_is_stopped_is_not_tried_again(host):
    add(host)
    first = begun(host, alive_time=20)
    host.schedules["k"].stop()
    first.close()
    host.clock.advance(25)
    second = host.worker(host.store(), nonce="two")
    second.advance(2)
    row = host.row("k")
    assert (row.status, row.next_time) == ("waiting", START + MINUTE)
    assert Fate.STOPPED in {run.fate for run in host.schedules.runs("k")}
    assert violations(host) == []
    second.advance(MINUTE)
    assert second.tasks["k"].occurrence == f"k.{START + MINUTE}"


def test_an_extra_run_is_stopped_by_its_own_key_and_its_schedule_is_not_touched(host):
    host.schedules.add("k", "test", every=MINUTE, next_time=START + MINUTE)
    extra = host.schedules["k"].trigger().key
    worker = begun(host)
    with pytest.raises(AlreadyFinishedError, match=r"psched stop 'k!\*'"):
        host.schedules["k"].stop()
    assert host.schedules.select("k!*").stop().changed == [extra]
    end(worker, extra)
    assert host.row(extra).status == "cancelled"
    row = host.row("k")
    assert (row.status, row.owner, row.next_time) == ("waiting", None, START + MINUTE)


def test_an_extra_run_waits_until_the_run_is_stopped(host):
    add(host)
    worker = begun(host, concurrency=2)
    host.schedules["k"].stop()
    extra = host.schedules["k"].trigger().key
    end(worker)
    worker.advance(5)
    assert [*worker.tasks] == [extra]


def test_of_many_only_those_that_run_are_stopped(host):
    add(host)
    host.schedules.add("idle", "test", every=MINUTE, next_time=START + MINUTE)
    begun(host)
    done = host.schedules.select(every=True).stop()
    assert (done.changed, done.marked) == (["k"], {"k"})
    assert host.row("idle").status == "waiting"
