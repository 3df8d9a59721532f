"""Tests of PerfectSched's table while rows are locked, or while the database answers slowly."""

import contextlib

import pytest

from psched.base.errors import StoreBusyError, StoreSlowError
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import LEASE, add, claim, ending
from support.compat import compat_factory
from support.proxy import Proxy

pytestmark = pytest.mark.empty


@pytest.fixture
def store(database):
    with compat_factory(database.url) as factory:
        store = factory()
        store.init()
        yield store


@pytest.mark.parametrize(
    "database",
    [
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
    indirect=True,
)
class TestLockedRow:
    """Tests that other rows are claimed, extended and settled although one row is locked."""

    @contextlib.contextmanager
    def locked(self, sql, key):
        with sql.session() as other:
            other("BEGIN")
            other("SELECT * FROM {table} WHERE id = :id FOR UPDATE", id=key)
            yield
            other("ROLLBACK")

    def test_the_other_leases_are_extended_and_settled(self, store, sql):
        add(store, "a", "b", "c")
        rows = {row.key: row for row in claim(store, "w.1").rows}
        leases = {key: row.token for key, row in rows.items()}
        with self.locked(sql, "a"):
            with pytest.raises(StoreBusyError) as extended:
                store.extend(leases, alive_time=2 * LEASE, shortest=1)
            assert extended.value.answered == {"b": True, "c": True}
            with pytest.raises(StoreBusyError) as settled:
                store.settle([ending(row) for row in rows.values()])
            assert settled.value.answered == {"b": Settled.DONE, "c": Settled.DONE}
        assert store.settle([ending(rows["a"])]) == {"a": Settled.DONE}

    def test_the_others_are_claimed(self, store, sql):
        add(store, "a", "b")
        with self.locked(sql, "a"):
            assert [row.key for row in claim(store, "w.1").rows] == ["b"]
            with pytest.raises(StoreBusyError):
                claim(store, "w.2")
        assert [row.key for row in claim(store, "w.3").rows] == ["a"]


@pytest.mark.parametrize(
    "database", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
)
def test_many_leases_on_a_slow_link_are_settled_in_several_requests_that_end_in_time(database):
    """Each request ends within two timeouts, because the worker must also extend other leases."""
    timeout, slowly, keys = 5.0, 1.5, [f"k{number}" for number in range(8)]
    with Proxy(database.server.port) as proxy:
        url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
        with compat_factory(url, timeout=timeout) as factory:
            store = factory()
            store.init()
            add(store, *keys)
            ends = [ending(row) for row in claim(store, "w.1").rows]
            answered = []
            with proxy.slow(slowly):
                while len(answered) < len(keys):
                    before = proxy.answers
                    try:
                        done = store.settle(ends)
                    except StoreSlowError as slow:
                        done = slow.answered
                    assert (proxy.answers - before) * slowly < 2 * timeout
                    assert len(done) > len(answered)
                    answered = done
            assert answered == dict.fromkeys(keys, Settled.DONE)
