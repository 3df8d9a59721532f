"""Tests of how a worker writes what its tasks have printed, and how it deletes old output."""

import logging
from types import SimpleNamespace

import pytest

from psched.base.errors import (
    AlreadyExistsError,
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreSlowError,
    StoreUnavailableError,
    UnknownOutcomeError,
)
from psched.config import from_mapping
from psched.core.model import Row
from psched.master.generation_spec import WorkerIdentity
from psched.output.captured import LOST_OUTPUT, NO_OUTPUT, CapturedOutput
from psched.testing import ManualClock
from psched.worker import output_keeper
from psched.worker.output_keeper import MOST_WAITING, OutputKeeper
from support.history import recorder
from support.worker import context

START = 1_800_000_000

TRANSIENT = [StoreBusyError, StoreSlowError, StoreUnavailableError, UnknownOutcomeError]
PERMANENT = [StoreError, AlreadyExistsError]


class Outputs:
    """A store that keeps output, or fails; serves as its own gateway."""

    def __init__(self, clock):
        self.clock = clock
        self.output = self
        self.found_problem = None
        self.failure = None
        self.largest = 2**30
        self.asked = 0
        self.written = []
        self.requests = []
        self.trims = []
        self.trimmed = 0
        self.looks = []

    def request_aside(self, send):
        return send()

    def problem(self):
        self.asked += 1
        if self.failure is not None:
            raise self.failure
        return self.found_problem

    def write_output(self, records):
        self.requests.append(len(records))
        if self.failure is not None:
            raise self.failure
        if max(len(record.output) for record in records) > self.largest:
            raise self.refusal
        self.written += records

    # The other tests of `LiveOutputWriter` are in another module.
    outputs = output_of = ask_for_output = write_live_output = NotImplemented

    def asked_output(self, attempts, now):
        self.looks.append((self.clock.monotonic(), [*attempts], now))
        if self.failure is not None:
            raise self.failure
        return set()

    def trim_output(self, *, before, budget, limit):
        if self.failure is not None:
            raise self.failure
        self.trims.append((before, budget, limit))
        return self.trimmed


class Without:
    """A store that cannot keep output."""

    output = None

    def request_aside(self, _send):
        raise AssertionError("nothing is asked")


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return Outputs(clock)


class Tasks:
    """Running tasks that have printed nothing."""

    def __init__(self, tasks):
        self.running = dict(enumerate(tasks))

    def peek(self, task):
        raise AssertionError(f"nobody reads {task}")

    def peeked(self):
        return ()


def make(store, clock, *, number=0, tasks=(), **settings):
    given = from_mapping({"url": "sqlite:///unused.db", "output": "both", **settings})
    shared = context(clock, given, store=store, place=WorkerIdentity(number, 1, "nonce"))
    return OutputKeeper(shared, store, Tasks(tasks))


def printed(output=b"hello\n", *, dropped=0, key="k", setting="both"):
    """A task that has ended."""
    captured = output if isinstance(output, CapturedOutput) else CapturedOutput(output, dropped)
    return SimpleNamespace(
        row=Row(key=key, next_time=START, owner="me.1", fence=3, attempt=2),
        occurrence=SimpleNamespace(scheduled_time=START),
        is_kept=setting in {"both", "history"},
        ended_at=(START + 5) * 1000,
        output=captured,
    )


def work_for(keeper, clock, seconds):
    """Let it work whenever it wants to; the test fails if it wants to work all the time."""
    end = clock.monotonic() + seconds
    for _ in range(1000):
        keeper.work()
        if keeper.wakes > end:
            clock.advance(end - clock.monotonic())
            return
        clock.advance(max(0.0, keeper.wakes - clock.monotonic()))
    raise AssertionError("it never rests")


def test_what_a_task_has_printed_is_written_under_its_lease(store, clock):
    keeper = make(store, clock)
    keeper.add(printed(b"line\n", dropped=7))
    assert keeper.wakes <= clock.monotonic()
    keeper.work()
    [record] = store.written
    assert (record.key, record.scheduled_time, record.owner) == ("k", START, "me.1")
    assert (record.attempt, record.ended, record.is_live) == (2, (START + 5) * 1000, False)
    assert (record.output, record.dropped) == (b"line\n", 7)
    assert keeper.wakes == float("inf")
    keeper.work()
    assert len(store.requests) == 1


