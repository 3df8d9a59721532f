"""Tests of changes that others make between a claim's read and its write, or just before a hold."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed

import pytest

from psched.app import make_store
from psched.config import from_mapping
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Settled
from psched.stores.sql import raw_execute
from support.servers.mariadb import SOMEBODY_WAITS
from support.stores import store_factory
from support.waiting import HANG_TIMEOUT, wait_until

CLAIM = {"limit": 10, "alive_time": 60, "shortest": 6, "horizon": 0}
LEASE = {"alive_time": 60, "shortest": 6}
LATER = 4_000_000_000


@pytest.fixture
def store(database, open_store):  # noqa: ARG001  # which has made the table
    with store_factory(database.url, claim_strategy="cas") as factory:
        yield factory()


@pytest.fixture
def claim_after(store):
    """A function that claims, and calls its argument between the read and the compare-and-swap."""
    take = store._claim_strategy()._inner._inner._swap

    def claim_after(something):
        def late(*args):
            something()
            store._claim_strategy()._inner._inner._swap = take
            return take(*args)

        store._claim_strategy()._inner._inner._swap = late
        return store.claim("late.1", **CLAIM)

    return claim_after


@pytest.fixture
def other(open_store):
    return open_store()


@pytest.fixture
def lost(other, sql):
    """A lease that has expired while its holder is still alive."""
    other.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
    (row,) = other.claim("other.1", **CLAIM).rows
    sql("UPDATE {table} SET next_run_time = 2")
    return row


def settlement(row, **changes):
    end = Settlement(key=row.key, token=row.token, version=row.version, next_time=LATER)
    return changed(end, **changes)


def test_a_lease_that_its_holder_has_just_extended_is_not_taken(claim_after, other, lost):
    def extend():
        assert other.extend({"k": lost.token}, **LEASE) == {"k"}

    assert not claim_after(extend).rows
    assert other.get("k").token == lost.token


@pytest.mark.parametrize(
    "changes", [{"not_before": LATER}, {"wait": 60}, {"rest": True}, {"remove": True}], ids=str
)
def test_an_occurrence_that_its_holder_has_just_settled_is_not_run_again(
    claim_after, other, lost, changes
):
    def settle():
        assert other.settle([settlement(lost, **changes)]) == {"k": Settled.DONE}

    assert not claim_after(settle).rows


def test_a_row_that_others_have_just_had_is_not_taken_as_it_was(claim_after, other, lost):
    """Other workers have taken over the row and settled it, and it is due again."""

    def run():
        (row,) = other.claim("other.2", **CLAIM).rows
        assert other.settle([settlement(row, next_time=9)]) == {"k": Settled.DONE}

    assert not claim_after(run).rows
    assert other.get("k").fence == lost.fence + 1


@pytest.mark.parametrize(
    "changes", [{"type": "t"}, {"next_run_time": LATER}, {"data": "{}"}], ids=str
)
def test_a_row_that_has_just_been_modified_is_not_taken_as_it_was(claim_after, other, changes):
    other.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")

    def modify():
        seen = other.get("k")
        assert other.replace(seen, changed(seen, **changes))

    claimed = claim_after(modify)
    assert not claimed.rows
    assert claimed.more is False
    assert other.get("k").owner is None


def test_a_row_that_has_just_been_deleted_is_not_taken(claim_after, other):
    other.add([Row(key=key, next_time=1, next_run_time=1) for key in "ab"], nonce="n")
    claimed = claim_after(lambda: other.delete("a"))
    assert [row.key for row in claimed.rows] == ["b"]


def test_a_row_that_came_to_the_place_of_a_deleted_one_is_not_taken_for_it(claim_after, other):
    """SQLite gives the new row the number of the deleted one."""
    other.add([Row(key=key, next_time=1, next_run_time=1) for key in "ab"], nonce="n")

    def replace():
        other.delete("b")
        other.add([Row(key="c", next_time=1, next_run_time=1)], nonce="n")

    assert [row.key for row in claim_after(replace).rows] == ["a"]
    assert other.get("c").owner is None


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_rows_that_were_moved_are_left_to_the_next_claim(claim_after, store, other, sql):
    """VACUUM can move rows in this way."""
    other.add([Row(key=key, next_time=1, next_run_time=1) for key in "ab"], nonce="n")
    assert not claim_after(lambda: sql("UPDATE {table} SET rowid = rowid + 10")).rows
    assert [row.key for row in store.claim("late.2", **CLAIM).rows] == ["a", "b"]


def test_of_rows_that_others_have_taken_the_rest_is_taken(claim_after, other):
    other.add([Row(key=key, next_time=1, next_run_time=1) for key in "abcd"], nonce="n")
    taken = []
    claimed = claim_after(
        lambda: taken.extend(other.claim("other.1", **{**CLAIM, "limit": 2}).rows)
    )
    assert {row.key for row in claimed.rows} | {row.key for row in taken} == set("abcd")
    assert {row.owner for row in other.rows()} == {"late.1", "other.1"}


def test_a_refused_row_that_was_mended_meanwhile_is_not_set_aside(store, other, sql):
    other.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
    sql("UPDATE {table} SET attempt = 9223372036854775807")
    take_one_by_one = store._claim_strategy()._inner._inner._swap_one_by_one

    def late(*args):
        seen = other.get("k")
        assert other.replace(seen, changed(seen, attempt=0))
        return take_one_by_one(*args)

    store._claim_strategy()._inner._inner._swap_one_by_one = late
    assert not store.claim("late.1", **CLAIM).rows
    assert other.get("k").status == "waiting"
    assert [row.key for row in other.claim("other.1", **CLAIM).rows] == ["k"]


def test_a_type_that_differs_in_its_case_is_left_to_others(database, store):
    rows = [Row(key=type_, type=type_, next_time=0, next_run_time=0) for type_ in ("mail", "Mail")]
    store.add(rows, nonce="n")
    ours = make_store(from_mapping({"url": database.url, "only": ["mail"]}))
    assert [row.key for row in ours.claim("me.1", **CLAIM).rows] == ["mail"]
    ours.disconnect()


# --- claims and holds ----------------------------------------------------------------------


def hold(store, holder="other.1"):
    return store.hold({"k": holder}, **LEASE)


@pytest.fixture
def free(other):
    """A row that is due, and that nobody has leased or holds."""
    other.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
    return other.get("k")


@pytest.fixture
def ended(other, sql, free):  # noqa: ARG001  # a row
    """A row whose hold has ended while its holder is still alive."""
    assert hold(other) == {"k"}
    sql("UPDATE {table} SET held_until = 2")
    return other.get("k")


def test_a_row_that_somebody_has_just_held_is_not_taken(claim_after, other, free):
    claimed = claim_after(lambda: hold(other))
    assert not claimed.rows
    assert claimed.more is False
    row = other.get("k")
    assert (row.held_by, row.token, row.attempt) == ("other.1", free.token, 0)


def test_a_row_whose_hold_its_holder_has_just_extended_is_not_taken(claim_after, other, ended):
    """Only the end of the hold has changed."""

    def extend():
        assert hold(other) == {"k"}
        after = other.get("k")
        assert after == changed(ended, held_until=after.held_until)

    assert not claim_after(extend).rows
    assert (other.get("k").held_by, other.get("k").owner) == ("other.1", None)


def test_a_row_that_another_has_just_held_after_the_first_is_not_taken(claim_after, other, ended):
    claim = claim_after(lambda: hold(other, "other.2"))
    assert not claim.rows
    assert (other.get("k").held_by, other.get("k").fence) == ("other.2", ended.fence)


def test_a_row_whose_hold_has_ended_is_taken_and_is_held_no_more(claim_after, other, ended):
    (row,) = claim_after(lambda: None).rows
    assert (row.held_by, row.held_until, row.fence) == (None, None, ended.fence + 1)
    found = other.get("k")
    assert (found.owner, found.held_by, found.held_until) == ("late.1", None, None)
    assert hold(other) == frozenset()


def test_of_rows_that_others_have_just_held_the_rest_is_taken(claim_after, other):
    other.add([Row(key=key, next_time=1, next_run_time=1) for key in "abcd"], nonce="n")
    held = dict.fromkeys("ac", "other.1")
    claimed = claim_after(lambda: other.hold(held, **LEASE))
    assert [row.key for row in claimed.rows] == ["b", "d"]
    assert {row.key for row in other.rows() if row.held_by} == set("ac")


@pytest.fixture
def hold_after(store):
    """A function that holds the row, and calls its argument just before the request is sent."""
    write = store._write

    def hold_after(something):
        def late(*args):
            something()
            store._write = write
            return write(*args)

        store._write = late
        return hold(store, "late.1")

    return hold_after


@pytest.mark.usefixtures("free")
def test_a_row_that_has_just_been_claimed_is_not_held(hold_after, other):
    assert hold_after(lambda: other.claim("other.1", **CLAIM)) == frozenset()
    row = other.get("k")
    assert (row.owner, row.attempt, row.held_by) == ("other.1", 1, None)


def test_a_row_that_was_just_claimed_after_its_hold_is_not_held_any_longer(
    hold_after, other, sql, free
):
    """Its holder extends the hold, but it was too late, and somebody else runs the schedule."""
    assert hold(other, "late.1") == {"k"}
    sql("UPDATE {table} SET held_until = 2")
    assert hold_after(lambda: other.claim("other.2", **CLAIM)) == frozenset()
    row = other.get("k")
    assert (row.owner, row.fence, row.held_by) == ("other.2", free.fence + 1, None)


@pytest.mark.usefixtures("ended")
def test_a_row_that_another_has_just_held_is_not_held_twice(hold_after, other):
    assert hold_after(lambda: hold(other, "other.2")) == frozenset()
    assert other.get("k").held_by == "other.2"


@pytest.mark.usefixtures("free")
def test_a_row_that_has_just_been_marked_is_not_held(hold_after, other):
    def mark():
        seen = other.get("k")
        assert other.replace(seen, changed(seen, status="cancelling"))

    assert hold_after(mark) == frozenset()
    assert other.get("k").held_by is None


@pytest.mark.parametrize(
    "changes",
    [{"type": "t"}, {"next_run_time": LATER}, {"next_run_time": None, "status": "paused"}],
    ids=str,
)
@pytest.mark.usefixtures("free")
def test_a_row_that_has_just_been_modified_is_held_as_it_is(hold_after, other, changes):
    def modify():
        seen = other.get("k")
        assert other.replace(seen, changed(seen, **changes))

    assert hold_after(modify) == {"k"}
    row = other.get("k")
    assert (row.held_by, row.version) == ("late.1", 2)
    assert {name: getattr(row, name) for name in changes} == changes


def test_a_row_that_has_just_been_held_is_not_deleted(other, store, free):
    """The deletion was about to be sent."""
    write = store._write

    def late(*args):
        store._write = write
        assert hold(other) == {"k"}
        return write(*args)

    store._write = late
    assert not store.delete("k")
    row = other.get("k")
    assert (row.status, row.version, row.held_by) == ("deleting", free.version + 1, "other.1")


WAITING = {
    "mariadb": SOMEBODY_WAITS,
    "postgresql": "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
}
"""Has rows while a session waits for the lock of a row."""

PATIENT = {
    "mariadb": "SET innodb_lock_wait_timeout = 30",
    "postgresql": "SET lock_timeout = '30s'",
}

CLAIMS = (
    "UPDATE {table} SET leased_by = 'other.1', fence = fence + 1, attempt = attempt + 1,"
    " next_run_time = 4000000000"
)
HOLDS = "UPDATE {table} SET held_by = 'other.1', held_until = 4000000000"


@pytest.mark.parametrize(
    ("database", "strategy"),
    [
        pytest.param("mariadb", "cas", marks=pytest.mark.mariadb),
        pytest.param("postgresql", "cas", marks=pytest.mark.postgresql),
        pytest.param("postgresql", "skip_locked", marks=pytest.mark.postgresql),
    ],
    indirect=["database"],
)
@pytest.mark.usefixtures("free")
class TestTransactions:
    """Tests that whoever writes second sees what the first has written before it committed."""

    @pytest.fixture
    def waiting(self, database, strategy):
        """A store that waits for the lock of a row longer than a worker does."""
        with store_factory(database.url, claim_strategy=strategy) as factory:
            waiting = factory()
            waiting._claim_strategy()  # chosen
            waiting._connector.run(lambda c: raw_execute.send(c, PATIENT[database.kind]))
            yield waiting

    @pytest.fixture
    def during(self, database, sql):
        """A function that sends a request while the effect of a statement is not committed."""

        def during(statement, request):
            with sql.session() as other, ThreadPoolExecutor(1) as thread:
                other("BEGIN")
                other(statement)
                answer = thread.submit(request)
                wait_until(
                    lambda: answer.done() or sql(WAITING[database.kind]),
                    what="the answer, or a session that waits",
                )
                other("COMMIT")
                return answer.result(timeout=HANG_TIMEOUT)

        return during

    def test_a_row_that_is_being_claimed_is_not_held(self, during, waiting, other):
        assert during(CLAIMS, lambda: hold(waiting, "late.1")) == frozenset()
        assert (other.get("k").owner, other.get("k").held_by) == ("other.1", None)

    @pytest.mark.parametrize("ended", [False, True])
    def test_a_row_that_is_being_held_is_not_claimed(self, during, waiting, other, sql, ended):
        """The row was free before; or a hold of it had ended, and its holder extends that hold."""
        if ended:
            sql("UPDATE {table} SET held_by = 'other.1', held_until = 2")
        assert not during(HOLDS, lambda: waiting.claim("late.1", **CLAIM)).rows
        row = other.get("k")
        assert (row.owner, row.fence, row.held_by) == (None, 0, "other.1")

    def test_a_row_that_is_being_held_is_not_held_twice(self, during, waiting, other):
        assert during(HOLDS, lambda: hold(waiting, "late.1")) == frozenset()
        assert other.get("k").held_by == "other.1"

    def test_a_row_that_is_being_held_is_not_deleted(self, during, waiting, other):
        assert not during(HOLDS, lambda: waiting.delete("k"))
        assert (other.get("k").status, other.get("k").held_by) == ("deleting", "other.1")
