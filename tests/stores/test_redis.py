"""Tests of requests that a Redis server refuses, loses or delays, and of psched's messages."""

import contextlib
import itertools
import re
import threading
from pathlib import Path

import pytest
import redis

from psched import config
from psched.base.clock import SystemClock
from psched.base.errors import (
    AlreadyExistsError,
    NotSupportedError,
    SchemaError,
    StoreError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.config.urls import Tls
from psched.core.model import FINISHED, QUARANTINED, Finish, Row, Settlement
from psched.core.policy import Run, after_claim, after_run
from psched.core.selection import selection_of
from psched.core.store_protocol import Settled
from psched.stores.redis import scripts
from psched.stores.redis.store import MOST_ADDED
from support.servers import LOOPBACK
from support.stores import decision_of, make_store, store_factory
from support.waiting import wait_until

pytestmark = pytest.mark.redis

CLOCK = SystemClock()
CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LARGEST = 2**63 - 1


@pytest.fixture
def database(open_database):
    with open_database("redis") as database:
        yield database


@pytest.fixture
def configured(redis_cli):
    """A context manager that changes settings of the server for a block."""

    @contextlib.contextmanager
    def configured(**settings):
        names = {name: name.replace("_", "-") for name in settings}
        before = {}
        for name, real in names.items():
            before |= _mapping(redis_cli("CONFIG", "GET", real))
            redis_cli("CONFIG", "SET", real, settings[name])
        try:
            yield
        finally:
            for name, value in before.items():
                redis_cli("CONFIG", "SET", name, value)

    return configured


def _mapping(found):
    return found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))


def add(store, *keys, **fields):
    store.add([Row(key=key, next_time=1, next_run_time=1, **fields) for key in keys], nonce="n")


def finish(row):
    return Settlement(
        key=row.key, token=row.token, version=row.version, next_time=7, not_before=4_000_000_000
    )


