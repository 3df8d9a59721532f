"""Leasing what is due: claim, and held for a claim whose answer was lost."""

from dataclasses import replace as changed
from math import floor

from psched.model import FINISHED, Row, Token
from psched.testing.bench import (
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
from psched.timing import LONGEST_ALIVE_TIME


class Claims:
    """A claim leases due rows to one owner, each until the store's now + alive_time."""

    def test_only_what_is_due_is_claimed(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        soon = int(store.now()) + 3600
        store.add([due("past"), due("ancient", 0), due("future", soon)], nonce="n")
        store.add([Row(key="resting", next_time=LONG_AGO, next_run_time=None)], nonce="n")
        assert {row.key for row in claim(store, "w.1").rows} == {"past", "ancient"}
        assert claim(store, "w.2").rows == ()

    def test_due_is_a_matter_of_next_run_time_alone(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        soon = int(store.now()) + 3600
        early = Row(key="early", next_time=soon, next_run_time=LONG_AGO)
        late = Row(key="delayed", next_time=LONG_AGO, next_run_time=soon)
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
        assert {row.fence for row in store.rows()} == {1}

    def test_nothing_due_is_an_empty_answer(self, backend_factory: BackendFactory) -> None:
        claimed = claim(backend_factory(), "w.1")
        assert not claimed.rows
        assert not claimed.more
        assert not claimed.expired
        assert claimed.next_due is None

    def test_a_claim_returns_the_rows_as_it_leaves_them(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        row = due("k", type="t", data='{"n":1}', cron="@daily", timezone="UTC", options="{}")
        store.add([row], nonce="n")
        before = found(store, "k")
        (held,) = claim(store, "w.1").rows
        after = found(backend_factory(), "k")
        # Whether the answer holds the lease's end is the store's choice.
        assert changed(held, next_run_time=after.next_run_time) == after
        assert held.token == Token("w.1", before.fence + 1)
        assert held.attempt == 1
        assert changed(
            after, owner=None, fence=0, attempt=0, next_run_time=before.next_run_time
        ) == (before)

    def test_every_claim_of_a_row_raises_its_fence(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        fences = []
        held = leased(store, "k", "w.0")
        for number in range(1, 4):
            fences.append(held.fence)
            store.settle([ending(held, attempt=held.attempt)])
            (held,) = claim(store, f"w.{number}").rows
        assert fences == sorted(set(fences))
        assert held.attempt == 4  # noqa: PLR2004  # the fourth of them

    def test_a_lease_ends_by_the_stores_clock_after_its_whole_length(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "k")
        before = store.now()
        claim(store, "w.1", alive_time=LEASE)
        end = found(store, "k").next_run_time
        assert end is not None
        # Rounded up, so that it is never shorter than what its holder counts.
        assert floor(before) + LEASE + 1 <= end <= floor(store.now()) + LEASE + 1

    def test_a_row_may_have_a_lease_of_its_own_length(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        own = {"longer": 1000, "short": 3, "zero": 0, "endless": 2**62}
        rows = [due(key, alive_time=alive_time) for key, alive_time in own.items()]
        store.add(rows, nonce="n")
        before = floor(store.now()) + 1
        claim(store, "w.1", alive_time=LEASE, shortest=20)
        after = floor(store.now()) + 1
        lengths = {"longer": 1000, "short": 20, "zero": 20, "endless": LONGEST_ALIVE_TIME}
        for key, length in lengths.items():
            assert before + length <= (found(store, key).next_run_time or 0) <= after + length

    def test_a_lease_is_nobody_elses_until_it_ends(self, backend_factory: BackendFactory) -> None:
        one, other = backend_factory(), backend_factory()
        leased(one, "k")
        assert not claim(other, "w.2").rows
        assert found(other, "k").owner == "worker.1"

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

    def test_a_lease_that_ran_out_is_taken_over_and_said_to_be(
        self, backend_factory: BackendFactory
    ) -> None:
        one, other = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(one, "lost")
        add(one, "fresh")
        claimed = claim(other, "w.2")
        assert {row.key for row in claimed.rows} == {"lost", "fresh"}
        assert claimed.expired == {"lost"}
        taken = found(other, "lost")
        assert taken.owner == "w.2"
        assert taken.fence == lost.fence + 1
        assert taken.attempt == lost.attempt + 1
        assert taken.next_time == lost.next_time

    def test_a_row_that_was_settled_is_not_taken_over_but_claimed(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "k")
        store.settle([ending(held)])
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

    def test_held_tells_what_a_claim_has_really_done(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "mine", "settled")
        mine, settled = sorted(claim(store, "w.1").rows, key=lambda row: row.key)
        leased(store, "theirs", "w.2")
        add(store, "free")
        store.settle([ending(settled)])
        keys = ["mine", "settled", "theirs", "free", "missing"]
        (held,) = backend_factory().held("w.1", keys)
        assert held == found(store, "mine")
        assert held.token == mine.token
        assert not store.held("w.3", keys)

    def test_a_lease_that_ran_out_is_not_held(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "k")
        claim(store, "w.1", **MOMENT)
        wait_for_end(store, "k")
        assert not store.held("w.1", ["k"])