def test_a_task_that_has_printed_nothing_costs_no_request(store, clock):
    keeper = make(store, clock)
    keeper.work()
    keeper.add(printed(NO_OUTPUT))
    assert keeper.wakes == float("inf")
    keeper.work()
    assert (store.asked, store.requests) == (1, [])


def test_lost_output_is_noted_in_the_store(store, clock):
    keeper = make(store, clock)
    keeper.add(printed(LOST_OUTPUT))
    keeper.work()
    assert [(each.output, each.dropped) for each in store.written] == [(b"", None)]


@pytest.mark.parametrize("setting", ["service", "raw", "none"])
@pytest.mark.parametrize("output", [CapturedOutput(b"", 100), LOST_OUTPUT])
def test_output_that_is_not_to_be_kept_is_not_kept(store, clock, setting, output):
    keeper = make(store, clock)
    keeper.add(printed(output, setting=setting))
    keeper.work()
    assert store.requests == []


def test_many_records_are_written_a_batch_at_a_time(store, clock):
    keeper = make(store, clock)
    for number in range(250):
        keeper.add(printed(key=f"k{number}"))
    work_for(keeper, clock, 1)
    assert [each.key for each in store.written] == [f"k{number}" for number in range(250)]
    assert store.requests == [100, 100, 50]


def test_a_busy_worker_gathers_records_a_quiet_one_writes_at_once(store, clock):
    keeper = make(store, clock)
    for key in ("first", "second"):
        keeper.add(printed(key=key))
        keeper.work()
    assert [each.key for each in store.written] == ["first"]
    assert keeper.wakes == pytest.approx(clock.monotonic() + 0.2)
    keeper.add(printed(key="third"))
    clock.advance(0.19)
    keeper.work()
    assert store.requests == [1]
    clock.advance(0.02)
    keeper.work()
    assert store.requests == [1, 2]
    assert keeper.wakes == float("inf")
    clock.advance(1)
    keeper.add(printed(key="later"))
    keeper.work()
    assert store.requests == [1, 2, 1]
    # Enough for a whole request do not wait.
    for number in range(100):
        keeper.add(printed(key=f"k{number}"))
    keeper.work()
    assert store.requests == [1, 2, 1, 100]


def test_a_worker_that_ends_does_not_gather(store, clock):
    keeper = make(store, clock)
    keeper.add(printed(key="first"))
    keeper.work()
    for number in range(150):
        keeper.add(printed(key=f"k{number}"))
    keeper.leave()
    assert store.requests == [1, 100, 50]
    assert keeper.lost == 0


def test_a_request_is_not_much_larger_than_a_mebibyte(store, clock):
    keeper = make(store, clock)
    for size in 600_000, 600_000, 2**20, 10, 10:
        keeper.add(printed(bytes(size)))
    work_for(keeper, clock, 1)
    assert store.requests == [1, 1, 1, 2]


# --- a store without output ----------------------------------------------------------------------


def test_the_first_worker_of_a_generation_warns_once(store, clock, caplog):
    store.found_problem = "no table"
    keepers = [make(store, clock, number=number) for number in (0, 1)]
    for _ in range(5):
        for keeper in keepers:
            keeper.add(printed())
            keeper.work()
        clock.advance(100)
    [line] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert line.getMessage() == (
        "the output of tasks is not kept: no table; to keep none, set output to service"
    )
    assert store.requests == []


@pytest.mark.parametrize("setting", ["service", "raw", "none"])
def test_who_wants_no_output_to_be_kept_gets_no_warning(store, clock, caplog, setting):
    store.found_problem = "no table"
    make(store, clock, output=setting).work()
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


def test_a_store_that_cannot_keep_output_is_asked_nothing(clock, caplog):
    keeper = make(Without(), clock)
    keeper.add(printed())
    work_for(keeper, clock, 200)
    keeper.leave()
    assert caplog.text.count("this kind of store cannot keep it") == 1
    assert keeper.wakes == float("inf")


def test_output_is_kept_from_the_minute_in_which_the_table_exists(store, clock):
    store.found_problem = "no table"
    keeper = make(store, clock)
    keeper.add(printed(key="before"))
    work_for(keeper, clock, 10)
    assert keeper.wakes == float("inf"), "nothing waits for the table"
    store.found_problem = None
    clock.advance(60)
    keeper.work()
    keeper.add(printed(key="after"))
    keeper.work()
    assert [each.key for each in store.written] == ["after"]
    assert store.asked == 2  # once before, once after


