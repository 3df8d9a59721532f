"""Tests of ``recover``, which releases the leases of a dead worker, and of ``purge``."""

from dataclasses import replace as changed
from math import floor

from psched.core.model import DELETING, FINISHED, MARKS, PAUSED, WAITING
from psched.core.store_protocol import Settled, Store
from psched.testing.store_contract.bench import (
    LATER,
    LEASE,
    LONG_AGO,
    BackendFactory,
    WithStore,
    add,
    claim,
    claim_all,
    due,
    ending,
    found,
    leased,
    leased_for_a_moment,
)


def _recovered(store: Store, nonce: str) -> set[str]:
    keys = store.recover(nonce, alive_time=LEASE, retry_wait=300.0)
    assert len(keys) == len(set(keys))
    return set(keys)


class Recovery(WithStore):
    """Tests that ``recover`` releases all leases of the dead worker, and no other lease."""

    def test_what_a_dead_worker_held_can_be_claimed_at_once(
        self, store: Store, other: Store
    ) -> None:
        add(store, "a", "b")
        # A worker names another owner in each claim, so `recover` must find both owners.
        claim(store, "dead.1", limit=1)
        claim(store, "dead.2", limit=1)
        before = store.look(["a", "b"])
        assert _recovered(other, "dead") == {"a", "b"}
        claimed = claim(store, "alive.1")
        assert {row.key for row in claimed.rows} == {"a", "b"}
        for row in claimed.rows:
            assert row.fence == before[row.key].fence + 1
            assert row.next_time == before[row.key].next_time
            assert row.attempt == 2  # noqa: PLR2004  # the first one killed its worker

    def test_recovering_twice_finds_nothing_more(self, store: Store, other: Store) -> None:
        leased(store, "k", "dead.1")
        assert _recovered(other, "dead") == {"k"}
        assert _recovered(other, "dead") == set()

    def test_an_occurrence_that_kills_again_waits(self, store: Store, other: Store) -> None:
        leased(store, "k", "dead.1")
        _recovered(other, "dead")
        claim(store, "next.1")
        before = floor(store.now())
        assert _recovered(other, "next") == {"k"}
        after = floor(store.now())
        row = found(store, "k")
        assert before + 301 <= (row.next_run_time or 0) <= after + 301
        assert (row.owner, row.attempt) == (None, 2)
        assert row.reason
        assert not claim(store, "w.1").rows

    def test_it_waits_longer_each_time_but_not_without_end(
        self, store: Store, other: Store
    ) -> None:
        waits = {"third": (2, 2), "fourth": (3, 3), "often": (99, 12)}
        add(store, *waits)
        rows = claim(store, "first.1").rows
        store.settle([ending(row, attempt=waits[row.key][0]) for row in rows])
        claim_all(store, "dead")
        before = floor(store.now())
        assert _recovered(other, "dead") == waits.keys()
        after = floor(store.now())
        for key, (_, times) in waits.items():
            run_at = found(store, key).next_run_time or 0
            assert before + 300 * times + 1 <= run_at <= after + 300 * times + 1

    def test_the_leases_of_all_others_stay(self, store: Store, other: Store) -> None:
        # A wrong comparison would match these owners with ``dead.1``, or use them as patterns.
        owners = ("deadly.1", "dead1.1", "DEAD.1", "dea.1", "undead.1", "dead", "d_ad.1", "%.1")
        for number, owner in enumerate(owners):
            leased(store, f"k{number}", owner)
        leased(store, "k", "dead.1")
        others = store.look([f"k{number}" for number in range(len(owners))])
        assert _recovered(other, "dead") == {"k"}
        assert store.look([*others]) == others
        assert _recovered(other, "d_ad") == {"k6"}
        assert _recovered(other, "%") == {"k7"}

    def test_what_is_settled_or_taken_over_is_not_the_deads_any_more(
        self, store: Store, other: Store
    ) -> None:
        leased_for_a_moment(store, "lost", owner="dead.1")
        claim(store, "w.1")
        settled = leased(store, "settled", "dead.2")
        store.settle([ending(settled, not_before=4_000_000_000)])
        rows = store.look(["lost", "settled"])
        assert _recovered(other, "dead") == set()
        assert store.look(["lost", "settled"]) == rows

    def test_a_lease_longer_than_was_asked_for_is_left_to_run_out(
        self, store: Store, other: Store
    ) -> None:
        store.add([due("long", alive_time=100 * LEASE), due("short")], nonce="n")
        claim(store, "dead.1")
        assert _recovered(other, "dead") == {"short"}
        assert found(store, "long").owner == "dead.1"

    def test_a_mark_of_deletion_survives_its_holder(self, store: Store, other: Store) -> None:
        leased(store, "k", "dead.1")
        assert not store.delete("k")
        assert _recovered(other, "dead") == {"k"}
        (row,) = claim(store, "w.1").rows
        assert row.status == DELETING
        assert store.settle([ending(row, remove=True)]) == {"k": Settled.DONE}

    def test_very_many_leases_are_released_at_once(self, store: Store, other: Store) -> None:
        keys = {f"k{number}" for number in range(450)}
        add(store, *keys)
        claim_all(store, "dead")
        assert _recovered(other, "dead") == keys
        assert len(claim_all(store, "w")) == len(keys)

    def test_the_reason_of_a_paused_row_stays(self, store: Store, other: Store) -> None:
        """It contains the end of the pause, see `psched.core.operations.pausing`."""
        row = leased(store, "k", "dead.1")
        reason = "paused 2026-11-25T14:05+01:00 until 2026-11-26T08:00+01:00 by ann@web1"
        assert store.replace(row, changed(row, status=PAUSED, reason=reason))
        assert _recovered(other, "dead") == {"k"}
        after = found(store, "k")
        assert (after.status, after.reason, after.owner) == (PAUSED, reason, None)


