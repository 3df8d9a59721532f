"""Leases are taken over by observation (`takeover: observed`), whatever the database's clock shows.

Each host has a boot-time clock of its own, which a test moves; the database's clock a test sets, as
if somebody had set the server's, or another server had become the primary.
"""

import contextlib
from types import SimpleNamespace

import hypothesis
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from conftest import MARKS
from psched.core.model import DELETING
from psched.core.store_protocol import ExpiredLease, Settled
from psched.stores import observations
from psched.stores.observations import Takeover
from psched.testing import ManualClock
from psched.testing.store_contract.bench import add, claim, due, ending, found
from support.fuzzing import FACTOR, SEED
from support.store_clock import redis_clock, store_clock
from support.stores import KINDS, Sql, make_store

START = 1_800_000_000
ALIVE = 60
DAY = 86_400
WAYS = [
    pytest.param(("sqlite", "auto"), id="sqlite"),
    pytest.param(("mariadb", "auto"), id="mariadb", marks=MARKS["mariadb"]),
    pytest.param(("postgresql", "auto"), id="postgresql", marks=MARKS["postgresql"]),
    pytest.param(("postgresql", "cas"), id="postgresql-cas", marks=MARKS["postgresql"]),
    pytest.param(("redis", "auto"), id="redis", marks=MARKS["redis"]),
]


@pytest.fixture(params=[way for way in WAYS if way.values[0][0] in KINDS])
def place(request, open_database):
    """Opens stores of several hosts, and sets the clock of their database."""
    kind, way = request.param
    with contextlib.ExitStack() as opened:
        database = opened.enter_context(open_database(kind))
        if kind == "redis":
            number = int(database.url.rpartition("/")[2])
            set_to = opened.enter_context(redis_clock(database.server, number))
            set_to(START)

            def clear():
                database.server.query("FLUSHDB", db=number)
                set_to(START)
                make_store(database.url).init()

            make_store(database.url).init()
        else:
            make_store(database.url).init()
            clock = opened.enter_context(store_clock(database.url, start=START))
            set_to = lambda now: clock.advance(now - clock.now)  # noqa: E731
            clear = lambda: Sql(database.url)("DELETE FROM psched")  # noqa: E731

        def open_host(takeover="observed", **more):
            host_clock = ManualClock()
            store = make_store(
                database.url,
                clock=host_clock,
                **({} if kind == "redis" else {"claim_strategy": way}),
                takeover=takeover,
                **more,
            )
            opened.callback(store.disconnect)
            return SimpleNamespace(store=store, clock=host_clock)

        yield SimpleNamespace(open=open_host, set_to=set_to, clear=clear)


def pass_time(seconds, *hosts):
    """So many seconds pass on hosts, which look for work now and then."""
    for step in range(11):
        for host in hosts:
            host.clock.advance(seconds / 10 if step else 0)
            assert not claim(host.store, "idle.1", alive_time=ALIVE).rows


def claimed(host, owner="w2.1", **how):
    return [row.key for row in claim(host.store, owner, alive_time=ALIVE, **how).rows]


def begin(place, *keys):
    """One host leases rows; then the database's clock jumps over the ends of their leases."""
    holder = place.open()
    add(holder.store, *keys)
    rows = claim(holder.store, "w1.1", alive_time=ALIVE).rows
    assert {row.key for row in rows} == {*keys}
    place.set_to(START + DAY)
    return holder, {row.key: row for row in rows}


def test_after_a_jump_of_the_clock_a_lease_is_kept_and_by_default_it_would_be_lost(place):
    holder, rows = begin(place, "k")
    other, trusting = place.open(), place.open("clock")
    assert not claimed(other)
    assert claimed(trusting, "w3.1") == ["k"]  # what `takeover: observed` prevents
    assert holder.store.settle([ending(rows["k"])]) == {"k": Settled.PREEMPTED}


