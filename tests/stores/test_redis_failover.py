"""A replica takes the place of a primary: by Sentinels, and after writes that it never saw."""

import contextlib

import pytest

from psched.backend import Settled
from psched.backends.redis.connector import ASKED_AGAIN
from psched.backends.redis.store import RedisBackend
from psched.clock import SystemClock
from psched.errors import StoreError, StoreUnavailableError
from psched.model import Row, Settlement
from support.proxy import Proxy
from support.servers import LOOPBACK, Redis
from support.servers.redis import SERVICE
from support.stores import make_store, store_factory
from support.waiting import wait_until

pytestmark = pytest.mark.redis

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
MOMENT = {**CLAIM, "alive_time": 0, "shortest": 0}


def add(store, *keys):
    store.add([Row(key=key, next_time=1, next_run_time=1) for key in keys], nonce="n")


def finish(row):
    return Settlement(
        key=row.key, token=row.token, version=row.version, next_time=7, not_before=4_000_000_000
    )


class TestLostWrites:
    """What was acknowledged and had not reached the replica is gone. The nonce still tells."""

    @pytest.fixture
    def pair(self, servers, start_redis):
        """A primary, a store on it, and a function that loses what it does before a failover."""
        primary = start_redis()
        with contextlib.ExitStack() as opened:
            proxy = opened.enter_context(Proxy(primary.port))
            replica = opened.enter_context(Redis(servers))
            replica.follow(primary)
            replica.query("REPLICAOF", LOOPBACK, str(proxy.port))
            wait_until(lambda: replica.is_linked, what="a replica that follows")
            here = opened.enter_context(store_factory(primary.url()))
            there = opened.enter_context(store_factory(replica.url()))
            store = here()
            store.init()
            add(store, "k")

            def lose(work):
                """Do something of which the replica does not hear before it is the primary."""
                replica.catch_up()
                with proxy.black_hole():
                    done = work(store)
                    primary.kill()
                    replica.query("REPLICAOF", "NO", "ONE")
                return done, there()

            yield store, lose

    def test_a_lost_claim_leaves_its_worker_without_power(self, pair):
        """The same fence is given again, with another owner."""
        _, lose = pair
        (lost,), store = lose(lambda store: store.claim("w.1", **CLAIM).rows)
        assert store.extend({"k": lost.token}, alive_time=60, shortest=6) == frozenset()
        assert store.settle([finish(lost)]) == {"k": Settled.PREEMPTED}
        (taken,) = store.claim("w.2", **CLAIM).rows
        assert (taken.fence, lost.fence) == (1, 1)
        assert store.extend({"k": lost.token}, alive_time=60, shortest=6) == frozenset()
        assert store.settle([finish(lost)]) == {"k": Settled.PREEMPTED}
        assert not store.update_data("k", lost.token, "{}")
        assert store.settle([finish(taken)]) == {"k": Settled.DONE}

    def test_a_lost_end_is_an_occurrence_that_runs_again(self, pair):
        store, lose = pair
        (row,) = store.claim("w.1", **MOMENT).rows
        done, store = lose(lambda store: store.settle([finish(row)]))
        assert done == {"k": Settled.DONE}
        wait_until(lambda: store.now() >= store.get("k").next_run_time, what="the lease's end")
        claimed = store.claim("w.2", **CLAIM)
        assert [(each.key, each.next_time) for each in claimed.rows] == [("k", 1)]
        assert claimed.expired == {"k"}

    def test_a_lost_end_that_was_not_acknowledged_is_written_again(self, pair):
        store, lose = pair
        (row,) = store.claim("w.1", **CLAIM).rows
        _, store = lose(lambda store: store.settle([finish(row)]))
        assert store.settle([finish(row)]) == {"k": Settled.DONE}
        assert store.get("k").next_time == 7

    def test_a_lost_extension_is_made_up_by_the_next(self, pair):
        store, lose = pair
        (row,) = store.claim("w.1", **CLAIM).rows
        before = store.get("k").next_run_time
        leases = {"k": row.token}
        _, store = lose(lambda store: store.extend(leases, alive_time=600, shortest=6))
        assert store.get("k").next_run_time == before
        assert store.extend(leases, alive_time=600, shortest=6) == {"k"}


class TestSentinels:
    def test_the_promoted_replica_is_worked_on_and_knows_all_leases(self, start_watched):
        watched = start_watched()
        with store_factory(watched.url("1000"), timeout=1.5) as open_store:
            store = open_store()
            store.init()
            add(store, "a", "b")
            (row,) = store.claim("w.1", **{**CLAIM, "limit": 1}).rows
            old, new = watched.primary, watched.replica
            new.catch_up()
            old.kill()
            seen = []

            def extended():
                try:
                    return store.extend({"a": row.token}, alive_time=60, shortest=6)
                except StoreUnavailableError as error:
                    seen.append(str(error))
                    return None

            assert wait_until(extended, timeout=60, what="a primary") == {"a"}
            assert dict(store.examine())["server"].endswith(f":{new.port}")
            assert any("cannot connect to" in text for text in seen)
            assert [row.key for row in store.claim("w.2", **CLAIM).rows] == ["b"]
            assert store.settle([finish(row)]) == {"a": Settled.DONE}

    def test_a_sentinel_that_is_gone_is_passed_over(self, watched):
        first = watched.sentinels[0]
        first.kill()
        try:
            store = make_store(watched.url("1001"), timeout=1.5)
            with pytest.raises(StoreUnavailableError, match=f":{first.port}: "):
                store.init()
            store.disconnect()
            store = make_store(watched.url("1001"), timeout=1.5)
            for refusal in (pytest.raises(StoreUnavailableError), pytest.raises(StoreError)):
                with refusal:
                    store.now()
            assert "run `psched init`" in str(_refusal(store))
        finally:
            first.start()  # it knows the others still

    def test_a_primary_that_is_none_for_the_sentinels_any_more_is_left(
        self, start_watched, start_redis
    ):
        """It may be cut off from them, and go on as if nothing had happened."""

        class Later(SystemClock):
            passed = 0.0

            def monotonic(self):
                return super().monotonic() + self.passed

        watched, other, clock = start_watched(), start_redis(), Later()
        there = make_store(other.url())
        there.init()
        store = RedisBackend(watched.url(), table="psched", timeout=5.0, clock=clock)
        store.init()
        add(store, "k")
        watched.sentinels[0].kill()
        for sentinel in watched.sentinels[1:]:
            sentinel.query("SENTINEL", "REMOVE", SERVICE)
            sentinel.query("SENTINEL", "MONITOR", SERVICE, LOOPBACK, other.port, 2)
        assert store.get("k")
        found = []
        for _ in watched.sentinels:
            clock.passed += ASKED_AGAIN
            found.append(store.get("k") is None)
        assert found == [False, True, True]
        store.disconnect()
        there.disconnect()

    def test_a_name_that_no_sentinel_knows_is_told(self, watched):
        store = make_store(watched.url("0").replace("psched-test", "other"))
        with pytest.raises(StoreUnavailableError, match="knows no server by the name 'other'"):
            store.now()

    def test_a_sentinel_is_no_server(self, watched):
        store = make_store(f"redis://{LOOPBACK}:{watched.sentinels[0].port}/0")
        with pytest.raises(StoreError, match="is a Redis Sentinel, which cannot be used"):
            store.now()


def _refusal(store):
    with pytest.raises(StoreError) as refused:
        store.now()
    return refused.value