def test_a_table_that_is_dropped_is_asked_for_again(store, clock):
    keeper = make(store, clock)
    keeper.work()
    store.failure = SchemaError("gone")
    keeper.add(printed(key="lost"))
    keeper.work()
    store.failure, store.found_problem = None, "gone"
    work_for(keeper, clock, 30)
    assert keeper.wakes == float("inf")
    store.found_problem = None
    work_for(keeper, clock, 100)
    keeper.work()
    keeper.add(printed(key="then"))
    keeper.work()
    assert [each.key for each in store.written] == ["then"]


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", TRANSIENT)
def test_output_is_written_after_an_outage(store, clock, error):
    keeper = make(store, clock)
    keeper.work()
    store.failure = error("away")
    for number in range(40):
        keeper.add(printed(key=f"k{number}"))
    work_for(keeper, clock, 25)
    assert len(store.requests) == 3, "one in ten seconds"
    store.failure = None
    work_for(keeper, clock, 30)
    assert [each.key for each in store.written] == [f"k{number}" for number in range(40)]
    assert keeper.lost == 0
    assert store.requests[3:7] == [1, 2, 4, 8]


def test_a_store_that_does_not_say_whether_it_keeps_output_is_asked_later(store, clock):
    store.failure = StoreUnavailableError("away")
    keeper = make(store, clock)
    keeper.add(printed())
    work_for(keeper, clock, 25)
    assert store.asked == 3  # once in ten seconds
    store.failure = None
    work_for(keeper, clock, 10)
    assert len(store.written) == 1


@pytest.mark.parametrize("error", TRANSIENT + PERMANENT)
def test_one_record_that_is_refused_does_not_keep_the_others(store, clock, error, caplog):
    keeper = make(store, clock)
    keeper.work()
    store.largest, store.refusal = 1000, error("too large")
    for number in range(10):
        keeper.add(printed(bytes(2000 if number == 4 else 10), key=f"k{number}"))
    work_for(keeper, clock, 200)
    written = {each.key: (each.output, each.dropped) for each in store.written}
    assert written == {f"k{n}": (bytes(10), 0) for n in range(10)} | {"k4": (b"", None)}
    assert keeper.lost == 1
    assert keeper.wakes == float("inf")
    assert "the output of tasks is lost: too large" in caplog.text


def test_what_waits_is_bounded(store, clock, caplog):
    store.failure = StoreUnavailableError("away")
    keeper = make(store, clock)
    most = MOST_WAITING // (2**20)
    for _ in range(2 * most):
        keeper.add(printed(bytes(2**20)))
    assert most <= keeper.lost <= most + 1
    assert "the output of tasks is lost: too much of it waits to be written" in caplog.text
    store.failure = None
    work_for(keeper, clock, 1)
    keeper.add(printed(b"later"))
    work_for(keeper, clock, 30)
    # What is lost is noted.
    assert [each.dropped for each in store.written].count(None) == keeper.lost
    assert len(store.written) == 2 * most + 1
    assert store.written[-1].output == b"later"


def test_a_store_that_refuses_everything_is_not_asked_for_ever(store, clock):
    keeper = make(store, clock)
    keeper.work()
    store.failure = StoreError("no right")
    keeper.add(printed())
    keeper.add(printed(LOST_OUTPUT))
    work_for(keeper, clock, 200)
    assert keeper.wakes == float("inf")
    assert keeper.lost == 1
    assert len(store.requests) <= 4


@pytest.mark.slow
def test_records_without_output_are_bounded_too(store, clock):
    keeper = make(store, clock)
    for _ in range(50_000):
        keeper.add(printed(LOST_OUTPUT))
    assert keeper.lost > 50_000 - MOST_WAITING / 500
    assert keeper._size <= MOST_WAITING + output_keeper._MOST_NOTES


# --- the end of the worker -----------------------------------------------------------------------


def test_a_worker_that_leaves_writes_all_that_waits(store, clock):
    keeper = make(store, clock)
    for number in range(70):
        keeper.add(printed(key=f"k{number}"))
    keeper.leave()
    assert len(store.written) == 70  # all


