"""Tests of ``settle``, which ends leases, and of all its outcomes."""

from dataclasses import replace as changed
from math import floor

from psched.core.model import FINISHED, WAITING
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import (
    LATER,
    LONG_AGO,
    BackendFactory,
    add,
    claim,
    claim_all,
    ending,
    found,
    leased,
    leased_for_a_moment,
    wait_for_end,
)


class Settlements:
    """Tests that a settlement is applied once, completely, and only while its lease is held."""

    def test_a_settlement_writes_the_times_it_names_and_ends_the_lease(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "k")
        end = ending(held, next_time=LATER, not_before=LATER + 30)
        assert store.settle([end]) == {"k": Settled.DONE}
        row = found(backend_factory(), "k")
        assert (row.next_time, row.next_run_time, row.owner) == (LATER, LATER + 30, None)
        assert (row.cron, row.version, row.status) == (held.cron, held.version, WAITING)

    def test_the_next_run_is_by_the_schedule_or_the_outcome_whichever_is_later(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "by schedule", "overdue", "waits", "at once")
        rows = {row.key: row for row in claim(store, "w.1").rows}
        before = floor(store.now())
        results = store.settle(
            [
                ending(rows["by schedule"], not_before=LATER, wait=60),
                ending(rows["overdue"], not_before=LONG_AGO),
                ending(rows["waits"], not_before=LONG_AGO, wait=60),
                ending(rows["at once"]),
            ]
        )
        after = floor(store.now())
        assert set(results.values()) == {Settled.DONE}
        times = {row.key: row.next_run_time or 0 for row in store.rows()}
        assert times["by schedule"] == LATER
        # The store is allowed to add one second, because a store without a column for the fence
        # distinguishes two leases by the second of their claims.
        assert before <= times["overdue"] <= after + 1
        # The wait must last at least 60 seconds, so the store rounds its end up to a whole second.
        assert before + 61 <= times["waits"] <= after + 61
        assert before <= times["at once"] <= after + 1
        for key in ("overdue", "at once"):
            wait_for_end(store, key)
        assert {row.key for row in claim(store, "w.2").rows} == {"overdue", "at once"}

    def test_a_row_that_never_runs_again_is_at_rest(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        end = ending(held, rest=True, status=FINISHED, not_before=LATER)
        assert store.settle([end]) == {"k": Settled.DONE}
        row = found(backend_factory(), "k")
        assert (row.status, row.next_run_time, row.owner) == (FINISHED, None, None)

    def test_a_row_can_be_removed(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        assert store.settle([ending(held, remove=True)]) == {"k": Settled.DONE}
        assert store.get("k") is None
        add(store, "k")

    def test_who_repeats_a_settlement_is_told_that_it_was_applied(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        kept, gone = leased(store, "kept"), leased(store, "gone", "worker.2")
        ends = [ending(kept, not_before=LONG_AGO), ending(gone, remove=True)]
        for _ in range(2):
            assert store.settle(ends) == {"kept": Settled.DONE, "gone": Settled.DONE}

    def test_a_settlement_by_an_older_definition_is_sent_back(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        add(worker, "changed", "removed")
        rows = {row.key: row for row in claim(worker, "w.1").rows}
        seen = found(person, "changed")
        assert person.replace(seen, changed(seen, cron="@hourly"))
        seen = found(person, "removed")
        assert person.replace(seen, changed(seen, cron="@hourly"))
        before = [found(worker, "changed"), found(worker, "removed")]
        results = worker.settle(
            [ending(rows["changed"], next_time=LATER), ending(rows["removed"], remove=True)]
        )
        assert set(results.values()) == {Settled.REDEFINED}
        assert [found(worker, "changed"), found(worker, "removed")] == before
        again = [ending(row, next_time=LATER) for row in before]
        assert set(worker.settle(again).values()) == {Settled.DONE}
        assert found(worker, "changed").next_time == LATER

    def test_a_settlement_after_a_takeover_is_refused(
        self, backend_factory: BackendFactory
    ) -> None:
        one, other = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(one, "k")
        claim(other, "w.2")
        taken = found(other, "k")
        for late in (ending(lost, next_time=LATER), ending(lost, remove=True)):
            assert one.settle([late]) == {"k": Settled.PREEMPTED}
            assert found(other, "k") == taken

    def test_settling_a_row_that_is_gone_is_refused(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        store.settle([ending(held, remove=True)])
        assert store.settle([ending(held)]) == {"k": Settled.PREEMPTED}
        assert store.get("k") is None

    def test_each_settlement_has_an_outcome_of_its_own(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(worker, "lost")
        claim(person, "w.2")
        add(worker, "finish", "removed", "redefined", "repeated", "gone")
        rows = {row.key: row for row in claim(worker, "w.3").rows}
        seen = found(person, "redefined")
        person.replace(seen, changed(seen, delay=1))
        worker.settle([ending(rows["repeated"], next_time=7, not_before=LATER)])
        worker.settle([ending(rows["gone"], remove=True)])
        ends = {key: ending(row, next_time=1, wait=60) for key, row in rows.items()}
        ends["removed"] = ending(rows["removed"], remove=True)
        assert worker.settle([ending(lost), *ends.values()]) == {
            "lost": Settled.PREEMPTED,
            "finish": Settled.DONE,
            "removed": Settled.DONE,
            "redefined": Settled.REDEFINED,
            "repeated": Settled.DONE,
            "gone": Settled.PREEMPTED,
        }
        left = {row.key: row.next_time for row in worker.rows()}
        assert left == {"lost": LONG_AGO, "finish": 1, "redefined": LONG_AGO, "repeated": 7}

    def test_very_many_leases_are_settled_at_once(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, *(f"k{number}" for number in range(250)))
        rows = claim_all(store, "w")
        ends = [ending(row, next_time=n, not_before=LATER + n) for n, row in enumerate(rows)]
        results = store.settle(ends)
        assert len(results) == len(rows)
        assert set(results.values()) == {Settled.DONE}
        left = {row.key: (row.next_time, row.next_run_time) for row in store.rows()}
        assert left == {end.key: (end.next_time, end.not_before) for end in ends}

    def test_settling_nothing_is_nothing(self, backend_factory: BackendFactory) -> None:
        assert backend_factory().settle([]) == {}
