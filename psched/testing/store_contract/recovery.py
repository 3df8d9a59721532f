"""Tests of ``recover``, which releases the leases of a worker that has died on a living host."""

from dataclasses import replace as changed
from math import floor

from psched.core.model import DELETING, PAUSED
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import (
    LEASE,
    BackendFactory,
    add,
    claim,
    claim_all,
    due,
    ending,
    found,
    leased,
    leased_for_a_moment,
)


def _recovered(backend_factory: BackendFactory, nonce: str) -> set[str]:
    keys = backend_factory().recover(nonce, alive_time=LEASE, retry_wait=300.0)
    assert len(keys) == len(set(keys))
    return set(keys)


class Recovery:
    """Tests that ``recover`` releases all leases of the dead worker, and no other lease."""

    def test_what_a_dead_worker_held_can_be_claimed_at_once(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "a", "b")
        # A worker names another owner in each claim, so `recover` must find both owners.
        claim(store, "dead.1", limit=1)
        claim(store, "dead.2", limit=1)
        before = store.look(["a", "b"])
        assert _recovered(backend_factory, "dead") == {"a", "b"}
        claimed = claim(store, "alive.1")
        assert {row.key for row in claimed.rows} == {"a", "b"}
        for row in claimed.rows:
            assert row.fence == before[row.key].fence + 1
            assert row.next_time == before[row.key].next_time
            assert row.attempt == 2  # noqa: PLR2004  # the first one killed its worker

    def test_recovering_twice_finds_nothing_more(self, backend_factory: BackendFactory) -> None:
        leased(backend_factory(), "k", "dead.1")
        assert _recovered(backend_factory, "dead") == {"k"}
        assert _recovered(backend_factory, "dead") == set()

    def test_an_occurrence_that_kills_again_waits(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        leased(store, "k", "dead.1")
        _recovered(backend_factory, "dead")
        claim(store, "next.1")
        before = floor(store.now())
        assert _recovered(backend_factory, "next") == {"k"}
        after = floor(store.now())
        row = found(store, "k")
        assert before + 301 <= (row.next_run_time or 0) <= after + 301
        assert (row.owner, row.attempt) == (None, 2)
        assert row.reason
        assert not claim(store, "w.1").rows

    def test_it_waits_longer_each_time_but_not_without_end(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        waits = {"third": (2, 2), "fourth": (3, 3), "often": (99, 12)}
        add(store, *waits)
        rows = claim(store, "first.1").rows
        store.settle([ending(row, attempt=waits[row.key][0]) for row in rows])
        claim_all(store, "dead")
        before = floor(store.now())
        assert _recovered(backend_factory, "dead") == waits.keys()
        after = floor(store.now())
        for key, (_, times) in waits.items():
            run_at = found(store, key).next_run_time or 0
            assert before + 300 * times + 1 <= run_at <= after + 300 * times + 1

    def test_the_leases_of_all_others_stay(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        # A wrong comparison would match these owners with ``dead.1``, or use them as patterns.
        owners = ("deadly.1", "dead1.1", "DEAD.1", "dea.1", "undead.1", "dead", "d_ad.1", "%.1")
        for number, owner in enumerate(owners):
            leased(store, f"k{number}", owner)
        leased(store, "k", "dead.1")
        others = store.look([f"k{number}" for number in range(len(owners))])
        assert _recovered(backend_factory, "dead") == {"k"}
        assert store.look([*others]) == others
        assert _recovered(backend_factory, "d_ad") == {"k6"}
        assert _recovered(backend_factory, "%") == {"k7"}

    def test_what_is_settled_or_taken_over_is_not_the_deads_any_more(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        leased_for_a_moment(store, "lost", owner="dead.1")
        claim(store, "w.1")
        settled = leased(store, "settled", "dead.2")
        store.settle([ending(settled, not_before=4_000_000_000)])
        rows = store.look(["lost", "settled"])
        assert _recovered(backend_factory, "dead") == set()
        assert store.look(["lost", "settled"]) == rows

    def test_a_lease_longer_than_was_asked_for_is_left_to_run_out(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        store.add([due("long", alive_time=100 * LEASE), due("short")], nonce="n")
        claim(store, "dead.1")
        assert _recovered(backend_factory, "dead") == {"short"}
        assert found(store, "long").owner == "dead.1"

    def test_a_mark_of_deletion_survives_its_holder(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        leased(store, "k", "dead.1")
        assert not store.delete("k")
        assert _recovered(backend_factory, "dead") == {"k"}
        (row,) = claim(store, "w.1").rows
        assert row.status == DELETING
        assert store.settle([ending(row, remove=True)]) == {"k": Settled.DONE}

    def test_very_many_leases_are_released_at_once(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        keys = {f"k{number}" for number in range(450)}
        add(store, *keys)
        claim_all(store, "dead")
        assert _recovered(backend_factory, "dead") == keys
        assert len(claim_all(store, "w")) == len(keys)

    def test_the_reason_of_a_paused_row_stays(self, backend_factory: BackendFactory) -> None:
        """It contains the end of the pause, see `psched.core.operations.pausing`."""
        store = backend_factory()
        row = leased(store, "k", "dead.1")
        reason = "paused 2026-11-25T14:05+01:00 until 2026-11-26T08:00+01:00 by ann@web1"
        assert store.replace(row, changed(row, status=PAUSED, reason=reason))
        assert _recovered(backend_factory, "dead") == {"k"}
        after = found(store, "k")
        assert (after.status, after.reason, after.owner) == (PAUSED, reason, None)
