"""Tests of the run history on Redis beyond the contract: what it loses and leaves behind."""

import itertools
import logging
import re
from dataclasses import replace as changed

import pytest

from psched.base.errors import StoreError, StoreUnavailableError
from psched.core.history.protocol import AuditSelection, RunSelection
from psched.core.history.records import AuditRecord, Fate, WorkerRecord
from psched.core.model import Row
from psched.core.store_protocol import Settled
from psched.stores.redis import history as redis_history
from psched.stores.redis import scripts
from psched.testing.store_contract.history import ENDED, ending_with, made, recorded
from support.stores import make_store, store_factory
from support.waiting import wait_until

pytestmark = pytest.mark.redis

CLAIM = {"limit": 200, "alive_time": 60, "shortest": 1, "horizon": 0}
MONTH = 30 * 86_400
STREAM = "{psched}:runs"

_owners = (f"nonce.{number}" for number in itertools.count(1))


@pytest.fixture
def database(open_database):
    with open_database("redis") as database:
        yield database


@pytest.fixture
def open_store(database):
    """A function that opens a store with these parameters."""
    opened = []

    def open_store(**parameters):
        opened.append(make_store(database.url, **parameters))
        return opened[-1]

    open_store().init()
    yield open_store
    for each in opened:
        each.disconnect()


@pytest.fixture
def store(open_store):
    return open_store()


def held(store, *keys, **fields):
    """Add rows, and claim them."""
    store.add([Row(key=key, next_time=1, next_run_time=1, **fields) for key in keys], nonce="n")
    rows = {row.key: row for row in store.claim(next(_owners), **CLAIM).rows}
    return [rows[key] for key in keys]


def run(store, key="k", **changes):
    """Run a row, which is recorded; return the record."""
    row = store.get(key)
    if row is None:
        [row] = held(store, key)
    else:
        [row] = store.claim(next(_owners), **CLAIM).rows
    record = recorded(row, ended=int(store.now() * 1000))
    assert store.settle([ending_with(row, record, **changes)]) == {key: Settled.DONE}
    return record


def owners(records):
    return [each.owner for each in records]