def test_a_lease_is_taken_over_once_it_was_seen_for_its_whole_length(place):
    _, rows = begin(place, "k")
    other = place.open()
    pass_time(ALIVE - 1, other)
    other.clock.advance(2)
    (row,) = (answer := claim(other.store, "w2.1", alive_time=ALIVE)).rows
    assert (row.key, row.fence, row.attempt) == ("k", 2, 2)
    assert answer.expired == {"k": ExpiredLease(rows["k"].token, START)}


def test_a_holder_that_extends_keeps_its_lease_although_the_clock_stands_still(place):
    holder, rows = begin(place, "k")
    other = place.open()
    leases = {"k": rows["k"].token}
    for now in (START, START + DAY, START - DAY, START) * 3:
        place.set_to(now)  # the same lease would end at the same time
        assert holder.store.extend(leases, alive_time=ALIVE, shortest=1) == {"k"}
        place.set_to(START + 3 * DAY)
        pass_time(ALIVE / 4, other)
    assert holder.store.settle([ending(rows["k"])]) == {"k": Settled.DONE}


def test_what_a_restarted_host_had_seen_is_seen_anew(place):
    begin(place, "k")
    pass_time(ALIVE - 1, place.open())
    again = place.open()
    pass_time(ALIVE - 1, again)
    again.clock.advance(2)
    assert claimed(again) == ["k"]


def test_of_several_workers_that_have_seen_a_lease_one_gets_it(place):
    begin(place, "k")
    others = [place.open() for _ in range(3)]
    pass_time(ALIVE - 1, *others)
    for other in others:
        other.clock.advance(2)
    assert [key for i, other in enumerate(others) for key in claimed(other, f"o{i}.1")] == ["k"]


def test_a_lease_that_was_extended_between_the_look_and_the_takeover_is_kept(place):
    holder, rows = begin(place, "k", "m")
    other = place.open()
    pass_time(ALIVE - 1, other)
    other.clock.advance(2)
    next_ = other.store._takeover.next

    def late(*args, **lease):
        over = next_(*args, **lease)
        place.set_to(START)
        tokens = {"k": rows["k"].token}
        assert holder.store.extend(tokens, alive_time=ALIVE, shortest=1) == {"k"}
        place.set_to(START + DAY)
        return over

    other.store._takeover.next = late
    assert claimed(other) == ["m"]


def test_what_nobody_holds_is_claimed_at_once_though_dead_leases_are_before_it(place):
    _, rows = begin(place, *(f"dead{number}" for number in range(6)))
    other = place.open()
    other.store.add([due("new", START)], nonce="n")
    other.store.add([due("later", START + DAY + 30)], nonce="n")
    assert other.store.backlog(10).due == 1
    answer = claim(other.store, "w2.1", limit=1, alive_time=ALIVE, horizon=60)
    assert [row.key for row in answer.rows] == ["new"]
    pass_time(ALIVE - 1, other)
    other.clock.advance(2)
    taken = [key for i in range(9) for key in claimed(other, f"w3.{i}", limit=4)]
    assert sorted(taken) == sorted(rows)


def test_a_row_that_this_host_does_not_claim_is_left_to_others(place):
    begin(place, "k")
    choosy, other = place.open(only=("web",)), place.open()
    pass_time(ALIVE - 1, choosy, other)
    for host in choosy, other:
        host.clock.advance(2)
    assert claimed(choosy) == []
    assert claimed(other, "w3.1") == ["k"]


def test_dead_leases_that_this_host_does_not_claim_hide_no_other(place, monkeypatch):
    monkeypatch.setattr(observations, "MOST", 3)
    holder = place.open()
    others = [due(f"a{i}", START, type="web") for i in range(3)]
    others += [due(f"far{i}", START, lane="far") for i in range(3)]
    holder.store.add([*others, due("k", START)], nonce="n")
    far = place.open(host_labels=("far",))
    assert len(claimed(far, "w1.1", limit=6)) == 6
    assert claimed(far, "w1.2") == ["k"]
    place.set_to(START + DAY)
    choosy = place.open(only=("default",))
    pass_time(ALIVE - 1, choosy)
    choosy.clock.advance(2)
    assert claimed(choosy) == ["k"]


