"""Tests of what a worker writes into the run history besides the records of settlements."""

import json
import logging
from collections import deque
from dataclasses import replace as changed

import pytest

from psched.base.errors import (
    AlreadyExistsError,
    StoreError,
    StoreSlowError,
    StoreUnavailableError,
)
from psched.config import from_mapping
from psched.core.history.records import WorkerRecord
from psched.core.model import Row, Token
from psched.core.store_protocol import ExpiredLease
from psched.master.generation_spec import WorkerIdentity
from psched.testing import ManualClock
from psched.worker import history_keeper
from psched.worker.history_keeper import BEAT_INTERVAL, HistoryKeeper
from support.worker import context

START = 1_800_000_000


class History:
    """A store with a run history, or with a failure; serves as its own gateway."""

    def __init__(self, clock):
        self.clock = clock
        self.history = self
        self.found_problem = None
        self.failure = None
        self.lost_records = 0
        self.unwritten = deque()
        self.refused = ()
        self.refuses_notes = False
        self.tried_notes = 0
        self.written = []
        self.notes = []
        self.beats = []
        self.trims = []
        self.trimmed_keys = []
        self.trimmed = 0
        self.alive = []

    def request_aside(self, send):
        return send()

    def now(self):
        return self._answer(self.clock.wall())

    def problem(self):
        return self._answer(self.found_problem)

    def record(self, records):
        self._answer(None)
        if any(record.key in self.refused for record in records):
            raise AlreadyExistsError("another index")
        self.written += records

    def runs(self, selection=None):
        raise NotImplementedError

    def trim(self, *, before, limit):
        self.trims.append((before, limit))
        return self._answer(self.trimmed)

    def trim_key(self, key, keep):
        self._answer(None)
        self.trimmed_keys.append((key, keep))
        return 0

    def beat(self, worker):
        self._answer(None)
        self.beats.append(worker)

    def workers(self, since=0):
        return self._answer([each for each in self.alive if each.seen >= since])

    def audit(self, changes):
        self.tried_notes += 1
        if self.refuses_notes:
            raise StoreError("no right")
        self.notes += [json.loads(change.after) for change in changes]

    def audits(self, selection):
        raise NotImplementedError

    def _answer(self, value):
        if self.failure is not None:
            raise self.failure
        return value


class Without:
    """A store that cannot keep a run history."""

    history = None

    def request_aside(self, _send):
        raise AssertionError("nothing is asked")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return History(clock)


def make(store, clock, *, number=0, **settings):
    given = {"url": "sqlite:///unused.db", "concurrency": 3, **settings}
    place = WorkerIdentity(number, 1, "nonce")
    return HistoryKeeper(context(clock, from_mapping(given), store=store, place=place), store)


def taken(key="k", **columns):
    """A row as the next worker has claimed it."""
    usual = {"next_time": START, "next_run_time": START + 60, "owner": "me.1", "attempt": 2}
    return Row(key=key, fence=8, **{**usual, **columns})


EXPIRED = ExpiredLease(Token("other.5", 7), START + 1)


def test_a_lease_that_is_taken_over_is_recorded_under_its_own_token(store, clock):
    store.alive = [
        WorkerRecord(
            nonce="other",
            host="elsewhere",
            pid=5,
            number=1,
            generation=4,
            slots=1,
            busy=1,
            types=None,
            started=START - 100,
            seen=START,
        )
    ]
    keeper = make(store, clock)
    keeper.taken_over(taken(), EXPIRED)
    keeper.work(0)
    [record] = store.written
    assert (record.owner, record.fence, record.attempt) == ("other.5", 7, 1)
    assert (record.outcome, record.fate) == ("lost", None)
    assert (record.host, record.generation) == ("elsewhere", 4)
    assert (record.started, record.ended) == ((START + 1) * 1000, (START + 60) * 1000)


def test_a_lease_of_an_unknown_worker_and_time_is_recorded_too(store, clock):
    keeper = make(store, clock)
    keeper.taken_over(taken(), changed(EXPIRED, claimed_at=None))
    keeper.taken_over(taken("without-time", next_time=None), EXPIRED)
    keeper.work(0)
    [record] = store.written
    assert (record.key, record.host, record.started) == ("k", None, None)


