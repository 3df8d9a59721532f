"""What psched logs shows of an attempt on another host, whose worker writes to the store."""

import random
from types import SimpleNamespace

import pytest

from psched.base.errors import (
    NotFoundError,
    NotSupportedError,
    StoreError,
    StoreUnavailableError,
)
from psched.cli.history.live_output import (
    FIRST_ANSWER,
    NO_ANSWER,
    SOON,
    Continuation,
    LiveElsewhere,
    State,
)
from psched.core.output import OutputRecord, RunningAttempt
from psched.testing import ManualClock

START = 1_800_000_000
ATTEMPT = RunningAttempt(key="k", scheduled_time=START, owner="me.1", attempt=2)


def record(output=b"", dropped=0, *, ended=0, is_live=True):
    return OutputRecord(
        key="k",
        scheduled_time=START,
        owner="me.1",
        attempt=2,
        ended=ended,
        output=output,
        dropped=dropped,
        is_live=is_live,
    )


# --- what is new in a record -------------------------------------------------------------------


def shown(*records):
    reading = Continuation()
    return [reading.new(each) for each in records]


def test_only_what_is_new_is_shown():
    assert shown(record(b"ab"), record(b"abc"), record(b"abc"), record(b"cd", 2)) == [
        (0, b"ab"),
        (0, b"c"),
        (0, b""),
        (0, b"d"),
    ]


def test_what_fell_out_of_the_tail_is_counted():
    assert shown(record(b"ab", 5), record(b"xyz", 10), record(b"", 13)) == [
        (5, b"ab"),
        (3, b"xyz"),
        (0, b""),
    ]


def test_lost_output_is_told_once():
    assert shown(
        record(b"ab"), record(b"cd", None), record(b"cdef", None), record(b"cdef", None)
    ) == [(0, b"ab"), (None, b"cd"), (0, b"ef"), (0, b"")]


def test_after_a_loss_a_tail_is_continued_by_its_content():
    stream = random.Random(1).randbytes(5000)  # noqa: S311  # a test
    cuts = [(0, 1000), (0, 1500), (500, 1600), (1500, 2600), (4000, 5000)]
    pieces = shown(*(record(stream[start:end], None) for start, end in cuts))
    assert pieces == [
        (None, stream[:1000]),
        (0, stream[1000:1500]),
        (0, stream[1500:1600]),
        (0, stream[1600:2600]),
        (None, stream[4000:]),
    ]


def test_output_that_is_known_again_after_a_loss_is_shown_whole():
    assert shown(record(b"ab", None), record(b"abc", 7)) == [(None, b"ab"), (None, b"abc")]


# --- waiting for the worker --------------------------------------------------------------------


class Store:
    """A store in which a worker writes at certain times; a reader reads and asks."""

    def __init__(self, clock):
        self.clock = clock
        self.output = self
        self.begun = clock.monotonic()
        self.written = []
        self.asked = []
        self.state = lambda _time: State.RUNNING
        self.already = False
        self.refusal = None
        self.disconnected = False

    @property
    def time(self):
        return self.clock.monotonic() - self.begun

    def now(self):
        return START + self.time

    def output_of(self, attempt):
        assert attempt == ATTEMPT
        found = [each for time, each in self.written if time <= self.time]
        return found[-1] if found else None

    def ask_for_output(self, attempt, *, now, until):
        assert attempt == ATTEMPT
        assert until == now + 15_000
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(self.time)
        return self.already

    def disconnect(self):
        self.disconnected = True


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return Store(clock)


@pytest.fixture
def live(store, clock):
    return LiveElsewhere(
        store,
        ATTEMPT,
        send=lambda request: request(),
        state=lambda: store.state(store.time),
        where="k: attempt 2 is running on another host",
        clock=clock,
    )


def ends_at(when, how=State.ENDED):
    return lambda time: how if time >= when else State.RUNNING


def test_output_is_shown_while_it_is_written_and_then_the_rest(live, store):
    store.written = [
        (2, record(b"one\n", ended=2)),
        (8, record(b"one\ntwo\n", ended=8)),
        (20.3, record(b"one\ntwo\nthree\n", ended=20, is_live=False)),
    ]
    store.state = ends_at(20)
    assert [*live.pieces()] == [(0, b"one\n"), (0, b"two\n"), (0, b"three\n")]
    assert live.over == "ended"
    assert store.asked == [0, 5, 10, 15]
    assert store.disconnected


def test_the_output_of_an_attempt_that_has_ended_is_awaited(live, store):
    store.state = ends_at(5)
    assert [*live.pieces()] == []
    assert live.over == "ended"
    assert 5 + SOON <= store.time <= 6 + SOON


def test_a_worker_that_is_lost_is_told(live, store):
    store.written = [(1, record(b"one\n", ended=1))]
    store.state = ends_at(5, State.LOST)
    assert [*live.pieces()] == [(0, b"one\n")]
    assert live.over == "worker ended"
    assert live.why_over() == (
        "k: the worker that ran it has ended; psched history says what becomes of it"
    )


def test_a_worker_that_does_not_answer_is_told(live, store):
    assert live.so_far() is None
    assert live.over == NO_ANSWER
    assert FIRST_ANSWER <= store.time <= FIRST_ANSWER + 1
    assert live.why_over().startswith("k: attempt 2 is running on another host, and has not answer")
    assert store.disconnected


def test_the_answer_to_an_earlier_reader_is_none(live, store):
    store.written = [(-100, record(b"old\n", ended=1)), (3, record(b"old\nnew\n", ended=2))]
    assert live.so_far().raw == b"old\nnew\n"
    assert store.disconnected


def test_an_old_answer_alone_is_none(live, store):
    store.written = [(-100, record(b"old\n", ended=1))]
    assert [*live.pieces()] == []
    assert live.over == NO_ANSWER


def test_the_answer_to_another_reader_is_an_answer(live, store):
    store.already = True
    store.written = [(-100, record(b"", ended=1))]
    assert live.so_far().raw == b""
    assert store.time == 0


def test_an_attempt_that_prints_nothing_more_is_followed_for_hours(live, store):
    store.written = [(1, record(b"one\n", ended=1))]
    store.state = ends_at(7200)
    assert [*live.pieces()] == [(0, b"one\n")]
    assert live.over == "ended"
    assert len(store.asked) == 7200 / 5


def test_a_refused_request_is_told(live, store):
    store.refusal = StoreError("permission denied")
    with pytest.raises(NotFoundError, match="refuses to write: permission denied"):
        live.so_far()
    assert store.disconnected


def test_a_store_that_is_away_is_no_refusal(live, store):
    store.refusal = StoreUnavailableError("away")
    with pytest.raises(StoreUnavailableError):
        live.so_far()


def test_a_store_that_keeps_no_output_is_told(clock):
    with pytest.raises(NotSupportedError, match="does not keep what tasks print"):
        LiveElsewhere(
            SimpleNamespace(output=None), ATTEMPT, send=None, state=None, where="", clock=clock
        )