class TestWhatCannotBeWritten:
    def test_a_full_memory_refuses_records_and_no_settlement(self, store, set_memory, caplog):
        caplog.set_level(logging.INFO)
        first, second, _, _ = held(store, "a", "b", "c", "d")
        set_memory(1)
        for row in first, second:
            assert store.settle([ending_with(row, recorded(row))]) == {row.key: Settled.DONE}
        store.history.record([made("e"), made("f")])
        assert sorted(store.recover("nonce", alive_time=60, retry_wait=1)) == ["c", "d"]
        assert store.get("a").owner is None
        set_memory(0)
        assert store.history.lost_records == 6
        assert [*store.history.runs()] == []
        store.history.record([made("g")])
        assert [each.key for each in store.history.runs()] == ["g"]
        said = [each.getMessage() for each in caplog.records if "run history" in each.getMessage()]
        assert len(said) == 2
        assert said[0].startswith("records of the run history are lost (1 so far): ")
        assert "its memory is full: OOM" in said[0]
        assert said[1] == "records of the run history are written again; 6 lost"

    def test_a_full_memory_refuses_records_and_what_they_are_about(self, store, set_memory):
        store.add([Row(key="k")], nonce="n")
        seen, span = store.get("k"), made("k", fate=Fate.SKIPPED)
        set_memory(1)
        with pytest.raises(StoreUnavailableError, match="its memory is full"):
            store.replace_and_record(seen, changed(seen, type="new"), [span])
        set_memory(0)
        assert store.get("k") == seen
        assert [*store.history.runs()] == []

    def test_a_user_without_rights_on_streams_replaces_without_records(
        self, store, database, redis_cli
    ):
        store.add([Row(key="a"), Row(key="b")], nonce="n")
        redis_cli("ACL", "SETUSER", "u", "on", "nopass", "~{psched}*", "+@all", "-@stream")
        try:
            with store_factory(database.url.replace("://", "://u:x@")) as open_mine:
                mine = open_mine()
                for key, lost in ("a", 1), ("b", 1):
                    seen = mine.get(key)
                    new = changed(seen, type="new")
                    assert mine.replace_and_record(seen, new, [made(key, fate=Fate.SKIPPED)])
                    assert mine.history.lost_records == lost
                    assert mine.history.problem() is not None
        finally:
            redis_cli("ACL", "DELUSER", "u")
        assert {row.type for row in store.rows()} == {"new"}
        assert [*store.history.runs()] == []

    def test_a_settlement_is_counted_as_lost_only_if_it_is_applied(self, store, set_memory):
        [row] = held(store, "k")
        other = changed(row, fence=row.fence + 1)
        set_memory(1)
        ends = [ending_with(other, recorded(other))]
        assert store.settle(ends) == {"k": Settled.PREEMPTED}
        assert store.history.lost_records == 0

    def test_a_user_without_rights_on_streams_settles_without_records(
        self, store, database, redis_cli, caplog
    ):
        [row] = held(store, "k")
        assert store.history.problem() is None
        redis_cli("ACL", "SETUSER", "u", "on", "nopass", "~{psched}*", "+@all", "-@stream")
        try:
            with store_factory(database.url.replace("://", "://u:x@")) as open_mine:
                mine = open_mine()
                assert mine.settle([ending_with(row, recorded(row))]) == {"k": Settled.DONE}
                mine.history.record([made("a")])
                assert mine.history.lost_records == 2
                assert mine.history.problem() == (
                    "the server refuses XADD, XDEL, XRANGE, XREVRANGE (ERR The user executing the"
                    " script can't run this command or subcommand); give the user of url the rights"
                    " that docs/redis.md lists"
                )
        finally:
            redis_cli("ACL", "DELUSER", "u")
        assert store.get("k").owner is None
        assert [*store.history.runs()] == []
        [said] = [each.getMessage() for each in caplog.records if "run history" in each.message]
        assert "(1 so far): ERR The user executing the script can't run this command" in said

    def test_what_history_problem_finds_is_not_counted_as_lost(self, store, database, redis_cli):
        first, second, _, _ = held(store, "a", "b", "c", "d")
        rights = ("~{psched}*", "+@all", "-@stream")
        redis_cli("ACL", "SETUSER", "u", "reset", "on", "nopass", *rights)
        try:
            with store_factory(database.url.replace("://", "://u:x@")) as open_mine:
                mine = open_mine()
                assert mine.settle([ending_with(first, recorded(first))]) == {"a": Settled.DONE}
                assert mine.history.lost_records == 1
                assert "XADD" in mine.history.problem()
                assert mine.settle([ending_with(second, recorded(second))]) == {"b": Settled.DONE}
                assert sorted(mine.recover("nonce", alive_time=60, retry_wait=1)) == ["c", "d"]
                assert mine.history.lost_records == 1
                redis_cli("ACL", "SETUSER", "u", "+@stream")
                assert mine.history.problem() is None
                [row] = wait_until(
                    lambda: mine.claim(next(_owners), **{**CLAIM, "limit": 1}).rows,
                    what="a row that was released",
                )
                assert mine.settle([ending_with(row, recorded(row))]) == {row.key: Settled.DONE}
        finally:
            redis_cli("ACL", "DELUSER", "u")
        assert [each.key for each in store.history.runs()] == [row.key]

    @pytest.mark.usefixtures("store")
    def test_every_command_of_the_scripts_is_tried(self, database, redis_cli):
        texts = [scripts.find(name).text for name in scripts._TEXTS if name != "try"]
        calls = "".join(re.findall(r"redis\.p?call\((.*?),", "".join(texts)))
        commands = {*re.findall(r"'([A-Z]+)'", calls)}
        assert {"HSET", "XADD", "LPUSH", "LPUSHX"} < commands
        # Without INFO, output may take its whole budget.
        for command in commands - {"INFO"}:
            rights = ("~{psched}*", "+@all", f"-{command}")
            redis_cli("ACL", "SETUSER", "u", "reset", "on", "nopass", *rights)
            with store_factory(database.url.replace("://", "://u:x@")) as open_mine:
                mine = open_mine()
                said = _missing_right(mine) or mine.output.problem() or mine.alerts.problem() or ""
                assert re.search(rf"(?i)\b{command}\b", said)
            redis_cli("ACL", "DELUSER", "u")

    def test_keys_of_another_kind_stop_no_settlement(self, store, redis_cli):
        redis_cli("SET", f"{STREAM}:k", "taken")
        [row] = held(store, "k")
        assert store.settle([ending_with(row, recorded(row))]) == {"k": Settled.DONE}
        assert store.history.lost_records == 1
        assert store.get("k").owner is None


