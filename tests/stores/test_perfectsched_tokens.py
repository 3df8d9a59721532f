"""Tests that each claim on PerfectSched's table has a new token, valid for its lease only."""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from psched.base.errors import TransientStoreError, UnknownOutcomeError
from psched.config import from_mapping
from psched.core.model import Finish, Release, Retry, Row
from psched.core.settling import Ending
from psched.core.store_protocol import Settled
from psched.stores.sql.dialects.sqlite import SQLITE
from psched.testing.store_contract.bench import add, claim, ending, found
from support.compat import compat_factory
from support.settling import settle
from support.store_clock import store_clock
from support.stores import Sql

pytestmark = pytest.mark.empty

START = 1_800_000_000.25
MINUTE = 60


def fast(connection, milliseconds):
    """Begin an SQLite session that does not wait for the disk, which makes the tests faster."""
    standing = SQLITE.begin_session(connection, milliseconds)
    connection.exec_driver_sql("PRAGMA synchronous = OFF").close()
    return standing


FAST = {"begin_session": fast}


class Unanswered:
    """Loses or delays the writes of a store, or loses the answers to them.

    Args:
        store: the store.
        wrote: called after each executed write, with the write's subject and the number of rows.

    Attributes:
        fault: what happens to the next writes: ``request`` or ``reply`` means that this part of
            each write is lost; ``late`` means that `arrive` executes it; None means no fault.
        subject: any object; it is passed to ``wrote`` for the next writes.
        late: the delayed requests, with their subjects.
    """

    def __init__(self, store, wrote=lambda _subject, _met: None):
        self._run = store._connector.run  # the last line before the driver
        self._wrote = wrote
        self.fault = None
        self.subject = None
        self.late = []
        store._connector.run = self._send

    @contextlib.contextmanager
    def losing(self, fault):
        """Set `fault` during a ``with`` block."""
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None

    def arrive(self, place):
        """Execute a delayed request, whose sender does not wait for the answer any more."""
        self._execute(*self.late.pop(place))

    def _send(self, *work):
        if self.fault == "late":
            self.late.append((work, self.subject))
        met = None if self.fault in ("request", "late") else self._execute(work, self.subject)
        if self.fault is not None:
            raise UnknownOutcomeError("the connection broke")
        return met

    def _execute(self, work, subject):
        met = self._run(*work)
        self._wrote(subject, met)
        return met


@pytest.fixture
def clock(database):
    with store_clock(database.url, start=START) as clock:
        yield clock


@pytest.fixture
def open_store(clock, database):  # noqa: ARG001  # stores go by it
    with compat_factory(database.url) as factory:
        factory().init()
        yield factory


def extended(store, row, alive_time=60):
    return bool(store.extend({row.key: row.token}, alive_time=alive_time, shortest=1))


# --- single sequences ----------------------------------------------------------------------


def test_a_repeated_release_does_not_end_the_lease_of_who_came_next(open_store, clock):
    """All requests are sent in the same second, as far as the store permits this."""
    one, two, three = open_store(), open_store(), open_store()
    lost = Unanswered(one)
    add(one, "k")
    (of_one,) = claim(one, "one.1").rows
    with lost.losing("reply"), pytest.raises(UnknownOutcomeError):
        one.settle([ending(of_one)])
    rows = claim(two, "two.1").rows
    if not rows:
        clock.advance(1)
        rows = claim(two, "two.1").rows
    (of_two,) = rows
    one.settle([ending(of_one)])
    assert not claim(three, "three.1").rows
    assert extended(two, of_two)
    assert two.settle([ending(of_two)]) == {"k": Settled.DONE}


@pytest.mark.parametrize("wait", [0, 1, 60])
def test_the_fence_grows_with_every_claim_of_an_occurrence(open_store, clock, wait):
    stores = [open_store(), open_store()]
    add(stores[0], "k")
    fences, tokens = [], []
    for number in range(6):
        store = stores[number % 2]
        while not (rows := claim(store, f"w.{number}").rows):
            clock.advance(1)
        (held,) = rows
        fences.append(held.fence)
        tokens.append((held.next_time, found(store, "k").next_run_time))
        assert store.settle([ending(held, wait=wait)]) == {"k": Settled.DONE}
    assert fences == sorted(set(fences))
    assert tokens == sorted(set(tokens))


def test_the_fence_grows_over_many_occurrences_in_one_second_and_if_one_is_set_again(
    open_store, clock
):
    store = open_store()
    add(store, "k")
    fences, first = [], found(store, "k").next_time
    for number in range(5):
        (held,) = claim(store, f"w.{number}").rows
        fences.append(held.fence)
        following = held.next_time + MINUTE
        end = ending(held, next_time=following, not_before=following)
        assert store.settle([end]) == {"k": Settled.DONE}
    clock.advance(1)
    Sql(store._connector.url)(
        "UPDATE {table} SET next_time = :first, timeout = :first", first=first
    )
    fences.append(claim(store, "w.6").rows[0].fence)
    assert fences == sorted(set(fences))


def test_a_shorter_lease_after_a_longer_one_has_a_greater_fence(open_store, clock):
    store = open_store()
    add(store, "k")
    (long,) = claim(store, "w.1", alive_time=300).rows
    store.settle([ending(long)])
    clock.advance(1)
    (short,) = claim(store, "w.2", alive_time=6).rows
    assert short.fence > long.fence


def test_what_was_held_for_a_second_is_released_at_once(open_store, clock):
    store = open_store()
    add(store, "k")
    (held,) = claim(store, "w.1").rows
    clock.advance(1)
    assert store.settle([ending(held)]) == {"k": Settled.DONE}
    assert len(claim(store, "w.2").rows) == 1