class TestRefusals:
    def test_without_init_it_is_said_what_to_do(self, database):
        store = make_store(database.url)
        with pytest.raises(SchemaError, match="run `psched init`"):
            store.now()
        assert store.init() == [f"prepared psched on {LOOPBACK}:{database.server.port}"]
        assert store.init() == []
        assert store.now() > 0
        store.disconnect()

    def test_a_newer_layout_is_refused(self, store, open_store, redis_cli):
        redis_cli("HSET", "{psched}:layout", "version", "99")
        for request in (open_store().now, store.init):
            with pytest.raises(SchemaError, match="have the layout 99, this psched knows 2"):
                request()

    def test_a_replica_is_left_though_nothing_is_due(self, store, open_store, redis_cli):
        store.now()
        redis_cli("REPLICAOF", LOOPBACK, "1")
        try:
            with pytest.raises(StoreUnavailableError, match="it is a replica: READONLY"):
                store.claim("w.1", **CLAIM)
            for each in (store, open_store()):
                with pytest.raises(StoreUnavailableError, match="is a replica; url must lead"):
                    each.claim("w.2", **CLAIM)
        finally:
            redis_cli("REPLICAOF", "NO", "ONE")
        assert not store.claim("w.3", **CLAIM).rows

    def test_a_full_memory_refuses_what_is_new_and_nothing_else(self, store, configured):
        add(store, "k", "other", "later")
        (row,) = store.claim("w.1", **{**CLAIM, "limit": 1}).rows
        assert store.hold({"later": "w.3"}, alive_time=60, shortest=6) == {"later"}
        with configured(maxmemory="1"):
            with pytest.raises(StoreUnavailableError, match="its memory is full: OOM"):
                add(store, "new")
            assert [row.key for row in store.claim("w.2", **CLAIM).rows] == ["other"]
            assert store.extend({"k": row.token}, alive_time=60, shortest=6) == {"k"}
            assert store.hold({"later": "w.3"}, alive_time=60, shortest=6) == {"later"}
            store.release({"later": "w.3"})
            store.settle([finish(row)])
            assert store.delete("k")
        add(store, "new")

    def test_with_too_few_replicas_nothing_is_written(self, store, configured):
        add(store, "k")
        with configured(min_replicas_to_write="1"):
            with pytest.raises(StoreUnavailableError, match="too few replicas follow it: NOREPL"):
                store.claim("w.1", **CLAIM)
            assert store.get("k").owner is None
            assert [row.key for row in store.rows()] == ["k"]
        assert store.claim("w.1", **CLAIM).rows

    def test_a_server_that_cannot_save_is_waited_for(self, start_redis):
        server = start_redis("--dbfilename", "taken", "--appendonly", "no")
        (server.data / "taken").mkdir()
        with store_factory(server.url()) as open_store:
            store = open_store()
            store.init()
            server.query("CONFIG", "SET", "save", "3600 1")
            server.query("BGSAVE")
            wait_until(lambda: server.info("rdb_last_bgsave_status") == "err", what="a failure")
            with pytest.raises(StoreUnavailableError, match="it cannot save its data: MISCONF"):
                add(store, "k")
            assert [*store.rows()] == []

    def test_a_server_that_is_kept_busy_is_waited_for(self, start_redis):
        server = start_redis("--busy-reply-threshold", "1")

        def keep_busy():
            with contextlib.suppress(redis.RedisError):
                server.query("EVAL", "while true do end", 0)

        def refused():
            try:
                store.claim("w.1", **CLAIM)
            except TransientStoreError as error:
                return str(error)
            return None

        with store_factory(server.url()) as open_store:
            store = open_store()
            store.init()
            store.now()
            keeper = threading.Thread(target=keep_busy)
            keeper.start()
            try:
                text = wait_until(refused, what="a refusal")
            finally:
                wait_until(lambda: _killed(server), what="the script's end")
                keeper.join()
            assert "somebody's script keeps it busy: BUSY" in text
            assert not store.claim("w.2", **CLAIM).rows

    def test_who_may_not_is_told_so(self, database, store, redis_cli):
        """The message does not contain a password."""
        store.now()
        url = database.url.replace("://", "://reader:s3cret@")
        redis_cli("ACL", "SETUSER", "reader", "on", ">s3cret", "~{psched}*", "+@all", "-zadd")
        try:
            mine = make_store(url)
            with pytest.raises(StoreError, match=r"^cannot ZADD keys that begin with {psched}:$"):
                mine.try_rights()
            # A script that is stopped half-way leaves what it has written: none is begun.
            with pytest.raises(StoreError, match=r"^cannot ZADD keys") as refused:
                add(mine, "k")
            assert not isinstance(refused.value, TransientStoreError)
            assert store.get("k") is None
            assert [*mine.rows()] == []
            mine.disconnect()
            other = make_store(url, table="other")
            with pytest.raises(StoreUnavailableError, match="NOPERM"):
                other.now()
            redis_cli("ACL", "SETUSER", "reader", "resetpass", ">other")
            with pytest.raises(StoreUnavailableError, match=r"cannot connect to .* password") as no:
                mine.now()
            assert "s3cret" not in str(no.value)
        finally:
            redis_cli("ACL", "DELUSER", "reader")
        store.try_rights()

    def test_the_user_in_the_documentation_has_all_rights_that_are_needed(
        self, store, database, redis_cli
    ):
        store.now()
        document = (Path(__file__).parents[2] / "docs/redis.md").read_text()
        [words] = re.findall(r"\nACL SETUSER psched on >SECRET (.*)\n", document)
        redis_cli("ACL", "SETUSER", "psched", "reset", "on", ">SECRET", *words.split())
        try:
            with store_factory(database.url.replace("://", "://psched:SECRET@")) as open_store:
                mine = open_store()
                mine.try_rights()
                add(mine, "k", "other")
                (row, _) = mine.claim("w.1", **CLAIM).rows
                assert mine.extend({"k": row.token}, alive_time=60, shortest=6) == {"k"}
                assert mine.update_data("k", row.token, "{}")
                assert mine.marked(["k"]) == {}
                mine.recover("w", alive_time=60, retry_wait=1)
                assert len(mine.held("w.1", [])) == 0
                assert mine.replace(mine.get("k"), mine.get("k"))
                mine.settle([finish(row)])
                mine.purge(1)
                assert mine.delete("k")
                assert [row.key for row in mine.rows()] == ["other"]
                assert dict(mine.examine())["saves"].startswith("every write")
        finally:
            redis_cli("ACL", "DELUSER", "psched")

    def test_a_cluster_is_refused(self, start_redis):
        server = start_redis("--cluster-enabled", "yes", "--databases", "1")
        store = make_store(server.url())
        with pytest.raises(StoreError, match="is a Redis Cluster, which cannot be used"):
            store.init()

    def test_a_server_that_is_not_there_is_named(self):
        store = make_store("redis://:s3cret@127.0.0.1:1/0")
        with pytest.raises(
            StoreUnavailableError,
            match=r"^cannot connect to 127\.0\.0\.1:1: .*; start the server",
        ) as refused:
            store.now()
        assert "s3cret" not in str(refused.value)

    def test_too_many_to_be_added_at_once_are_refused_before_anything_is_sent(self, store):
        with pytest.raises(NotSupportedError, match=f"add at most {MOST_ADDED} at once"):
            add(store, *map(str, range(MOST_ADDED + 1)))

    @pytest.mark.quiet  # the time that the server needs is the point
    def test_what_the_server_can_add_at_once_is_added_in_time(self, store):
        before = CLOCK.monotonic()
        add(store, *(f"k{number:05}" for number in range(MOST_ADDED)))
        assert CLOCK.monotonic() - before < 5
        with pytest.raises(AlreadyExistsError, match="k00000"):
            add(store, "new", "k00000")
        assert sum(1 for _ in store.rows()) == MOST_ADDED


