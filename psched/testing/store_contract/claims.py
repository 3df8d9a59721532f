"""Tests of ``claim``, and of ``held``, which a worker calls if the answer to a claim was lost."""

from dataclasses import replace as changed
from math import floor

from psched.core.model import FINISHED, Token
from psched.testing.store_contract.bench import (
    LEASE,
    LONG_AGO,
    MOMENT,
    BackendFactory,
    add,
    claim,
    claim_all,
    due,
    ending,
    found,
    leased,
    leased_for_a_moment,
    wait_for_end,
)


class Claims:
    """Tests that a claim leases due rows to one owner, for ``alive_time`` by the store's clock."""

    def test_only_what_is_due_is_claimed(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        soon = int(store.now()) + 3600
        store.add([due("past"), due("ancient", 0), due("future", soon)], nonce="n")
        store.add([changed(due("resting"), next_run_time=None)], nonce="n")
        assert {row.key for row in claim(store, "w.1").rows} == {"past", "ancient"}
        assert not claim(store, "w.2").rows

    def test_due_is_a_matter_of_next_run_time_alone(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        soon = int(store.now()) + 3600
        early = changed(due("early"), next_time=soon)
        late = changed(due("delayed"), next_run_time=soon)
        store.add([early, late], nonce="n")
        assert [row.key for row in claim(store, "w.1").rows] == ["early"]

    def test_those_due_longest_come_first(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        store.add([due(key, LONG_AGO + since) for since, key in enumerate("dbac")], nonce="n")
        first = claim(store, "w.1", limit=3)
        assert [row.key for row in first.rows] == ["d", "b", "a"]
        assert [row.key for row in claim(store, "w.2", limit=3).rows] == ["c"]

    def test_a_claim_says_whether_to_ask_again(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "a", "b", "c")
        assert claim(store, "w.1", limit=2).more
        assert not claim(store, "w.2", limit=2).more

    def test_a_claim_of_very_many_rows_leases_each_once(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        keys = {f"k{number}" for number in range(1100)}
        add(store, *keys)
        rows = claim_all(store, "w")
        assert len(rows) == len(keys)
        assert {row.key for row in rows} == keys

    def test_nothing_due_is_an_empty_answer(self, backend_factory: BackendFactory) -> None:
        claimed = claim(backend_factory(), "w.1")
        assert not claimed.rows
        assert not claimed.more
        assert not claimed.expired
        assert claimed.next_due is None

    def test_a_claim_changes_nothing_of_what_was_declared(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        row = due("k", type="t", data='{"n":1}', cron="@daily", timezone="UTC")
        store.add([row], nonce="n")
        before = found(store, "k")
        (held,) = claim(store, "w.1").rows
        after = found(store, "k")
        # A claimed row contains the time at which it fell due, and not the end of its lease. Only a
        # store with a run history notes when the row was claimed.
        assert held.next_run_time == before.next_run_time
        assert (
            changed(held, next_run_time=after.next_run_time, claimed_at=after.claimed_at) == after
        )
        assert (held.token.owner, held.attempt) == ("w.1", 1)
        free = changed(after, owner=None, fence=0, attempt=0, claimed_at=None)
        assert changed(free, next_run_time=before.next_run_time) == before

    def test_a_lease_ends_by_the_stores_clock_after_its_whole_length(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "k")
        before = store.now()
        claim(store, "w.1", alive_time=LEASE)
        end = found(store, "k").next_run_time
        assert end is not None
        # The store rounds the end up, so that the lease is never shorter than its holder assumes.
        assert floor(before) + LEASE + 1 <= end <= floor(store.now()) + LEASE + 1

    def test_a_lease_is_nobody_elses_until_it_ends(self, backend_factory: BackendFactory) -> None:
        one, other = backend_factory(), backend_factory()
        leased(one, "k")
        assert not claim(other, "w.2").rows

    def test_the_next_due_row_is_told_if_it_is_near(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        far = int(store.now()) + 3600
        store.add([due("far", far)], nonce="n")
        assert claim(store, "w.1", horizon=60).next_due is None
        claimed = claim(store, "w.2", horizon=7200)
        assert claimed.next_due == far
        assert claimed.now is not None
        assert abs(claimed.now - store.now()) < LEASE
        add(store, "due")
        claimed = claim(store, "w.3", horizon=7200)
        assert [row.key for row in claimed.rows] == ["due"]
        assert claimed.next_due == far

    def test_a_lease_that_ran_out_is_taken_over(self, backend_factory: BackendFactory) -> None:
        one, other = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(one, "lost")
        add(one, "fresh")
        assert {row.key for row in claim(other, "w.2").rows} == {"lost", "fresh"}
        taken = found(other, "lost")
        assert taken.token not in {lost.token, Token("", 0)}
        assert taken.next_time == lost.next_time

    def test_a_row_that_was_settled_is_not_taken_over_but_claimed(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "k")
        store.settle([ending(held)])
        wait_for_end(store, "k")
        claimed = claim(store, "w.2")
        assert [row.key for row in claimed.rows] == ["k"]
        assert not claimed.expired

    def test_what_is_at_rest_is_left_alone(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        store.settle([ending(held, rest=True, status=FINISHED)])
        resting = found(store, "k")
        assert not claim(store, "w.2", horizon=7200).rows
        assert found(store, "k") == resting

    def test_who_has_claimed_is_told_what_is_held(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "mine", "settled")
        mine, settled = sorted(claim(store, "w.1").rows, key=lambda row: row.key)
        leased(store, "theirs", "w.2")
        add(store, "free")
        store.settle([ending(settled)])
        (held,) = store.held("w.1", ["mine", "settled", "theirs", "free", "missing"])
        assert held == found(store, "mine")
        assert held.token == mine.token
        assert [row.key for row in store.held("w.1", [])] == ["mine"]
        assert not store.held("w.3", ["mine"])

    def test_a_lease_that_ran_out_is_not_held(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "k")
        claim(store, "w.1", **MOMENT)
        wait_for_end(store, "k")
        assert not store.held("w.1", ["k"])