class TestWhatIsLeftBehind:
    def test_a_schedule_keeps_the_newest_records(self, open_store, redis_cli):
        store = open_store(history_keep_per_key=3)
        records = [run(store) for _ in range(5)]
        assert owners(store.history.runs(RunSelection(key="k"))) == owners(records[:1:-1])
        assert redis_cli("LLEN", f"{STREAM}:k") == 3

    def test_the_records_of_all_keys_are_capped(self, open_store, redis_cli, monkeypatch):
        monkeypatch.setattr(redis_history, "MOST_RUNS", 200)
        store = open_store()
        store.history.record([made(f"k{number}", owner=f"w.{number}") for number in range(1000)])
        assert 200 <= redis_cli("XLEN", STREAM) <= 400

    def test_old_records_of_a_key_are_deleted_when_new_ones_are_written(self, open_store):
        store = open_store(history_keep=MONTH)
        now = int(store.now() * 1000)
        ages = (MONTH + 9, MONTH + 8, MONTH + 7, 7)
        for number, age in enumerate(ages):
            open_store().history.record([made("k", owner=f"w.{number}", ended=now - age * 1000)])
        new = [run(store) for _ in range(2)]
        kept = owners(store.history.runs(RunSelection(key="k")))
        assert kept == [*owners(new[::-1]), "w.3"]

    def test_what_a_deleted_schedule_leaves_expires(self, open_store, redis_cli):
        store = open_store(history_keep=MONTH)
        record = run(store)
        store.delete("k")
        assert MONTH - 60 < redis_cli("TTL", f"{STREAM}:k") <= MONTH
        assert owners(store.history.runs(RunSelection(key="k"))) == [record.owner]

    def test_the_list_of_a_task_that_is_purged_expires_with_it(self, open_store, redis_cli):
        store = open_store(history_keep=MONTH)
        record = run(store, rest=True, retain=100)
        assert 40 < redis_cli("TTL", f"{STREAM}:k") <= 100
        redis_cli("DEL", f"{STREAM}:k")
        assert owners(store.history.runs(RunSelection(key="k"))) == [record.owner]

    def test_a_task_that_is_removed_at_once_has_no_list(self, open_store, redis_cli):
        store = open_store(history_keep=MONTH)
        record = run(store, remove=True)
        assert redis_cli("KEYS", f"{STREAM}:*") == []
        assert owners(store.history.runs(RunSelection(key="k"))) == [record.owner]
        assert owners(store.history.runs(RunSelection(key="K"))) == []

    def test_without_an_age_nothing_expires(self, store, redis_cli):
        run(store, rest=True, retain=100)
        store.history.record([made("k", owner="w.2")])
        assert redis_cli("TTL", f"{STREAM}:k") == -1

    def test_workers_that_were_not_seen_for_long_expire(self, open_store, redis_cli):
        store = open_store(history_keep=MONTH)
        store.history.beat(_worker("a"))
        assert MONTH - 60 < redis_cli("TTL", "{psched}:worker:a") <= MONTH
        redis_cli("DEL", "{psched}:worker:a")
        assert [*store.history.workers()] == []