def _killed(server):
    try:
        server.query("SCRIPT", "KILL")
    except redis.exceptions.ResponseError as error:
        return "NOTBUSY" in str(error)
    return False


class TestRestarts:
    def test_what_was_acknowledged_is_there_after_the_server_was_killed(self, store, database):
        add(store, "a", "b")
        (a, b) = store.claim("w.1", **CLAIM).rows
        store.settle([finish(a)])
        rows = [*store.rows()]
        database.server.kill()
        with pytest.raises(StoreUnavailableError):
            store.get("a")
        with pytest.raises(StoreUnavailableError):
            store.extend({"b": b.token}, alive_time=60, shortest=6)
        database.server.start()
        wait_until(lambda: _answers(store), what="the data to be read")
        assert [*store.rows()] == rows
        assert store.extend({"b": b.token}, alive_time=60, shortest=6) == {"b"}

    def test_scripts_that_the_server_has_forgotten_are_told_it_again(self, store, redis_cli):
        add(store, "k")
        redis_cli("SCRIPT", "FLUSH")
        assert [row.key for row in store.claim("w.1", **CLAIM).rows] == ["k"]

    def test_data_that_are_gone_are_missed(self, store, redis_cli):
        add(store, "k")
        redis_cli("FLUSHDB")
        store.disconnect()
        with pytest.raises(SchemaError, match="find out where they are"):
            store.claim("w.1", **CLAIM)

    def test_a_claim_misses_data_that_are_gone_while_it_stays_connected(self, store, redis_cli):
        add(store, "a")
        redis_cli("FLUSHDB")
        with pytest.raises(SchemaError, match="there are no schedules under 'psched'"):
            store.claim("owner", **CLAIM)

        store.init()
        assert store.claim("owner", **CLAIM).rows == []


def _answers(store):
    try:
        return store.now()
    except StoreUnavailableError:
        return None


class TestInterruptions:
    def test_a_request_that_was_broken_off_is_no_connection_for_the_next(self, store):
        """As a handler's can be that is asked to stop; the driver would connect by itself."""
        store.now()
        line = store._connector._connection
        line.disconnect()
        assert store.now() > 0
        assert store._connector._connection is not line

    def test_a_connection_that_the_server_has_closed_is_replaced(self, store, redis_cli):
        """As it does if the connection was idle for longer than ``timeout``."""
        add(store, "k")
        redis_cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wait_until(lambda: store._connector._connection.has_ended, what="the connection's end")
        assert [row.key for row in store.claim("w.1", **CLAIM).rows] == ["k"]


