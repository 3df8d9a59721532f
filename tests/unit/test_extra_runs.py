"""Tests of a worker that runs extra runs of schedules, on a real store, with a manual clock."""

import signal
from dataclasses import replace

import pytest

from psched.base.errors import StoreUnavailableError, UnknownOutcomeError
from psched.core.history.protocol import RunSelection
from support.driven import START, Remote, driven_host
from support.extra_runs import add_extra_runs

LEASE = 60
DAILY = "0 18 * * *"
MINUTE = START // 60 * 60
"""The last full minute before the start."""


@pytest.fixture
def host(tmp_path):
    with driven_host(tmp_path) as host:
        yield host


def add_daily(host, key="report", **fields):
    """Add a schedule that is not due now; its row."""
    host.schedules.add(key, "test", cron=DAILY, timezone="UTC", **fields)
    return host.row(key)


def add_extra(host, key="report", count=1, **fields):
    return add_extra_runs(host.schedules, key, count, at=START, **fields)


def runs(store, key):
    return [(each.outcome, each.fate) for each in store.history.runs(RunSelection(key=key))]


# --- the lease and the hold -----------------------------------------------------------------


def test_an_extra_run_holds_its_schedule_and_leaves_it_unchanged(host):
    before = add_daily(host)
    [extra] = add_extra(host)
    store = host.store()
    worker = host.worker(store, alive_time=LEASE)
    worker.tick()

    assert worker.tasks[extra].occurrence == f"{extra}.{START}"
    held = host.row("report")
    assert held.held_by == "nonce.2"
    assert replace(held, held_by=None, held_until=None) == before
    worker.tasks[extra].finish()
    worker.tick()

    assert host.row("report") == before
    assert (host.row(extra).status, host.row(extra).attempt) == ("finished", 0)
    assert runs(store, "report") == []
    assert runs(store, extra) == [("finished", "finished")]


def test_a_failed_extra_run_releases_its_schedule_until_its_next_attempt(host):
    before = add_daily(host, retry_wait=30)
    [extra] = add_extra(host)
    worker = host.worker()

    worker.run_due({extra: "ValueError: no"})

    assert host.row("report") == before
    assert (host.row(extra).attempt, host.row(extra).reason) == (1, "ValueError: no")
    worker.advance(33)
    assert worker.tasks[extra].assignment["attempt"] == 2
    assert host.row("report").held_by is not None


def test_the_lease_and_the_hold_are_extended_together(host):
    add_daily(host)
    [extra] = add_extra(host)
    store = host.remote()
    worker = host.worker(store, alive_time=LEASE, poll_interval=30)

    for _ in range(20):
        worker.advance(LEASE / 2)
        assert host.row(extra).next_run_time > host.clock.wall()
        assert host.row("report").held_until > host.clock.wall()

    assert 35 <= store.requests["extend"] <= 45
    assert store.requests["hold"] == store.requests["extend"] + 1
    assert worker.tasks[extra].signals == []


def test_a_hold_lasts_as_long_as_the_longer_lease_of_its_extra_run(host):
    add_daily(host, alive_time=LEASE)
    [extra] = add_extra(host)
    host.schedules.modify(extra, alive_time=10 * LEASE)
    store = host.remote()
    worker = host.worker(store, alive_time=LEASE)
    worker.tick()
    store.away = True

    worker.advance(9 * LEASE)

    assert worker.tasks[extra].signals == []
    assert host.row("report").held_until > host.clock.wall()


def test_the_schedules_of_a_claim_are_held_by_one_request(host):
    for key in "abcd":
        add_daily(host, key)
        add_extra(host, key)
    store = host.remote()
    worker = host.worker(store, concurrency=4)
    worker.tick()

    assert len(worker.tasks) == 4
    assert store.requests["hold"] == 1
    for runner in [*worker.tasks.values()]:
        runner.finish()
    settled = store.requests["settle"]
    worker.tick()
    assert store.requests["settle"] == settled + 1
    assert store.requests["release"] == 1
    assert {host.row(key).held_by for key in "abcd"} == {None}