class TestLostAttempts:
    def test_recovering_records_what_a_dead_worker_ran(self, open_store):
        store = open_store()
        store.history.beat(_worker("dead"))
        keys = [f"k{number}" for number in range(450)]
        store.add(
            [Row(key=key, type="t é", next_time=7, next_run_time=7, label='x"y') for key in keys],
            nonce="n",
        )
        before = int(store.now())
        count = 0
        while rows := store.claim(f"dead.{count}", **CLAIM).rows:
            count += len(rows)
        assert sorted(store.recover("dead", alive_time=60, retry_wait=1)) == sorted(keys)
        assert store.recover("dead", alive_time=60, retry_wait=1) == []
        found = {each.key: each for each in store.history.runs()}
        assert {*found} == {*keys}
        one = found["k0"]
        assert before * 1000 <= one.started <= one.ended <= store.now() * 1000
        assert changed(one, id=None, started=None, owner="", ended=0) == changed(
            made("k0", owner="", ended=0),
            type="t é",
            label='x"y',
            scheduled_time=7,
            host="host",
            generation=3,
            outcome="lost",
            reason="its worker died",
        )
        assert one.owner.startswith("dead.")
        assert store.get("k0").claimed_at is None

    def test_without_a_history_nothing_is_recorded(self, open_store):
        store = open_store()
        held(store, "k", options='{"history":"none"}')
        held(store, "other")
        assert sorted(store.recover("nonce", alive_time=60, retry_wait=1)) == ["k", "other"]
        assert [each.key for each in store.history.runs()] == ["other"]

    def test_the_time_of_the_expired_claim_is_known(self, open_store):
        store, other = open_store(), open_store()
        store.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
        before = int(store.now())
        [row] = store.claim("dead.1", **{**CLAIM, "alive_time": 1}).rows
        assert before <= row.claimed_at <= store.now()

        def take_over():
            return other.claim(next(_owners), **CLAIM).expired

        expired = wait_until(take_over, what="the lease to expire")["k"]
        assert (expired.token, expired.claimed_at) == (row.token, row.claimed_at)

    def test_a_worker_that_knows_no_claimed_at_leaves_it_unknown(self, store, redis_cli):
        [row] = held(store, "k")
        redis_cli("HDEL", "{psched}:row:k", "claimed_at")
        redis_cli("ZADD", "{psched}:due", "1", "k")
        expired = store.claim("w.1", **CLAIM).expired["k"]
        assert (expired.token, expired.claimed_at) == (row.token, None)

    def test_what_an_older_version_leaves_of_an_earlier_lease_does_not_count(
        self, store, redis_cli
    ):
        """An older version increases the fence and sets the owner, but no ``claimed_at``."""
        held(store, "k")
        redis_cli("HINCRBY", "{psched}:row:k", "fence", 1)
        redis_cli("HSET", "{psched}:row:k", "leased_by", "old.1")
        redis_cli("ZADD", "{psched}:held", 0, "old.1\0k")
        assert store.get("k").claimed_at is None
        assert store.recover("old", alive_time=60, retry_wait=1) == ["k"]
        [lost] = store.history.runs()
        assert (lost.owner, lost.fence, lost.started) == ("old.1", 2, None)
        redis_cli("HSET", "{psched}:row:k", "leased_by", "old.2", "claimed_at", "77#1")
        redis_cli("ZADD", "{psched}:due", "1", "k")
        assert store.claim("w.1", **CLAIM).expired["k"].claimed_at is None


