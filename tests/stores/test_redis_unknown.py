"""Tests of requests to Redis that were not answered: executed, not executed, or executed late."""

import itertools
import json
from dataclasses import replace

import pytest

from psched import config
from psched.base.clock import SystemClock
from psched.base.errors import NotFoundError, StoreUnavailableError, UnknownOutcomeError
from psched.client.collection import ScheduleCollection
from psched.core.history.protocol import RunSelection
from psched.core.history.records import Fate
from psched.core.model import Row, Settlement
from psched.core.store_protocol import ClaimUnknownError, Settled
from psched.stores.redis import scripts
from psched.testing.store_contract.history import made
from support.proxy import Fault
from support.stores import store_factory

pytestmark = pytest.mark.redis

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LEASE = {"alive_time": 60, "shortest": 6}
LOST = [Fault.LOSE_REQUEST, Fault.LOSE_REPLY]
"""The two faults that a client cannot distinguish."""


@pytest.fixture
def database(open_database):
    with open_database("redis") as database:
        yield database


@pytest.fixture
def far(database, store, proxy):  # the data are there
    """A store that is connected to the server through the proxy."""
    url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
    with store_factory(url, timeout=5.0) as open_store:
        far = open_store()
        # The server knows all scripts by then, and each is one request.
        far.add([Row(key="old")], nonce="n")
        run_through(far)
        yield far
    assert store.get("old") is None


def run_through(far):
    """Send every script once."""
    row = far.get("old")
    far.claim("old.1", **CLAIM)
    far.hold({"old": "old.2"}, **LEASE)
    far.release({"old": "old.2"})
    far.extend({"old": row.token}, **LEASE)
    far.settle([finish(row)])
    far.replace(row, row)
    far.replace_and_record(row, row, [made("old")])
    far.update_data("old", row.token, "{}")
    far.recover("old", alive_time=60, retry_wait=1)
    far.held("old.1", [])
    far.delete("old")


@pytest.fixture
def schedules(far, settings):
    """The Python API, connected to the server through the proxy."""
    numbers = itertools.count()
    return ScheduleCollection(
        far, settings, clock=SystemClock(), draw_nonce=lambda: f"nonce-{next(numbers)}"
    )


@pytest.fixture
def settings(database):
    return config.from_mapping({"url": database.url, "alive_time": 60})


def add(store, *keys):
    store.add([Row(key=key, next_time=1, next_run_time=1) for key in keys], nonce="n")


def finish(row):
    return Settlement(
        key=row.key, token=row.token, version=row.version, next_time=7, not_before=4_000_000_000
    )


def sent(name):
    """Bytes by which the proxy recognises a request to run a script."""
    return scripts.find(name).digest.encode()


class TestClaim:
    def test_after_a_lost_reply_its_owner_is_told_what_it_holds(self, far, store, proxy):
        add(store, "a", "b")
        lost = proxy.fault(Fault.LOSE_REPLY, sent("claim"))
        with lost, pytest.raises(ClaimUnknownError) as unknown:
            far.claim("far.1", **CLAIM)
        assert not store.claim("near.1", **CLAIM).rows
        assert unknown.value.owner == "far.1"
        held = far.held(unknown.value.owner, unknown.value.keys)
        assert {row.key: (row.owner, row.fence) for row in held} == {
            "a": ("far.1", 1),
            "b": ("far.1", 1),
        }

    def test_after_a_lost_request_it_holds_nothing(self, far, store, proxy):
        add(store, "a", "b")
        lost = proxy.fault(Fault.LOSE_REQUEST, sent("claim"))
        with lost, pytest.raises(ClaimUnknownError) as unknown:
            far.claim("far.1", **CLAIM)
        assert far.held(unknown.value.owner, unknown.value.keys) == []
        assert len(far.claim("far.2", **CLAIM).rows) == 2

    def test_of_a_claim_that_comes_too_late_only_what_was_won_is_held(self, far, store, proxy):
        add(store, "a", "b")
        late = proxy.fault(Fault.HOLD_REQUEST, sent("claim"))
        with late, pytest.raises(ClaimUnknownError):
            far.claim("far.1", **CLAIM)
        (row,) = store.claim("near.1", **{**CLAIM, "limit": 1}).rows
        proxy.release()
        other = "b" if row.key == "a" else "a"
        assert [row.key for row in far.held("far.1", [])] == [other]
        assert store.get(row.key).owner == "near.1"