def test_a_worker_without_extra_runs_sends_no_further_request(host):
    add_daily(host)
    host.add("one", "two!and no more", "three!0123456789abcde")
    store = host.remote()
    worker = host.worker(store)

    assert len(worker.run_due()) == 3

    assert store.requests["hold"] == store.requests["look"] == 0


def test_a_paused_schedule_runs_extra_and_stays_paused(host):
    add_daily(host)
    host.sql(
        "UPDATE psched SET status = 'paused', next_run_time = NULL,"
        " reason = 'paused 2026-11-25T00:00+00:00 by ann@web1: deploy'"
    )
    before = host.row("report")
    [extra] = add_extra(host)
    worker = host.worker()

    assert worker.run_due() == [f"{extra}.{START}"]
    assert host.row("report") == before


# --- overlap ------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
def test_extra_runs_of_one_schedule_run_one_after_the_other(host, concurrency):
    before = add_daily(host)
    extra = add_extra(host, count=5)
    worker = host.worker(concurrency=concurrency)
    run = []
    for _ in range(200):
        worker.advance(0.5)
        assert len(worker.tasks) <= 1
        for key, runner in worker.tasks.items():
            run.append(key)
            runner.finish()

    assert sorted(run) == extra
    assert {(host.row(key).status, host.row(key).attempt) for key in extra} == {("finished", 0)}
    assert host.row("report") == before


def test_the_extra_runs_of_a_claim_that_wait_become_due_one_after_the_other(host):
    add_daily(host)
    first, *others = add_extra(host, count=4)
    worker = host.worker(concurrency=4)
    worker.tick()
    worker.tick()

    assert [*worker.tasks] == [first]
    # A wait is rounded up to the next second.
    assert [host.row(key).next_run_time - START for key in others] == [2, 3, 4]
    assert {(host.row(key).attempt, host.row(key).owner) for key in others} == {(0, None)}


@pytest.mark.slow
def test_many_that_wait_for_a_long_run_cost_few_requests(host):
    add_daily(host)
    first, *others = add_extra(host, count=100)
    store = host.remote()
    worker = host.worker(store, concurrency=4)
    worker.advance(60)
    assert [*worker.tasks] == [first]

    store.requests.clear()
    for _ in range(60):
        worker.advance(1)
    # One of them is tried in a second, and none of them twice.
    assert 0 < store.requests["hold"] + store.requests["settle"] <= 2 * 60
    assert len({host.row(key).next_run_time for key in others}) == len(others)
    worker.tasks[first].finish()
    worker.advance(2)
    assert {*worker.tasks} < {*others}