class TestReading:
    def test_large_records_are_sent_and_read_in_parts(self, store):
        rows = held(store, *(f"k{number}" for number in range(40)))
        ends = [ending_with(row, recorded(row, result='"' + "é" * 200_000 + '"')) for row in rows]
        assert {*store.settle(ends).values()} == {Settled.DONE}
        assert len([*store.history.runs()]) == 40
        many = [made("k", owner=f"w.{n}", error="x" * 200_000) for n in range(50)]
        store.history.record(many)
        assert owners(store.history.runs(RunSelection(key="k"))) == owners(many[::-1])

    def test_records_that_come_meanwhile_disturb_no_reader(self, store):
        store.history.record([made("k", owner=f"w.{n}", ended=ENDED + n) for n in range(450)])
        reading = store.history.runs(RunSelection(key="k"))
        first = [next(reading) for _ in range(10)]
        store.history.record([made("k", owner=f"late.{n}", ended=ENDED + n) for n in range(20)])
        found = owners([*first, *reading])
        assert found == [f"w.{n}" for n in reversed(range(450))]

    def test_what_no_version_of_psched_has_written_is_left_out(self, store, redis_cli):
        store.history.record([made("k")])
        for garbage in ("", "nonsense", "1 []", "1 {}", '1 {"key":"k"}', b"1 \xff"):
            redis_cli("XADD", STREAM, "*", "key", "k", "record", garbage)
            redis_cli("LPUSH", f"{STREAM}:k", garbage)
            redis_cli("XADD", "{psched}:audit", "*", "key", "k", "record", garbage)
        redis_cli("XADD", STREAM, "*", "odd", "1")
        assert [each.owner for each in store.history.runs()] == ["worker.1"]
        assert [each.owner for each in store.history.runs(RunSelection(key="k"))] == ["worker.1"]
        assert [*store.history.audits(AuditSelection())] == []
        assert store.history.last_runs(["k"])["k"].owner == "worker.1"
        store.history.record([made("k", owner="worker.2")])
        assert store.history.trim(before=ENDED + 1, limit=100) >= 2

    def test_fields_of_a_later_version_are_ignored(self, store, redis_cli):
        text = (
            f'{ENDED} {{"key":"k","type":"t","scheduled_time":1,"owner":"o.1","fence":1,'
            f'"ended":{ENDED},"colour":"red"}}'
        )
        redis_cli("XADD", STREAM, "*", "key", "k", "record", text)
        assert [each.owner for each in store.history.runs()] == ["o.1"]

    def test_records_that_are_too_old_are_not_read(self, store, redis_cli):
        for number in range(300):
            redis_cli("XADD", STREAM, f"{ENDED + number}-1", "key", "k", "record", "x")
        store.history.record([made("k", ended=ENDED + 10**10)])
        assert len([*store.history.runs()]) == 1
        before = int(redis_cli("INFO", "commandstats")["cmdstat_xrevrange"]["calls"])
        since = ENDED + 10**9
        assert len([*store.history.runs(RunSelection(since=since))]) == 1
        after = int(redis_cli("INFO", "commandstats")["cmdstat_xrevrange"]["calls"])
        assert after - before == 1

    def test_later_records_have_larger_numbers(self, store):
        store.history.record([made("k", owner=f"w.{n}") for n in range(300)])
        numbers = [each.id for each in store.history.runs()]
        assert numbers == sorted({*numbers}, reverse=True)
        assert numbers == [each.id for each in store.history.runs(RunSelection(key="k"))]

    def test_a_change_with_a_large_definition_is_kept(self, store):
        change = AuditRecord(
            key="k", action="modify", user="u", host="h", program="p", before="x" * 1_500_000
        )
        store.history.audit([change, change, change])
        assert len([*store.history.audits(AuditSelection(key="k"))]) == 3
        assert [*store.history.audits(AuditSelection(key="other"))] == []


def _missing_right(store):
    """What a store says about a command that its user may not send."""
    try:
        store.try_rights()
    except StoreError as error:
        return str(error)
    return store.history.problem() or ""


def _worker(nonce):
    return WorkerRecord(
        nonce=nonce, host="host", pid=7, number=0, generation=3, slots=4, busy=1, types=None,
        started=0, seen=0,
    )  # fmt: skip