class TestWaiting:
    """Tests that no request takes longer than its timeout.

    An answer that drips, or is held, comes later than the test waits for anything.
    """

    @pytest.fixture
    def far(self, database, store, proxy):
        url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")
        with store_factory(url, timeout=3.0) as open_store:
            far = open_store()
            add(store, "k", data='{"a": "' + "x" * 500 + '"}')
            far.purge(1)  # connected, and has written
            yield far

    def test_answers_that_never_end_are_given_up(self, far, proxy):
        with proxy.drip():
            with pytest.raises(StoreUnavailableError):
                far.get("k")
            with pytest.raises(StoreUnavailableError, match="cannot connect to"):
                far.get("k")

    def test_a_server_that_is_silent_is_given_up(self, far, proxy):
        with proxy.black_hole():
            for kind in (UnknownOutcomeError, StoreUnavailableError):
                with pytest.raises(kind):
                    far.delete("k")


class TestPlaces:
    def test_a_socket_of_this_host(self, database):
        url = f"unix://{database.server.socket}?db={database.url.rpartition('/')[2]}"
        store = make_store(url)
        store.init()
        add(store, "k")
        assert make_store(database.url).get("k") == store.get("k")
        assert dict(store.examine())["server"].endswith(str(database.server.socket))
        store.disconnect()

    def test_a_password_alone(self, start_redis):
        server = start_redis()
        server.query("CONFIG", "SET", "requirepass", "s3cret")
        store = make_store(config.from_mapping({"url": server.url("1")}).url)
        with pytest.raises(StoreUnavailableError, match="NOAUTH"):
            store.init()
        settings = {"type": "redis", "host": LOOPBACK, "port": server.port, "password": "s3cret"}
        store = make_store(config.from_mapping(settings).url)
        assert store.init()
        store.disconnect()

    @pytest.mark.parametrize("scheme", ["redis", "rediss"])
    def test_an_encrypted_connection(self, start_redis, certificates, scheme):
        server = start_redis(certificates=certificates)
        url = f"{scheme}://{LOOPBACK}:{server.tls_port}/0"
        trusted = Tls(verify="full", ca=certificates.authority, cert=None, key=None)
        with store_factory(url, tls=trusted) as open_store:
            store = open_store()
            store.init()
            add(store, "k", data='{"a": "' + "x" * 100_000 + '"}')
            assert len(store.get("k").data) > 100_000
            assert dict(store.examine())["encrypted"].startswith("TLS")

    def test_a_certificate_of_nobody_known_is_refused(self, start_redis, certificates):
        server = start_redis(certificates=certificates)
        store = make_store(f"rediss://{LOOPBACK}:{server.tls_port}/0")
        with pytest.raises(StoreUnavailableError, match="certificate verify failed"):
            store.now()


class TestFacts:
    def test_what_makes_data_unsafe_is_said(self, store, configured, database):
        store.now()
        facts = dict(store.examine())
        assert facts["saves"] == "every write, at once (appendfsync always)"
        assert facts["memory"] == "no limit, noeviction"
        assert facts["replicas"] == "none"
        assert facts["a failover loses"].startswith("all that the replicas do not have")
        assert facts["encrypted"] == "no"
        assert facts["server"].startswith("Redis 7.")
        with configured(maxmemory_policy="allkeys-lru", maxmemory="64mb", appendfsync="everysec"):
            facts = dict(store.examine())
            assert facts["memory"].startswith("64.00M, ALLKEYS-LRU: schedules may be thrown away")
            assert "a crash of its host loses up to two" in facts["saves"]
        with configured(min_replicas_to_write="1", min_replicas_max_lag="3"):
            assert dict(store.examine())["a failover loses"].startswith("up to 3 s of writes")
        careful = make_store(database.url, wait_replicas=2)
        assert "what 2 of the replicas" in dict(careful.examine())["a failover loses"]
        careful.disconnect()

    def test_a_server_that_saves_nothing_is_named(self, start_redis):
        server = start_redis("--appendonly", "no")
        with store_factory(server.url()) as open_store:
            store = open_store()
            store.init()
            assert dict(store.examine())["saves"].startswith("NOTHING: ")

    def test_what_one_may_not_ask_is_left_out(self, store, database, redis_cli):
        store.now()
        redis_cli("ACL", "SETUSER", "u", "on", "nopass", "~{psched}*", "+@all", "-info", "-config")
        try:
            mine = make_store(database.url.replace("://", "://u:x@"))
            assert dict(mine.examine())["saves"] == "the server does not tell"
            mine.disconnect()
        finally:
            redis_cli("ACL", "DELUSER", "u")


