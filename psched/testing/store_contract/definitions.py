"""Tests of ``init``, ``add``, ``get``, ``rows``, ``look``, ``replace`` and ``delete``."""

from dataclasses import replace as changed

from psched.base.errors import AlreadyExistsError, NotFoundError
from psched.core.model import DELETING, FINISHED, WAITING, Row
from psched.core.store_protocol import Settled, Store
from psched.testing.store_contract.bench import (
    LEASE,
    LONG_AGO,
    BackendFactory,
    WithStore,
    add,
    claim,
    due,
    ending,
    found,
    leased,
    leased_for_a_moment,
    payload,
    refused,
    wait_for_end,
)

FULL = Row(
    key="clé/鍵 'quoted\" `%s :id \\",
    type="rapport",
    data='{"k":"é 🗝","n":12345678901234567890}',
    cron="*/5 * * * *",
    timezone="Asia/Tokyo",
    delay=30,
    next_time=2_000_000_000,
    next_run_time=2_000_000_030,
    alive_time=77,
    options='{"catchup":"latest"}',
)
"""A row with a value in every column that a client can declare."""


class Definitions(WithStore):
    """Tests that a store stores declared schedules, and returns them unchanged."""

    def test_init_may_be_repeated_and_loses_nothing(self, store: Store, other: Store) -> None:
        add(store, "k")
        assert [*store.init()] == []
        assert found(store, "k") == found(other, "k")

    def test_what_was_declared_is_read_by_every_worker(self, store: Store, other: Store) -> None:
        declared = changed(FULL, alive_time=None, options=None)
        store.add([declared], nonce="n")
        row = found(other, FULL.key)
        assert payload(row.data) == FULL.data
        for name in ("type", "cron", "timezone", "delay", "next_time", "next_run_time", "status"):
            assert getattr(row, name) == getattr(declared, name)

    def test_a_taken_key_is_refused_and_its_row_stays(self, store: Store, other: Store) -> None:
        store.add([due("k", data='{"first":1}')], nonce="n")
        with refused(AlreadyExistsError):
            other.add([due("k", data='{"second":2}')], nonce="m")
        assert payload(found(store, "k").data) == '{"first":1}'

    def test_of_several_rows_all_are_added_or_none(self, store: Store) -> None:
        add(store, "b")
        with refused(AlreadyExistsError):
            add(store, "a", "b", "c")
        assert store.get("a") is None
        assert store.get("c") is None
        many = [f"m{number}" for number in range(500)]
        add(store, *many)
        assert len(store.look(many)) == len(many)

    def test_of_very_many_rows_all_are_added_or_none(self, store: Store) -> None:
        """This test adds more rows than the store can insert by one statement."""
        keys = [f"m{number}" for number in range(1500)]
        add(store, keys[-1])
        with refused(AlreadyExistsError):
            add(store, *keys)
        assert [row.key for row in store.rows()] == keys[-1:]
        add(store, *keys[:-1])
        assert len(store.look(keys)) == len(keys)

    def test_adding_nothing_is_nothing(self, store: Store) -> None:
        store.add([], nonce="n")
        assert [*store.rows()] == []

    def test_a_missing_key_has_no_row(self, store: Store) -> None:
        add(store, "k")
        assert store.get("K") is None
        assert store.get("") is None

    def test_a_large_payload_is_kept_to_the_byte(self, store: Store) -> None:
        data = '{"k":"' + "é\\u0000'" * 50_000 + '"}'
        store.add([due("k", data=data)], nonce="n")
        assert payload(found(store, "k").data) == data

    def test_look_finds_those_that_exist(self, store: Store) -> None:
        add(store, "a", "b")
        assert store.look(["a", "b", "c"]) == {key: found(store, key) for key in ("a", "b")}
        assert store.look([]) == {}

    def test_rows_come_in_the_order_of_their_times_and_those_at_rest_last(
        self, store: Store
    ) -> None:
        resting = leased(store, "resting")
        store.settle([ending(resting, rest=True, status=FINISHED)])
        later = [due("late", LONG_AGO + 9), due("early", LONG_AGO), due("next", LONG_AGO + 5)]
        store.add(later, nonce="n")
        assert [row.key for row in store.rows()] == ["early", "next", "late", "resting"]

    def test_a_store_that_can_count_counts_all_rows(self, store: Store) -> None:
        assert store.count() == 0
        resting = leased(store, "resting")
        store.settle([ending(resting, rest=True, status=FINISHED)])
        leased(store, "runs")
        add(store, "waits", "other")
        assert store.count() == len([*store.rows()])