class TestHold:
    """Tests that a hold or a release that was not answered can be repeated."""

    @pytest.mark.parametrize("fault", LOST)
    def test_it_is_repeated_by_its_holder(self, fault, far, store, proxy):
        add(store, "a", "b")
        holds = dict.fromkeys("abc", "far.1")
        with proxy.fault(fault, sent("hold")), pytest.raises(UnknownOutcomeError):
            far.hold(holds, **LEASE)
        applied = fault is Fault.LOSE_REPLY
        assert {row.held_by for row in store.rows()} == {"far.1" if applied else None}
        assert bool(store.claim("near.1", **{**CLAIM, "limit": 1}).rows) is not applied
        assert far.hold(holds, **LEASE) == ({"a", "b"} if applied else {"b"})

    def test_of_one_that_comes_too_late_only_what_was_free_is_held(self, far, store, proxy):
        add(store, "a", "b", "c")
        late = proxy.fault(Fault.HOLD_REQUEST, sent("hold"))
        with late, pytest.raises(UnknownOutcomeError):
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
        with proxy.fault(fault, sent("hold")), pytest.raises(UnknownOutcomeError):
            far.hold({"k": "far.1"}, **LEASE)
        assert store.hold({"k": "near.1"}, **LEASE) == frozenset()
        assert far.hold({"k": "far.1"}, **LEASE) == {"k"}

    @pytest.mark.parametrize("fault", LOST)
    def test_releasing_is_repeated(self, fault, far, store, proxy):
        add(store, "k")
        far.hold({"k": "far.1"}, **LEASE)
        with proxy.fault(fault, sent("release")), pytest.raises(UnknownOutcomeError):
            far.release({"k": "far.1"})
        far.release({"k": "far.1"})
        assert store.hold({"k": "near.1"}, **LEASE) == {"k"}
        far.release({"k": "far.1"})
        assert store.get("k").held_by == "near.1"

    @pytest.mark.parametrize("fault", LOST)
    def test_ending_those_of_a_dead_worker_is_repeated(self, fault, far, store, proxy):
        add(store, "k")
        far.hold({"k": "far.1"}, **LEASE)
        with proxy.fault(fault, sent("release")), pytest.raises(UnknownOutcomeError):
            far.recover("far", alive_time=60, retry_wait=0)
        assert far.recover("far", alive_time=60, retry_wait=0) == []
        assert [row.key for row in store.claim("near.1", **CLAIM).rows] == ["k"]


class TestReplacementWithRecords:
    @pytest.mark.parametrize("fault", LOST)
    def test_both_are_applied_or_neither(self, fault, far, store, proxy):
        add(store, "k")
        seen = store.get("k")
        new, span = replace(seen, type="new"), made("k", fate=Fate.SKIPPED)
        lost = proxy.fault(fault, sent("replace_and_record"))
        with lost, pytest.raises(UnknownOutcomeError):
            far.replace_and_record(seen, new, [span])
        applied = fault is Fault.LOSE_REPLY
        assert (store.get("k").type == "new") is applied
        assert len([*store.history.runs()]) == applied
        assert far.replace_and_record(seen, new, [span]) is not applied
        assert (store.get("k").type, len([*store.history.runs()])) == ("new", 1)


