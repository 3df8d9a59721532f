"""Tests of what is recorded: applied settlements, and attempts that were lost or preempted."""

from dataclasses import replace as changed

from psched.core.history.records import FOREVER, LONGEST_ERROR, Fate, Outcome
from psched.core.store_protocol import Settled
from psched.testing.store_contract.bench import (
    LATER,
    LEASE,
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
from psched.testing.store_contract.history.bench import (
    ENDED,
    MANY,
    are_same,
    claimed,
    ending_with,
    history_of,
    made,
    recorded,
    runs,
    settled,
)


class Recording:
    """Tests that each applied settlement, and each other attempt, is recorded once."""

    def test_a_store_that_keeps_a_history_has_no_problem(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        assert history_of(store).history_problem() is None
        assert history_of(store).lost_records == 0
        assert runs(store) == []

    def test_an_applied_settlement_is_recorded(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        record = recorded(held)
        assert settled(store, ending_with(held, record)) == {"k": Settled.DONE}
        assert runs(backend_factory()) == [record]
        assert found(store, "k").owner is None

    def test_a_settlement_without_records_is_not_recorded(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        assert settled(store, ending(leased(store, "k"))) == {"k": Settled.DONE}
        assert runs(store) == []

    def test_a_repeated_settlement_is_recorded_once(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        kept, gone = leased(store, "kept"), leased(store, "gone", "worker.2")
        ends = [
            ending_with(kept, recorded(kept)),
            ending_with(gone, recorded(gone, ended=ENDED + 1), remove=True),
        ]
        for sender in store, store, backend_factory():
            assert settled(sender, *ends) == {"kept": Settled.DONE, "gone": Settled.DONE}
        assert sorted(each.key for each in runs(store)) == ["gone", "kept"]

    def test_a_repeated_settlement_with_other_records_changes_none(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "k")
        first = recorded(held)
        settled(store, ending_with(held, first))
        settled(store, ending_with(held, changed(first, ended=ENDED + 1, reason="again")))
        assert runs(store) == [first]

    def test_a_settlement_can_have_several_records(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        ran = recorded(held)
        skipped = changed(
            ran,
            scheduled_time=LONG_AGO + 60,
            until=LONG_AGO + 600,
            count=10,
            attempt=0,
            outcome=None,
            fate=Fate.SKIPPED_CATCHUP,
        )
        end = ending_with(held, ran, skipped)
        for _ in range(2):
            assert settled(store, end) == {"k": Settled.DONE}
        assert are_same(runs(store), [ran, skipped])

    def test_a_settlement_can_have_the_record_of_an_earlier_lease_in_front(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "k", "worker.2")
        lost = recorded(held, owner="worker.1", fence=held.fence - 1, outcome=Outcome.LOST)
        gave_up = recorded(held, outcome=None, attempt=0, fate=Fate.GAVE_UP)
        assert settled(store, ending_with(held, lost, gave_up)) == {"k": Settled.DONE}
        assert runs(store) == [gave_up, lost]
        history_of(store).record([lost])
        assert runs(store) == [gave_up, lost]

    def test_the_record_of_an_earlier_lease_that_is_known_already_stays(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "a", "b")
        outcomes = {"a": Outcome.LOST, "b": Outcome.PREEMPTED}
        for held in claim(store, "worker.2").rows:
            known = recorded(held, owner="worker.1", outcome=outcomes[held.key], fate=None)
            history_of(store).record([known])
            again = changed(known, outcome=Outcome.LOST, reason="again")
            gave_up = recorded(held, outcome=None, attempt=0, fate=Fate.GAVE_UP)
            assert settled(store, ending_with(held, again, gave_up)) == {held.key: Settled.DONE}
            assert runs(store, key=held.key) == [gave_up, known]

    def test_a_preempted_settlement_is_not_recorded(self, backend_factory: BackendFactory) -> None:
        one, other = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(one, "k")
        claim(other, "w.2")
        for end in (
            ending_with(lost, recorded(lost)),
            ending_with(lost, recorded(lost), remove=True),
        ):
            assert settled(one, end) == {"k": Settled.PREEMPTED}
        assert runs(one) == []

    def test_a_settlement_of_a_row_that_is_gone_is_not_recorded(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        held = leased(store, "k")
        settled(store, ending(held, remove=True))
        assert settled(store, ending_with(held, recorded(held))) == {"k": Settled.PREEMPTED}
        assert runs(store) == []

    def test_a_settlement_by_an_older_definition_is_recorded_when_it_is_applied(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        held = leased(worker, "k")
        seen = found(person, "k")
        assert person.replace(seen, changed(seen, cron="@hourly"))
        for remove in False, True:
            end = ending_with(held, recorded(held), remove=remove)
            assert settled(worker, end) == {"k": Settled.REDEFINED}
        assert runs(worker) == []
        again = recorded(held, reason="by the new definition")
        assert settled(worker, ending_with(found(worker, "k"), again)) == {"k": Settled.DONE}
        assert runs(worker) == [again]

    def test_the_removal_of_a_row_is_recorded(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        record = recorded(held, outcome=Outcome.CANCELLED, fate=Fate.CANCELLED)
        assert settled(store, ending_with(held, record, remove=True)) == {"k": Settled.DONE}
        assert store.get("k") is None
        assert runs(store) == [record]

    def test_of_several_settlements_those_are_recorded_that_are_applied(
        self, backend_factory: BackendFactory
    ) -> None:
        worker, person = backend_factory(), backend_factory()
        (lost,) = leased_for_a_moment(worker, "lost")
        claim(person, "w.2")
        add(worker, "finished", "silent", "removed", "redefined", "repeated", "gone")
        rows = {row.key: row for row in claim(worker, "w.3").rows}
        seen = found(person, "redefined")
        person.replace(seen, changed(seen, delay=1))
        records = {key: recorded(row) for key, row in [*rows.items(), ("lost", lost)]}
        worker.settle([ending_with(rows["repeated"], records["repeated"])])
        worker.settle([ending(rows["gone"], remove=True)])
        ends = [ending_with(row, records[row.key]) for row in [lost, *rows.values()]]
        assert worker.settle(
            [
                changed(
                    end,
                    remove=end.key == "removed",
                    records=() if end.key == "silent" else end.records,
                )
                for end in ends
            ]
        ) == {
            "lost": Settled.PREEMPTED,
            "finished": Settled.DONE,
            "silent": Settled.DONE,
            "removed": Settled.DONE,
            "redefined": Settled.REDEFINED,
            "repeated": Settled.DONE,
            "gone": Settled.PREEMPTED,
        }
        applied = [records[key] for key in ("finished", "removed", "repeated")]
        assert are_same(runs(worker), applied)

    def test_many_settlements_are_recorded_at_once(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        keys = [f"k{number}" for number in range(MANY)]
        add(store, *keys)
        rows = claim_all(store, "w")
        results = store.settle([ending_with(row, recorded(row)) for row in rows])
        assert (len(results), {*results.values()}) == (MANY, {Settled.DONE})
        assert sorted(each.key for each in runs(store)) == sorted(keys)

    def test_a_key_that_is_deleted_and_added_again_has_records_of_both_schedules(
        self, backend_factory: BackendFactory
    ) -> None:
        """Their leases can have the same fence, because fences begin anew with the schedule."""
        store = backend_factory()
        records = []
        for count in range(2):
            held = leased(store, "k", f"worker.{count}")
            records.append(recorded(held, ended=ENDED + count))
            assert settled(store, ending_with(held, records[-1])) == {"k": Settled.DONE}
            store.delete("k")
        assert runs(store) == records[::-1]

    def test_each_attempt_of_an_occurrence_has_a_record(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "k")
        records = []
        for count in range(3):
            held = claimed(store, "k", f"worker.{count}")
            records.append(recorded(held, attempt=count + 1, ended=ENDED + count, fate=None))
            settled(store, ending_with(held, records[-1]))
        assert runs(store) == records[::-1]

    def test_every_field_of_a_record_is_kept(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k", "nonce-of-a-worker.17")
        full = recorded(
            held,
            type="type é",
            label='label "日本" \\',
            until=FOREVER,
            count=None,
            attempt=3,
            fence=2**40,
            host="host.example",
            pid=4_194_304,
            generation=7,
            due=ENDED - 2000,
            started=ENDED - 1000,
            ended=ENDED,
            outcome=Outcome.TIMED_OUT,
            fate=Fate.GAVE_UP,
            reason="why 😀",
            exit_status=255,
            exit_signal=9,
            cpu_ms=2**40,
            peak_kb=2**40,
            out_of_memory=True,
            error="Traceback\n" + "é" * (LONGEST_ERROR - 10),
            result='{"rows":"日本"}',
        )
        settled(store, ending_with(held, full))
        assert runs(store) == [full]

    def test_records_outlive_their_schedule(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        settled(store, ending_with(held, recorded(held)))
        store.delete("k")
        assert [each.key for each in runs(store)] == ["k"]

    # --- records of other attempts -----------------------------------------------------

    def test_lost_and_preempted_attempts_are_recorded(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        records = [
            made("a", owner="w.1", outcome=Outcome.LOST),
            made("b", owner="w.1", outcome=Outcome.PREEMPTED),
        ]
        history_of(store).record(records)
        history_of(store).record([])
        assert are_same(runs(backend_factory()), records)

    def test_the_recovery_of_a_dead_worker_records_its_attempts_as_lost(
        self, backend_factory: BackendFactory
    ) -> None:
        """A store that cannot find the leases of a dead worker releases and records nothing."""
        store = backend_factory()
        held = leased(store, "k", "dead.1")
        released = store.recover("dead", alive_time=LEASE, retry_wait=1.0)
        store.recover("dead", alive_time=LEASE, retry_wait=1.0)
        lost = ("k", held.next_time, str(held.token), Outcome.LOST, None)
        assert [
            (each.key, each.scheduled_time, each.lease, each.outcome, each.fate)
            for each in runs(store)
        ] == [lost] * len(released)

    def test_the_first_record_of_a_lease_and_occurrence_stays(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        first = made("k", outcome=Outcome.PREEMPTED)
        history_of(store).record([first])
        for outcome in Outcome:
            history_of(store).record([changed(first, outcome=outcome, reason="late")])
        assert runs(store) == [first]

    def test_another_outcome_replaces_that_an_attempt_was_lost(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        lost = made("k", outcome=Outcome.LOST)
        others = [
            made("k", owner="another.1", ended=ENDED + 1, outcome=Outcome.LOST),
            made("k", scheduled_time=LATER, ended=ENDED + 2, outcome=Outcome.LOST),
            made("K", ended=ENDED + 3, outcome=Outcome.LOST),
        ]
        for each in [lost, *others]:
            history_of(store).record([each])
        history_of(store).record([changed(lost, reason="again")])
        assert runs(store) == [*reversed(others), lost]
        known = changed(lost, ended=ENDED + 9, outcome=Outcome.PREEMPTED)
        history_of(store).record([known])
        assert are_same(runs(store), [*others, known])
        history_of(store).record([lost])
        assert are_same(runs(store), [*others, known])
