"""Tests of how many round trips a store needs, and of slow round trips."""

import contextlib
import re
from functools import partial

import pytest

from psched.base.clock import SystemClock
from psched.base.errors import StoreSlowError, StoreUnavailableError
from psched.core.history.protocol import AuditSelection
from psched.core.history.records import AuditRecord
from psched.core.model import Row
from psched.stores.deadline_socket import Budget
from psched.stores.sql.batches import BATCH, INSERT_BATCH, write_in_batches
from psched.stores.sql.errors import InvalidValueError
from psched.testing import ManualClock
from support.proxy import Proxy
from support.stores import LONG, make_store

CLOCK = SystemClock()
CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LEASE = {"alive_time": 60, "shortest": 6}
TIMEOUT = 6.0

GREETING = {"mariadb": 5, "postgresql": 4, "galera": 7}
"""Round trips from opening a connection to its first request, without TLS."""

SCRAM = 2
"""Further round trips of a connection with a password, on PostgreSQL."""

servers = pytest.mark.parametrize(
    "database",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
    indirect=True,
)


@contextlib.contextmanager
def behind_a_proxy(url, port, *, timeout=LONG, login=None):
    """Open a store that is connected through a proxy; the table exists.

    Args:
        url: the url of the database, for the administrator.
        port: the port of the server.
        timeout: the timeout of the store, in seconds.
        login: name and password of the store's user; None for the administrator.
    """
    near = make_store(url)
    near.init()
    near.disconnect()
    with Proxy(port) as proxy:
        far = url.replace(f":{port}/", f":{proxy.port}/")
        if login is not None:
            far = re.sub("//[^@]*@", f"//{login}@", far)
        store = make_store(far, timeout=timeout)
        try:
            yield store, proxy
        finally:
            store.disconnect()


def answers(proxy, request):
    """The number of answers for which a request waits."""
    before = proxy.answers
    request()
    return proxy.answers - before


def check(store, proxy, greeting):
    for _ in range(2):  # no different from the first
        assert answers(proxy, store.now) == greeting + 1
        assert answers(proxy, store.now) == 1
        store.disconnect()


@servers
def test_a_connection_is_made_with_few_answers(database):
    with behind_a_proxy(database.url, database.server.port) as (store, proxy):
        check(store, proxy, GREETING[database.kind])


@pytest.mark.galera
def test_so_is_one_to_a_node_of_a_cluster(galera):
    name, node = galera.create_database(), galera.nodes[0]
    try:
        with behind_a_proxy(node.url(name), node.port) as (store, proxy):
            check(store, proxy, GREETING["galera"])
    finally:
        galera.drop_database(name)


@pytest.fixture
def user(postgresql_server):
    """Name and password of a user with all rights who must send the password."""
    postgresql_server.create_user("reconnects", "s3cret")
    yield "reconnects:s3cret"
    postgresql_server.query("DROP ROLE reconnects")


@pytest.mark.parametrize(
    "database", [pytest.param("postgresql", marks=pytest.mark.postgresql)], indirect=True
)
def test_so_is_one_with_a_password(database, user):
    with behind_a_proxy(database.url, database.server.port, login=user) as (store, proxy):
        check(store, proxy, GREETING["postgresql"] + SCRAM)


@servers
def test_what_a_server_can_do_is_tried_once(database):
    with behind_a_proxy(database.url, database.server.port) as (store, proxy):
        store.claim("w.1", **CLAIM)
        store.disconnect()
        claim = answers(proxy, lambda: store.claim("w.2", **CLAIM))
        assert claim == GREETING[database.kind] + 1


@servers
def test_a_hold_waits_for_one_answer_and_for_another_if_a_row_is_not_free(database):
    with behind_a_proxy(database.url, database.server.port) as (store, proxy):
        store.add([Row(key=key, next_time=1) for key in "abc"], nonce="n")
        for holder, keys, waits in ("w.1", "a", 1), ("w.2", "ab", 2), ("w.1", "a", 1):
            hold = partial(store.hold, dict.fromkeys(keys, holder), **LEASE)
            assert answers(proxy, hold) == waits
        release = partial(store.release, {"a": "w.1", "b": "w.1", "x": "w.1"})
        assert answers(proxy, release) == 1
        assert answers(proxy, partial(store.hold, {}, **LEASE)) == 0
        assert answers(proxy, partial(store.release, {})) == 0