class Replacements(WithStore):
    """Tests that only a client that has read a row's present state can change its definition."""

    def test_a_replacement_changes_the_definition_and_the_times(
        self, store: Store, other: Store
    ) -> None:
        add(store, "k")
        seen = found(store, "k")
        new = changed(FULL, key="k", alive_time=None, options=None)
        assert store.replace(seen, new)
        row = found(other, "k")
        assert row == changed(
            new,
            data=row.data,
            version=row.version,
            settled_by=seen.settled_by,
            created_at=seen.created_at,
        )
        assert payload(row.data) == FULL.data
        assert row.version != seen.version

    def test_of_two_replacements_of_the_same_row_the_second_is_refused(
        self, store: Store, other: Store
    ) -> None:
        add(store, "k")
        seen = found(store, "k")
        assert other.replace(seen, changed(seen, type="theirs"))
        assert not store.replace(seen, changed(seen, type="mine"))
        assert found(store, "k").type == "theirs"

    def test_a_replacement_of_a_row_that_has_moved_on_is_refused(self, store: Store) -> None:
        add(store, "k")
        free = found(store, "k")
        (held,) = claim(store, "worker.1").rows
        assert not store.replace(free, changed(free, next_time=5, next_run_time=5))
        running = found(store, "k")
        store.settle([ending(held, next_time=LONG_AGO + 60, not_before=LONG_AGO + 60)])
        settled = found(store, "k")
        assert not store.replace(running, changed(running, next_time=5))
        assert found(store, "k") == settled

    def test_a_removed_row_cannot_be_replaced(self, store: Store) -> None:
        add(store, "k")
        seen = found(store, "k")
        store.delete("k")
        assert not store.replace(seen, changed(seen, type="new"))
        assert store.get("k") is None

    def test_a_replacement_never_touches_a_lease(self, backend_factory: BackendFactory) -> None:
        worker, person = backend_factory(), backend_factory()
        held = leased(worker, "k")
        seen = found(person, "k")
        # The replacement must succeed although the holder extends its lease after this read.
        assert worker.extend({"k": held.token}, alive_time=600, shortest=1) == {"k"}
        before = found(worker, "k")
        assert person.replace(seen, changed(seen, type="new"))
        after = found(worker, "k")
        assert changed(after, type=before.type, version=before.version) == before
        assert after.type == "new"
        assert worker.extend({"k": held.token}, alive_time=600, shortest=1) == {"k"}

    def test_a_replacement_does_not_undo_what_the_running_task_has_written(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        held = leased(worker, "k")
        seen = found(person, "k")
        assert worker.update_data("k", held.token, '{"progress":1}')
        assert not person.replace(seen, changed(seen, type="new"))
        assert payload(found(person, "k").data) == '{"progress":1}'

    def test_a_row_at_rest_can_be_put_back_to_work(self, store: Store) -> None:
        held = leased(store, "k")
        store.settle([ending(held, rest=True, status=FINISHED)])
        seen = found(store, "k")
        assert store.replace(seen, changed(seen, status=WAITING, next_run_time=LONG_AGO))
        assert [row.key for row in claim(store, "worker.2").rows] == ["k"]


class Deletion(WithStore):
    """Tests that a key can be used again only when no task of its old schedule can be running."""

    def test_a_row_that_nobody_holds_is_removed(self, store: Store) -> None:
        add(store, "due", "other")
        store.add([due("waiting", int(store.now()) + 3600)], nonce="n")
        assert store.delete("due")
        assert store.delete("waiting")
        assert [row.key for row in store.rows()] == ["other"]

    def test_a_row_at_rest_is_removed(self, store: Store) -> None:
        held = leased(store, "k")
        store.settle([ending(held, rest=True, status=FINISHED)])
        assert store.delete("k")
        assert store.get("k") is None

    def test_a_row_whose_lease_ran_out_is_removed(self, store: Store) -> None:
        leased_for_a_moment(store, "k")
        assert store.delete("k")
        assert store.get("k") is None

    def test_a_missing_row_is_named(self, store: Store) -> None:
        with refused(NotFoundError):
            store.delete("k")
        add(store, "k")
        store.delete("k")
        with refused(NotFoundError):
            store.delete("k")

    def test_nothing_is_marked_among_no_rows(self, store: Store) -> None:
        assert store.marked([]) == {}


class Marks(WithStore):
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

    def test_marking_may_be_repeated(self, store: Store) -> None:
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

    def test_a_marked_row_whose_holder_is_gone_is_claimed_to_be_removed(self, store: Store) -> None:
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