def test_a_row_whose_history_is_off_leaves_no_record(store, clock):
    keeper = make(store, clock, types={"quiet": {"history": "none"}})
    keeper.taken_over(taken(type="quiet"), EXPIRED)
    keeper.taken_over(taken("failures", options='{"history": "failures"}'), EXPIRED)
    keeper.work(0)
    assert [record.key for record in store.written] == ["failures"]


def test_a_worker_says_once_a_minute_that_it_is_alive_and_at_its_end_that_it_is_not(store, clock):
    keeper = make(store, clock, only=["a", "b"])
    keeper.leave()
    assert store.beats == []
    for _ in range(12):
        keeper.work(2)
        clock.advance(BEAT_INTERVAL / 6)
    assert len(store.beats) == 2
    keeper.leave()
    first, second, last = store.beats
    assert (first.nonce, first.host, first.slots, first.busy) == ("nonce", "host", 3, 2)
    assert first.types == '["a", "b"]'
    assert first.started == second.started == last.started > 0
    assert (second.ended, last.ended, last.busy) == (None, 0, 0)


def test_a_worker_records_by_how_much_the_clock_of_its_host_is_off(store, clock):
    ahead = 90.5
    store.now = lambda: START + clock.boottime()
    clock.step(store.now() + ahead - clock.wall())
    keeper = make(store, clock)
    keeper.work(0)
    # Somebody corrects the host's clock, and a little too much.
    clock.step(-2 * ahead)
    clock.advance(BEAT_INTERVAL)
    keeper.work(0)
    keeper.leave()
    assert [each.clock_offset for each in store.beats] == [90_500, -90_500, -90_500]


@pytest.mark.parametrize("failure", [StoreUnavailableError("away"), StoreError("no right")])
def test_a_failure_disturbs_nobody_and_is_not_repeated_at_every_tick(store, clock, failure):
    keeper = make(store, clock)
    keeper.work(0)
    store.failure = failure
    keeper.taken_over(taken(), EXPIRED)
    keeper.work(0)
    assert keeper.wakes > clock.monotonic()
    store.failure = None
    keeper.work(0)
    assert store.written == []
    clock.advance(10)
    keeper.work(0)
    assert len(store.written) == 1
    assert keeper.lost_records == 0
    store.failure = failure
    keeper.leave()


def test_a_record_that_is_refused_waits_behind_the_others(store, clock):
    keeper = make(store, clock)
    keeper.work(0)
    for number in range(5):
        keeper.taken_over(taken(f"k{number}"), EXPIRED)
    store.refused = {"k0"}
    for _ in range(7):
        keeper.work(0)
        clock.advance(11)
    assert [record.key for record in store.written] == ["k1", "k2", "k3", "k4"]
    assert keeper.lost_records == 1
    store.refused = ()
    keeper.work(0)
    assert store.written[-1].key == "k0"
    assert keeper.lost_records == 0


def test_that_records_wait_or_are_lost_is_noted(store, clock, monkeypatch):
    monkeypatch.setattr(history_keeper, "MOST_UNWRITTEN", 2)
    keeper = make(store, clock)
    keeper.work(0)
    keeper.taken_over(taken("k"), EXPIRED)
    keeper.work(0)
    assert store.notes == []  # it was written at once

    store.refused = {"a", "b"}
    for key in "abc":
        keeper.taken_over(taken(key), EXPIRED)
    for _ in range(3):
        keeper.work(0)
        clock.advance(11)
    waits = {"nonce": "nonce", "first": START, "last": None, "lost": 0}
    assert store.notes == [waits]
    store.refused = ()
    for _ in range(2):
        keeper.work(0)
    assert store.notes == [waits, {**waits, "last": START, "lost": 1}]
    assert [record.key for record in store.written] == ["k", "a", "b"]


