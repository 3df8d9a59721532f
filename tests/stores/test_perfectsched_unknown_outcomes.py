"""Tests of requests on PerfectSched's table that were not answered, executed or not."""

import pytest

from psched.base.clock import SystemClock
from psched.base.errors import AlreadyExistsError, UnknownOutcomeError
from psched.client.collection import ScheduleCollection
from psched.config import from_mapping
from psched.core.model import Finish
from psched.core.settling import Ending, Settler
from psched.core.store_protocol import ClaimUnknownError, Settled
from psched.testing.store_contract.bench import (
    LATER,
    LEASE,
    LONG_AGO,
    add,
    claim,
    due,
    ending,
    found,
    leased,
    wait_for_end,
)
from support.compat import compat_factory
from support.proxy import LOOPBACK, Fault
from support.stores import LONG

pytestmark = [
    pytest.mark.empty,
    pytest.mark.mariadb,
    pytest.mark.parametrize("database", ["mariadb"], indirect=True),
]

CLOCK = SystemClock()

LOST = [Fault.LOSE_REQUEST, Fault.LOSE_REPLY]
"""The two faults that a client cannot distinguish."""

each_loss = pytest.mark.parametrize("loss", LOST, ids=lambda loss: loss.name.lower())


@pytest.fixture
def near(database):
    """A store with a direct connection to the server."""
    with compat_factory(database.url) as open_store:
        store = open_store()
        store.init()
        yield store


@pytest.fixture
def far(proxy, database, near):  # noqa: ARG001  # the table is there
    """A store that is connected to the server through the proxy."""
    url = f"mysql+pymysql://root@{LOOPBACK}:{proxy.port}/{database.url.rpartition('/')[2]}"
    with compat_factory(url, timeout=LONG) as open_store:
        store = open_store()
        store.now()  # connected
        yield store


def extend(store, held, alive_time=LEASE):
    return store.extend({held.key: held.token}, alive_time=alive_time, shortest=1) == {held.key}


@each_loss
def test_a_claim_without_an_answer_counts_as_not_held(far, near, proxy, loss):
    add(near, "k")
    with proxy.fault(loss, b"UPDATE"), pytest.raises(ClaimUnknownError) as unknown:
        claim(far, "w.1")
    assert not far.held("w.1", unknown.value.keys)
    # If the claim was executed, the lease expires.
    assert len(claim(near, "w.2").rows) == (1 if loss is Fault.LOSE_REQUEST else 0)


@each_loss
def test_what_was_claimed_before_the_connection_broke_is_not_lost(far, near, proxy, loss):
    add(near, "a", "b", "c")
    with proxy.fault(loss, b"id = 'b'"):
        claimed = claim(far, "w.1")
    assert [row.key for row in claimed.rows] == ["a"]
    assert claimed.more
    assert [row.key for row in far.held("w.1", ["a", "b", "c"])] == ["a"]
    assert extend(far, claimed.rows[0])


@each_loss
def test_an_extend_without_an_answer_is_found_out_by_the_next(far, near, proxy, loss):
    held = leased(far, "k")
    with proxy.fault(loss, b"UPDATE"), pytest.raises(UnknownOutcomeError):
        extend(far, held, 600)
    assert [row.token for row in far.held("worker.1", ["k"])] == [held.token]
    assert extend(far, held, 900)
    assert (found(near, "k").next_run_time or 0) > near.now() + 800
    assert far.settle([ending(held)]) == {"k": Settled.DONE}


def test_an_extend_that_is_found_out_after_the_leases_end_is_lost(far, near, proxy):
    add(near, "k")
    (held,) = claim(far, "w.1", alive_time=0, shortest=0).rows
    with proxy.fault(Fault.LOSE_REPLY, b"UPDATE"), pytest.raises(UnknownOutcomeError):
        far.extend({"k": held.token}, alive_time=2, shortest=0)
    # A worker that had claimed the row in that second would have written the same end.
    wait_for_end(near, "k")
    assert not extend(far, held)


@each_loss
@pytest.mark.parametrize("way", ["finish", "retry", "remove"])
def test_a_settle_without_an_answer_can_be_repeated(far, near, proxy, loss, way):
    held = leased(far, "k")
    end = {
        "finish": ending(held, next_time=LONG_AGO + 60, not_before=LONG_AGO + 60),
        "retry": ending(held, wait=60),
        "remove": ending(held, remove=True),
    }[way]
    request = b"DELETE" if way == "remove" else b"UPDATE"
    with proxy.fault(loss, request), pytest.raises(UnknownOutcomeError):
        far.settle([end])
    assert far.settle([end]) == {"k": Settled.DONE}
    assert far.settle([end]) == {"k": Settled.DONE}
    row = near.get("k")
    if way == "remove":
        assert row is None
    else:
        assert row.next_time == (LONG_AGO + 60 if way == "finish" else LONG_AGO)


@pytest.mark.parametrize("extended", [False, True])
def test_a_settle_without_an_answer_counts_also_if_others_have_gone_on(far, near, proxy, extended):
    settings = from_mapping({"url": "sqlite:///unused.db", "type": "rdb_compat", "table": "psched"})
    add(near, "k")
    sent = CLOCK.boottime()
    (held,) = claim(far, "w.1").rows
    settler, ending_ = Settler(settings, CLOCK), Ending(held, Finish(), sent + LEASE)
    with proxy.fault(Fault.LOSE_REPLY, b"UPDATE"), pytest.raises(UnknownOutcomeError):
        settler.settle(far, [ending_])
    assert len(claim(near, "w.2").rows) == 1
    if extended:
        assert not extend(far, held)
    assert settler.settle(far, [ending_]) == {"k": Settled.DONE}


@each_loss
@pytest.mark.parametrize("request_", [b"INSERT", b"COMMIT"])
def test_an_insert_without_an_answer_is_not_reported_as_taken(far, near, proxy, loss, request_):
    settings = from_mapping({"url": "sqlite:///unused.db", "type": "rdb_compat", "table": "psched"})
    schedules = ScheduleCollection(
        far, settings, clock=SystemClock(), draw_nonce=iter(["n1", "n2"]).__next__
    )
    with proxy.fault(loss, request_):
        schedules.add("k", "t", cron="@daily")
    assert found(near, "k").type == "t"
    with pytest.raises(AlreadyExistsError):
        schedules.add("k", "t", cron="@daily")


@each_loss
@pytest.mark.parametrize("number", range(4))
def test_a_modification_without_an_answer_is_applied_once(far, near, proxy, loss, number):
    """This is true even if a worker leases the row first; the numbers vary the checksums."""
    settings = from_mapping({"url": "sqlite:///unused.db", "type": "rdb_compat", "table": "psched"})

    class Meanwhile(SystemClock):
        def sleep(self, _seconds):
            if loss is Fault.LOSE_REPLY:
                assert len(claim(near, "w.1").rows) == 1

    schedules = ScheduleCollection(far, settings, clock=Meanwhile(), draw_nonce=lambda: "n")
    near.add([due("k", type=f"t{number}", since=LATER)], nonce="n")
    minute = LONG_AGO // 60 * 60
    with proxy.fault(loss, b"UPDATE"):
        schedules.modify("k", next_time=minute, data={"n": number})
    row = found(near, "k")
    assert (row.next_time, row.data) == (minute, f'{{"n":{number}}}')