def test_a_lease_is_taken_over_although_others_end_all_the_time(place, monkeypatch):
    monkeypatch.setattr(observations, "MOST", 2)
    begin(place, "k")
    other, holder = place.open(), place.open()
    for number in range(12):
        add(holder.store, f"m{number}")
        place.set_to(START)
        (row,) = claim(holder.store, f"z.{number}", alive_time=ALIVE).rows
        place.set_to(START + DAY)
        pass_time(4, other)
        holder.store.settle([ending(row, remove=True)])
    pass_time(ALIVE / 5, other)
    other.clock.advance(2)
    assert claimed(other) == ["k"]


def test_a_lease_that_has_ended_gives_way_to_another_in_the_end(place, monkeypatch):
    monkeypatch.setattr(observations, "MOST", 1)
    holder, rows = begin(place, "k")
    other = place.open()
    pass_time(ALIVE - 1, other)
    holder.store.settle([ending(rows["k"], remove=True)])
    place.set_to(START)
    begin(place, "m")
    pass_time(observations._STALE - ALIVE, other)
    other.clock.advance(ALIVE)
    assert not claimed(other)
    other.clock.advance(ALIVE)
    assert claimed(other) == ["m"]


def test_who_had_no_answer_to_a_claim_learns_what_it_holds_also_after_a_jump(place):
    holder, rows = begin(place, "k")
    (row,) = holder.store.held("w1.1", ["k"])
    assert row.token == rows["k"].token
    assert place.open("clock").store.held("w1.1", ["k"]) == []  # what `takeover: observed` prevents


def test_who_has_lost_a_lease_to_another_does_not_hold_it(place):
    holder, _ = begin(place, "k")
    other = place.open()
    pass_time(ALIVE - 1, other)
    other.clock.advance(2)
    assert claimed(other) == ["k"]
    assert holder.store.held("w1.1", ["k"]) == []
    assert [row.key for row in other.store.held("w2.1", [])] == ["k"]


def test_a_hold_is_kept_and_ends_once_it_was_seen_for_its_whole_length(place):
    holder, other = place.open(), place.open()
    holder.store.add([due("k", START), due("m", START + 3 * DAY)], nonce="n")
    hold = {"alive_time": ALIVE, "shortest": 1}
    assert holder.store.hold({"k": "w1.1", "m": "w1.2"}, **hold) == {"k", "m"}
    place.set_to(START + DAY)
    assert not claimed(other)
    assert other.store.hold({"m": "w2.2"}, **hold) == frozenset()
    assert not other.store.delete("k")
    assert holder.store.hold({"k": "w1.1"}, **hold) == {"k"}  # it is extended
    place.set_to(START + 2 * DAY)
    pass_time(ALIVE - 1, other)
    assert holder.store.hold({"k": "w1.1"}, **hold) == {"k"}
    place.set_to(START + 2 * DAY + 1000)
    other.clock.advance(2)
    assert not claimed(other)
    assert other.store.hold({"m": "w2.3"}, **hold) == {"m"}
    pass_time(ALIVE - 1, other)
    other.clock.advance(2)
    assert claimed(other) == ["k"]


def test_check_says_how_leases_are_taken_over(place):
    assert observations.FACT in place.open().store.examine()
    assert observations.FACT not in place.open("clock").store.examine()


def test_what_runs_is_only_marked_when_it_is_deleted(place):
    holder, rows = begin(place, "k")
    other = place.open()
    assert not other.store.delete("k")
    assert found(other.store, "k").status == DELETING
    assert holder.store.marked(["k"]) == {"k": DELETING}
    assert holder.store.extend({"k": rows["k"].token}, alive_time=ALIVE, shortest=1) == {"k"}


def test_the_leases_of_a_dead_worker_are_released_at_once(place):
    begin(place, "k")
    other = place.open()
    place.set_to(START + ALIVE + 10)  # its leases have ended
    assert other.store.recover("w1", alive_time=ALIVE, retry_wait=0.0) == ["k"]
    assert claimed(other) == ["k"]


