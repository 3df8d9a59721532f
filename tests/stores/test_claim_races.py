"""Tests of changes that other clients make between a claim's read and its write."""

from dataclasses import replace as changed

import pytest

from psched.app import make_store
from psched.config import from_mapping
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Settled
from psched.stores.sql.by_key.claims import KeyClaims
from support.stores import store_factory

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
    take = store._claim_strategy()._inner._swap

    def claim_after(something):
        def late(*args):
            something()
            store._claim_strategy()._inner._swap = take
            return take(*args)

        store._claim_strategy()._inner._swap = late
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


@pytest.fixture
def claim_key_after(store, monkeypatch):
    """The same with a claim of the key "k"."""
    take = KeyClaims._swap

    def claim_key_after(something):
        def late(*args):
            something()
            return take(*args)

        monkeypatch.setattr(KeyClaims, "_swap", late)
        return store.claim_keys("late.1", ["k"], **LEASE)

    return claim_key_after


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
    take_one_by_one = store._claim_strategy()._inner._swap_one_by_one

    def late(*args):
        seen = other.get("k")
        assert other.replace(seen, changed(seen, attempt=0))
        return take_one_by_one(*args)

    store._claim_strategy()._inner._swap_one_by_one = late
    assert not store.claim("late.1", **CLAIM).rows
    assert other.get("k").status == "waiting"
    assert [row.key for row in other.claim("other.1", **CLAIM).rows] == ["k"]


def test_a_type_that_differs_in_its_case_is_left_to_others(database, store):
    rows = [Row(key=type_, type=type_, next_time=0, next_run_time=0) for type_ in ("mail", "Mail")]
    store.add(rows, nonce="n")
    ours = make_store(from_mapping({"url": database.url, "only": ["mail"]}))
    assert [row.key for row in ours.claim("me.1", **CLAIM).rows] == ["mail"]
    ours.disconnect()


# --- claims by key -----------------------------------------------------------------------


@pytest.fixture
def borrowed(other, sql):
    """A lease by key that has expired while its holder is still alive."""
    other.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
    (row,) = other.claim_keys("other.1", ["k"], **LEASE)
    sql("UPDATE {table} SET next_run_time = 2")
    return row


def test_a_lease_by_key_that_its_holder_has_just_extended_is_not_taken(
    claim_key_after, other, borrowed
):
    def extend():
        assert other.extend({"k": borrowed.token}, **LEASE) == {"k"}

    assert not claim_key_after(extend)
    assert other.get("k").token == borrowed.token


def test_a_row_that_was_just_given_back_is_not_taken_as_it_was(
    claim_key_after, other, borrowed, sql
):
    """Even if it fell due when the lease had ended, so that only its owner tells."""

    def settle():
        assert other.settle([settlement(borrowed, attempt=3)]) == {"k": Settled.DONE}
        sql("UPDATE {table} SET next_run_time = 2")

    assert not claim_key_after(settle)
    assert other.get("k").attempt == 3


@pytest.mark.parametrize(
    "changes",
    [{"type": "t"}, {"next_run_time": LATER}, {"next_run_time": None, "status": "paused"}],
    ids=str,
)
def test_a_row_that_has_just_been_modified_is_not_leased_by_its_key(
    claim_key_after, other, changes
):
    other.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")

    def modify():
        seen = other.get("k")
        assert other.replace(seen, changed(seen, **changes))

    assert not claim_key_after(modify)
    assert other.get("k").owner is None


def test_a_row_that_plain_sql_has_just_rescheduled_is_not_leased_by_its_key(
    claim_key_after, other, sql
):
    other.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
    assert not claim_key_after(lambda: sql("UPDATE {table} SET next_run_time = NULL"))
    assert other.get("k").attempt == 0


def test_a_row_that_has_just_been_claimed_is_not_leased_by_its_key(claim_key_after, other):
    other.add([Row(key="k", next_time=1, next_run_time=1)], nonce="n")
    assert not claim_key_after(lambda: other.claim("other.1", **CLAIM))
    assert (other.get("k").owner, other.get("k").attempt) == ("other.1", 1)
