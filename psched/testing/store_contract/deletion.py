"""Tests of ``delete``: it deletes a free row at once; it marks a leased row for its holder."""

from dataclasses import replace as changed

from psched.base.errors import AlreadyExistsError, NotFoundError
from psched.core.model import DELETING, FINISHED
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import (
    LEASE,
    BackendFactory,
    add,
    claim,
    due,
    ending,
    found,
    leased,
    leased_for_a_moment,
    refused,
    wait_for_end,
)


class Deletion:
    """Tests that a key can be used again only when no task of its old schedule can be running."""

    def test_a_row_that_nobody_holds_is_removed(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "due", "other")
        store.add([due("waiting", int(store.now()) + 3600)], nonce="n")
        assert store.delete("due")
        assert store.delete("waiting")
        assert [row.key for row in store.rows()] == ["other"]

    def test_a_row_at_rest_is_removed(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        store.settle([ending(held, rest=True, status=FINISHED)])
        assert store.delete("k")
        assert store.get("k") is None

    def test_a_row_whose_lease_ran_out_is_removed(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        leased_for_a_moment(store, "k")
        assert store.delete("k")
        assert store.get("k") is None

    def test_a_missing_row_is_named(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        with refused(NotFoundError):
            store.delete("k")
        add(store, "k")
        store.delete("k")
        with refused(NotFoundError):
            store.delete("k")

    def test_nothing_is_marked_among_no_rows(self, backend_factory: BackendFactory) -> None:
        assert backend_factory().marked([]) == {}


class Marks:
    """Tests for stores in which ``delete`` marks a leased row, so that its holder deletes it."""

    def test_a_leased_row_is_marked_and_its_lease_goes_on(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        held, other = leased(worker, "k"), leased(worker, "other", "worker.2")
        before = found(person, "k")
        assert not person.delete("k")
        marked = found(worker, "k")
        assert marked == changed(before, status=DELETING, version=before.version + 1)
        assert worker.marked(["k", "other", "missing"]) == {"k": DELETING}
        leases = {"k": held.token, "other": other.token}
        assert worker.extend(leases, alive_time=LEASE, shortest=1) == {"k", "other"}

    def test_marking_may_be_repeated(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        leased(store, "k")
        assert not store.delete("k")
        marked = found(store, "k")
        assert not store.delete("k")
        assert found(store, "k") == marked

    def test_a_marked_key_is_taken_until_its_holder_removes_it(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        held = leased(worker, "k")
        person.delete("k")
        with refused(AlreadyExistsError):
            add(person, "k")
        # The store refuses the settle, so that the holder reads the row and sees the mark.
        assert worker.settle([ending(held)]) == {"k": Settled.REDEFINED}
        assert worker.settle([ending(found(worker, "k"), remove=True)]) == {"k": Settled.DONE}
        add(person, "k")

    def test_a_marked_row_whose_holder_is_gone_is_claimed_to_be_removed(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "k", "by hand")
        # The leases must not end before both rows are marked, even on a slow machine.
        claim(store, "w.1", alive_time=3)
        marked = [key for key in ("k", "by hand") if not store.delete(key)]
        assert len(marked) == 2  # noqa: PLR2004  # both rows were marked
        for key in marked:
            wait_for_end(store, key)
        assert store.delete("by hand")
        (row,) = claim(store, "w.2").rows
        assert row.status == DELETING
        assert store.settle([ending(row, remove=True)]) == {"k": Settled.DONE}
        assert [*store.rows()] == []
