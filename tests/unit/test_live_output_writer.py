"""Tests of how a worker writes what its running tasks print, while somebody reads it."""

from math import inf
from types import SimpleNamespace

import pytest

from psched.base.errors import SchemaError, StoreError, StoreUnavailableError
from psched.core.output import RunningAttempt
from psched.output.captured import LOST_OUTPUT, NO_OUTPUT, CapturedOutput
from psched.testing import ManualClock
from psched.worker import output_keeper
from psched.worker.output_keeper import INTERVAL, LiveOutputWriter
from support.history import recorder
from support.worker import context

START = 1_800_000_000


class Store:
    """A store that somebody reads; serves as its own gateway."""

    def __init__(self, clock):
        self.clock = clock
        self.read = set()
        self.asked = []
        self.requests = []
        self.failure = None

    def request_aside(self, send):
        if self.failure is not None:
            raise self.failure
        return send()

    def asked_output(self, attempts, now):
        assert now == recorder(self.clock).clock.milliseconds()
        self.asked.append([each.key for each in attempts])
        return {each for each in attempts if each.key in self.read}

    def write_live_output(self, records):
        self.requests.append(records)

    @property
    def written(self):
        return [(each.key, each.output) for records in self.requests for each in records]


class Tasks(dict):
    """Running tasks by key, each with its output, which a collector tells a bit later."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.peeks = []
        self.answers = []
        self.at_once = True

    @property
    def running(self):
        return self

    def begin(self, key="k", output=NO_OUTPUT, *, kept=True):
        self[key] = SimpleNamespace(
            key=key,
            running_attempt=RunningAttempt(key=key, scheduled_time=START, owner="me.1", attempt=2),
            is_kept=kept,
            is_printing=True,
            started=self.clock.monotonic(),
            output=output,
        )
        return self[key]

    def peek(self, task):
        self.peeks.append(task.key)
        self.answers.append((task, task.output))

    def peeked(self):
        if self.at_once:
            answers, self.answers = self.answers, []
            yield from answers


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return Store(clock)


@pytest.fixture
def tasks(clock):
    return Tasks(clock)


@pytest.fixture
def writer(store, tasks, clock):
    return LiveOutputWriter(context(clock), store, store, tasks)


def text(output, dropped=0):
    return CapturedOutput(output, dropped)


def work_for(writer, clock, seconds):
    """Let it work whenever it wants to; the test fails if it wants to work all the time."""
    end = clock.monotonic() + seconds
    for _ in range(1000):
        writer.work()
        if writer.wakes > end:
            clock.advance(end - clock.monotonic())
            return
        clock.advance(max(0.0, writer.wakes - clock.monotonic()))
    raise AssertionError("it never rests")


# --- the idle cost -------------------------------------------------------------------------------


def test_without_tasks_nothing_is_asked(writer, store, clock):
    work_for(writer, clock, 1000)
    assert writer.wakes == inf
    assert store.asked == []


def test_tasks_whose_output_is_not_kept_cause_no_request(writer, store, tasks, clock):
    tasks.begin(kept=False)
    work_for(writer, clock, 1000)
    assert writer.wakes == inf
    assert store.asked == []


def test_short_tasks_cause_no_request(writer, store, tasks, clock):
    for _ in range(100):
        tasks.begin()
        work_for(writer, clock, INTERVAL - 0.1)
    assert store.asked == []


def test_tasks_that_have_ended_cause_no_request(writer, store, tasks, clock):
    tasks.begin().is_printing = False
    work_for(writer, clock, 1000)
    assert store.asked == []


def test_a_task_that_nobody_reads_is_not_looked_at(writer, store, tasks, clock):
    tasks.begin(output=text(b"one"))
    work_for(writer, clock, 300)
    assert len(store.asked) == 300 / INTERVAL
    assert (tasks.peeks, store.requests) == ([], [])


def test_one_request_asks_for_all_tasks_that_run_long_enough(writer, store, tasks, clock):
    for number in range(200):
        tasks.begin(f"k{number}")
    clock.advance(2)
    tasks.begin("young")
    work_for(writer, clock, INTERVAL - 2 + 0.1)
    [asked] = store.asked
    assert asked == [f"k{number}" for number in range(200)]


# --- what is written -----------------------------------------------------------------------------


def test_new_output_is_written_while_it_is_read(writer, store, tasks, clock):
    task = tasks.begin(output=text(b"one"))
    tasks.begin("other", text(b"x"))
    store.read = {"k"}
    work_for(writer, clock, 4)
    task.output = text(b"one two")
    work_for(writer, clock, 30)
    task.output = text(b"two", 4)
    work_for(writer, clock, 30)
    assert store.written == [("k", b"one"), ("k", b"one two"), ("k", b"two")]
    record = store.requests[-1][0]
    assert (record.scheduled_time, record.owner, record.attempt) == (START, "me.1", 2)
    assert (record.dropped, record.is_live) == (4, True)
    assert record.ended > store.requests[0][0].ended


def test_the_first_answer_is_written_even_if_nothing_was_printed(writer, store, tasks, clock):
    tasks.begin()
    store.read = {"k"}
    work_for(writer, clock, 30)
    assert store.written == [("k", b"")]
    # The next reader needs a new one.
    store.read = set()
    work_for(writer, clock, 30)
    store.read = {"k"}
    work_for(writer, clock, 30)
    assert store.written == [("k", b"")] * 2


def test_what_nobody_reads_any_more_is_not_written(writer, store, tasks, clock):
    task = tasks.begin(output=text(b"one"))
    store.read = {"k"}
    work_for(writer, clock, 10)
    store.read = set()
    task.output = text(b"one two")
    work_for(writer, clock, 30)
    assert store.written == [("k", b"one")]


def test_a_late_answer_of_the_collector_is_written_at_once(writer, store, tasks, clock):
    tasks.begin(output=text(b"one"))
    store.read, tasks.at_once = {"k"}, False
    work_for(writer, clock, 3)
    assert tasks.peeks == ["k"]
    assert store.written == []
    tasks.at_once = True
    writer.work()
    assert store.written == [("k", b"one")]


def test_an_answer_about_a_task_that_has_ended_is_ignored(writer, store, tasks, clock):
    task = tasks.begin(output=text(b"one"))
    store.read, tasks.at_once = {"k"}, False
    work_for(writer, clock, 3)
    task.is_printing, tasks.at_once = False, True
    work_for(writer, clock, 3)
    assert store.written == []


def test_a_loss_is_written_with_what_follows(writer, store, tasks, clock):
    task = tasks.begin(output=LOST_OUTPUT)
    store.read = {"k"}
    work_for(writer, clock, 4)
    task.output = text(b"rest", None)
    work_for(writer, clock, 4)
    [[first], [second]] = store.requests
    assert (first.output, first.dropped) == (b"", None)
    assert (second.output, second.dropped) == (b"rest", None)


def test_a_request_is_not_much_larger_than_a_mebibyte(writer, store, tasks, clock):
    for number in range(5):
        tasks.begin(f"k{number}", text(bytes(400_000)))
    store.read = {f"k{number}" for number in range(5)}
    work_for(writer, clock, 4)
    assert [len(records) for records in store.requests] == [2, 2, 1]


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StoreError, StoreUnavailableError, SchemaError])
def test_after_a_failure_there_is_a_pause(writer, store, tasks, clock, error):
    tasks.begin(output=text(b"one"))
    store.read = {"k"}
    store.failure = error("away")
    begun = clock.monotonic()
    work_for(writer, clock, 3)
    assert writer.wakes - begun == INTERVAL + output_keeper._PAUSE
    store.failure = None
    work_for(writer, clock, 20)
    assert store.written == [("k", b"one")]


def test_what_could_not_be_written_is_written_later(writer, store, tasks, clock):
    tasks.begin(output=text(b"one"))
    store.read, tasks.at_once = {"k"}, False
    work_for(writer, clock, 3)
    store.failure, tasks.at_once = StoreError("full"), True
    writer.work()
    store.failure = None
    work_for(writer, clock, 20)
    assert store.written == [("k", b"one")]
