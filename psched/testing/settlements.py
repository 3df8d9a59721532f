"""The end of a lease: settle, in all its outcomes."""

from dataclasses import replace as changed
from math import floor

from psched.backend import Settled
from psched.model import FINISHED, QUARANTINED, WAITING, Row, Settlement
from psched.testing.bench import (
    LONG_AGO,
    BackendFactory,
    add,
    claim,
    claim_all,
    ending,
    found,
    leased,
    leased_for_a_moment,
)

_LATER = 4_000_000_000


class Settlements:
    """A settlement is applied once, whole, and only under the lease it names."""

    def test_a_settlement_writes_what_it_says_and_ends_the_lease(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "k")
        before = found(store, "k")
        end = ending(held, next_time=_LATER, not_before=_LATER + 30, attempt=2, reason="why é")
        assert store.settle([end]) == {"k": Settled.DONE}
        assert found(backend_factory(), "k") == changed(
            before,
            next_time=_LATER,
            next_run_time=_LATER + 30,
            attempt=2,
            reason="why é",
            owner=None,
            settled_by=str(held.token),
        )

    def test_the_next_run_is_by_the_schedule_or_the_outcome_whichever_is_later(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "by schedule", "overdue", "waits", "at once")
        rows = {row.key: row for row in claim(store, "w.1").rows}
        before = floor(store.now())
        results = store.settle(
            [
                ending(rows["by schedule"], not_before=_LATER, wait=60),
                ending(rows["overdue"], not_before=LONG_AGO),
                ending(rows["waits"], not_before=LONG_AGO, wait=60),
                ending(rows["at once"]),
            ]
        )
        after = floor(store.now())
        assert set(results.values()) == {Settled.DONE}
        times = {row.key: row.next_run_time or 0 for row in store.rows()}
        assert times["by schedule"] == _LATER
        assert before <= times["overdue"] <= after
        # Not a moment less than 60 seconds, though the clock's seconds are whole.
        assert before + 61 <= times["waits"] <= after + 61
        assert before <= times["at once"] <= after
        assert {row.key for row in claim(store, "w.2").rows} == {"overdue", "at once"}

    def test_a_row_can_be_put_to_rest(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "finished", "quarantined")
        rows = {row.key: row for row in claim(store, "w.1").rows}
        finished = ending(rows["finished"], rest=True, status=FINISHED, not_before=_LATER)
        bad = ending(rows["quarantined"], rest=True, status=QUARANTINED, reason="bad", wait=60)
        store.settle([finished, bad])
        resting = found(store, "finished")
        assert (resting.status, resting.next_run_time, resting.owner) == (FINISHED, None, None)
        resting = found(store, "quarantined")
        assert (resting.status, resting.next_run_time, resting.reason) == (QUARANTINED, None, "bad")

    def test_a_row_can_be_removed(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        assert store.settle([ending(held, remove=True)]) == {"k": Settled.DONE}
        assert store.get("k") is None
        add(store, "k")

    def test_a_repeated_settlement_is_recognised_and_applied_once(
        self, backend_factory: BackendFactory
    ) -> None:
        one, other = backend_factory(), backend_factory()
        kept, gone = leased(one, "kept"), leased(one, "gone")
        ends = [ending(kept, not_before=LONG_AGO, reason="once"), ending(gone, remove=True)]
        for store in (one, one, other):
            assert store.settle(ends) == {"kept": Settled.DONE, "gone": Settled.DONE}
        # It is also known when the row has been leased again, and leaves that lease alone.
        claim(other, "w.2")
        leased_again = found(other, "kept")
        assert leased_again.owner == "w.2"
        assert one.settle(ends[:1]) == {"kept": Settled.DONE}
        assert found(one, "kept") == leased_again

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
            [ending(rows["changed"], next_time=_LATER), ending(rows["removed"], remove=True)]
        )
        assert set(results.values()) == {Settled.REDEFINED}
        assert [found(worker, "changed"), found(worker, "removed")] == before
        again = [ending(row, next_time=_LATER) for row in before]
        assert set(worker.settle(again).values()) == {Settled.DONE}
        assert found(worker, "changed").next_time == _LATER

    def test_a_settlement_after_a_takeover_is_refused(
        self, backend_factory: BackendFactory
    ) -> None:
        one, other = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(one, "k")
        claim(other, "w.2")
        taken = found(other, "k")
        for late in (ending(lost, next_time=_LATER), ending(lost, remove=True)):
            assert one.settle([late]) == {"k": Settled.PREEMPTED}
            assert found(one, "k") == taken

    def test_settling_a_row_that_is_gone_is_refused(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        store.settle([ending(held, remove=True)])
        assert store.settle([ending(held)]) == {"k": Settled.PREEMPTED}
        assert store.get("k") is None

    def test_each_settlement_of_a_batch_has_an_outcome_of_its_own(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(worker, "lost")
        claim(person, "w.2")
        keys = ("finish", "Finish", "removed", "redefined", "repeated", "gone")
        add(worker, *keys)
        rows = {row.key: row for row in claim(worker, "w.3").rows}
        seen = found(person, "redefined")
        person.replace(seen, changed(seen, delay=1))
        worker.settle([ending(rows["repeated"], next_time=7, not_before=_LATER)])
        worker.settle([ending(rows["gone"], remove=True)])
        ends = {key: ending(row, next_time=row.fence, wait=60) for key, row in rows.items()}
        ends["removed"] = ending(rows["removed"], remove=True)
        assert worker.settle([ending(lost), *ends.values()]) == {
            "lost": Settled.PREEMPTED,
            "finish": Settled.DONE,
            "Finish": Settled.DONE,
            "removed": Settled.DONE,
            "redefined": Settled.REDEFINED,
            "repeated": Settled.DONE,
            "gone": Settled.PREEMPTED,
        }
        left = {row.key: (row.owner, row.next_time) for row in worker.rows()}
        assert left == {
            "lost": ("w.2", LONG_AGO),
            "finish": (None, 1),
            "Finish": (None, 1),
            "redefined": ("w.3", LONG_AGO),
            "repeated": (None, 7),
        }

    def test_very_many_leases_are_settled_at_once_each_its_own_way(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, *(f"k{number}" for number in range(450)))
        rows = claim_all(store, "w")
        ends = [_numbered(row, number) for number, row in enumerate(rows)]
        results = store.settle(ends)
        assert len(results) == len(rows)
        assert set(results.values()) == {Settled.DONE}
        left = {row.key: row for row in store.rows()}
        for end in ends:
            if end.remove:
                assert end.key not in left
                continue
            row = left[end.key]
            assert (row.next_time, row.reason) == (end.next_time, end.reason)
            assert (row.status, row.owner) == (WAITING, None)
            assert row.settled_by == str(end.token)

    def test_settling_nothing_is_nothing(self, backend_factory: BackendFactory) -> None:
        assert backend_factory().settle([]) == {}


def _numbered(row: Row, number: int) -> Settlement:
    """A settlement that differs from its neighbours'."""
    if number % 3 == 0:
        return ending(row, remove=True)
    return ending(row, next_time=number, not_before=_LATER, reason=f"the {number}th")