def test_what_a_settlement_has_not_written_is_written_once(store, clock):
    keeper = make(store, clock)
    keeper.work(0)
    keeper.taken_over(taken("k"), EXPIRED)
    store.failure = StoreSlowError("four answers took too long")
    for fence in 2, 3:
        earlier = keeper.unwritten("k")
        settled = changed(earlier[0], fence=fence)
        store.unwritten += [*earlier, settled]  # as a store does that settles without records
        keeper.work(0)
        clock.advance(11)
    assert keeper.lost_records == 3
    store.failure = None
    keeper.work(0)
    assert [record.fence for record in store.written] == [7, 2, 3]


def test_that_a_settlement_has_left_its_record_out_is_noted_at_once(store, clock):
    keeper = make(store, clock)
    keeper.work(0)
    keeper.taken_over(taken("k"), EXPIRED)
    store.failure = StoreSlowError("four answers took too long")
    keeper.work(0)  # nothing is tried again for a while
    assert len(store.notes) == 1
    store.unwritten += [changed(keeper.unwritten("k")[0], scheduled_time=START - 60)]
    for _ in range(2):
        keeper.settled()
    assert [note["first"] for note in store.notes] == [START, START - 60]


def test_a_note_that_is_refused_is_not_tried_at_each_settlement(store, clock):
    keeper = make(store, clock)
    keeper.work(0)
    keeper.taken_over(taken("k"), EXPIRED)
    [record] = keeper.unwritten("k")
    store.failure = StoreError("no right")
    store.refuses_notes = True
    for seconds, tried in (0, 1), (1, 1), (10, 2):
        clock.advance(seconds)
        store.unwritten += [record]
        keeper.settled()
        assert store.tried_notes == tried


def test_a_record_that_is_refused_each_time_keeps_nobody_from_trimming(store, clock):
    keeper = make(store, clock)
    keeper.work(0)
    store.refused = {"k"}
    keeper.taken_over(taken("k"), EXPIRED)
    clock.advance(7200)
    keeper.work(0)
    assert len(store.trims) == 1


@pytest.mark.parametrize("failure", [None, StoreSlowError("four answers took too long")])
def test_what_the_last_settlements_have_not_written_is_written_or_noted_at_the_end(
    store, clock, failure
):
    keeper = make(store, clock)
    keeper.work(0)
    keeper.taken_over(taken("k"), EXPIRED)
    store.unwritten += keeper.unwritten("k")
    keeper.work(0)
    store.unwritten += store.written
    store.written = []
    assert keeper.wakes <= clock.monotonic()
    store.failure = failure
    keeper.leave()
    waits = {"nonce": "nonce", "first": START, "last": None, "lost": 0}
    assert (len(store.written), store.notes) == ((0, [waits]) if failure else (1, []))


def test_at_its_end_a_worker_notes_that_no_record_waits_any_more(store, clock):
    keeper = make(store, clock)
    keeper.work(0)
    keeper.taken_over(taken("k"), EXPIRED)
    store.failure = StoreSlowError("four answers took too long")
    keeper.work(0)
    store.failure = None
    keeper.leave()
    assert [note["last"] for note in store.notes] == [None, START]


def test_that_records_wait_is_noted_even_if_the_record_of_the_worker_is_not_written(store, clock):
    keeper = make(store, clock)
    keeper.work(0)
    keeper.taken_over(taken("k"), EXPIRED)
    clock.advance(BEAT_INTERVAL + 1)
    store.failure = StoreSlowError("four answers took too long")
    keeper.work(0)
    assert [note["last"] for note in store.notes] == [None]


def test_one_call_sends_one_batch_so_that_the_worker_can_claim_between_two(store, clock):
    keeper = make(store, clock)
    for number in range(120):
        keeper.taken_over(taken(f"k{number}"), EXPIRED)
    for written in 50, 100, 120:
        keeper.work(0)
        assert len(store.written) == written
    assert keeper.wakes > clock.monotonic()


def test_a_store_that_is_too_slow_for_many_records_at_once_gets_fewer(store, clock):
    keeper = make(store, clock)
    keeper.work(0)
    for number in range(120):
        keeper.taken_over(taken(f"k{number}"), EXPIRED)
    store.failure = StoreSlowError("four answers took too long")
    for _ in range(3):
        keeper.work(0)
        clock.advance(11)
    store.failure = None
    batches = []
    for _ in range(5):
        before = len(store.written)
        keeper.work(0)
        batches.append(len(store.written) - before)
    assert batches == [6, 12, 24, 48, 30]


