"""Tests of requests whose answers are lost: executed at once, executed late, or not executed."""

import contextlib
import itertools
import json
from dataclasses import replace as changed

import pytest

import psched
from psched import config
from psched.base.clock import SystemClock
from psched.base.errors import (
    AlreadyExistsError,
    NotFoundError,
    PreemptedError,
    StoreBusyError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.client.collection import ScheduleCollection
from psched.core.history.records import Fate
from psched.core.model import DELETING, Finish, Row, Settlement
from psched.core.settling import Ending
from psched.core.store_protocol import ClaimUnknownError, Settled
from psched.testing.store_contract.history import made
from support.proxy import Fault
from support.settling import settle
from support.stores import LONG, store_factory
from support.waiting import wait_until

each_server = pytest.mark.parametrize(
    "database",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
    indirect=True,
)

CLOCK = SystemClock()

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LEASE = {"alive_time": 60, "shortest": 6}

LOST = [Fault.LOSE_REQUEST, Fault.LOSE_REPLY]
"""The two faults that a client cannot distinguish."""


@pytest.fixture
def timeout():
    """The store's timeout in seconds; a longer delay of an answer is an error."""
    return LONG


@pytest.fixture
def strategy():
    return "auto"


@pytest.fixture
def far_url(proxy, database):
    """The URL of the database through the proxy."""
    return database.url.replace(f":{database.server.port}/", f":{proxy.port}/")


@pytest.fixture
def far(far_url, store, timeout, strategy):  # ``store`` has created the table
    """A store that is connected to the server through the proxy."""
    with store_factory(far_url, timeout=timeout, claim_strategy=strategy) as open_store:
        store = open_store()
        store.now()  # connected
        store._claim_strategy()  # chosen
        yield store


impatient = pytest.mark.parametrize("timeout", [5.0])
"""Shortens the timeout of a test in which an answer never arrives."""


@pytest.fixture
def schedules(far, settings):
    """The Python API, connected to the server through the proxy."""
    return collection(far, settings, SystemClock())


def collection(store, settings, clock):
    numbers = itertools.count()
    return ScheduleCollection(
        store, settings, clock=clock, draw_nonce=lambda: f"nonce-{next(numbers)}"
    )


def run_all(store):
    """Claim and settle all due rows, as another worker."""
    for row in store.claim("near.1", **CLAIM).rows:
        assert store.settle([finish(row)]) == {row.key: Settled.DONE}


def add(store, *keys):
    store.add([Row(key=key, next_time=1, next_run_time=1) for key in keys], nonce="n")


def finish(row):
    return Settlement(
        key=row.key, token=row.token, version=row.version, next_time=7, not_before=4_000_000_000
    )


TAKES = b"SET leased_by = "
HOLDS = b"SET held_until = "
RELEASES = b"SET held_by = NULL"

WAYS = [("mariadb", "cas"), ("postgresql", "skip_locked"), ("postgresql", "cas")]


def by(ways):
    """A decorator that runs a test with each of these databases and claim strategies."""
    params = [
        pytest.param(kind, way, marks=getattr(pytest.mark, kind), id=f"{kind}-{way}")
        for kind, way in ways
    ]
    return pytest.mark.parametrize(("database", "strategy"), params, indirect=["database"])


class TestSettleAndClaim:
    """What is read after a lost answer tells. On PostgreSQL, both are applied or none."""

    @pytest.mark.parametrize("loss", LOST)
    @by(WAYS[:2])
    def test_after_a_lost_answer_each_row_tells(self, far, store, proxy, loss, database):
        add(store, "ended")
        (held,) = far.claim("far.1", **CLAIM).rows
        add(store, "due")
        end = changed(finish(held), records=(made("ended"),))
        # MariaDB's first request only reads what is due.
        claims = database.kind == "postgresql"
        last = b"SKIP LOCKED" if claims else b"ROW_COUNT"
        with proxy.fault(loss, last), pytest.raises(ClaimUnknownError) as unknown:
            far.settle_and_claim([end], "far.2", **CLAIM)
        assert (unknown.value.owner, unknown.value.keys) == ("far.2", ())
        seen = store.look(["ended", "due"])
        is_applied = seen["ended"].settled_by == str(held.token)
        assert (seen["ended"].token == held.token) is not is_applied
        assert [row.key for row in far.held("far.2", ())] == ["due"] * (is_applied and claims)
        if claims or loss is Fault.LOSE_REQUEST:
            # MariaDB stops between two statements if it cannot send an answer.
            assert is_applied is (loss is Fault.LOSE_REPLY)
        # The same again, now by itself, is recognised, and recorded once.
        results, claimed = far.settle_and_claim([end], "far.3", **CLAIM)
        assert (results, claimed) == ({"ended": Settled.DONE}, None)
        assert len([*store.history.runs()]) == 1

    @by(WAYS[:2])
    def test_a_claim_without_an_answer_leaves_what_has_ended_ended(self, far, store, proxy):
        add(store, "ended")
        (held,) = far.claim("far.1", **CLAIM).rows
        add(store, "due")
        with (
            proxy.fault(Fault.LOSE_REPLY, b"fence = fence + 1"),
            pytest.raises(ClaimUnknownError) as unknown,
        ):
            far.settle_and_claim([finish(held)], "far.2", **CLAIM)
        if store.get("ended").settled_by == str(held.token):
            keys = unknown.value.keys
            wait_until(lambda: far.held("far.2", keys), what="the claim to be applied")
        else:
            assert not far.held("far.2", unknown.value.keys)
        assert far.settle([finish(held)]) == {"ended": Settled.DONE}

    @by(WAYS[:2])
    def test_both_are_done_in_one_request(self, far, store):
        add(store, "a", "b")
        ends = [finish(row) for row in far.claim("far.1", **CLAIM).rows]
        add(store, "c")
        results, claimed = far.settle_and_claim(ends, "far.2", **CLAIM)
        assert results == {"a": Settled.DONE, "b": Settled.DONE}
        assert [row.key for row in claimed.rows] == ["c"]

    @by(WAYS)
    def test_a_row_that_somebody_has_locked_keeps_no_other_from_its_end(self, far, store, sql):
        add(store, "a", "b")
        ends = [finish(row) for row in far.claim("far.1", **CLAIM).rows]
        with sql.session() as person:
            person("BEGIN")
            person("SELECT 1 FROM {table} WHERE id = 'a' FOR UPDATE")
            with pytest.raises(StoreBusyError) as busy:
                far.settle_and_claim(ends, "far.2", **CLAIM)
            assert busy.value.answered == {"b": Settled.DONE}
            person("ROLLBACK")
        assert far.settle(ends) == {"a": Settled.DONE, "b": Settled.DONE}


class TestClaim:
    @by(WAYS)
    def test_after_a_lost_reply_its_owner_is_told_what_it_holds(self, far, store, proxy):
        add(store, "a", "b")
        with proxy.fault(Fault.LOSE_REPLY, TAKES), pytest.raises(ClaimUnknownError) as unknown:
            far.claim("far.1", **CLAIM)
        assert not store.claim("near.1", **CLAIM).rows
        assert unknown.value.owner == "far.1"
        held = far.held(unknown.value.owner, unknown.value.keys)
        assert {row.key: (row.owner, row.fence) for row in held} == {
            "a": ("far.1", 1),
            "b": ("far.1", 1),
        }

    @by(WAYS)
    def test_after_a_lost_request_it_holds_nothing(self, far, store, proxy):
        add(store, "a", "b")
        with proxy.fault(Fault.LOSE_REQUEST, TAKES), pytest.raises(ClaimUnknownError) as lost:
            far.claim("far.1", **CLAIM)
        assert far.held(lost.value.owner, lost.value.keys) == []
        assert len(far.claim("far.2", **CLAIM).rows) == 2

    @by(WAYS)
    @impatient
    def test_of_a_claim_that_comes_too_late_only_what_was_won_is_held(self, far, store, proxy):
        """Between the claim's read and its write, another worker has leased some of the rows."""
        add(store, "a", "b")
        with proxy.fault(Fault.HOLD_REQUEST, TAKES), pytest.raises(ClaimUnknownError) as late:
            far.claim("far.1", **CLAIM)
        (row,) = store.claim("near.1", **{**CLAIM, "limit": 1}).rows
        proxy.release()
        other = "b" if row.key == "a" else "a"
        assert [row.key for row in far.held(late.value.owner, late.value.keys)] == [other]
        assert store.get(row.key).owner == "near.1"

    @by([("mariadb", "cas"), ("postgresql", "cas")])
    def test_a_lost_search_is_no_claim(self, far, store, proxy):
        add(store, "a")
        with proxy.fault(Fault.LOSE_REPLY, b"SELECT"), pytest.raises(StoreUnavailableError):
            far.claim("far.1", **CLAIM)
        assert [row.key for row in far.claim("far.2", **CLAIM).rows] == ["a"]


@each_server
class TestHold:
    """Tests that a hold or a release that was not answered can be repeated."""

    @pytest.mark.parametrize("fault", LOST)
    def test_it_is_repeated_by_its_holder(self, fault, far, store, proxy):
        add(store, "a", "b")
        store.claim("near.1", **{**CLAIM, "limit": 1})
        free = {row.key for row in store.rows() if row.owner is None}
        holds = dict.fromkeys("abc", "far.1")
        with proxy.fault(fault, HOLDS), pytest.raises(UnknownOutcomeError):
            far.hold(holds, **LEASE)
        held = {row.key for row in store.rows() if row.held_by == "far.1"}
        assert held == (free if fault is Fault.LOSE_REPLY else set())
        if held:
            assert not store.claim("near.2", **CLAIM).rows
            assert store.hold(dict.fromkeys(free, "near.3"), **LEASE) == frozenset()
        assert far.hold(holds, **LEASE) == free

    @impatient
    def test_of_one_that_comes_too_late_only_what_was_free_is_held(self, far, store, proxy):
        add(store, "a", "b", "c")
        with proxy.fault(Fault.HOLD_REQUEST, HOLDS), pytest.raises(UnknownOutcomeError):
            far.hold(dict.fromkeys("abc", "far.1"), **LEASE)
        assert store.hold({"a": "near.1"}, **LEASE) == {"a"}
        (row,) = store.claim("near.2", **{**CLAIM, "limit": 1}).rows
        proxy.release()
        rest = {"a": "near.1", "b": "far.1", "c": "far.1", row.key: None}
        assert {row.key: row.held_by for row in far.rows()} == rest
        assert store.get(row.key).token == row.token

    @pytest.mark.parametrize("fault", LOST)
    def test_extending_is_repeated(self, fault, far, store, proxy):
        add(store, "k")
        assert far.hold({"k": "far.1"}, **LEASE) == {"k"}
        with proxy.fault(fault, HOLDS), pytest.raises(UnknownOutcomeError):
            far.hold({"k": "far.1"}, **LEASE)
        assert store.hold({"k": "near.1"}, **LEASE) == frozenset()
        assert far.hold({"k": "far.1"}, **LEASE) == {"k"}

    @impatient
    def test_a_late_extension_of_a_hold_that_was_released_changes_nothing(self, far, store, proxy):
        """The schedule has been claimed since."""
        add(store, "k")
        far.hold({"k": "far.1"}, **LEASE)
        with proxy.fault(Fault.HOLD_REQUEST, HOLDS), pytest.raises(UnknownOutcomeError):
            far.hold({"k": "far.1"}, **LEASE)
        far.release({"k": "far.1"})
        assert len(store.claim("near.1", **CLAIM).rows) == 1
        before = far.get("k")
        proxy.release()
        assert far.get("k") == before

    def test_a_lost_answer_to_the_second_look_is_asked_for_again(self, far, store, proxy):
        """If a row was not free, the rows are read; by then, others may be held."""
        add(store, "a", "b")
        store.hold({"b": "near.1"}, **LEASE)
        look = b"SELECT id"
        with proxy.fault(Fault.LOSE_REPLY, look), pytest.raises(StoreUnavailableError):
            far.hold({"b": "far.1"}, **LEASE)
        with proxy.fault(Fault.LOSE_REPLY, look), pytest.raises(UnknownOutcomeError):
            far.hold(dict.fromkeys("ab", "far.1"), **LEASE)
        assert store.get("a").held_by == "far.1"
        assert far.hold(dict.fromkeys("ab", "far.1"), **LEASE) == {"a"}

    def test_what_the_first_part_of_many_keys_holds_is_not_forgotten(self, far, store, proxy):
        """The keys are sent in parts; a part that fails leaves the earlier ones applied."""
        keys = [f"k{number:03}" for number in range(202)]
        add(store, *keys)
        store.hold({"k200": "near.1"}, **LEASE)
        holds = dict.fromkeys(keys, "far.1")
        # The second part reads its rows, because one of them is not free.
        second = proxy.fault(Fault.LOSE_REQUEST, b"SELECT id")
        with second, pytest.raises(UnknownOutcomeError):
            far.hold(holds, **LEASE)
        assert sum(row.held_by == "far.1" for row in store.rows()) == 201
        assert far.hold(holds, **LEASE) == {*keys} - {"k200"}

    @pytest.mark.parametrize("fault", LOST)
    def test_releasing_is_repeated(self, fault, far, store, proxy):
        add(store, "k")
        far.hold({"k": "far.1"}, **LEASE)
        with proxy.fault(fault, RELEASES), pytest.raises(UnknownOutcomeError):
            far.release({"k": "far.1"})
        far.release({"k": "far.1"})
        assert store.hold({"k": "near.1"}, **LEASE) == {"k"}
        far.release({"k": "far.1"})
        assert store.get("k").held_by == "near.1"

    @pytest.mark.parametrize("fault", LOST)
    def test_ending_those_of_a_dead_worker_is_repeated(self, fault, far, store, proxy):
        add(store, "k")
        far.hold({"k": "far.1"}, **LEASE)
        with proxy.fault(fault, RELEASES), pytest.raises(UnknownOutcomeError):
            far.recover("far", alive_time=60, retry_wait=0)
        assert far.recover("far", alive_time=60, retry_wait=0) == []
        assert [row.key for row in store.claim("near.1", **CLAIM).rows] == ["k"]


@each_server
class TestReplacementWithRecords:
    """It is a transaction, so only its COMMIT can have an unknown outcome."""

    @pytest.mark.parametrize("fault", LOST)
    @pytest.mark.parametrize("statement", [b"UPDATE", b"INSERT", b"COMMIT"])
    def test_both_are_applied_or_neither(self, fault, statement, *, far, store, proxy):
        add(store, "k")
        seen = store.get("k")
        new, span = changed(seen, type="new"), made("k", fate=Fate.SKIPPED)
        error = UnknownOutcomeError if statement == b"COMMIT" else StoreUnavailableError
        with proxy.fault(fault, statement), pytest.raises(error):
            far.replace_and_record(seen, new, [span])
        applied = (fault, statement) == (Fault.LOSE_REPLY, b"COMMIT")
        assert (store.get("k").type == "new") is applied
        assert len([*store.history.runs()]) == applied
        assert far.replace_and_record(seen, new, [span]) is not applied
        assert (store.get("k").type, len([*store.history.runs()])) == ("new", 1)


@each_server
class TestLease:
    @pytest.fixture
    def held(self, far, store):
        add(store, "k")
        (row,) = far.claim("far.1", **CLAIM).rows
        return row

    @pytest.mark.parametrize("fault", LOST)
    def test_extending_is_repeated(self, fault, far, held, proxy):
        with proxy.fault(fault, b"UPDATE"), pytest.raises(UnknownOutcomeError):
            far.extend({"k": held.token}, **LEASE)
        assert far.extend({"k": held.token}, **LEASE) == {"k"}

    @impatient
    def test_a_late_extend_of_a_lost_lease_changes_nothing(self, far, held, proxy):
        with proxy.fault(Fault.HOLD_REQUEST, b"UPDATE"), pytest.raises(UnknownOutcomeError):
            far.extend({"k": held.token}, alive_time=6000, shortest=6)
        far.settle([finish(held)])
        before = far.get("k")
        proxy.release()
        assert far.get("k") == before

    @impatient
    @pytest.mark.parametrize("fault", [*LOST, Fault.HOLD_REPLY])
    def test_a_settlement_is_repeated_and_applied_once(self, fault, far, held, store, proxy):
        with proxy.fault(fault, b"UPDATE"), pytest.raises(UnknownOutcomeError):
            far.settle([finish(held)])
        assert far.settle([finish(held)]) == {"k": Settled.DONE}
        row = store.get("k")
        assert (row.next_time, row.next_run_time, row.owner) == (7, 4_000_000_000, None)
        assert row.settled_by == str(held.token)

    def test_a_settlement_that_was_applied_is_known_when_others_have_gone_on(
        self, far, held, store, sql, proxy
    ):
        with proxy.fault(Fault.LOSE_REPLY, b"UPDATE"), pytest.raises(UnknownOutcomeError):
            far.settle([finish(held)])
        sql("UPDATE {table} SET next_run_time = 0")
        (taken,) = store.claim("near.1", **CLAIM).rows
        leased = store.get("k")
        assert far.settle([finish(held)]) == {"k": Settled.DONE}
        assert store.get("k") == leased
        assert leased.token == taken.token

    @impatient
    def test_a_settlement_that_comes_twice_advances_once(self, far, settings, proxy):
        """The first request was delayed on its way; the second has overtaken it."""
        far.add([Row(key="k", cron="@hourly", next_time=3600, next_run_time=1)], nonce="n")
        (leased,) = far.claim("far.1", **CLAIM).rows
        with proxy.fault(Fault.HOLD_REQUEST, b"UPDATE"), pytest.raises(UnknownOutcomeError):
            settle(far, [Ending(leased, Finish())], settings)
        assert settle(far, [Ending(leased, Finish())], settings) == {"k": Settled.DONE}
        after = far.get("k")
        proxy.release()
        assert far.get("k") == after
        assert (after.next_time, after.fence) == (7200, leased.fence)

    @pytest.mark.parametrize("fault", LOST)
    def test_a_removal_is_repeated(self, fault, far, held, store, proxy):
        end = Settlement(
            key="k", token=held.token, version=held.version, next_time=None, remove=True
        )
        with proxy.fault(fault, b"DELETE"), pytest.raises(UnknownOutcomeError):
            far.settle([end])
        assert far.settle([end]) == {"k": Settled.DONE}
        assert store.get("k") is None

    @pytest.mark.parametrize("fault", LOST)
    def test_replacing_a_payload_is_repeated(self, fault, far, held, store, proxy):
        with proxy.fault(fault, b"UPDATE"), pytest.raises(UnknownOutcomeError):
            far.update_data("k", held.token, '{"n":1}')
        assert far.update_data("k", held.token, '{"n":1}')
        assert json.loads(store.get("k").data) == {"n": 1}

    @pytest.mark.parametrize("fault", LOST)
    @pytest.mark.parametrize("statement", [b"UPDATE", b"COMMIT"])
    def test_recovering_is_repeated(self, fault, statement, *, far, held, store, proxy):
        """It is a transaction, because it also records that the attempt was lost."""
        error = UnknownOutcomeError if statement == b"COMMIT" else StoreUnavailableError
        with proxy.fault(fault, statement), pytest.raises(error):
            far.recover("far", alive_time=60, retry_wait=300)
        far.recover("far", alive_time=60, retry_wait=300)
        (row,) = store.claim("near.1", **CLAIM).rows
        assert (row.fence, row.attempt) == (held.fence + 1, 2)

    def test_an_end_that_was_written_beside_one_that_was_not_may_have_been_written(
        self, far, store, proxy
    ):
        add(store, "a", "b")
        a, b = far.claim("far.1", **CLAIM).rows
        store.settle([finish(b)])
        with proxy.fault(Fault.LOSE_REPLY, b"SELECT id"), pytest.raises(UnknownOutcomeError):
            far.settle([finish(a), finish(b)])

    def test_a_lost_answer_to_the_second_look_is_asked_for_again(self, far, held, store, proxy):
        """A write that did not change all its rows reads them; that answer can be lost, too."""
        store.settle([finish(held)])
        look = b"SELECT id"
        with proxy.fault(Fault.LOSE_REPLY, look), pytest.raises(StoreUnavailableError):
            far.settle([finish(held)])
        assert far.settle([finish(held)]) == {"k": Settled.DONE}
        with proxy.fault(Fault.LOSE_REPLY, look), pytest.raises(StoreUnavailableError):
            far.extend({"k": held.token}, **LEASE)
        assert far.extend({"k": held.token}, **LEASE) == frozenset()


@each_server
class TestPythonApi:
    def test_a_poll_whose_reply_is_lost_returns_its_task_once(self, schedules, store, proxy):
        schedules.add("k", next_time=1)
        with proxy.fault(Fault.LOSE_REPLY, TAKES):
            task = schedules.poll()
        assert (task.key, task.attempt, task.fence) == ("k", 1, 1)
        assert schedules.poll() is None
        task.finish()
        assert store.get("k").fence == 1

    def test_a_poll_whose_request_is_lost_takes_nothing(self, schedules, store, proxy):
        schedules.add("k", next_time=1)
        with proxy.fault(Fault.LOSE_REQUEST, TAKES):
            assert schedules.poll() is None
        assert store.get("k").owner is None
        assert schedules.poll().attempt == 1

    @pytest.mark.parametrize("fault", LOST)
    def test_ones_own_row_is_not_said_to_exist_already(self, fault, schedules, store, proxy):
        with proxy.fault(fault, b"INSERT"):
            schedules.add("k", "t", cron="@daily", data={"n": 1})
        (row,) = store.rows()
        assert (row.key, row.type, row.version) == ("k", "t", 1)

    def test_ones_own_row_is_known_when_a_worker_has_it_already(self, schedules, store, proxy):
        """The insert is delayed; a worker leases the row before the insert is repeated."""
        with proxy.fault(Fault.LOSE_REPLY, b"INSERT"):
            schedules.add("k", next_time=1)
        (row,) = store.claim("near.1", **CLAIM).rows
        assert row.attempt == 1

    @pytest.mark.parametrize("many", [False, True])
    def test_ones_own_row_is_known_when_it_has_been_run_already(
        self, far, settings, store, proxy, many
    ):
        class Meanwhile(SystemClock):
            def sleep(self, _seconds):
                run_all(store)

        schedules = collection(far, settings, Meanwhile())
        fields = {"type": "t", "next_time": 1, "data": {"n": 1}, "retry_wait": 5, "alive_time": 9}
        with proxy.fault(Fault.LOSE_REPLY, b"INSERT"):
            if many:
                schedules.add_many([{"key": key, **fields} for key in "kl"])
            else:
                schedules.add("k", **fields)
        assert store.get("k").fence == 1

    @pytest.mark.parametrize("other", [{"data": {"n": 2}}, {"type": "u"}, {"retry_wait": 6}])
    def test_somebody_elses_row_that_has_been_run_is_said_to_exist(
        self, far, settings, store, proxy, other
    ):
        fields = {"type": "t", "next_time": 1, "data": {"n": 1}, "retry_wait": 5}

        class Meanwhile(SystemClock):
            def sleep(self, _seconds):
                run_all(store)

        # One has another definition, or was added before.
        others = collection(store, settings, SystemClock())
        others.add("k", **{**fields, **other})
        others.add("old", **fields)
        run_all(store)
        wait_until(lambda: store.now() > store.get("old").created_at + 1, what="a second")
        mine = collection(far, settings, Meanwhile())
        for key in "k", "old":
            with proxy.fault(Fault.LOSE_REQUEST, b"INSERT"), pytest.raises(AlreadyExistsError):
                mine.add(key, **fields)

    def test_somebody_elses_row_is_said_to_exist(self, schedules, store, proxy):
        add(store, "k")
        before = store.get("k")
        with proxy.fault(Fault.LOSE_REQUEST, b"INSERT"), pytest.raises(AlreadyExistsError):
            schedules.add("k")
        with proxy.fault(Fault.LOSE_REPLY, b"INSERT"), pytest.raises(AlreadyExistsError):
            schedules.add("k")
        assert store.get("k") == before

    @pytest.mark.parametrize("fault", LOST)
    def test_a_deletion_succeeds(self, fault, schedules, store, proxy):
        add(store, "k", "other")
        with proxy.fault(fault, b"DELETE"):
            schedules.delete("k")
        assert [row.key for row in store.rows()] == ["other"]

    @pytest.mark.parametrize("fault", LOST)
    def test_a_mark_of_deletion_is_set(self, fault, schedules, store, proxy):
        add(store, "k")
        store.claim("near.1", **CLAIM)
        with proxy.fault(fault, b"UPDATE"):
            schedules.delete("k")
        assert store.get("k").status == DELETING

    def test_a_missing_schedule_is_not_said_to_have_been_deleted(self, schedules, proxy):
        with proxy.fault(Fault.LOSE_REPLY, b"SELECT id"), pytest.raises(NotFoundError):
            schedules.delete("k")

    @pytest.mark.parametrize("fault", LOST)
    def test_a_modification_is_applied_once(self, fault, schedules, store, proxy):
        schedules.add("k", "t", cron="@daily", next_time=4_000_000_000)
        with proxy.fault(fault, b"UPDATE"):
            schedules.modify("k", type="u", delay=5, data={"n": 1})
        row = store.get("k")
        found = (row.type, row.delay, json.loads(row.data), row.version)
        assert found == ("u", 5, {"n": 1}, 2)

    def test_a_modification_by_which_it_has_been_run_already_is_applied_once(
        self, far, settings, store, proxy
    ):
        class Meanwhile(SystemClock):
            def sleep(self, _seconds):
                run_all(store)

        schedules = collection(far, settings, Meanwhile())
        schedules.add("k", "t", cron="@daily", next_time=4_000_000_000)
        with proxy.fault(Fault.LOSE_REPLY, b"UPDATE"):
            schedules.modify("k", next_time=86_400)
        row = store.get("k")
        assert (row.fence, row.next_time, row.version) == (1, 7, 2)

    def test_a_modification_that_was_lost_is_applied_also_if_it_changes_no_column_but_times(
        self, schedules, store, proxy
    ):
        schedules.add("k", "t", cron="@daily", next_time=4_000_000_000)
        with proxy.fault(Fault.LOSE_REQUEST, b"UPDATE"):
            schedules.modify("k", next_run_time=4_100_000_000)
        assert store.get("k").next_run_time == 4_100_000_000

    @pytest.mark.parametrize("fault", LOST)
    def test_a_finish_advances_once(self, fault, schedules, store, proxy):
        schedules.add("k", cron="@hourly", next_time=3600, catchup_limit=1)
        with_task = schedules.poll()
        with proxy.fault(fault, b"UPDATE"):
            with_task.finish()
        assert store.get("k").next_time == with_task.scheduled_time + 3600

    def test_a_finish_that_counted_is_not_said_to_be_preempted(self, far, settings, store, proxy):
        """Before the write is repeated, the next occurrence has been run."""

        class Meanwhile(SystemClock):
            def sleep(self, _seconds):
                (row,) = store.claim("near.1", **CLAIM).rows
                assert store.settle([finish(row)]) == {"k": Settled.DONE}

        schedules = collection(far, settings, Meanwhile())
        schedules.add("k", cron="@hourly", next_time=int(CLOCK.wall()) - 3 * 3600)
        task = schedules.poll()
        with proxy.fault(Fault.LOSE_REPLY, b"COMMIT"):
            task.finish()
        assert store.get("k").fence == 2

    @pytest.mark.parametrize("fault", LOST)
    def test_a_lost_answer_does_not_hide_a_lost_lease(self, fault, schedules, store, sql, proxy):
        schedules.add("k", next_time=1)
        task = schedules.poll()
        sql("UPDATE {table} SET next_run_time = 1")
        store.claim("near.1", **CLAIM)
        for request in (task.extend, lambda: task.update_data({}), task.finish):
            with proxy.fault(fault, b"UPDATE"), pytest.raises(PreemptedError):
                request()
        assert store.get("k").owner == "near.1"


@impatient
@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
class TestBlackHole:
    """Tests with a server that does not answer; for PostgreSQL see test_postgresql_errors."""

    def test_every_request_ends_and_the_next_one_works(self, far, store, proxy):
        add(store, "k")
        (row,) = far.claim("far.1", **CLAIM).rows
        requests = [
            far.now,
            lambda: far.claim("far.2", **CLAIM),
            lambda: far.extend({"k": row.token}, **LEASE),
        ]
        for request in requests:
            with proxy.black_hole(), pytest.raises(TransientStoreError):
                request()
            assert far.get("k").owner == "far.1"

    def test_a_connection_cannot_be_made_through_it(self, far, proxy):
        far.disconnect()
        with proxy.black_hole(), pytest.raises(StoreUnavailableError, match="cannot connect"):
            far.now()
        assert far.now() > 0

    def test_closing_a_connection_into_it_is_no_error(self, far, proxy, caplog):
        far.now()
        with proxy.black_hole():
            far.disconnect()
        assert not caplog.records


@each_server
def test_the_python_api_waits_for_a_database_that_comes_back(database, far_url, proxy):
    settings = config.from_mapping({"url": far_url, "alive_time": 60})
    with store_factory(database.url) as open_store:
        open_store().init()
    with psched.open(settings) as schedules:
        schedules.add("k")
        for request in (b"SELECT", b"INSERT", b"SELECT"):
            with proxy.fault(Fault.LOSE_REQUEST, request):
                schedules.add(request.decode() + str(len([*schedules.list()])))
        assert len([*schedules.list()]) == 4


def _claims(store):
    with contextlib.suppress(TransientStoreError):
        return store.claim("far.2", **CLAIM).rows
