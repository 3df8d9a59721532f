"""Tests of ``hold``, which keeps schedules from being claimed while extra runs of them go on."""

from collections.abc import Sequence
from dataclasses import replace as changed
from itertools import chain
from math import floor
from typing import cast

from psched.core.model import CANCELLING, DELETING, FINISHED, PAUSED, Row
from psched.core.store_protocol import HoldsSchedules, Settled, Store
from psched.testing.store_contract.bench import (
    LATER,
    LEASE,
    LONG_AGO,
    MOMENT,
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
    wait_for_time,
)
from psched.testing.store_contract.contention import at_once


def _holds(store: Store) -> HoldsSchedules:
    assert store.holds is not None
    return store.holds


def _hold(
    store: Store, holder: str, *keys: str, alive_time: int = LEASE, shortest: int = 1
) -> set[str]:
    holds = dict.fromkeys(keys, holder)
    return {*_holds(store).hold(holds, alive_time=alive_time, shortest=shortest)}


def _release(store: Store, holder: str, *keys: str) -> None:
    _holds(store).release(dict.fromkeys(keys, holder))


def _free(row: Row) -> Row:
    return changed(row, held_by=None, held_until=None)


def _held_for_a_moment(store: Store, key: str) -> None:
    """Hold a row, and wait until the hold has ended by the store's clock."""
    assert _hold(store, "dead.1", key, **MOMENT) == {key}
    wait_for_time(store, found(store, key).held_until or 0)