class TestRowsOfOthers:
    """Tests of rows that another client has written, with any content."""

    @pytest.fixture
    def write(self, store, redis_cli):
        store.now()

        def write(key, due=1, **columns):
            fields = [word for pair in columns.items() for word in pair]
            redis_cli("HSET", f"{{psched}}:row:{key}", *(fields or ("status", "waiting")))
            redis_cli("ZADD", "{psched}:due", due, key)

        return write

    @pytest.fixture
    def work_off(self, store, database):
        """Claims and runs whatever is due, as a worker does; returns the keys it ran."""
        settings = config.from_mapping({"url": database.url, "alive_time": 60})

        def work_off(limit=10):
            ran = set()
            for count in range(1000):
                claimed = store.claim(f"w.{count}", **{**CLAIM, "limit": limit})
                for row in claimed.rows:
                    verdict = after_claim(row, settings, claimed.now)
                    if isinstance(verdict, Run):
                        decision = decision_of(row, settings)
                        if decision == Finish():
                            ran.add(row.key)
                        verdict = after_run(row, row, decision, settings)
                    store.settle([verdict])
                if not (claimed.rows or claimed.more):
                    return ran
            raise AssertionError("the rows that are due come to no end")

        return work_off

    def test_a_row_needs_little(self, store, write, work_off):
        write("k", next_time=5)
        row = store.get("k")
        assert (row.type, row.version, row.next_time, row.next_run_time) == ("default", 1, 5, 1)
        assert work_off() == {"k"}
        assert store.get("k").status == FINISHED

    @pytest.mark.parametrize("limit", [1, 10])
    def test_what_cannot_be_leased_is_set_aside_and_does_not_stand_in_the_way(
        self, store, write, work_off, redis_cli, limit
    ):
        bad = {
            "fence": {"fence": LARGEST},
            "attempt": {"attempt": LARGEST},
            "attempt ": {"attempt": "many"},
            "version": {"version": "1.5"},
            "delay": {"delay": ""},
            "next_time": {"next_time": "9" * 30},
            "alive_time": {"alive_time": "long"},
            "owner": {"fence": "x", "leased_by": "dead.1"},
        }
        for key, columns in bad.items():
            write(key, **columns)
        write("no hash")
        redis_cli("DEL", "{psched}:row:no hash")
        redis_cli("SET", "{psched}:row:no hash", "x")
        write("gone")
        redis_cli("DEL", "{psched}:row:gone")
        redis_cli("HSET", b"{psched}:row:\xff\xe9", "status", "waiting")
        redis_cli("ZADD", "{psched}:due", 1, b"\xff\xe9")
        write("é 鍵 🗝", next_time=1)
        write("good", due=2, next_time=1)
        listed = {row.key for row in store.rows()}
        assert work_off(limit) == {"é 鍵 🗝", "good"}
        rows = {row.key: row for row in store.rows()}
        assert rows.keys() == listed
        for key in (*bad, "no hash", "gone", "\ufffd\ufffd"):
            row = rows[key]
            assert (row.status, row.next_run_time, row.owner) == (QUARANTINED, None, None), row
            assert row.reason, row
        assert rows["gone"].reason.startswith("its row is gone; was it evicted")
        assert rows["delay"].reason == "delay: was no whole number"
        for key in (*bad, "no hash", "gone"):
            assert store.delete(key)
            add(store, key)

    def test_what_cannot_be_claimed_can_be_held_if_there_is_a_row(self, store, write, redis_cli):
        """A hold does not change the columns that a claim counts up."""
        bad = {
            "full": {"fence": LARGEST},
            "fence": {"fence": "x"},
            "attempt": {"attempt": "many"},
            "length": {"alive_time": "long"},
            "time": {"next_time": "9" * 30},
        }
        for key, columns in bad.items():
            write(key, **columns)
        for key in "no hash", "gone":
            write(key)
            redis_cli("DEL", f"{{psched}}:row:{key}")
        redis_cli("SET", "{psched}:row:no hash", "x")
        write("never", due="inf")
        before = {row.key: row for row in store.rows()}
        held = store.hold(dict.fromkeys(before, "w.1"), alive_time=60, shortest=6)
        assert held == {*bad, "never"}
        store.release(dict.fromkeys(before, "w.1"))
        assert {row.key: row for row in store.rows()} == before

    @pytest.mark.parametrize("end", ["claim", "release", "recover", "delete", "purge", "remove"])
    def test_a_hold_leaves_nothing_behind(self, store, write, redis_cli, end):
        write("k", next_time=1, held_until="soon")
        redis_cli("ZADD", "{psched}:retain", 1, "k")
        assert store.hold({"k": "w.1"}, alive_time=60, shortest=6) == {"k"}
        assert redis_cli("ZRANGE", "{psched}:holds", 0, -1) == [b"k"]
        if end == "release":
            store.release({"k": "w.1"})
        elif end == "recover":
            store.recover("w", alive_time=60, retry_wait=0)
        else:
            redis_cli("ZADD", "{psched}:holds", 1, "k")
        if end == "delete":
            assert store.delete("k")
        elif end == "purge":
            redis_cli("HSET", "{psched}:row:k", "retain_until", 1)
            redis_cli("ZREM", "{psched}:due", "k")
            assert store.purge(10) == 1
        elif end in {"claim", "remove"}:
            (row,) = store.claim("w.2", **CLAIM).rows
            assert (row.held_by, row.held_until) == (None, None)
            if end == "remove":
                removal = Settlement(
                    key="k", token=row.token, version=row.version, next_time=None, remove=True
                )
                assert store.settle([removal]) == {"k": Settled.DONE}
        assert redis_cli("ZRANGE", "{psched}:holds", 0, -1) == []
        assert redis_cli("HMGET", "{psched}:row:k", "held_by", "held_until") == [None, None]

    def test_an_odd_hold_does_not_stand_in_the_way_of_others(
        self, store, write, work_off, redis_cli
    ):
        """Some rows have lost their hash or their hold, others are held from or to odd times."""
        for key in "no hash", "gone", "unknown", "half", "ever", "never", "good":
            write(key, next_time=1)
            if key != "unknown":
                assert store.hold({key: "dead.1"}, alive_time=60, shortest=6) == {key}
        redis_cli("DEL", "{psched}:row:no hash", "{psched}:row:gone")
        redis_cli("SET", "{psched}:row:no hash", "x")
        redis_cli("HSET", "{psched}:row:unknown", "held_by", "dead.2", "held_until", LARGEST)
        for key, until in ("half", "1.5"), ("ever", "-inf"), ("never", "inf"):
            redis_cli("ZADD", "{psched}:holds", until, key)
        assert work_off() == {"unknown", "half", "ever"}
        assert store.get("unknown").held_by is None
        assert store.hold({"never": "w.1", "good": "w.1"}, alive_time=60, shortest=6) == set()
        assert store.hold({"never": "dead.1"}, alive_time=60, shortest=6) == {"never"}
        assert store.recover("dead", alive_time=60, retry_wait=0) == []
        assert redis_cli("ZRANGE", "{psched}:holds", 0, -1) == []
        assert work_off() == {"never", "good"}
        assert {row.key for row in store.rows() if row.status == QUARANTINED} == {"no hash", "gone"}

    def test_odd_times_are_listed_and_run(self, store, write, work_off):
        write("half", due="1.5", next_time=1)
        write("never", due="inf")
        write("ever", due="-inf", next_time=1)
        assert [row.key for row in store.rows()] == ["ever", "half", "never"]
        assert work_off() == {"ever", "half"}

    def test_what_makes_no_sense_is_quarantined_by_who_claims_it(self, store, write, work_off):
        nonsense = {"cron": "nonsense", "data": b"\xff", "options": "[]", "timezone": "Mars/X"}
        nonsense["status"] = b"\xff"
        for column, value in nonsense.items():
            write(column, **{"next_time": 1, "cron": "* * * * *", column: value})
        assert work_off() == set()
        for column in nonsense:
            row = store.get(column)
            assert row.status == QUARANTINED
            assert row.reason.startswith(f"{column}: ")