class Retention(WithStore):
    """Tests that a finished row stays in the store for the time that its settlement states."""

    def test_what_has_ended_may_be_removed_after_the_time_it_is_kept_for(
        self, store: Store, other: Store
    ) -> None:
        add(store, "kept", "brief", "for ever", "waiting")
        rows = {row.key: row for row in claim(store, "w.1").rows}
        before = floor(store.now())
        rest = {"rest": True, "status": FINISHED}
        results = store.settle(
            [
                ending(rows["kept"], **rest, retain=60),
                ending(rows["brief"], **rest, retain=0),
                ending(rows["for ever"], **rest),
                ending(rows["waiting"], not_before=LATER),
            ]
        )
        after = floor(store.now())
        assert set(results.values()) == {Settled.DONE}
        until = {row.key: row.retain_until for row in other.rows()}
        assert before + 60 <= (until["kept"] or 0) <= after + 60
        assert before <= (until["brief"] or 0) <= after
        assert until["for ever"] is None
        assert until["waiting"] is None
        assert store.purge(100) == 1
        assert {row.key for row in store.rows()} == {"kept", "for ever", "waiting"}
        assert store.purge(100) == 0

    def test_what_is_not_kept_at_all_frees_its_key_as_it_ends(
        self, store: Store, other: Store
    ) -> None:
        add(store, "gone", "kept")
        gone, kept = (row for _, row in sorted((r.key, r) for r in claim(store, "w.1").rows))
        rest = {"rest": True, "status": FINISHED}
        ends = [ending(gone, **rest, retain=0, remove=True), ending(kept, **rest, retain=60)]
        assert set(store.settle(ends).values()) == {Settled.DONE}
        assert [row.key for row in other.rows()] == ["kept"]
        add(store, "gone")
        (again,) = claim(store, "w.2").rows
        assert (again.key, again.fence, again.retain_until) == ("gone", 1, None)
        # A late repetition of the settle must not end the new lease. The test does not check how
        # the store answers.
        store.settle(ends[:1])
        assert found(store, "gone").token == again.token

    def test_no_more_are_purged_than_asked_for(self, store: Store) -> None:
        keys = [f"k{number}" for number in range(5)]
        add(store, *keys)
        rows = claim(store, "w.1").rows
        store.settle([ending(row, rest=True, status=FINISHED, retain=0) for row in rows])
        assert [store.purge(2) for _ in range(4)] == [2, 2, 1, 0]

    def test_what_is_put_back_to_work_is_kept(self, store: Store) -> None:
        held = leased(store, "k")
        store.settle([ending(held, rest=True, status=FINISHED, retain=0)])
        seen = found(store, "k")
        new = changed(seen, status=WAITING, next_run_time=LONG_AGO, retain_until=None)
        assert store.replace(seen, new)
        assert store.purge(10) == 0
        (again,) = claim(store, "w.2").rows
        assert (again.key, again.retain_until) == ("k", None)

    def test_a_row_can_be_put_at_rest_for_a_while(self, store: Store) -> None:
        add(store, "k", "other")
        for key, until in (("k", LONG_AGO), ("other", LATER)):
            seen = found(store, key)
            rest = changed(seen, status=FINISHED, next_run_time=None, retain_until=until)
            assert store.replace(seen, rest)
            assert found(store, key).retain_until == until
        assert not claim(store, "w.1").rows
        assert store.purge(10) == 1
        assert [row.key for row in store.rows()] == ["other"]

    def test_its_holder_is_told_what_a_leased_row_is_to_become(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        marks = {f"is {mark}": mark for mark in MARKS}
        add(worker, *marks, "other")
        held = {row.key: row for row in claim(worker, "w.1", limit=len(marks) + 1).rows}
        for key, mark in marks.items():
            seen = found(person, key)
            assert person.replace(seen, changed(seen, status=mark))
        assert worker.marked([*held, "missing"]) == marks
        # A mark raises the version. So the store refuses the settle, and the holder reads the row.
        results = worker.settle([ending(row) for row in held.values()])
        assert results == {**dict.fromkeys(marks, Settled.REDEFINED), "other": Settled.DONE}