def test_leases_are_looked_at_now_and_then_and_what_is_remembered_is_bounded(place, monkeypatch):
    monkeypatch.setattr(observations, "MOST", 2)
    begin(place, "a", "b", "c")
    other = place.open()
    looks = 0
    ended = other.store._takeover._ended

    def counted():
        nonlocal looks
        looks += 1
        return ended()

    other.store._takeover._ended = counted
    for number in range(20):
        other.clock.advance(1)
        assert not claimed(other, f"w2.{number}")
    assert looks == 3
    assert len(other.store._takeover._observed._seen) == 2


# --- any sequence of requests, and of steps of the clock ------------------------------------


class Fleet(RuleBasedStateMachine):
    """Hosts that claim, extend, settle and restart, while somebody sets the database's clock.

    Args:
        place: where they are.
        takeover: the setting of all hosts.
    """

    def __init__(self, place, takeover):
        super().__init__()
        place.clear()
        self.hosts = [place.open(takeover) for _ in range(3)]
        self.place = place
        self.passed = 0.0
        self.shown = START
        self.claims = 0
        self.running = {}
        self.set_clock(0)
        add(self.hosts[0].store, "a", "b")

    def teardown(self):
        for host in self.hosts:
            host.store.disconnect()

    hosts_ = st.integers(0, 2)

    @rule(seconds=st.sampled_from([1, 7, 20, 31, 45, 61]), stuck=st.booleans())
    def wait(self, seconds, stuck):
        for host in self.hosts:
            host.clock.advance(seconds)
        self.passed += seconds
        self.set_clock(0 if stuck else seconds)
        self.running = {of: end for of, end in self.running.items() if end > self.passed}

    @rule(by=st.sampled_from([-DAY, -100, -61, -20, 20, 61, 100, DAY]))
    def set_clock(self, by):
        self.shown += by
        self.place.set_to(self.shown)

    @rule(number=hosts_)
    def claim(self, number):
        self.claims += 1
        rows = claim(self.hosts[number].store, f"w{number}.{self.claims}", alive_time=ALIVE).rows
        for row in rows:
            assert row.key not in {key for _, key, _ in self.running}, "it runs twice"
            self.running[number, row.key, row.token] = self.passed + ALIVE

    @rule(number=hosts_)
    def extend(self, number):
        tokens = {key: token for host, key, token in self.running if host == number}
        lease = {"alive_time": ALIVE, "shortest": 1}
        assert self.hosts[number].store.extend(tokens, **lease) == {*tokens}
        for key, token in tokens.items():
            self.running[number, key, token] = self.passed + ALIVE

    @rule(number=hosts_)
    def settle(self, number):
        for of in [of for of in self.running if of[0] == number][:1]:
            row = found(self.hosts[number].store, of[1])
            assert self.hosts[number].store.settle([ending(row)]) == {of[1]: Settled.DONE}
            del self.running[of]

    @rule(number=hosts_)
    def restart(self, number):
        host = self.hosts[number]
        if host.store._takeover is not None:
            host.store._takeover = Takeover(host.store._takeover._ended, host.clock)
        self.running = {of: end for of, end in self.running.items() if of[0] != number}


def run_fleets(place, takeover, examples):
    how = hypothesis.settings(
        database=None,
        max_examples=examples * FACTOR,
        stateful_step_count=40,
        phases=[Phase.generate],
    )
    machine = hypothesis.seed(SEED)(lambda: Fleet(place, takeover))
    run_state_machine_as_test(machine, settings=how)


@pytest.mark.extended
def test_whatever_the_clock_does_nothing_runs_twice(place):
    run_fleets(place, "observed", 10)


@pytest.mark.extended
def test_with_the_default_it_would(place):
    with pytest.raises(AssertionError):
        run_fleets(place, "clock", 50)  # it ends with the first that is found