class TestListing:
    def test_pages_go_on_where_they_were_though_rows_come_and_go(self, store, open_store):
        """The same time for all, so that only the keys tell them apart."""
        keys = [f"k{number:04}é" for number in range(1000)]
        add(store, *keys)
        found, other = [], open_store()
        for row in store.rows():
            found.append(row.key)
            # The last of a page, and what was before it, goes.
            if len(found) % 100 == 0:
                for key in found[-100:]:
                    other.delete(key)
        assert found == keys

    def test_large_rows_come_a_few_at_a_time(self, store):
        keys = [f"k{number:02}" for number in range(12)]
        add(store, *keys, data='{"a": "' + "x" * 1_000_000 + '"}')
        assert [row.key for row in store.rows()] == keys
        taken = []
        for count in itertools.count():
            claimed = store.claim(f"w.{count}", **{**CLAIM, "limit": 100})
            assert len(claimed.rows) < 7
            taken += [row.key for row in claimed.rows]
            if not claimed.more:
                break
        assert taken == keys

    def test_those_at_rest_come_in_pages_too(self, store):
        keys = [f"k{number:03}" for number in range(500)]
        store.add([Row(key=key) for key in keys], nonce="n")
        assert [row.key for row in store.rows()] == keys
        assert {row.next_run_time for row in store.rows()} == {None}

    @pytest.mark.parametrize("looked_at", [7, 500])
    def test_only_rows_that_match_cross_the_network(self, store, monkeypatch, looked_at):
        monkeypatch.setattr("psched.stores.redis.encoding.FILTERED_PAGE", looked_at)
        rows = [
            Row(
                key=f"{'ab'[number % 2]}{number:02}",
                type=("mail", "report")[number % 3 == 0],
                next_run_time=(None, 5, 4_000_000_000)[number % 3 if number % 4 else 0],
                label="me" if number % 5 else None,
            )
            for number in range(60)
        ]
        store.add(rows, nonce="n")
        store.claim("w.1", **CLAIM)
        every, run, answers = [*store.rows()], store._connector.run, []

        def noting(script, *arguments, **more):
            answer = run(script, *arguments, **more)
            answers.extend(row[0].decode() for row in answer[0])
            return answer

        store._connector.run = noting
        for conditions in (
            {"type": "report"},
            {"status": "running"},
            {"status": ["waiting", "running"], "label": "me"},
            {"prefix": "b", "due": True},
            {"type": "mail", "label": ["me", "you"], "prefix": "a"},
            {"label": "you"},
        ):
            selection = selection_of(**conditions)
            expected = [row.key for row in every if selection.matches(row, store.now())]
            answers.clear()
            assert [row.key for row in store.rows(selection)] == expected
            assert answers == expected