@pytest.mark.parametrize("same_worker", [True, False])
def test_an_extra_run_waits_for_the_regular_run(host, same_worker):
    host.schedules.add("report", "test", cron="*/10 * * * *", next_time=START // 600 * 600)
    one = host.worker(nonce="one", concurrency=2)
    one.tick()
    assert [*one.tasks] == ["report"]
    [extra] = add_extra(host)
    store = host.remote()
    other = one if same_worker else host.worker(store, nonce="two")

    for _ in range(10):
        other.advance(1)
        assert extra not in other.tasks
    assert host.row(extra).attempt == 0
    one.tasks["report"].finish()
    one.tick()
    other.advance(4)

    assert extra in other.tasks
    assert host.row("report").held_by is not None
    assert (store.requests["hold"] > 1) == (not same_worker)


def test_a_regular_run_waits_for_the_extra_run(host):
    next_time = MINUTE + 60
    host.schedules.add("report", "test", cron="* * * * *")
    [extra] = add_extra(host)
    one, two = host.worker(nonce="one", concurrency=2), host.worker(nonce="two")
    one.tick()
    assert [*one.tasks] == [extra]

    for _ in range(50):
        one.advance(1)
        two.tick()
        assert ([*one.tasks], [*two.tasks]) == ([extra], [])
    one.tasks[extra].finish()
    one.tick()

    assert [*one.tasks] == ["report"]
    assert one.tasks["report"].occurrence == f"report.{next_time}"
    assert one.tasks["report"].assignment["attempt"] == 1


def test_an_extra_run_that_skips_is_cancelled_while_another_run_is_going_on(host):
    host.add("report")
    store = host.store()
    worker = host.worker(store, concurrency=2)
    worker.tick()
    [extra] = add_extra(host, overlap="skip")

    worker.advance(2)

    row = host.row(extra)
    assert (row.status, row.attempt, row.next_run_time) == ("cancelled", 0, None)
    assert row.reason == "another run of report was going on, and overlap is skip"
    assert runs(store, extra) == [(None, "skipped_overlap")]
    assert [*worker.tasks] == ["report"]


def test_an_extra_run_that_skips_is_cancelled_if_another_worker_runs_its_schedule(host):
    host.add("report")
    host.worker(nonce="one").tick()
    [extra] = add_extra(host, overlap="skip")
    host.worker(nonce="two").advance(2)

    assert host.row(extra).status == "cancelled"


def test_of_two_extra_runs_that_skip_one_runs(host):
    add_daily(host)
    first, second = add_extra(host, count=2, overlap="skip")
    worker = host.worker(concurrency=2)
    worker.tick()

    assert [*worker.tasks] == [first]
    worker.tick()
    assert host.row(second).status == "cancelled"


def test_parallel_extra_runs_hold_no_schedule(host):
    host.add("report")
    extra = add_extra(host, count=2, overlap="parallel")
    store = host.remote()
    worker = host.worker(store, concurrency=3)
    worker.tick()

    assert sorted(worker.tasks) == sorted(["report", *extra])
    assert store.requests["hold"] == 0


# --- changes of the schedule --------------------------------------------------------


def test_an_extra_run_of_a_deleted_schedule_is_cancelled(host):
    add_daily(host)
    [extra] = add_extra(host)
    host.schedules["report"].delete()
    store = host.store()
    worker = host.worker(store)

    worker.advance(1)

    assert (host.row(extra).status, host.row(extra).reason) == (
        "cancelled",
        "its schedule report was deleted",
    )
    assert runs(store, extra) == [(None, "cancelled")]


def test_an_extra_run_that_deletes_its_schedule_is_not_stopped(host, monkeypatch):
    add_daily(host)
    [extra] = add_extra(host)
    worker = host.worker(poll_interval=5)
    worker.advance(1)
    monkeypatch.setenv("PSCHED_KEY", extra)
    monkeypatch.setenv("PSCHED_FENCE", str(host.row(extra).fence))
    assert not host.schedules["report"].delete()

    worker.advance(60)
    assert worker.tasks[extra].stop_reason == ""
    worker.tasks[extra].finish()
    worker.advance(1)

    assert not host.schedules["report"].exists()
    assert host.row(extra).status == "finished"


def test_an_extra_run_of_a_schedule_that_has_ended_is_cancelled(host):
    add_daily(host)
    [extra] = add_extra(host)
    host.schedules["report"].cancel()
    host.worker().advance(1)

    row = host.row(extra)
    assert (row.status, row.reason) == (
        "cancelled",
        "its schedule report has ended: it is cancelled",
    )


@pytest.mark.parametrize(
    ("end", "reason", "why"),
    [
        ("delete", "deleted", "its schedule report was deleted"),
        ("cancel", "cancelled", "its schedule report has ended: it is cancelled"),
        ("force_finish", "cancelled", "its schedule report has ended: it is finished"),
    ],
)
def test_a_schedule_that_is_ended_during_an_extra_run_ends_with_it(host, end, reason, why):
    add_daily(host)
    [extra] = add_extra(host)
    store = host.store()
    worker = host.worker(store, poll_interval=5)
    worker.tick()
    assert getattr(host.schedules["report"], end)() is (end != "delete")

    worker.advance(6)
    assert worker.tasks[extra].stop_reason == reason
    worker.tasks[extra].finish("stopped")
    worker.advance(1)

    if end == "delete":
        assert not host.schedules["report"].exists()
    else:
        assert host.row("report").status == {"cancel": "cancelled"}.get(end, "finished")
        assert host.row("report").next_run_time is None
    assert (host.row(extra).status, host.row(extra).reason) == ("cancelled", why)
    # Who deletes a schedule that is held leaves that to the next claim.
    assert runs(store, "report") == [(None, "cancelled")] * (end == "delete")
    assert runs(store, extra) == [(None, "cancelled"), ("cancelled", None)]


def test_a_change_of_the_schedule_during_an_extra_run_applies_when_it_has_ended(host):
    add_daily(host)
    [extra] = add_extra(host)
    worker = host.worker()
    worker.tick()

    host.schedules.modify("report", cron="30 * * * *", data={"n": 1})
    changed = host.row("report")
    worker.tasks[extra].finish()
    worker.tick()

    row = host.row("report")
    assert row.owner is None
    assert row.next_time == row.next_run_time == changed.next_time == START // 3600 * 3600 + 1800
    assert (row.attempt, row.status, row.data) == (0, "waiting", changed.data)


@pytest.mark.parametrize("ends", ["by itself", "with its worker"])
def test_a_new_time_of_the_schedule_is_kept_whatever_ends_the_extra_run(host, ends):
    add_daily(host)
    [extra] = add_extra(host)
    worker = host.worker(nonce="one")
    worker.tick()
    host.schedules.modify("report", cron="* * * * *", next_time=MINUTE + 120, delay=7)
    if ends == "by itself":
        worker.tasks[extra].finish()
        worker.tick()
    else:
        other = host.worker(nonce="two")
        other.order(recover=["one"])
        for _ in range(5):
            other.run_due()
            other.advance(1)
        assert host.row(extra).status == "finished"

    row = host.row("report")
    assert (row.next_time, row.next_run_time, row.attempt, row.owner) == (
        MINUTE + 120,
        MINUTE + 127,
        0,
        None,
    )


@pytest.mark.parametrize("ends", ["by itself", "with its worker", "with its worker, recovered"])
@pytest.mark.parametrize("until", [None, START + 1000])
@pytest.mark.slow
def test_a_schedule_that_is_paused_during_an_extra_run_stays_paused(host, ends, until):
    before = add_daily(host)
    [extra] = add_extra(host)
    one = host.worker(nonce="one", alive_time=LEASE)
    one.tick()
    other = host.worker(nonce="two", alive_time=LEASE)
    if ends == "with its worker, recovered":
        # The schedule is free now, but nobody has claimed it yet.
        host.store().recover("one", alive_time=LEASE, retry_wait=0)
    host.schedules.pause("report", until)
    assert one.tasks[extra].stop_reason == ""
    if ends == "by itself":
        one.tasks[extra].finish()
        one.tick()
    elif ends == "with its worker":
        other.order(recover=["one"])
    for _ in range(5):
        other.run_due()
        other.advance(1)

    row = host.row("report")
    assert host.row(extra).status == "finished"
    assert (row.status, row.owner, row.attempt) == ("paused", None, 0)
    assert (row.next_time, row.next_run_time) == (before.next_time, until)
    if until is not None:
        other.advance(until - START)
        row = host.row("report")
        assert (row.status, row.next_run_time) == ("waiting", before.next_time)


def test_a_schedule_that_is_resumed_during_an_extra_run_runs_at_its_time(host):
    before = add_daily(host)
    host.schedules.pause("report")
    [extra] = add_extra(host)
    worker = host.worker()
    worker.tick()
    host.schedules.resume("report")
    worker.tasks[extra].finish()
    worker.tick()

    row = host.row("report")
    assert (row.status, row.owner, row.attempt, row.reason) == ("waiting", None, 0, None)
    assert (row.next_time, row.next_run_time) == (before.next_time, before.next_run_time)


# --- faults -------------------------------------------------------------------------


@pytest.mark.parametrize("recovered", [True, False])
def test_the_schedule_of_a_dead_worker_returns_to_its_times(host, recovered):
    before = add_daily(host)
    [extra] = add_extra(host)
    dead = host.worker(host.store(), nonce="dead", alive_time=LEASE)
    dead.tick()
    store = host.store()
    worker = host.worker(store, nonce="alive", alive_time=LEASE)
    if recovered:
        worker.order(recover=["dead"])
    else:
        host.clock.advance(LEASE + 2)

    worker.advance(3)

    assert worker.tasks[extra].assignment["attempt"] == 2
    worker.tasks[extra].finish()
    worker.advance(3)
    row = host.row("report")
    assert (row.next_time, row.next_run_time) == (before.next_time, before.next_run_time)
    assert (row.status, row.attempt, row.owner) == ("waiting", 0, None)
    assert runs(store, "report") == []
    assert runs(store, extra)[0] == ("finished", "finished")
    assert len(runs(store, extra)) == 2


def test_a_paused_schedule_of_a_dead_worker_stays_paused(host, caplog):
    add_daily(host)
    host.sql("UPDATE psched SET status = 'paused', next_run_time = NULL, reason = 'by ann'")
    before = host.row("report")
    add_extra(host)
    host.worker(nonce="dead").tick()
    host.sql("DELETE FROM psched WHERE id LIKE '%!%'")
    worker = host.worker(nonce="alive")
    worker.order(recover=["dead"])

    worker.advance(3)

    row = host.row("report")
    assert (row.status, row.next_time, row.next_run_time, row.reason) == (
        "paused",
        before.next_time,
        None,
        "by ann",
    )
    assert "by ann" not in caplog.text  # this is no news


@pytest.mark.parametrize("lost", ["report", "report!0000000000000000"])
def test_the_task_is_killed_if_its_lease_or_its_schedule_is_lost(host, lost, caplog):
    add_daily(host)
    [extra] = add_extra(host)
    worker = host.worker(alive_time=LEASE)
    worker.tick()
    runner = worker.tasks[extra]
    stolen = "leased_by = 'thief.1', fence = fence + 1, next_run_time = 4000000000, held_by = NULL"
    host.sql(f"UPDATE psched SET {stolen} WHERE id = '{lost}'")  # noqa: S608  # keys as above

    worker.advance(LEASE / 2)

    assert [number.name for _, number in runner.signals] == ["SIGKILL"]
    what = "its lease is lost" if lost == extra else "its schedule is not held any more"
    assert f"killing it: {what}" in caplog.text
    assert host.row(lost).owner == "thief.1"
    other = host.row("report" if lost == extra else extra)
    assert (other.owner, other.status) == (None, "waiting")


def test_the_hold_and_the_lease_end_at_their_holder_before_they_end_in_the_store(host):
    add_daily(host)
    [extra] = add_extra(host)
    store = host.remote()
    worker = host.worker(store, alive_time=LEASE, database_timeout=1)
    worker.tick()
    runner = worker.tasks[extra]
    ends = min(host.row(extra).next_run_time, host.row("report").held_until)
    store.away, store.answer = True, 1.0

    while not runner.signals:
        worker.advance(1)
    assert host.clock.wall() < ends - 15
    worker.advance(2 * LEASE)
    store.away, store.answer = False, 0.0
    worker.advance(20)

    assert [number.name for _, number in runner.signals][-1] == "SIGKILL"
    assert host.row(extra).fence == 2
    assert extra in worker.tasks


def test_a_graceful_stop_gives_the_row_and_its_schedule_back(host):
    before = add_daily(host)
    [extra] = add_extra(host, kill_interval=4)
    worker = host.worker(graceful_kill_limit=10)
    worker.tick()
    runner = worker.tasks[extra]
    worker.order(stop=20, hurry=False)

    worker.advance(60)

    assert [number.name for _, number in runner.signals][-1] == "SIGKILL"
    assert worker.exit_status == 0
    assert host.row("report") == before
    assert (host.row(extra).owner, host.row(extra).attempt) == (None, 0)


def test_a_signal_lets_the_extra_run_end_and_releases_its_schedule(host):
    before = add_daily(host)
    [extra] = add_extra(host)
    worker = host.worker()
    worker.tick()
    worker.inbox.send(signal.SIGTERM)
    worker.advance(10)
    worker.tasks[extra].finish()

    worker.advance(1)

    assert worker.exit_status == 0
    assert host.row("report") == before
    assert host.row(extra).status == "finished"


class Forgetful(Remote):
    """A store that loses the answers to requests to hold schedules, or does not get them.

    Attributes:
        fault: what happens to the next request.
        late: the request that arrives late.
    """

    def __init__(self, store, clock):
        super().__init__(store, clock)
        self.fault = None
        self.late = None

    def hold(self, holds, **kwargs):
        fault, self.fault = self.fault, None
        if fault == "unavailable":
            raise StoreUnavailableError("test")
        if fault == "late":
            self.late = lambda: super(Forgetful, self).hold(holds, **kwargs)
            raise UnknownOutcomeError("test")
        held = super().hold(holds, **kwargs)
        if fault == "unanswered":
            raise UnknownOutcomeError("test")
        return held


@pytest.mark.parametrize("fault", ["unavailable", "unanswered", "late"])
@pytest.mark.parametrize("overlap", ["queue", "skip"])
def test_a_lost_answer_neither_loses_the_schedule_nor_runs_its_regular_occurrence(
    host, fault, overlap
):
    before = add_daily(host)
    [extra] = add_extra(host, overlap=overlap)
    store = Forgetful(host.store(), host.clock)
    store.fault = fault
    worker = host.worker(store, alive_time=LEASE)
    worker.tick()
    assert worker.tasks == {}
    if store.late is not None:
        worker.advance(1)
        store.late()

    for _ in range(20):
        if extra in worker.tasks:
            break
        worker.advance(1)
    assert [*worker.tasks] == [extra]
    assert host.row("report").held_by is not None
    assert host.row(extra).attempt == 1
    worker.tasks[extra].finish()
    worker.advance(1)

    assert host.row("report") == before


def test_a_worker_that_stops_releases_what_an_unanswered_request_has_held(host):
    before = add_daily(host)
    [extra] = add_extra(host)
    store = Forgetful(host.store(), host.clock)
    store.fault = "unanswered"
    worker = host.worker(store, alive_time=LEASE)
    worker.tick()
    worker.inbox.send(signal.SIGTERM)

    worker.advance(30)

    assert worker.exit_status == 0
    assert host.row("report") == before
    assert host.row(extra).owner is None


def test_a_store_that_holds_no_schedules_quarantines_extra_runs_that_need_it(host):
    add_daily(host)
    [extra] = add_extra(host)
    remote = host.remote()
    remote.holds = None
    host.worker(remote).advance(1)

    row = host.row(extra)
    assert row.status == "quarantined"
    assert row.reason.startswith("overlap: this store cannot hold report")


def test_an_unknown_overlap_quarantines_the_extra_run(host):
    add_daily(host)
    [extra] = add_extra(host, overlap="perhaps")
    host.worker().advance(1)

    row = host.row(extra)
    assert (row.status, row.reason) == (
        "quarantined",
        "overlap: must be queue, skip, parallel, not 'perhaps'",
    )
