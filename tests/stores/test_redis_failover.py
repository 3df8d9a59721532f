"""Tests of failovers to a replica: by Sentinels, and with the loss of the last writes."""

import contextlib
import itertools
import logging
import threading

import pytest

from psched.base.clock import SystemClock
from psched.base.errors import (
    AlreadyExistsError,
    StoreError,
    StoreSlowError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.client.verifier import Verifier
from psched.config import from_mapping
from psched.core.history.recording import Recorder, StoreClock
from psched.core.history.records import Attempt, Outcome
from psched.core.model import Finish, Row, Settlement
from psched.core.settling import Ending, Settler
from psched.core.store_protocol import ClaimUnknownError, Settled
from psched.stores.redis.sentinels import ASKED_AGAIN
from psched.testing.store_contract.history import recorded
from support.proxy import Proxy
from support.servers import LOOPBACK, Redis
from support.servers.redis import SERVICE
from support.stores import make_store, store_factory
from support.waiting import HANG_TIMEOUT, wait_until

pytestmark = pytest.mark.redis

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
DAY = 86_400
MOMENT = {**CLAIM, "alive_time": 0, "shortest": 0}


class Later(SystemClock):
    """A clock whose monotonic time and wall time a test moves forward."""

    passed = 0.0

    def wall(self):
        return super().wall() + self.passed

    def monotonic(self):
        return super().monotonic() + self.passed


def add(store, *keys):
    store.add([Row(key=key, next_time=1, next_run_time=1) for key in keys], nonce="n")


def finish(row):
    return Settlement(
        key=row.key,
        token=row.token,
        version=row.version,
        next_time=7,
        not_before=4_000_000_000,
        records=(recorded(row),),
    )


def leases_of(records):
    return [each.lease for each in records]


class Runner:
    """Runs what is due as a worker does, one task at a time.

    Args:
        url: the database's.
        store: the store there.

    Attributes:
        acknowledged: the leases whose ends were acknowledged, as ``settled_by`` shows them.
    """

    def __init__(self, url, store):
        self._store = store
        self._settings = from_mapping({"url": url})
        self._clock = SystemClock()
        self._recorder = Recorder(host="h", generation=1, clock=StoreClock(self._clock))
        self._settler = Settler(self._settings, self._clock, recorder=self._recorder)
        self._owners = map("w.{}".format, itertools.count())
        self._unsettled = []
        self.acknowledged = []

    def claim(self):
        """Claim a row."""
        sent = self._clock.boottime()
        claimed = self._store.claim(next(self._owners), **{**CLAIM, "limit": 1})
        estimate = self._recorder.clock
        estimate.read(claimed.now, sent, self._clock.boottime())
        now = estimate.milliseconds()
        attempt = Attempt(outcome=Outcome.FINISHED, started=now, ended=now, pid=1)
        self._unsettled = [
            Ending(row, Finish(), sent + CLAIM["alive_time"], attempt, "all")
            for row in claimed.rows
        ]

    def settle(self):
        """End the lease of the row that was claimed; repeat this if there is no answer."""
        results = self._settler.settle(self._store, self._unsettled)
        assert {*results.values()} <= {Settled.DONE}, "a claim that was acknowledged is lost"
        self.acknowledged += [str(ending.leased.token) for ending in self._unsettled]
        self._unsettled = []

    def run(self):
        """Run the next row; before that, end the last lease if its end has had no answer."""
        if not self._unsettled:
            self.claim()
        self.settle()

    def verify(self):
        """Check that what was acknowledged is there, and that each end has exactly one record."""
        ended = [row.settled_by for row in self._store.rows() if row.status == "finished"]
        assert {*self.acknowledged} <= {*ended}
        assert sorted(leases_of(self._store.history.runs())) == sorted(ended)
        found = Verifier(self._store, self._settings).verify(DAY)
        assert (found.violations, found.unknown) == ([], {})


@pytest.fixture
def followed(servers, start_redis):
    """A primary, the proxy between the primary and its replica, and the replica."""
    primary = start_redis()
    with Proxy(primary.port) as proxy, Redis(servers) as replica:
        replica.follow(primary)
        replica.query("REPLICAOF", LOOPBACK, str(proxy.port))
        wait_until(lambda: replica.is_linked, what="a replica with a copy of what there was")
        # The primary can send new writes up to a second late, so the fixture waits for one.
        primary.query("SET", "first", 1)
        wait_until(lambda: replica.query("EXISTS", "first"), what="a replica that follows")
        yield primary, proxy, replica


class TestLostWrites:
    """Tests of acknowledged writes that are lost because they had not reached the replica."""

    @pytest.fixture
    def pair(self, followed):
        """A store on a primary, and a function whose writes are lost by a failover."""
        primary, proxy, replica = followed
        with store_factory(primary.url()) as here, store_factory(replica.url()) as there:
            store = here()
            store.init()
            add(store, "k")

            def lose(work):
                """Do ``work`` while the replica receives nothing, then promote the replica."""
                replica.catch_up()
                with proxy.black_hole():
                    done = work(store)
                    primary.kill()
                    replica.query("REPLICAOF", "NO", "ONE")
                return done, there()

            yield store, lose

    def test_a_lost_claim_leaves_its_worker_without_power(self, pair):
        """The new primary gives the same fence again, but with another owner."""
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
        assert [*store.history.runs()] == []
        wait_until(lambda: store.now() >= store.get("k").next_run_time, what="the lease's end")
        claimed = store.claim("w.2", **CLAIM)
        assert [(each.key, each.next_time) for each in claimed.rows] == [("k", 1)]
        assert {*claimed.expired} == {"k"}
        assert store.settle([finish(claimed.rows[0])]) == {"k": Settled.DONE}
        assert leases_of(store.history.runs()) == ["w.2#2"]

    def test_a_lost_end_that_was_not_acknowledged_is_written_again(self, pair):
        store, lose = pair
        (row,) = store.claim("w.1", **CLAIM).rows
        _, store = lose(lambda store: store.settle([finish(row)]))
        assert store.settle([finish(row)]) == {"k": Settled.DONE}
        assert store.get("k").next_time == 7
        assert leases_of(store.history.runs()) == ["w.1#1"]

    def test_an_end_that_is_not_lost_is_recorded_once_if_it_is_repeated(self, pair):
        store, lose = pair
        (row,) = store.claim("w.1", **CLAIM).rows
        assert store.settle([finish(row)]) == {"k": Settled.DONE}
        _, store = lose(lambda _: None)
        assert store.settle([finish(row)]) == {"k": Settled.DONE}
        assert leases_of(store.history.runs()) == ["w.1#1"]

    def test_a_lost_extension_is_made_up_by_the_next(self, pair):
        store, lose = pair
        (row,) = store.claim("w.1", **CLAIM).rows
        before = store.get("k").next_run_time
        leases = {"k": row.token}
        _, store = lose(lambda store: store.extend(leases, alive_time=600, shortest=6))
        assert store.get("k").next_run_time == before
        assert store.extend(leases, alive_time=600, shortest=6) == {"k"}


class TestWaitForReplicas:
    """With ``wait_replicas``, a write counts as done when replicas have it."""

    def test_a_write_that_no_replica_has_is_of_unknown_outcome(self, followed):
        primary, proxy, _ = followed
        with (
            store_factory(primary.url()) as here,
            store_factory(primary.url(), wait_replicas=1, timeout=5.0) as safe,
        ):
            plain, store = here(), safe()
            store.init()
            add(store, "a")
            with proxy.black_hole():
                add(plain, "b")
                with pytest.raises(UnknownOutcomeError, match="0 of the 1 replicas"):
                    add(store, "c")
                assert store.get("c"), "it can be read, so that its sender can find out"

    def test_a_claim_that_no_replica_has_can_be_asked_for(self, followed):
        primary, proxy, _ = followed
        with store_factory(primary.url(), wait_replicas=1, timeout=5.0) as safe:
            store = safe()
            store.init()
            add(store, "a")
            with proxy.black_hole():
                with pytest.raises(ClaimUnknownError):
                    store.claim("w.1", **CLAIM)
                with pytest.raises(StoreUnavailableError, match="0 of the 1 replicas"):
                    store.held("w.1", ())
            assert [row.key for row in store.held("w.1", ())] == ["a"]

    def test_who_may_not_wait_is_told_so_before_anything_is_written(self, followed):
        primary, *_ = followed
        primary.query("ACL", "SETUSER", "u", "on", "nopass", "~{psched}*", "+@all", "-wait")
        url = primary.url().replace("//", "//u:p@")
        with store_factory(url, wait_replicas=1) as safe, store_factory(url) as plain:
            store, other = safe(), plain()
            make_store(primary.url()).init()
            for attempt in (store.try_rights, lambda: add(store, "a")):
                with pytest.raises(StoreError, match="'wait'") as refused:
                    attempt()
                assert not isinstance(refused.value, TransientStoreError)
            add(other, "b")
            assert other.get("a") is None

    def test_who_may_not_wait_any_more_does_not_know_what_became_of_a_write(self, followed):
        primary, *_ = followed
        primary.query("ACL", "SETUSER", "u", "on", "nopass", "~{psched}*", "+@all")
        with store_factory(primary.url().replace("//", "//u:p@"), wait_replicas=1) as safe:
            store = safe()
            store.init()
            add(store, "a")
            primary.query("ACL", "SETUSER", "u", "-wait")
            with pytest.raises(UnknownOutcomeError, match=r"does not tell .* replicas"):
                add(store, "b")
            assert store.get("b")


class TestSentinels:
    def test_the_promoted_replica_is_worked_on_and_knows_all_leases(self, start_watched):
        watched = start_watched()
        with store_factory(watched.url("1000"), timeout=5.0) as open_store:
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
                except TransientStoreError as error:
                    seen.append(str(error))
                    return None

            assert wait_until(extended, what="a primary") == {"a"}
            assert dict(store.examine())["server"].endswith(f":{new.port}")
            assert any("cannot connect to" in text for text in seen)
            # Until the last of them has heard of it, each makes the outcome of a write unknown.
            watched.wait_for_switch()
            assert [row.key for row in store.claim("w.2", **CLAIM).rows] == ["b"]
            assert store.settle([finish(row)]) == {"a": Settled.DONE}

    def test_a_sentinel_that_is_gone_is_passed_over(self, watched):
        first = watched.sentinels[0]
        first.kill()
        try:
            with store_factory(watched.url("1001"), timeout=5.0) as open_store:
                store = open_store()
                assert "run `psched init`" in str(_refusal(store))
                store.init()
                assert dict(store.examine())["sentinels"].startswith("3 in the url; 1 cannot be")
            for sentinel in watched.sentinels[1:]:
                sentinel.kill()
            with store_factory(watched.url("1001"), timeout=5.0) as open_store:
                assert "cannot connect to" in str(_refusal(open_store()))
        finally:
            for sentinel in watched.sentinels:
                if not sentinel.running:
                    sentinel.start()  # it knows the others still

    def test_a_primary_that_is_none_for_the_sentinels_any_more_is_left(
        self, start_watched, start_redis, caplog
    ):
        """It may be cut off from them, and go on as if nothing had happened."""
        watched, other, clock = start_watched(), start_redis(), Later()
        there = make_store(other.url())
        there.init()
        store = make_store(watched.url(), clock=clock)
        store.init()
        add(store, "k")
        for sentinel in watched.sentinels:
            sentinel.query("SENTINEL", "REMOVE", SERVICE)
            sentinel.query("SENTINEL", "MONITOR", SERVICE, LOOPBACK, other.port, 2)
        assert store.get("k"), "they publish nothing about that"
        clock.passed += ASKED_AGAIN
        with caplog.at_level(logging.INFO):
            assert store.get("k") is None
        # The store has written nothing for ten seconds.
        assert "no write is affected" in caplog.text
        assert "may be lost" not in caplog.text
        store.disconnect()
        there.disconnect()

    def test_each_sentinel_is_waited_for_twice(self, watched):
        """On a slow link, each answer takes its time."""
        with store_factory(watched.url("1005")) as open_store:
            open_store().init()
        with Proxy(watched.sentinels[0].port) as proxy:
            url = f"redis+sentinel://{LOOPBACK}:{proxy.port}/{SERVICE}/1005"
            with store_factory(url) as open_store:
                open_store().now()
            assert proxy.answers == 2

    def test_a_slow_primary_is_connected_to_within_more_than_one_request(self, start_redis):
        primary, slowly = start_redis(), 2.4
        with Proxy(primary.port) as proxy:
            near, url = make_store(primary.url()), f"redis://{LOOPBACK}:{proxy.port}/0"
            near.init()
            near.disconnect()
            with store_factory(url, timeout=4.0) as open_store, proxy.slow(slowly):
                store = open_store()
                with pytest.raises(StoreSlowError, match=r"too slowly: .*database_timeout"):
                    store.now()
                store.now()

    def test_a_sentinel_that_does_not_answer_for_a_while_is_listened_to_still(self, start_watched):
        watched, clock = start_watched(), Later()
        leader = watched.sentinels[0]
        with Proxy(leader.port) as proxy:
            url = f"redis+sentinel://{LOOPBACK}:{proxy.port}/{SERVICE}/0"
            store = make_store(url, timeout=5.0, clock=clock)
            store.init()
            add(store, "k")
            with proxy.black_hole():
                clock.passed += ASKED_AGAIN
                assert store.get("k"), "the primary answers, so work goes on"
            watched.replica.catch_up()
            leader.query("SENTINEL", "FAILOVER", SERVICE)
            wait_until(lambda: watched.replica.role == "master", what="a promotion")
            with contextlib.suppress(TransientStoreError):
                add(store, "new")
                assert store._connector.shown == f"{LOOPBACK}:{watched.replica.port}"
            store.disconnect()

    @pytest.mark.parametrize("fault", ["planned", "standstill"])
    def test_nothing_that_was_acknowledged_is_lost_in_a_failover(
        self, start_watched, fault, caplog
    ):
        """The old primary accepts writes for some 10 s after its replica was promoted."""
        watched = start_watched()
        old, new = watched.primary, watched.replica
        with store_factory(watched.url("1002"), timeout=5.0) as open_store:
            store = open_store()
            store.init()
            acknowledged = []

            runner = Runner(watched.url("1002"), store)

            def push(key):
                with contextlib.suppress(TransientStoreError):
                    add(store, key)
                    acknowledged.append((key, store._connector.shown))
                    runner.run()

            keys = map(str, itertools.count())
            for _ in range(50):
                push(next(keys))
            add(store, "one more")
            if fault == "planned":
                watched.sentinels[1].query("SENTINEL", "FAILOVER", SERVICE)
            else:
                stands = threading.Event()
                replaced = threading.Thread(
                    target=_stand_still_until_replaced, args=(old, new, stands)
                )
                runner.claim()
                replaced.start()
                assert stands.wait(timeout=HANG_TIMEOUT)
                with pytest.raises(TransientStoreError):
                    runner.settle()
            reached = []

            def new_primary_has_been_written_to():
                push(next(keys))
                reached[:] = [key for key, shown in acknowledged if shown.endswith(f":{new.port}")]
                return len(reached) >= 50

            wait_until(new_primary_has_been_written_to, what="writes to the new one")
            watched.be_patient()  # a host that is busy for half a second is no second fault
            wait_until(lambda: old.role == "slave", what="the old primary's demotion")
            lost = [key for key, _ in acknowledged if store.get(key) is None]
            assert lost == []
            runner.verify()
        if fault == "standstill":
            replaced.join()
        (line,) = [r.getMessage() for r in caplog.records if "another primary" in r.getMessage()]
        assert f":{new.port}: what {LOOPBACK}:{old.port} acknowledged from 20" in line

    def test_a_client_that_connects_in_the_midst_of_a_failover_waits_for_its_end(
        self, start_watched
    ):
        watched = start_watched()
        watched.replica.catch_up()
        with store_factory(watched.url("1003"), timeout=5.0) as open_store:
            open_store().init()
            watched.replica.catch_up()
            watched.sentinels[0].query("SENTINEL", "FAILOVER", SERVICE)
            store, refusals = open_store(), []

            def added():
                try:
                    add(store, "k")
                except AlreadyExistsError:
                    return True  # an answer that was not believed had been right
                except TransientStoreError as error:
                    refusals.append(str(error))
                    return False
                return True

            wait_until(added, what="a primary")
            assert store._connector.shown == f"{LOOPBACK}:{watched.replica.port}"
            assert any("a failover is under way" in text for text in refusals)

    def test_the_sentinel_that_knows_of_the_last_failover_is_believed(self, start_watched):
        watched = start_watched()
        behind, *_ = watched.sentinels
        with store_factory(watched.url("1004"), timeout=5.0) as open_store:
            open_store().init()
            watched.replica.catch_up()
            with behind.standing_still():
                watched.sentinels[1].query("SENTINEL", "FAILOVER", SERVICE)
                for sentinel in watched.sentinels[1:]:
                    wait_until(
                        lambda sentinel=sentinel: (
                            sentinel.sees["port"] == str(watched.replica.port)
                        ),
                        what="a Sentinel that knows the new primary",
                    )
            store = open_store()
            assert store.get("k") is None
            assert store._connector.shown == f"{LOOPBACK}:{watched.replica.port}"

    def test_a_name_that_no_sentinel_knows_is_told(self, watched):
        store = make_store(watched.url("0").replace("psched-test", "other"))
        with pytest.raises(StoreUnavailableError, match="knows no server by the name 'other'"):
            store.now()

    def test_a_sentinel_is_no_server(self, watched):
        store = make_store(f"redis://{LOOPBACK}:{watched.sentinels[0].port}/0")
        with pytest.raises(StoreError, match="is a Redis Sentinel, which cannot be used"):
            store.now()


def _stand_still_until_replaced(old, new, stands):
    with old.standing_still():
        stands.set()
        wait_until(lambda: new.role == "master", what="a promotion")


def _refusal(store):
    with pytest.raises(StoreError) as refused:
        store.now()
    return refused.value