@servers
def test_a_change_or_a_row_that_is_written_alone_needs_no_transaction(database):
    """A worker notes a change while it holds leases that must be extended soon."""
    with behind_a_proxy(database.url, database.server.port) as (store, proxy):
        store.now()
        change = AuditRecord(key="a", action="edited", user="ann", host="h1", program="psched")
        assert answers(proxy, lambda: store.history.audit([change])) == 1
        assert answers(proxy, lambda: store.add([Row(key="a")], nonce="n")) == 1
        assert answers(proxy, lambda: store.history.audit([])) == 0
        many = [change] * (INSERT_BATCH + 1)
        assert answers(proxy, lambda: store.history.audit(many)) == 4
        assert len([*store.history.audits(AuditSelection())]) == 1 + len(many)


@servers
def test_a_slow_link_is_connected_to_within_more_than_one_request(database):
    """Slow for the first step, which has two answers, with room for a busy machine."""
    slowly = 0.7 * TIMEOUT
    with behind_a_proxy(database.url, database.server.port, timeout=TIMEOUT) as (store, proxy):
        with proxy.slow(slowly):
            for _ in range(2):
                before = proxy.answers
                with pytest.raises(StoreUnavailableError, match=r"too slowly: .*database_timeout"):
                    store.now()
                assert proxy.answers == before + 2
            rest = GREETING[database.kind] - 4
            assert answers(proxy, store.now) == rest + 1
        assert answers(proxy, store.now) == 1


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


def test_a_step_has_the_whole_time_and_begins_while_the_request_has_not_used_it_up():
    clock = Clock()
    budget = Budget(clock, 2.0)
    budget.begin()
    for _ in range(3):
        budget.step()
        assert budget.left == 2.0
        clock.now += 1.0
    with pytest.raises(TimeoutError, match=r"took 3\.0 s, and database_timeout is 2 s"):
        budget.step()
    budget.begin()
    budget.step()
    clock.now += 1.0
    budget.answered()  # but not to its end
    assert budget.left == 1.0
    clock.now += 1.0
    budget.step()
    clock.now += 2.0
    with pytest.raises(TimeoutError, match="no answer within 2 s"):
        _ = budget.left


def test_a_step_of_several_answers_has_the_time_for_each_and_twice_in_all():
    clock = Clock()
    budget = Budget(clock, 2.0)
    budget.begin()
    budget.step(answers=True)
    for left in (2.0, 1.5):
        clock.now += 1.25
        budget.answered()
        assert budget.left == left
    clock.now += 1.5
    budget.answered()
    with pytest.raises(TimeoutError, match="no answer within 2 s"):
        _ = budget.left
    budget.begin()
    budget.step(answers=True)
    clock.now += 2.0
    with pytest.raises(TimeoutError, match="no answer within 2 s"):
        _ = budget.left


def test_what_there_is_no_time_for_is_told_apart_from_what_was_answered():
    """Otherwise thousands of leases could never all be extended on a slow link."""
    clock = Clock()
    budget = Budget(clock, 2.0)
    budget.begin()

    def write(batch):
        try:
            budget.step()
        except TimeoutError as error:
            raise StoreSlowError(str(error)) from None
        clock.now += 1.5
        return dict.fromkeys(batch, True)

    keys = [f"k{number}" for number in range(3 * BATCH)]
    with pytest.raises(StoreSlowError) as raised:
        write_in_batches(keys, write, clock=clock, patience=2.0)
    assert raised.value.answered == dict.fromkeys(keys[: 2 * BATCH], True)


def test_items_for_which_no_time_is_left_are_reported_and_not_taken_for_refused():
    clock = ManualClock()

    def write(batch):
        if "bad" in batch:
            clock.advance(1.5)
            raise InvalidValueError("bad does not fit")
        return dict.fromkeys(batch, True)

    with pytest.raises(StoreSlowError) as raised:
        write_in_batches(["good", "bad", "late"], write, clock=clock, patience=2.0)
    assert raised.value.answered == {"good": True}