def test_a_worker_that_leaves_tries_once_and_waits_for_nothing(store, clock, caplog):
    keeper = make(store, clock)
    keeper.work()
    for _ in range(70):
        keeper.add(printed())
    store.failure = StoreUnavailableError("away")
    begun = clock.monotonic()
    keeper.leave()
    assert len(store.requests) == 1
    assert clock.monotonic() == begun
    assert keeper.lost == 70
    assert "the worker ends, and the store does not take it" in caplog.text


def test_a_worker_that_leaves_waits_for_no_pause(store, clock):
    keeper = make(store, clock)
    keeper.work()
    keeper.add(printed())
    store.failure = StoreBusyError("locked")
    keeper.work()
    store.failure = None
    keeper.leave()
    assert len(store.written) == 1


def test_a_slow_store_does_not_hold_up_a_worker_that_leaves(store, clock):
    keeper = make(store, clock)
    write = store.write_output

    def slowly(records):
        clock.advance(3)
        write(records)

    store.write_output = slowly
    for _ in range(70):
        keeper.add(printed(bytes(100_000)))
    begun = clock.monotonic()
    keeper.leave()
    limit = from_mapping({"url": "sqlite:///unused.db"}).driver_timeout
    assert clock.monotonic() - begun <= limit + 3
    assert 0 < len(store.written) < 70  # all


# --- trimming ------------------------------------------------------------------------------------


def test_old_output_is_deleted_once_in_a_minute(store, clock):
    keeper = make(store, clock, output_keep=3600, output_budget=5000)
    now = recorder(clock).clock.milliseconds()
    for _ in range(600):
        keeper.work()
        clock.advance(1)
    assert 10 <= len(store.trims) <= 21  # once in 30 to 60 s
    for before, budget, limit in store.trims:
        assert now - 3600_000 <= before <= now - 3000_000
        assert (budget, limit) == (5000, output_keeper._TRIM_LIMIT)


def test_a_worker_with_no_limits_deletes_nothing(store, clock):
    keeper = make(store, clock, output_keep=0, output_budget=0)
    for _ in range(100):
        keeper.work()
        clock.advance(1)
    assert {(before, budget) for before, budget, _ in store.trims} == {(0, 2**62)}


def test_much_old_output_is_deleted_soon(store, clock):
    keeper = make(store, clock)
    store.trimmed = output_keeper._TRIM_LIMIT
    for _ in range(100):
        keeper.work()
        clock.advance(1)
    assert len(store.trims) >= 40  # up to 60 s pass before the first one


def test_a_failed_deletion_is_tried_again_later(store, clock):
    keeper = make(store, clock)
    keeper.work()
    clock.advance(60)
    store.failure = StoreError("no right")
    keeper.work()
    store.failure = None
    keeper.add(printed())
    work_for(keeper, clock, 15)
    assert len(store.written) == 1
    for _ in range(100):
        keeper.work()
        clock.advance(1)
    assert store.trims


# --- running tasks -------------------------------------------------------------------------------


def running(clock):
    return SimpleNamespace(
        is_kept=True, is_printing=True, started=clock.monotonic(), running_attempt="an attempt"
    )


def test_the_store_is_asked_every_three_seconds_who_reads_a_running_task(store, clock):
    begun = clock.monotonic()
    keeper = make(store, clock, tasks=[running(clock)])
    work_for(keeper, clock, 10)
    assert [time - begun for time, _, _ in store.looks] == [3, 6, 9]


def test_a_store_that_keeps_no_output_is_not_asked_who_reads(store, clock):
    store.found_problem = "no table"
    keeper = make(store, clock, tasks=[running(clock)])
    work_for(keeper, clock, 50)
    assert keeper.wakes == float("inf")
    assert store.looks == []


def test_a_failure_of_one_kind_of_request_does_not_delay_the_other(store, clock):
    keeper = make(store, clock, tasks=[running(clock)])
    keeper.work()
    keeper.add(printed())
    store.largest, store.refusal = 1, StoreBusyError("locked")
    work_for(keeper, clock, 10)
    assert len(store.looks) == 3
    assert store.written == []
    store.largest, store.failure = 2**30, StoreBusyError("locked")
    work_for(keeper, clock, 1)
    store.failure = None
    work_for(keeper, clock, 10)
    assert len(store.written) == 1