class TestLease:
    @pytest.fixture
    def held(self, far, store):
        add(store, "k")
        (row,) = far.claim("far.1", **CLAIM).rows
        return row

    @pytest.mark.parametrize("fault", LOST)
    def test_extending_is_repeated(self, fault, far, held, proxy):
        with proxy.fault(fault, sent("extend")), pytest.raises(UnknownOutcomeError):
            far.extend({"k": held.token}, **LEASE)
        assert far.extend({"k": held.token}, **LEASE) == {"k"}

    @pytest.mark.parametrize("fault", [*LOST, Fault.HOLD_REPLY])
    def test_a_settlement_is_repeated_and_applied_once(self, fault, far, held, store, proxy):
        with proxy.fault(fault, sent("settle")), pytest.raises(UnknownOutcomeError):
            far.settle([finish(held)])
        assert far.settle([finish(held)]) == {"k": Settled.DONE}
        row = store.get("k")
        assert (row.next_time, row.next_run_time, row.owner) == (7, 4_000_000_000, None)
        assert row.settled_by == str(held.token)

    @pytest.mark.parametrize("fault", [*LOST, Fault.HOLD_REPLY])
    def test_a_settlement_that_is_repeated_is_recorded_once(self, fault, far, held, store, proxy):
        end = replace(finish(held), records=(made("k", owner=held.owner),))
        with (
            proxy.fault(fault, sent("settle_and_record")),
            pytest.raises(UnknownOutcomeError),
        ):
            far.settle([end])
        assert far.settle([end]) == {"k": Settled.DONE}
        assert (
            len([*store.history.runs()]) == len([*store.history.runs(RunSelection(key="k"))]) == 1
        )

    def test_a_settlement_that_comes_twice_is_applied_once(self, far, held, store, proxy):
        """The first request is delayed, so the second request arrives before it."""
        late = proxy.fault(Fault.HOLD_REQUEST, sent("settle"))
        with late, pytest.raises(UnknownOutcomeError):
            far.settle([finish(held)])
        assert far.settle([finish(held)]) == {"k": Settled.DONE}
        seen = store.get("k")
        assert store.replace(seen, seen)
        after = store.get("k")
        proxy.release()
        assert far.get("k") == after

    @pytest.mark.parametrize("fault", LOST)
    def test_replacing_a_payload_is_repeated(self, fault, far, held, store, proxy):
        with (
            proxy.fault(fault, sent("update_data")),
            pytest.raises(UnknownOutcomeError),
        ):
            far.update_data("k", held.token, '{"n":1}')
        assert far.update_data("k", held.token, '{"n":1}')
        assert json.loads(store.get("k").data) == {"n": 1}

    @pytest.mark.parametrize("fault", LOST)
    def test_recovering_is_repeated(self, fault, far, held, store, proxy):
        with (
            proxy.fault(fault, sent("recover_and_record")),
            pytest.raises(UnknownOutcomeError),
        ):
            far.recover("far", alive_time=60, retry_wait=300)
        far.recover("far", alive_time=60, retry_wait=300)
        (row,) = store.claim("near.1", **CLAIM).rows
        assert (row.fence, row.attempt) == (held.fence + 1, 2)

    @pytest.mark.parametrize("fault", LOST)
    def test_a_lost_answer_to_a_look_is_no_unknown_outcome(self, fault, far, held, proxy):
        with proxy.fault(fault, sent("held")), pytest.raises(StoreUnavailableError):
            far.held("far.1", [])
        assert [row.key for row in far.held("far.1", [])] == [held.key]


class TestPythonApi:
    """Nothing is sent twice but by who knows what it means."""

    @pytest.mark.parametrize("fault", LOST)
    def test_ones_own_row_is_not_said_to_exist_already(self, fault, schedules, store, proxy):
        with proxy.fault(fault, sent("add")):
            schedules.add("k", "t", cron="@daily", data={"n": 1})
        (row,) = store.rows()
        assert (row.key, row.type, row.version) == ("k", "t", 1)

    @pytest.mark.parametrize("fault", LOST)
    def test_a_poll_returns_its_task_once(self, fault, schedules, store, proxy):
        schedules.add("k", next_time=1)
        with proxy.fault(fault, sent("claim")):
            task = schedules.poll() or schedules.poll()
        assert (task.key, task.attempt, task.fence) == ("k", 1, 1)
        assert schedules.poll() is None
        task.finish()
        assert store.get("k").fence == 1

    @pytest.mark.parametrize("fault", LOST)
    def test_a_change_is_made_once(self, fault, schedules, store, proxy):
        schedules.add("k", next_time=1)
        with proxy.fault(fault, sent("replace")):
            schedules["k"].modify(type="other")
        assert (store.get("k").type, store.get("k").version) == ("other", 2)

    @pytest.mark.parametrize("fault", LOST)
    def test_what_one_has_deleted_is_not_said_to_be_missing(self, fault, schedules, proxy):
        schedules.add("k", next_time=1)
        with proxy.fault(fault, sent("delete")):
            assert schedules["k"].delete()
        with pytest.raises(NotFoundError):
            schedules["k"].delete()
