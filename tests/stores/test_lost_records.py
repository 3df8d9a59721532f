"""Tests of the records of attempts that no worker has settled, and of rows that are removed."""

from dataclasses import replace as changed

import pytest

from psched.core.history.protocol import RunSelection
from psched.core.history.records import RunRecord
from psched.core.model import Row, Settlement, Token
from psched.core.store_protocol import ExpiredLease, Settled
from support.run_records import worker_record

CLAIM = {"limit": 100, "alive_time": 60, "shortest": 6, "horizon": 0}

WORKER = worker_record(
    nonce="dead", host="elsewhere", pid=4, number=1, generation=3, slots=2, busy=1
)


def add(store, *keys, **columns):
    row = {"cron": "0 * * * *", "next_time": 3600, "next_run_time": 3600, **columns}
    store.add([Row(key=key, **row) for key in keys], nonce="n")


def claim(store, owner):
    return store.claim(owner, **CLAIM)


def records(store, key="k"):
    return [*store.history.runs(RunSelection(key=key))]


def record(row, **fields):
    given = {"outcome": "finished", "fate": "finished", "ended": 5000, **fields}
    return RunRecord(
        key=row.key, type=row.type, scheduled_time=3600, owner=row.owner, fence=row.fence, **given
    )


def removal(row):
    return Settlement.of(row, remove=True, records=(record(row),))


@pytest.mark.parametrize("warm", [True, False])
def test_a_claim_notes_its_time_even_if_it_is_the_first_request(open_store, warm):
    add(open_store(), "k")
    worker = open_store()
    if warm:
        worker.now()
    before = int(worker.now()) if warm else 0
    claim(worker, "w.1")
    row = open_store().get("k")
    assert row.claimed_at is not None
    assert before <= row.claimed_at <= worker.now()


def test_a_row_that_is_taken_over_tells_when_it_was_claimed_and_when_it_fell_due(open_store, sql):
    store = open_store()
    add(store, "k")
    assert claim(store, "w.1").rows[0].next_run_time == 3600
    claimed_at = store.get("k").claimed_at
    sql("UPDATE {table} SET next_run_time = 4000")
    claimed = claim(store, "w.2")
    assert claimed.expired == {"k": ExpiredLease(Token("w.1", 1), claimed_at)}
    assert claimed.rows[0].next_run_time == 4000


def test_the_recovery_of_a_dead_worker_records_its_attempts(open_store):
    store = open_store()
    add(store, "k", label="Night")
    add(store, "quiet", options='{"history": "none"}')
    store._history_of = lambda row: "none" if row.key == "quiet" else "all"
    claim(store, "dead.1")
    store.history.beat(WORKER)
    claimed_at = store.get("k").claimed_at
    recovered = store.recover("dead", alive_time=60, retry_wait=30)
    assert {*recovered} == {"k", "quiet"}
    [lost] = records(store)
    assert (lost.outcome, lost.fate, lost.attempt) == ("lost", None, 1)
    assert (lost.owner, lost.fence, lost.scheduled_time) == ("dead.1", 1, 3600)
    assert (lost.host, lost.generation) == ("elsewhere", 3)
    assert lost.started == claimed_at * 1000 <= lost.ended <= store.now() * 1000
    assert lost.reason == "its worker died"
    assert records(store, "quiet") == []
    assert store.recover("dead", alive_time=60, retry_wait=30) == []
    assert len(records(store)) == 1


def test_the_recovery_of_a_worker_that_has_left_no_record_says_no_host(open_store):
    store = open_store()
    add(store, "k")
    claim(store, "dead.1")
    store.recover("dead", alive_time=60, retry_wait=30)
    [lost] = records(store)
    assert (lost.host, lost.generation) == (None, None)


def test_a_lost_attempt_gives_way_to_what_its_own_worker_knows(open_store):
    store = open_store()
    add(store, "k")
    claim(store, "dead.1")
    store.recover("dead", alive_time=60, retry_wait=30)
    row = Row(key="k", owner="dead.1", fence=1)
    store.history.record([record(row, outcome="preempted", fate=None)])
    store.history.record([record(row, outcome="lost", fate=None)])
    assert [each.outcome for each in records(store)] == ["preempted"]


class TestRemoval:
    def test_it_leaves_its_record_once(self, open_store):
        store = open_store()
        add(store, "k")
        [row] = claim(store, "w.1").rows
        for _ in range(2):
            assert store.settle([removal(row)]) == {"k": Settled.DONE}
        assert len(records(store)) == 1

    def test_who_has_not_removed_a_row_leaves_no_record(self, open_store):
        """Its lease was taken over, and the next holder has finished the task and removed it."""
        store = open_store()
        add(store, "k", "other")
        rows = {row.key: row for row in claim(store, "w.1").rows}
        next_holder = changed(rows["k"], owner="w.2", fence=2)
        store.history.record([record(next_holder)])
        store.delete("other")  # is only marked
        removed = Settlement.of(store.get("k"), remove=True)
        store.settle([removed])
        other = changed(rows["other"], status="deleting", version=store.get("other").version)
        found = store.settle([removal(rows["k"]), removal(other)])
        assert found == {"k": Settled.DONE, "other": Settled.DONE}
        assert [each.owner for each in records(store)] == ["w.2"]
        assert [each.owner for each in records(store, "other")] == ["w.1"]