def test_large_data_are_compressed(database):
    store = make_store(database.url, compress_above=1000)
    store.init()
    add(store, "k", data='{"a": "' + "x" * 100_000 + '"}')
    assert len(store.get("k").data) < 1000
    (row,) = store.claim("w.1", **CLAIM).rows
    assert store.update_data("k", row.token, '{"b": "' + "y" * 100_000 + '"}')
    assert isinstance(store.get("k").data, bytes)
    store.disconnect()


def test_every_script_is_sent_whole_only_once(store, redis_cli):
    add(store, "k")
    before = redis_cli("INFO", "commandstats")["cmdstat_eval"]["calls"]
    for number in range(3):
        store.claim(f"w.{number}", **CLAIM)
        add(store, f"k{number}")
    after = redis_cli("INFO", "commandstats")["cmdstat_eval"]["calls"]
    assert after - before <= 1
    assert len(scripts.find("claim").digest) == 40


def test_the_scripts_and_the_rest_of_psched_agree_on_columns_and_the_longest_lease():
    columns = re.search(r"COLUMNS = \{(.*?)\}", scripts.find("claim").text, re.DOTALL)[1]
    longest = re.search(r"LONGEST_LEASE = (\d+) \* (\d+)", scripts.find("claim").text).groups()

    # next_run_time is a score, the key is a member.
    expected = [name for name in Row.__slots__ if name not in {"key", "next_run_time", "seen"}]
    expected[expected.index("owner")] = "leased_by"
    assert re.findall(r"'(\w+)'", columns) == expected
    assert int(longest[0]) * int(longest[1]) == LONGEST_ALIVE_TIME