class HoldsContract(WithStore):
    """Tests that a held row is not claimed, and is otherwise as if nobody held it.

    A subclass needs the fixture ``backend_factory``.
    """

    def test_a_held_row_is_not_claimed_and_nothing_else_of_it_changes(
        self, store: Store, other: Store
    ) -> None:
        add(store, "k", "other")
        before = found(store, "k")
        start = floor(store.now())
        assert _hold(store, "w.1", "k") == {"k"}
        end = floor(store.now())
        after = found(other, "k")
        assert _free(after) == before
        assert after.held_by == "w.1"
        assert start + LEASE + 1 <= (after.held_until or 0) <= end + LEASE + 1
        assert [row.key for row in claim(store, "w.2").rows] == ["other"]
        assert store.backlog(10).due == 0
        _release(store, "w.1", "k")
        assert found(store, "k") == before
        assert [row.key for row in claim(store, "w.3").rows] == ["k"]

    def test_many_held_rows_are_not_in_the_way_of_others(self, store: Store) -> None:
        keys = [f"k{number:03}" for number in range(450)]
        store.add([due(key, LONG_AGO + place) for place, key in enumerate(keys)], nonce="n")
        store.add([due("last", LONG_AGO + 1000)], nonce="n")
        assert _hold(store, "w.1", *keys) == {*keys}
        assert [row.key for row in claim(store, "w.2", limit=1).rows] == ["last"]
        _release(store, "w.1", *keys)
        assert {row.key for row in claim_all(store, "w3")} == {*keys}

    def test_a_held_row_that_is_not_due_yet_is_waited_for(self, store: Store) -> None:
        soon = floor(store.now()) + 60
        store.add([due("k", soon)], nonce="n")
        _hold(store, "w.1", "k")
        assert claim(store, "w.2", horizon=100).next_due == soon

    def test_a_row_that_is_not_due_or_is_paused_is_held(self, store: Store) -> None:
        store.add([due("later", LATER), due("paused")], nonce="n")
        seen = found(store, "paused")
        assert store.replace(seen, changed(seen, status=PAUSED, next_run_time=None, reason="r"))
        before = store.look(["later", "paused"])
        assert _hold(store, "w.1", *before) == {*before}
        assert {key: _free(row) for key, row in store.look([*before]).items()} == before

    def test_a_rows_own_alive_time_counts(self, store: Store) -> None:
        store.add([due("own", alive_time=1000), due("short", alive_time=1)], nonce="n")
        start = floor(store.now())
        assert _hold(store, "w.1", "own", "short", shortest=500) == {"own", "short"}
        end = floor(store.now())
        for key, length in ("own", 1000), ("short", 500):
            until = found(store, key).held_until or 0
            assert start + length + 1 <= until <= end + length + 1

    # --- what is not held --------------------------------------------------------------

    def test_what_somebody_runs_or_holds_and_what_does_not_exist_is_left_out(
        self, store: Store
    ) -> None:
        leased(store, "claimed")
        add(store, "K", "held", "free")
        _hold(store, "w.2", "held")
        before = store.look(["claimed", "held", "K"])
        assert _hold(store, "w.3", "claimed", "held", "unknown", "k", "free") == {"free"}
        assert store.look([*before]) == before
        assert _hold(store, "w.4", "unknown") == set()
        assert _hold(store, "w.5") == set()
        assert store.get("unknown") is None

    def test_a_row_with_a_mark_is_left_out(self, store: Store) -> None:
        marks = DELETING, CANCELLING, FINISHED
        for mark in marks:
            add(store, mark)
            seen = found(store, mark)
            assert store.replace(seen, changed(seen, status=mark))
        before = store.look(marks)
        assert _hold(store, "w.1", *marks) == set()
        assert store.look(marks) == before

    def test_a_run_whose_lease_has_ended_is_left_to_be_recovered(self, store: Store) -> None:
        leased_for_a_moment(store, "k")
        before = found(store, "k")
        assert _hold(store, "w.2", "k") == set()
        assert found(store, "k") == before
        claimed = claim(store, "w.3")
        assert claimed.expired["k"].token == before.token

    # --- how long it lasts -------------------------------------------------------------

    def test_a_hold_is_extended_by_its_holder_whatever_became_of_the_row(
        self, store: Store
    ) -> None:
        add(store, "k", "cancelled")
        _hold(store, "w.1", "k", "cancelled")
        seen = found(store, "cancelled")
        assert store.replace(seen, changed(seen, status=CANCELLING))
        assert _hold(store, "w.2", "k", "cancelled", alive_time=5 * LEASE) == set()
        until = found(store, "k").held_until
        assert _hold(store, "w.1", "k", "cancelled", alive_time=5 * LEASE) == {"k", "cancelled"}
        assert (found(store, "k").held_until or 0) > (until or 0) + 2 * LEASE
        _release(store, "w.2", "k")
        assert found(store, "k").held_by == "w.1"

    def test_a_hold_that_has_ended_gives_way_to_another_and_is_not_extended_then(
        self, store: Store
    ) -> None:
        add(store, "k")
        _held_for_a_moment(store, "k")
        assert _hold(store, "w.2", "k") == {"k"}
        assert _hold(store, "dead.1", "k") == set()
        _release(store, "dead.1", "k")
        assert found(store, "k").held_by == "w.2"

    def test_a_hold_that_has_ended_gives_way_to_a_claim_and_is_not_extended_then(
        self, store: Store
    ) -> None:
        add(store, "k")
        _held_for_a_moment(store, "k")
        claimed = claim(store, "w.2")
        assert [row.key for row in claimed.rows] == ["k"]
        assert not claimed.expired
        assert (claimed.rows[0].held_by, found(store, "k").held_by) == (None, None)
        assert _hold(store, "dead.1", "k") == set()
        assert store.settle([ending(claimed.rows[0])]) == {"k": Settled.DONE}

    def test_a_hold_that_has_ended_is_extended_if_nobody_wanted_the_row(self, store: Store) -> None:
        add(store, "k")
        _held_for_a_moment(store, "k")
        assert _hold(store, "dead.1", "k") == {"k"}
        assert not claim(store, "w.2").rows

    def test_only_one_of_several_workers_gets_a_row(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        keys = [f"k{number}" for number in range(40)]
        add(store, *keys)

        def work(store: Store, number: int) -> Sequence[str]:
            if number == 0:
                return [row.key for row in claim_all(store, "regular")]
            # It passes on every method, so it has the capability, but not by a check of its class.
            holds = cast("HoldsSchedules", store)
            return [
                held
                for some in ([key] for key in keys)
                for held in holds.hold(
                    dict.fromkeys(some, f"w{number}"), alive_time=LEASE, shortest=1
                )
            ]

        taken = at_once(backend_factory, work)
        assert sorted(chain.from_iterable(taken)) == sorted(keys)
        assert all((row.owner is None) != (row.held_by is None) for row in store.rows())

    # --- what others do to a held row ----------------------------------------------------

    def test_a_held_row_is_changed_like_any_other(self, backend_factory: BackendFactory) -> None:
        store, person = backend_factory(), backend_factory()
        add(store, "k")
        _hold(store, "w.1", "k")
        seen = found(person, "k")
        assert person.replace(seen, changed(seen, next_time=LATER, next_run_time=LATER))
        after = found(store, "k")
        assert (after.next_run_time, after.held_by) == (LATER, "w.1")
        assert _hold(store, "w.1", "k") == {"k"}

    def test_a_change_does_not_undo_a_later_extension(self, store: Store) -> None:
        add(store, "k")
        _hold(store, "w.1", "k")
        seen = found(store, "k")
        _hold(store, "w.1", "k", alive_time=5 * LEASE)
        until = found(store, "k").held_until
        assert store.replace(seen, changed(seen, type="other"))
        assert found(store, "k").held_until == until

    def test_a_held_row_is_marked_and_removed_after_the_hold(self, store: Store) -> None:
        store.add([due("k", LATER)], nonce="n")
        _hold(store, "w.1", "k")
        assert not store.delete("k")
        assert not store.delete("k")
        assert store.marked(["k"]) == {"k": DELETING}
        assert not claim(store, "w.2").rows
        assert _hold(store, "w.1", "k") == {"k"}
        _release(store, "w.1", "k")
        (row,) = claim(store, "w.3").rows
        assert (row.key, row.status) == ("k", DELETING)
        assert store.settle([ending(row, remove=True)]) == {"k": Settled.DONE}

    def test_a_held_row_that_is_marked_already_becomes_due_once(self, store: Store) -> None:
        store.add([due("k", LATER), due("late")], nonce="n")
        _hold(store, "w.1", "k", "late")
        seen = found(store, "k")
        assert store.replace(seen, changed(seen, status=DELETING))
        start = floor(store.now())
        assert not store.delete("k")
        assert not store.delete("late")
        marked = store.look(["k", "late"])
        assert start <= (marked["k"].next_run_time or 0) <= floor(store.now())
        assert marked["late"].next_run_time == due("late").next_run_time
        wait_for_time(store, floor(store.now()) + 1)
        assert not store.delete("k")
        assert not store.delete("late")
        assert store.look([*marked]) == marked

    def test_a_row_whose_hold_has_ended_is_deleted_at_once(self, store: Store) -> None:
        add(store, "k")
        _held_for_a_moment(store, "k")
        assert store.delete("k")
        assert store.get("k") is None

    def test_a_held_row_is_not_purged(self, store: Store) -> None:
        store.settle([ending(leased(store, "k"), rest=True, retain=0)])
        _hold(store, "w.1", "k")
        assert found(store, "k").held_by == "w.1"
        assert store.purge(10) == 0
        _release(store, "w.1", "k")
        assert store.purge(10) == 1

    # --- after the death of the worker ---------------------------------------------------

    def test_the_holds_of_a_dead_worker_end_and_leave_no_trace(self, store: Store) -> None:
        add(store, "k", "later", "other")
        befores = store.look(["k", "later"])
        _hold(store, "dead.1", "k")
        _hold(store, "dead.2", "later")
        _hold(store, "dead2.1", "other")
        assert store.recover("dead", alive_time=LEASE, retry_wait=300.0) == []
        assert store.look([*befores]) == befores
        assert found(store, "other").held_by == "dead2.1"
        if store.history is not None:
            assert [*store.history.runs()] == []
        assert {row.key for row in claim(store, "w.1").rows} == {*befores}

    def test_a_worker_dies_with_a_lease_and_a_hold(self, store: Store) -> None:
        leased(store, "k!extra", owner="dead.1")
        add(store, "k")
        _hold(store, "dead.2", "k")
        assert store.recover("dead", alive_time=LEASE, retry_wait=0.0) == ["k!extra"]
        assert {row.key for row in claim(store, "w.1").rows} == {"k", "k!extra"}
