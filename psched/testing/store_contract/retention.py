"""Tests of ``purge``, which deletes a finished row after the time that its settlement states."""

from dataclasses import replace as changed
from math import floor

from psched.core.model import FINISHED, MARKS, WAITING
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import (
    LATER,
    LONG_AGO,
    BackendFactory,
    add,
    claim,
    ending,
    found,
    leased,
)


class Retention:
    """Tests that a finished row stays in the store for the time that its settlement states."""

    def test_what_has_ended_may_be_removed_after_the_time_it_is_kept_for(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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
        until = {row.key: row.retain_until for row in backend_factory().rows()}
        assert before + 60 <= (until["kept"] or 0) <= after + 60
        assert before <= (until["brief"] or 0) <= after
        assert until["for ever"] is None
        assert until["waiting"] is None
        assert store.purge(100) == 1
        assert {row.key for row in store.rows()} == {"kept", "for ever", "waiting"}
        assert store.purge(100) == 0

    def test_what_is_not_kept_at_all_frees_its_key_as_it_ends(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "gone", "kept")
        gone, kept = (row for _, row in sorted((r.key, r) for r in claim(store, "w.1").rows))
        rest = {"rest": True, "status": FINISHED}
        ends = [ending(gone, **rest, retain=0, remove=True), ending(kept, **rest, retain=60)]
        assert set(store.settle(ends).values()) == {Settled.DONE}
        assert [row.key for row in backend_factory().rows()] == ["kept"]
        add(store, "gone")
        (again,) = claim(store, "w.2").rows
        assert (again.key, again.fence, again.retain_until) == ("gone", 1, None)
        # A late repetition of the settle must not end the new lease. The test does not check how
        # the store answers.
        store.settle(ends[:1])
        assert found(store, "gone").token == again.token

    def test_no_more_are_purged_than_asked_for(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        keys = [f"k{number}" for number in range(5)]
        add(store, *keys)
        rows = claim(store, "w.1").rows
        store.settle([ending(row, rest=True, status=FINISHED, retain=0) for row in rows])
        assert [store.purge(2) for _ in range(4)] == [2, 2, 1, 0]

    def test_what_is_put_back_to_work_is_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        store.settle([ending(held, rest=True, status=FINISHED, retain=0)])
        seen = found(store, "k")
        new = changed(seen, status=WAITING, next_run_time=LONG_AGO, retain_until=None)
        assert store.replace(seen, new)
        assert store.purge(10) == 0
        (again,) = claim(store, "w.2").rows
        assert (again.key, again.retain_until) == ("k", None)

    def test_a_row_can_be_put_at_rest_for_a_while(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
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