def test_at_its_end_a_worker_writes_records_only_for_a_while(store, clock):
    keeper = make(store, clock)
    keeper.work(0)
    for number in range(1000):
        keeper.taken_over(taken(f"k{number}"), EXPIRED)
    record, begun = store.record, clock.monotonic()

    def slowly(records):
        clock.advance(2)
        record(records)

    store.record = slowly
    keeper.leave()
    assert clock.monotonic() - begun <= 2 * 5
    assert 0 < len(store.written) < 1000
    assert store.beats[-1].ended == 0


def test_the_records_that_wait_are_bounded_and_the_others_are_counted(store, clock, monkeypatch):
    monkeypatch.setattr(history_keeper, "MOST_UNWRITTEN", 3)
    keeper = make(store, clock)
    for number in range(5):
        keeper.taken_over(taken(f"k{number}"), EXPIRED)
    assert keeper.lost_records == 5
    keeper.work(0)
    assert [record.key for record in store.written] == ["k0", "k1", "k2"]
    store.lost_records = 4
    assert keeper.lost_records == 6


def test_old_records_are_deleted_now_and_then_and_again_soon_while_there_are_more(store, clock):
    keeper = make(store, clock, history_keep=3600)
    store.trimmed = 500
    clock.advance(60)
    keeper.work(0)
    clock.advance(1)
    keeper.work(0)
    assert len(store.trims) == 2
    before, limit = store.trims[0]
    assert limit == 500
    assert before == pytest.approx((clock.wall() - 1 - 3600) * 1000, abs=2)
    store.trimmed = 3
    clock.advance(1)
    keeper.work(0)
    clock.advance(1)
    keeper.work(0)
    assert len(store.trims) == 3


def test_a_limit_of_0_keeps_everything(store, clock):
    keeper = make(store, clock, history_keep=0, history_keep_per_key=0)
    for _ in range(20):
        clock.advance(60)
        keeper.wrote("k")
        keeper.work(0)
    assert (store.trims, store.trimmed_keys) == ([], [])


def test_a_key_is_trimmed_in_a_small_part_of_its_runs(store, clock):
    keeper = make(store, clock, history_keep_per_key=100)
    keeper.work(0)
    for _ in range(2000):
        keeper.wrote("k")
        keeper.work(0)
    assert {*store.trimmed_keys} == {("k", 100)}
    assert 100 < len(store.trimmed_keys) < 300


def test_a_tick_trims_only_a_few_keys(store, clock):
    keeper = make(store, clock, history_keep_per_key=1)
    keeper.work(0)
    for number in range(100):
        keeper.wrote(f"k{number}")
    keeper.work(0)
    assert len(store.trimmed_keys) == 2
    for _ in range(10):
        keeper.work(0)
    assert len(store.trimmed_keys) == 10


def test_tables_that_are_created_later_are_used(store, clock, caplog):
    store.found_problem = "the tables do not exist; run `psched init`"
    keeper = make(store, clock)
    keeper.work(0)
    store.found_problem = None
    keeper.work(0)
    assert store.beats == []
    clock.advance(BEAT_INTERVAL)
    keeper.work(0)
    assert len(store.beats) == 1
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("capable", [True, False])
def test_a_store_without_a_history_is_warned_of_once_in_a_generation(store, clock, caplog, capable):
    caplog.set_level(logging.WARNING)
    store.found_problem = "the tables do not exist; run `psched init`"
    for number in 0, 1:
        keeper = make(store if capable else Without(), clock, number=number)
        for _ in range(3):
            keeper.taken_over(taken(), EXPIRED)
            keeper.wrote("k")
            keeper.work(1)
            clock.advance(100)
        keeper.leave()
    [said] = caplog.messages
    assert said.startswith("no run history is kept: ")
    assert ("psched init" in said) is capable
    assert (store.written, store.beats, store.trims) == ([], [], [])
    make(Without(), clock, history="none").work(0)
    assert len(caplog.messages) == 1
