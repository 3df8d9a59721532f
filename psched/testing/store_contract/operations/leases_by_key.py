"""Tests of ``claim_keys``, which leases rows by their keys, whether they are due or not."""

from collections.abc import Sequence
from dataclasses import replace as changed
from itertools import chain
from math import floor
from typing import Any, cast

from psched.core.attempts import borrowed, returned
from psched.core.history.protocol import KeepsHistory
from psched.core.model import CANCELLING, DELETING, FINISHED, PAUSED, Row, Settlement
from psched.core.store_protocol import LeasesByKey, Settled, Store
from psched.testing.store_contract.bench import (
    LATER,
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
from psched.testing.store_contract.contention import at_once

_REASON = "by ann@web1: deploy"


def _claim_keys(
    store: Store, owner: str, *keys: str, alive_time: int = LEASE, shortest: int = 1
) -> list[Row]:
    assert isinstance(store, LeasesByKey)
    return [*store.claim_keys(owner, keys, alive_time=alive_time, shortest=shortest)]


def _waiting(store: Store, key: str, **columns: Any) -> Row:  # noqa: ANN401  # a Row's fields
    """Add a row that is due later, and return it as it is stored."""
    store.add([changed(due(key, LATER), **columns)], nonce="n")
    return found(store, key)


def _paused(store: Store, key: str) -> Row:
    """Add a row that is paused until somebody resumes it, and return it as it is stored."""
    add(store, key)
    seen = found(store, key)
    paused = changed(seen, status=PAUSED, next_run_time=None, reason=_REASON)
    assert store.replace(seen, paused)
    return found(store, key)


def _borrowed_for_a_moment(store: Store, before: Row) -> Row:
    """Lease a row by its key, and wait until the lease has ended; return the leased row."""
    (row,) = _claim_keys(store, "dead.1", before.key, **MOMENT)
    wait_for_end(store, before.key)
    return row


def _given_back(row: Row, before: Row) -> Settlement:
    """A settlement that ends the lease of a row, and changes nothing else."""
    return ending(
        row,
        not_before=before.next_run_time,
        rest=before.next_run_time is None,
        attempt=before.attempt,
        status=before.status,
        reason=before.reason,
    )


def _definition(row: Row) -> Row:
    """A row without the columns that tell of its leases."""
    return changed(row, owner=None, fence=0, claimed_at=None, settled_by=None)


class LeasesByKeyContract:
    """Tests that a row is leased by its key, and that it can return to what it was.

    A subclass needs the fixture ``backend_factory``.
    """

    def test_a_row_that_is_not_due_is_leased(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        before = _waiting(store, "k")
        start = floor(store.now())
        (row,) = _claim_keys(store, "w.1", "k")
        end = floor(store.now())
        assert (row.owner, row.fence) == ("w.1", before.fence + 1)
        assert _definition(row) == _definition(before)
        after = found(backend_factory(), "k")
        assert after.token == row.token
        assert start + LEASE + 1 <= (after.next_run_time or 0) <= end + LEASE + 1
        assert after.attempt == borrowed(LATER, 0)
        assert returned(after) == (LATER, 0)
        kept = changed(after, next_run_time=before.next_run_time, attempt=before.attempt)
        assert _definition(kept) == _definition(before)

    def test_a_row_that_is_due_is_leased(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "k")
        (row,) = _claim_keys(store, "w.1", "k")
        assert (row.next_run_time, row.attempt) == (LONG_AGO, 0)
        assert not claim(store, "w.2").rows
        assert returned(found(store, "k")) == (LONG_AGO, 0)

    def test_a_paused_row_is_leased(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        before = _paused(store, "k")
        (row,) = _claim_keys(store, "w.1", "k")
        assert _definition(row) == _definition(before)
        after = found(store, "k")
        assert (after.status, after.reason) == (PAUSED, _REASON)
        assert returned(after) == (None, 0)

    def test_the_number_of_attempts_is_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        store.settle([ending(leased(store, "k"), attempt=3, not_before=LATER)])
        (row,) = _claim_keys(store, "w.2", "k")
        assert row.attempt == 3  # noqa: PLR2004  # as it was settled
        assert returned(found(store, "k")) == (LATER, 3)

    def test_a_row_without_a_time_to_return_to_keeps_its_attempt(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        _waiting(store, "timeless", next_time=None)
        store.settle([ending(leased(store, "noted"), attempt=-1, not_before=LATER)])
        rows = {row.key: row for row in _claim_keys(store, "w.2", "timeless", "noted")}
        for key, attempt in ("timeless", 0), ("noted", -1):
            assert (rows[key].attempt, rows[key].next_run_time) == (attempt, LATER)
            assert found(store, key).attempt == attempt

    def test_a_rows_own_alive_time_counts(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        _waiting(store, "own", alive_time=1000)
        _waiting(store, "short", alive_time=1)
        start = floor(store.now())
        assert len(_claim_keys(store, "w.1", "own", "short", shortest=500)) == len(["own", "short"])
        end = floor(store.now())
        for key, length in ("own", 1000), ("short", 500):
            ends = found(store, key).next_run_time or 0
            assert start + length + 1 <= ends <= end + length + 1

    # --- what is not leased ------------------------------------------------------------

    def test_what_somebody_holds_and_what_does_not_exist_is_left_out(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        leased(store, "claimed")
        add(store, "K", "taken", "free")
        _claim_keys(store, "w.2", "taken")
        before = store.look(["claimed", "taken", "K"])
        rows = _claim_keys(store, "w.3", "claimed", "taken", "unknown", "k", "free", "free")
        assert [row.key for row in rows] == ["free"]
        assert store.look([*before]) == before
        assert _claim_keys(store, "w.4", "unknown") == []
        assert _claim_keys(store, "w.5") == []
        assert store.get("unknown") is None

    def test_a_row_with_a_mark_is_left_out(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        marks = DELETING, CANCELLING, FINISHED
        for mark in marks:
            add(store, mark)
            seen = found(store, mark)
            assert store.replace(seen, changed(seen, status=mark))
        before = store.look(marks)
        assert _claim_keys(store, "w.1", *marks) == []
        assert store.look(marks) == before

    def test_a_regular_run_whose_lease_has_ended_is_left_to_be_recovered(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        leased_for_a_moment(store, "k")
        before = found(store, "k")
        assert _claim_keys(store, "w.2", "k") == []
        assert found(store, "k") == before
        claimed = claim(store, "w.3")
        assert claimed.expired["k"].token == before.token
        assert [row.attempt for row in claimed.rows] == [before.attempt + 1]

    def test_very_many_keys_are_leased_at_once(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        keys = [f"k{number}" for number in range(450)]
        add(store, *keys)
        taken = {row.key for row in claim(store, "w.1", limit=7).rows}
        rows = _claim_keys(store, "w.2", *keys)
        assert sorted([*taken, *(row.key for row in rows)]) == sorted(keys)
        assert {row.owner for row in rows} == {"w.2"}
        assert not claim_all(store, "w3")

    # --- the lease ---------------------------------------------------------------------

    def test_the_lease_is_extended_and_settled_by_its_token(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        for before in _waiting(store, "waiting"), _paused(store, "paused"):
            key = before.key
            (row,) = _claim_keys(store, f"w.{key}", key)
            held = store.extend({key: row.token}, alive_time=5 * LEASE, shortest=1)
            assert held == {key}
            assert (found(store, key).next_run_time or 0) > store.now() + 2 * LEASE
            for _ in range(2):
                assert store.settle([_given_back(row, before)]) == {key: Settled.DONE}
            after = found(backend_factory(), key)
            assert _definition(after) == _definition(before)
            assert after.settled_by in {str(row.token), before.settled_by}
            assert [again.key for again in _claim_keys(store, f"x.{key}", key)] == [key]
            assert store.settle([_given_back(row, before)]) == {key: Settled.DONE}

    def test_a_row_that_was_redefined_meanwhile_is_not_settled_by_the_old_definition(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        before = _waiting(person, "k")
        (row,) = _claim_keys(worker, "w.1", "k")
        seen = found(person, "k")
        assert person.replace(seen, changed(seen, status=PAUSED, reason=_REASON))
        assert worker.settle([_given_back(row, before)]) == {"k": Settled.REDEFINED}
        now = found(worker, "k")
        assert (now.token, returned(now)) == (row.token, (LATER, 0))
        assert worker.settle([_given_back(now, changed(now, attempt=0))]) == {"k": Settled.DONE}
        assert (found(worker, "k").status, found(worker, "k").reason) == (PAUSED, _REASON)

    def test_a_leased_row_is_marked_and_not_deleted(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        _waiting(store, "k")
        (row,) = _claim_keys(store, "w.1", "k")
        assert not store.delete("k")
        assert store.marked(["k"]) == {"k": DELETING}
        end = ending(found(store, "k"), remove=True)
        assert end.token == row.token
        assert store.settle([end]) == {"k": Settled.DONE}

    def test_an_owner_is_told_what_it_holds(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        _waiting(store, "a")
        _paused(store, "b")
        _claim_keys(store, "w.1", "a", "b")
        _waiting(store, "c")
        _claim_keys(store, "w.2", "c")
        held = {row.key: returned(row) for row in backend_factory().held("w.1", ["a", "b", "c"])}
        assert held == {"a": (LATER, 0), "b": (None, 0)}

    def test_only_one_of_several_workers_gets_a_row(self, backend_factory: BackendFactory) -> None:
        keys = [f"k{number}" for number in range(40)]
        store = backend_factory()
        add(store, *keys)

        def work(store: Store, number: int) -> Sequence[str]:
            if number == 0:
                return [row.key for row in claim_all(store, "regular")]
            # It passes on every method, so it has the capability, but not by a check of its class.
            by_key = cast("LeasesByKey", store)
            return [
                row.key
                for count, some in enumerate([*([key] for key in keys), keys])
                for row in by_key.claim_keys(
                    f"w{number}.{count}", some, alive_time=LEASE, shortest=1
                )
            ]

        taken = at_once(backend_factory, work)
        assert sorted(chain.from_iterable(taken)) == sorted(keys)
        assert {row.fence for row in store.rows()} == {1}

    # --- after the death of the worker ---------------------------------------------------

    def test_a_recovered_row_knows_what_to_return_to(self, backend_factory: BackendFactory) -> None:
        """Nothing ran, so there is no record of a lost attempt, and what was written stays."""
        store = backend_factory()
        befores = _waiting(store, "waiting"), _paused(store, "paused")
        _claim_keys(store, "dead.1", "waiting", "paused")
        released = store.recover("dead", alive_time=LEASE, retry_wait=300.0)
        assert sorted(released) == ["paused", "waiting"]
        if isinstance(store, KeepsHistory):
            assert [*store.runs()] == []
        for before in befores:
            row = found(store, before.key)
            assert (row.owner, row.status, row.reason) == (None, before.status, before.reason)
            assert returned(row) == (before.next_run_time, 0)
            wait_for_end(store, before.key)
        rows = {row.key: row for row in claim(store, "w.1").rows}
        for before in befores:
            assert returned(rows[before.key]) == (before.next_run_time, 0)
            end = _given_back(rows[before.key], before)
            assert store.settle([end]) == {before.key: Settled.DONE}
            assert _definition(found(store, before.key)) == _definition(before)

    def test_a_recovered_row_is_leased_again_and_still_knows_it(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        _paused(store, "k")
        _claim_keys(store, "dead.1", "k")
        store.recover("dead", alive_time=LEASE, retry_wait=0.0)
        (row,) = _claim_keys(store, "w.1", "k")
        assert returned(row) == returned(found(store, "k")) == (None, 0)

    def test_a_row_whose_lease_by_key_has_ended_is_leased_again_and_still_knows_it(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        before = _paused(store, "k")
        dead = _borrowed_for_a_moment(store, before)
        ended = found(store, "k").next_run_time
        (row,) = _claim_keys(store, "w.1", "k")
        assert (row.owner, row.fence) == ("w.1", dead.fence + 1)
        assert (returned(row), row.next_run_time) == ((None, 0), ended)
        assert returned(found(store, "k")) == (None, 0)
        assert store.settle([_given_back(dead, before)]) == {"k": Settled.PREEMPTED}
        assert store.recover("dead", alive_time=LEASE, retry_wait=0.0) == []
        assert store.settle([_given_back(row, before)]) == {"k": Settled.DONE}
        assert _definition(found(store, "k")) == _definition(before)

    def test_a_row_whose_lease_by_key_has_ended_is_claimed_as_due(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        dead = _borrowed_for_a_moment(store, _waiting(store, "k"))
        claimed = claim(store, "w.1")
        (row,) = claimed.rows
        assert claimed.expired["k"].token == dead.token
        assert returned(row) == (LATER, 0)