def test_nobody_waits_for_a_clock_that_was_set_back(open_store, clock):
    store = open_store()
    add(store, "k")
    (held,) = claim(store, "w.1").rows
    clock.advance(-3600)
    assert store.settle([ending(held)]) == {"k": Settled.DONE}
    assert found(store, "k").next_run_time - clock.now < 10


# --- any sequence ----------------------------------------------------------------------------


@dataclass(eq=False)
class Held:
    """A lease in the table; its worker does not know the lease if the claim was not answered.

    Attributes:
        worker: the number of the worker that claimed the row.
        tokens: all pairs of ``next_time`` and ``timeout`` that the row has had under this lease.
        row: the row that the claim returned; None if the claim was not answered.
        decision: how the worker settles the lease; None before the worker has decided.
        faultless: whether all requests about this lease were answered.
    """

    worker: int
    tokens: list = field(default_factory=list)
    row: Row | None = None
    decision: object = None
    faultless: bool = True


class Interleavings(RuleBasedStateMachine):
    """Workers claim, extend and settle one schedule; some requests and answers are lost or late.

    After each write, the test reads from the table, not from the workers, who holds the lease.
    """

    faults = st.sampled_from([None, None, None, "request", "reply", "late"])

    @initialize(alive_time=st.sampled_from([6, 7, 30]))
    def open(self, alive_time):
        self.alive_time = alive_time
        self.open_resources = contextlib.ExitStack()
        folder = self.open_resources.enter_context(tempfile.TemporaryDirectory())
        url = f"sqlite:///{folder}/store.db"
        self.clock = self.open_resources.enter_context(store_clock(url, start=START, **FAST))
        open_store = self.open_resources.enter_context(compat_factory(url))
        self.stores = [open_store() for _ in range(3)]
        self.stores[0].init()
        add(self.stores[0], "k")
        self.lines = [Unanswered(store, self.wrote) for store in self.stores]
        self.settings = from_mapping({"type": "rdb_compat", "url": url, "table": "psched"})
        self.sql = Sql(url)
        self.holder = None
        self.leases = []
        self.given = {}
        self.fences = []
        self.claims = 0

    def teardown(self):
        self.open_resources.close()

    @rule(seconds=st.sampled_from([0.05, 0.4, 0.8, 1.0, 5.3, 7.0, 8.0, 31.0]))
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(worker=st.integers(0, 2), fault=faults)
    def claim(self, worker, fault):
        self.claims += 1
        lease = Held(worker)
        with self.sending("claim", lease, fault):
            rows = claim(self.stores[worker], f"w{self.claims}.1", alive_time=self.alive_time).rows
            if rows:
                (lease.row,) = rows
                assert not self.fences or lease.row.fence > self.fences[-1]
                self.fences.append(lease.row.fence)
                self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(place=st.integers(0, 99), fault=faults)
    def extend(self, place, fault):
        lease = self.leases[-1 - place % len(self.leases)]
        ours = self.is_surely_held(lease)
        with self.sending("extend", lease, fault):
            held = extended(self.stores[lease.worker], lease.row, self.alive_time)
            assert held <= (self.holder is lease)
            assert held >= ours

    @precondition(lambda self: self.leases)
    @rule(
        place=st.integers(0, 99),
        fault=faults,
        decision=st.sampled_from([Release(), Release(), Retry(0), Retry(3), Retry(20), Finish()]),
    )
    def settle(self, place, fault, decision):
        lease = self.leases[-1 - place % len(self.leases)]
        ours = self.is_surely_held(lease)
        lease.decision = lease.decision or decision
        with self.sending("settle", lease, fault):
            store = self.stores[lease.worker]
            result = settle(store, [Ending(lease.row, lease.decision)], self.settings)["k"]
            assert result is Settled.DONE or not ours
            assert self.holder is not lease or result is Settled.PREEMPTED

    @precondition(lambda self: self.leases)
    @rule(place=st.integers(0, 99), fault=faults, number=st.integers())
    def update_data(self, place, fault, number):
        lease = self.leases[-1 - place % len(self.leases)]
        with self.sending("update data", lease, fault):
            self.stores[lease.worker].update_data("k", lease.row.token, f'{{"n":{number}}}')

    @precondition(lambda self: any(line.late for line in self.lines))
    @rule(worker=st.integers(0, 2), place=st.integers(0, 99))
    def arrive(self, worker, place):
        lines = [line for line in self.lines if line.late]
        line = lines[worker % len(lines)]
        line.arrive(place % len(line.late))

    @contextlib.contextmanager
    def sending(self, request, lease, fault) -> Iterator[None]:
        line = self.lines[lease.worker]
        line.subject = request, lease
        with line.losing(fault):
            try:
                yield
            except TransientStoreError:
                lease.faultless = False

    def is_surely_held(self, lease):
        """Whether the store must grant a request of the lease's worker."""
        end = lease.tokens[-1][1]
        return self.holder is lease and lease.faultless and self.clock.now < end

    def wrote(self, subject, met):
        """Check an executed write: it must be the holder's, or a claim of a free row."""
        if not met:
            return
        request, lease = subject
        ((next_time, timeout),) = self.sql("SELECT next_time, timeout FROM {table}")
        if request == "claim":
            end = self.holder.tokens[-1][1] if self.holder else 0
            assert end <= self.clock.now, "a lease was taken before its end"
            self.holder = lease
        assert self.holder is lease, f"a stale {request} was executed"
        if request == "settle":
            self.holder = None
        else:
            token = next_time, timeout
            assert self.given.setdefault(token, lease) is lease, "two leases had the same token"
            lease.tokens.append(token)


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = examples(max_examples=80, stateful_step_count=40)
