"""Tests of the run history: the capabilities of `psched.core.history.protocol`."""

from collections.abc import Callable, Iterable
from dataclasses import replace as changed
from functools import partial
from itertools import product
from math import floor
from typing import Any

from psched.core.history.protocol import AuditSelection, KeepsHistory, RunSelection
from psched.core.history.records import (
    FOREVER,
    LONGEST_ERROR,
    AuditRecord,
    Fate,
    Outcome,
    RunRecord,
    WorkerRecord,
)
from psched.core.model import Row, Settlement
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
    ending,
    found,
    leased,
    leased_for_a_moment,
    wait_for_end,
)
from psched.testing.store_contract.contention import at_once

ENDED = 1_700_000_000_000  # when the first record of a test ended, in milliseconds
MANY = 450  # more records than a store reads or writes in one request


def history_of(store: Store) -> KeepsHistory:
    """The run history of the store, which must have one."""
    assert store.history is not None
    return store.history


def made(key: str, *, ended: int = ENDED, **fields: Any) -> RunRecord:  # noqa: ANN401  # a record's
    """A record of an attempt that has finished, with these changes."""
    given = {
        "type": "default",
        "scheduled_time": LONG_AGO,
        "owner": "worker.1",
        "fence": 1,
        "attempt": 1,
        "outcome": Outcome.FINISHED,
        **fields,
    }
    return RunRecord(key=key, ended=ended, **given)


def recorded(row: Row, **fields: Any) -> RunRecord:  # noqa: ANN401  # a record's
    """A record of the lease of a row that was claimed."""
    given = {
        "type": row.type,
        "scheduled_time": row.next_time or 0,
        "owner": row.owner or "",
        "fence": row.fence,
        "fate": Fate.FINISHED,
        **fields,
    }
    return made(row.key, **given)


def ending_with(row: Row, *records: RunRecord, **changes: Any) -> Settlement:  # noqa: ANN401  # fields
    """A settlement of a row with records."""
    return ending(row, records=records, **changes)


def settled(store: Store, *ends: Settlement) -> dict[str, Settled]:
    """Settle, and return the results."""
    return {**store.settle(ends)}


def claimed(store: Store, key: str, owner: str) -> Row:
    """Claim the only row; wait for a store that makes a released row due in the next second."""
    wait_for_end(store, key)
    (row,) = claim(store, owner).rows
    return row


def plain(record: RunRecord) -> RunRecord:
    """A record without the number that the store has given it."""
    return changed(record, id=None)


def runs(store: Store, **conditions: Any) -> list[RunRecord]:  # noqa: ANN401  # a selection's
    """The records that fulfil these conditions, in the store's order, without their numbers."""
    return [plain(each) for each in history_of(store).runs(RunSelection(**conditions))]


def are_same(records: Iterable[RunRecord], others: Iterable[RunRecord]) -> bool:
    """Whether the records are equal, whatever their order."""
    return sorted(records, key=repr) == sorted(others, key=repr)


def numbered(count: int) -> list[RunRecord]:
    """Records of three keys, the oldest first."""
    return [made(f"k{n % 3}", owner=f"worker.{n}", ended=ENDED + n) for n in range(count)]


def trim(store: Store, *, before: int) -> None:
    """Delete all records and changes before a time."""
    until_nothing_is_left(partial(history_of(store).trim, before=before, limit=1000))


def until_nothing_is_left(delete: Callable[[], int]) -> int:
    """Repeat a deletion until it deletes nothing; return the number of all that it deleted."""
    total = 0
    while deleted := delete():
        total += deleted
    return total


class Recording(WithStore):
    """Tests that each applied settlement, and each other attempt, is recorded once."""

    def test_a_store_that_keeps_a_history_has_no_problem(self, store: Store) -> None:
        assert history_of(store).problem() is None
        assert history_of(store).lost_records == 0
        assert runs(store) == []

    def test_an_applied_settlement_is_recorded(self, store: Store, other: Store) -> None:
        held = leased(store, "k")
        record = recorded(held)
        assert settled(store, ending_with(held, record)) == {"k": Settled.DONE}
        assert runs(other) == [record]
        assert found(store, "k").owner is None

    def test_a_settlement_without_records_is_not_recorded(self, store: Store) -> None:
        assert settled(store, ending(leased(store, "k"))) == {"k": Settled.DONE}
        assert runs(store) == []

    def test_a_repeated_settlement_is_recorded_once(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        kept, gone = leased(store, "kept"), leased(store, "gone", "worker.2")
        ends = [
            ending_with(kept, recorded(kept)),
            ending_with(gone, recorded(gone, ended=ENDED + 1), remove=True),
        ]
        for sender in store, store, backend_factory():
            assert settled(sender, *ends) == {"kept": Settled.DONE, "gone": Settled.DONE}
        assert sorted(each.key for each in runs(store)) == ["gone", "kept"]

    def test_a_repeated_settlement_with_other_records_changes_none(self, store: Store) -> None:
        held = leased(store, "k")
        first = recorded(held)
        settled(store, ending_with(held, first))
        settled(store, ending_with(held, changed(first, ended=ENDED + 1, reason="again")))
        assert runs(store) == [first]

    def test_a_settlement_can_have_several_records(self, store: Store) -> None:
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
        self, store: Store
    ) -> None:
        held = leased(store, "k", "worker.2")
        lost = recorded(held, owner="worker.1", fence=held.fence - 1, outcome=Outcome.LOST)
        gave_up = recorded(held, outcome=None, attempt=0, fate=Fate.GAVE_UP)
        assert settled(store, ending_with(held, lost, gave_up)) == {"k": Settled.DONE}
        assert runs(store) == [gave_up, lost]
        history_of(store).record([lost])
        assert runs(store) == [gave_up, lost]

    def test_the_record_of_an_earlier_lease_that_is_known_already_stays(self, store: Store) -> None:
        add(store, "a", "b")
        outcomes = {"a": Outcome.LOST, "b": Outcome.PREEMPTED}
        for held in claim(store, "worker.2").rows:
            known = recorded(held, owner="worker.1", outcome=outcomes[held.key], fate=None)
            history_of(store).record([known])
            again = changed(known, outcome=Outcome.LOST, reason="again")
            gave_up = recorded(held, outcome=None, attempt=0, fate=Fate.GAVE_UP)
            assert settled(store, ending_with(held, again, gave_up)) == {held.key: Settled.DONE}
            assert runs(store, key=held.key) == [gave_up, known]

    def test_a_preempted_settlement_is_not_recorded(self, store: Store, other: Store) -> None:
        (lost,) = leased_for_a_moment(store, "k")
        claim(other, "w.2")
        for end in (
            ending_with(lost, recorded(lost)),
            ending_with(lost, recorded(lost), remove=True),
        ):
            assert settled(store, end) == {"k": Settled.PREEMPTED}
        assert runs(store) == []

    def test_a_settlement_of_a_row_that_is_gone_is_not_recorded(self, store: Store) -> None:
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

    def test_the_removal_of_a_row_is_recorded(self, store: Store) -> None:
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

    def test_many_settlements_are_recorded_at_once(self, store: Store) -> None:
        keys = [f"k{number}" for number in range(MANY)]
        add(store, *keys)
        rows = claim_all(store, "w")
        results = store.settle([ending_with(row, recorded(row)) for row in rows])
        assert (len(results), {*results.values()}) == (MANY, {Settled.DONE})
        assert sorted(each.key for each in runs(store)) == sorted(keys)

    def test_a_key_that_is_deleted_and_added_again_has_records_of_both_schedules(
        self, store: Store
    ) -> None:
        """Their leases can have the same fence, because fences begin anew with the schedule."""
        records = []
        for count in range(2):
            held = leased(store, "k", f"worker.{count}")
            records.append(recorded(held, ended=ENDED + count))
            assert settled(store, ending_with(held, records[-1])) == {"k": Settled.DONE}
            store.delete("k")
        assert runs(store) == records[::-1]

    def test_each_attempt_of_an_occurrence_has_a_record(self, store: Store) -> None:
        add(store, "k")
        records = []
        for count in range(3):
            held = claimed(store, "k", f"worker.{count}")
            records.append(recorded(held, attempt=count + 1, ended=ENDED + count, fate=None))
            settled(store, ending_with(held, records[-1]))
        assert runs(store) == records[::-1]

    def test_every_field_of_a_record_is_kept(self, store: Store) -> None:
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

    def test_records_outlive_their_schedule(self, store: Store) -> None:
        held = leased(store, "k")
        settled(store, ending_with(held, recorded(held)))
        store.delete("k")
        assert [each.key for each in runs(store)] == ["k"]

    # --- records of other attempts -----------------------------------------------------

    def test_lost_and_preempted_attempts_are_recorded(self, store: Store, other: Store) -> None:
        records = [
            made("a", owner="w.1", outcome=Outcome.LOST),
            made("b", owner="w.1", outcome=Outcome.PREEMPTED),
        ]
        history_of(store).record(records)
        history_of(store).record([])
        assert are_same(runs(other), records)

    def test_the_recovery_of_a_dead_worker_records_its_attempts_as_lost(self, store: Store) -> None:
        """A store that cannot find the leases of a dead worker releases and records nothing."""
        held = leased(store, "k", "dead.1")
        released = store.recover("dead", alive_time=LEASE, retry_wait=1.0)
        store.recover("dead", alive_time=LEASE, retry_wait=1.0)
        lost = ("k", held.next_time, str(held.token), Outcome.LOST, None)
        assert [
            (each.key, each.scheduled_time, each.lease, each.outcome, each.fate)
            for each in runs(store)
        ] == [lost] * len(released)

    def test_the_first_record_of_a_lease_and_occurrence_stays(self, store: Store) -> None:
        first = made("k", outcome=Outcome.PREEMPTED)
        history_of(store).record([first])
        for outcome in Outcome:
            history_of(store).record([changed(first, outcome=outcome, reason="late")])
        assert runs(store) == [first]

    def test_another_outcome_replaces_that_an_attempt_was_lost(self, store: Store) -> None:
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


class Reading(WithStore):
    """Tests that the records are read as they are asked for, and that old ones are deleted."""

    def test_records_are_read_newest_first_whatever_their_number(self, store: Store) -> None:
        records = numbered(MANY)
        history_of(store).record(records)
        newest_first = records[::-1]
        assert runs(store) == newest_first
        assert runs(store, key="k1") == [each for each in newest_first if each.key == "k1"]
        for limit in 0, 1, 199, 200, 201, MANY, MANY + 1:
            assert runs(store, limit=limit) == newest_first[:limit]
        assert runs(store, key="k2", limit=3) == [e for e in newest_first if e.key == "k2"][:3]

    def test_who_reads_while_records_are_written_and_deleted_reads_none_twice(
        self, store: Store
    ) -> None:
        records = numbered(MANY)
        history_of(store).record(records)
        reading = history_of(store).runs()
        first = next(reading)
        history_of(store).record([made("new", ended=ENDED + MANY)])
        trim(store, before=records[10].ended)
        read = [plain(each) for each in [first, *reading]]
        assert [each for each in records[::-1] if each in read] == read
        assert not [each for each in records[10:] if each not in read]

    def test_each_condition_selects_the_records_that_fulfil_it(self, store: Store) -> None:
        records = _various()
        history_of(store).record(records)
        selections: list[dict[str, Any]] = [
            {},
            {"key": "a"},
            {"key": "A"},
            {"key": "none"},
            {"types": frozenset({"t1"})},
            {"types": frozenset({"t1", "t2", "none"})},
            {"types": frozenset({"T1"})},
            {"outcomes": frozenset({"failed"})},
            {"outcomes": frozenset({"failed", "lost"})},
            {"fates": frozenset({"finished"})},
            {"fates": frozenset({"skipped_catchup", "gave_up"})},
            {"outcomes": frozenset({"lost"}), "fates": frozenset({"gave_up"})},
            {"since": ENDED + 3},
            {"since": 0},
            {"since": ENDED + 1000},
            {"key": "a", "types": frozenset({"t1"}), "since": ENDED + 1},
            {"key": "a", "outcomes": frozenset({"failed"}), "types": frozenset({"t2"})},
        ]
        for conditions in selections:
            selected = RunSelection(**conditions)
            expected = [each for each in records[::-1] if selected.matches(each)]
            assert runs(store, **conditions) == expected, conditions
            assert runs(store, **conditions, limit=1) == expected[:1], conditions

    def test_the_records_of_an_instant_are_found_in_spans_too(self, store: Store) -> None:
        span = made("k", scheduled_time=100, until=200, count=11, outcome=None, fate=Fate.COALESCED)
        records = [
            changed(span, ended=ENDED),
            made("k", scheduled_time=200, owner="w.2", ended=ENDED + 1),
            made("k", scheduled_time=200, owner="w.3", ended=ENDED + 2),
            changed(span, scheduled_time=300, until=FOREVER, count=None, ended=ENDED + 3),
            changed(span, key="other", ended=ENDED + 4),
        ]
        history_of(store).record(records)
        for instant in 99, 100, 150, 200, 201, 299, 300, LATER, FOREVER:
            expected = [e for e in records[::-1] if e.key == "k" and e.covers(instant)]
            assert runs(store, key="k", covering=instant) == expected, instant
        assert runs(store, key="k", covering=200, limit=1) == [records[2]]

    def test_the_records_of_extra_runs_are_read_with_those_of_their_schedule(
        self, store: Store
    ) -> None:
        first, second = "k!20261125t023000z", "k!20261125T023000Z"
        others = "k!short", "k!longer20261125T023000Z", f"{second}!{'x' * 16}", "K!" + "x" * 16, "j"
        records = [
            made(
                key,
                owner=f"w.{number}",
                ended=ENDED + number,
                outcome=Outcome.FAILED if number % 3 else Outcome.FINISHED,
            )
            for number, key in enumerate(("k", first, *others, second, "k", second) * 60)
        ]
        history_of(store).record(records)
        every: list[dict[str, Any]] = [
            {},
            {"outcomes": frozenset({"failed"})},
            {"since": ENDED + 400},
        ]
        for conditions in every:
            selected = RunSelection(key="k", with_extra_runs=True, **conditions)
            expected = [each for each in records[::-1] if selected.matches(each)]
            assert {each.key for each in expected} == {"k", first, second}
            for limit in None, 0, 1, 3, 50, 10_000:
                found = runs(store, key="k", with_extra_runs=True, **conditions, limit=limit)
                assert found == expected[:limit], (conditions, limit)
        assert {each.key for each in runs(store, key="k")} == {"k"}
        assert {each.key for each in runs(store, key=first)} == {first}
        assert runs(store, key="none", with_extra_runs=True) == []

    def test_the_end_of_an_extra_run_replaces_its_loss(self, store: Store) -> None:
        lost = made("k!20261125T023000Z", outcome=Outcome.LOST, fate=None)
        end = changed(lost, outcome=Outcome.FINISHED, fate=Fate.FINISHED)
        for record in lost, lost, end, end, lost:
            history_of(store).record([record])
        assert runs(store, key="k", with_extra_runs=True) == [end]

    # --- trimming ----------------------------------------------------------------------

    def test_trimmed_records_of_extra_runs_are_not_read_with_those_of_their_schedule(
        self, store: Store
    ) -> None:
        extra = "k!20261125T023000Z"
        records = [made(extra, owner=f"w.{number}", ended=ENDED + number) for number in range(5)]
        history_of(store).record(records)
        assert history_of(store).trim(before=records[2].ended, limit=100) == 2  # noqa: PLR2004
        assert runs(store, key="k", with_extra_runs=True) == records[:1:-1]
        until_nothing_is_left(partial(history_of(store).trim_key, extra, 1))
        assert runs(store, key="k", with_extra_runs=True) == records[4:]
        until_nothing_is_left(partial(history_of(store).trim_key, extra, 0))
        assert runs(store, key="k", with_extra_runs=True) == []

    def test_old_records_are_trimmed_a_part_at_a_time(self, store: Store) -> None:
        records = numbered(30)
        history_of(store).record(records)
        assert history_of(store).trim(before=ENDED, limit=100) == 0
        before = records[20].ended
        for _ in range(50):
            left = len(runs(store))
            deleted = history_of(store).trim(before=before, limit=7)
            assert 0 <= deleted <= 7  # noqa: PLR2004  # the limit
            assert len(runs(store)) == left - deleted
            if not deleted:
                break
        assert runs(store) == records[:19:-1]
        assert runs(store, key="k0") == [e for e in records[:19:-1] if e.key == "k0"]

    def test_old_records_of_a_key_are_trimmed_to_a_number(self, store: Store) -> None:
        records = numbered(30)
        history_of(store).record(records)
        mine = [each for each in records[::-1] if each.key == "k1"]
        others = [each for each in records[::-1] if each.key != "k1"]
        assert history_of(store).trim_key("k1", len(mine)) == 0
        assert history_of(store).trim_key("none", 0) == 0
        for keep in 4, 1, 0:
            had = len(runs(store, key="k1"))
            deleted = until_nothing_is_left(partial(history_of(store).trim_key, "k1", keep))
            assert deleted == had - keep
            assert runs(store, key="k1") == mine[:keep]
        assert runs(store) == others


def _various() -> list[RunRecord]:
    """Records that differ in all that a selection compares, the oldest first."""
    kinds: list[tuple[str | None, str | None]] = [
        (Outcome.FINISHED, Fate.FINISHED),
        (Outcome.FAILED, None),
        (Outcome.FAILED, Fate.GAVE_UP),
        (Outcome.LOST, None),
        (None, Fate.SKIPPED_CATCHUP),
    ]
    return [
        made(
            key,
            type=type_,
            owner=f"worker.{number}",
            ended=ENDED + number,
            outcome=kinds[number % 5][0],
            fate=kinds[number % 5][1],
        )
        for number, (key, type_) in enumerate(
            (key, type_) for _ in range(5) for key in ("a", "A", "b") for type_ in ("t1", "t2")
        )
    ]


_WORKER = WorkerRecord(
    nonce="nonce",
    host="host",
    pid=77,
    number=0,
    generation=3,
    slots=4,
    busy=1,
    types='["a"]',
    started=0,
    seen=0,
    clock_offset=-86_400_123,
    zone_data="2026b",
    labels=" ".join(["l" * 63] * 7),
    version="10.20.30.dev40+g0b6c37d8.d20260130",
    python="3.13.0",
)

_CHANGE = AuditRecord(key="k", action="modify", user="root", host="host", program="psched modify")


class WorkersAndChanges(WithStore):
    """Tests that it is known who was alive, and who has changed a schedule."""

    def test_a_worker_has_one_record_with_the_time_of_its_last_beat(
        self, store: Store, other: Store
    ) -> None:
        before = floor(store.now())
        history_of(store).beat(_WORKER)
        (first,) = history_of(other).workers()
        assert before <= first.started <= first.seen <= store.now()
        assert changed(first, started=0, seen=0) == _WORKER
        busy = changed(first, busy=2, types=None, number=2**31, slots=1000)
        history_of(store).beat(changed(busy, seen=0))
        (second,) = history_of(store).workers()
        assert changed(second, seen=0) == changed(busy, seen=0)
        assert second.seen >= first.seen
        # A worker of an earlier version does not know by how much its clock is off, for example.
        names = ("clock_offset", "zone_data", "labels", "version", "python")
        unknown: dict[str, Any] = dict.fromkeys(names)
        history_of(store).beat(changed(first, **unknown))
        (third,) = history_of(store).workers()
        assert changed(third, seen=0) == changed(first, seen=0, **unknown)

    def test_the_record_of_a_worker_that_has_ended_has_its_end(self, store: Store) -> None:
        history_of(store).beat(_WORKER)
        (alive,) = history_of(store).workers()
        assert alive.ended is None
        before = floor(store.now())
        history_of(store).beat(changed(alive, busy=0, ended=0))
        (over,) = history_of(store).workers()
        assert before <= (over.ended or 0) <= store.now()
        assert over.started == alive.started
        history_of(store).beat(changed(_WORKER, nonce="other", started=5, ended=7))
        others = [each for each in history_of(store).workers() if each.nonce == "other"]
        assert [(each.started, each.ended) for each in others] == [(5, 7)]

    def test_workers_are_found_by_when_they_were_seen(self, store: Store) -> None:
        for nonce in "a", "b", "B":
            history_of(store).beat(changed(_WORKER, nonce=nonce))
        found_workers = history_of(store).workers()
        assert sorted(each.nonce for each in found_workers) == ["B", "a", "b"]
        since = max(each.seen for each in found_workers)
        assert {each.nonce for each in history_of(store).workers(since)} == {
            each.nonce for each in found_workers if each.seen >= since
        }
        assert [*history_of(store).workers(LATER)] == []

    def test_workers_that_were_not_seen_for_long_are_trimmed(self, store: Store) -> None:
        history_of(store).beat(_WORKER)
        (seen,) = history_of(store).workers()
        history_of(store).trim(before=seen.seen * 1000, limit=10)
        assert [*history_of(store).workers()] == [seen]
        history_of(store).trim(before=(seen.seen + 1) * 1000, limit=10)
        assert [*history_of(store).workers()] == []

    # --- changes -----------------------------------------------------------------------

    def test_changes_are_kept_with_the_time_of_the_store(self, store: Store, other: Store) -> None:
        full = changed(_CHANGE, note='why "日本"', before='{"cron":"a"}', after='{"cron":"b"}')
        before = floor(store.now() * 1000)
        history_of(store).audit([_CHANGE])
        history_of(store).audit([full])
        history_of(store).audit([])
        kept = [*history_of(other).audits(AuditSelection())]
        assert [changed(each, id=None, time=None) for each in kept] == [full, _CHANGE]
        # The database may round its clock.
        assert all(before - 1 <= (each.time or 0) <= store.now() * 1000 + 1 for each in kept)

    def test_changes_are_read_newest_first_by_key_and_time(self, store: Store) -> None:
        for number in range(MANY // 10):
            # A batch has one time, so that its changes have no order.
            key = f"k{number % 3}"
            history_of(store).audit([changed(_CHANGE, key=key, note=str(number))] * 10)
        kept = [*history_of(store).audits(AuditSelection())]
        assert [int(each.note or "") for each in kept] == [
            number for number in reversed(range(MANY // 10)) for _ in range(10)
        ]
        since = kept[MANY // 2].time or 0
        for selection in (
            AuditSelection(key="k1"),
            AuditSelection(key="K1"),
            AuditSelection(since=since),
            AuditSelection(key="k2", since=since),
            AuditSelection(since=LATER * 1000),
        ):
            expected = [
                each
                for each in kept
                if selection.key in {None, each.key} and (each.time or 0) >= (selection.since or 0)
            ]
            read = [*history_of(store).audits(selection)]
            assert read == expected, selection
            for limit in 0, 1, 200, 201:
                some = history_of(store).audits(changed(selection, limit=limit))
                assert [*some] == expected[:limit], (selection, limit)

    def test_old_changes_are_trimmed(self, store: Store) -> None:
        history_of(store).audit([changed(_CHANGE, key=f"k{number}") for number in range(9)])
        times = [each.time or 0 for each in history_of(store).audits(AuditSelection())]
        assert history_of(store).trim(before=min(times), limit=4) == 0
        assert 0 < history_of(store).trim(before=max(times) + 1, limit=4) <= 4  # noqa: PLR2004
        trim(store, before=max(times) + 1)
        assert [*history_of(store).audits(AuditSelection())] == []


class LastRunsContract(WithStore):
    """Tests of a store that finds the last runs of keys. Needs the fixture ``backend_factory``."""

    def test_the_last_run_is_the_newest_record_of_the_end_of_an_attempt_or_occurrence(
        self, store: Store, other: Store
    ) -> None:
        earlier, expected = list[RunRecord](), dict[str, RunRecord]()
        later = list[RunRecord]()
        kinds = product((None, *Outcome), (None, *Fate), (None, LONG_AGO + 60, FOREVER))
        for number, (outcome, fate, until) in enumerate(kinds):
            key = f"k{number}"
            first = made(key, attempt=1)
            second = made(
                key, owner="worker.2", ended=ENDED + 1, outcome=outcome, fate=fate, until=until
            )
            earlier.append(first)
            later.append(second)
            expected[key] = second if second.is_end else first
        history_of(store).record(earlier)
        history_of(store).record(later)
        assert _last_runs(other, *expected) == expected

    def test_it_is_found_behind_many_that_were_skipped(self, store: Store) -> None:
        gave_up = made("k", outcome=None, fate=Fate.GAVE_UP, attempt=0, reason='"outcome":"lost"')
        skipped = [
            made(
                "k",
                scheduled_time=LONG_AGO + number,
                outcome=None,
                fate=Fate.SKIPPED_CATCHUP,
                reason='"fate":"gave_up"',
            )
            for number in range(1, MANY)
        ]
        history_of(store).record([gave_up, *skipped])
        assert _last_runs(store, "k") == {"k": gave_up}

    def test_keys_without_a_run_are_left_out(self, store: Store) -> None:
        ran = made("k")
        history_of(store).record([ran, made("s", outcome=None, fate=Fate.SKIPPED_PAUSED)])
        assert _last_runs(store) == {}
        assert _last_runs(store, "k", "K", "s", "none") == {"k": ran}

    def test_large_fields_are_left_out(self, store: Store) -> None:
        large = made("k", error="Traceback", result="{}", outcome=Outcome.FAILED)
        history_of(store).record([large])
        assert _last_runs(store, "k") == {"k": changed(large, error=None, result=None)}


def _last_runs(store: Store, *keys: str) -> dict[str, RunRecord]:
    return {key: plain(record) for key, record in history_of(store).last_runs(keys).items()}


def _replace(store: Store, seen: Row, new: Row, *records: RunRecord) -> bool:
    assert store.recorded_changes is not None
    return store.recorded_changes.replace_and_record(seen, new, records)


def _span(key: str, **fields: Any) -> RunRecord:  # noqa: ANN401  # a record's
    """A record of occurrences that a person has skipped."""
    given: dict[str, Any] = {"owner": "nonce", "attempt": 0, "outcome": None, "fate": Fate.SKIPPED}
    span = {"until": LONG_AGO + 540, "count": 10, "reason": "by ann@web1: é 日本"}
    return made(key, **{**given, **span, **fields})


class ReplaceAndRecordContract(WithStore):
    """Tests that a row is replaced with its records, or that neither is written.

    A subclass needs the fixture ``backend_factory``.
    """

    def test_a_row_is_replaced_and_the_records_are_written(
        self, store: Store, other: Store
    ) -> None:
        add(store, "k")
        seen = found(store, "k")
        records = [
            _span("k"),
            _span("k", scheduled_time=LONG_AGO + 600, until=FOREVER, count=None, ended=ENDED + 1),
        ]
        assert _replace(store, seen, changed(seen, type="new"), *records)
        after = found(other, "k")
        assert (after.type, after.next_time) == ("new", seen.next_time)
        assert after.version > seen.version
        assert are_same(runs(other), records)
        assert are_same(runs(store, key="k"), records)
        assert history_of(store).lost_records == 0

    def test_without_records_it_is_a_replacement(self, store: Store) -> None:
        add(store, "k")
        seen = found(store, "k")
        assert _replace(store, seen, changed(seen, delay=7))
        assert found(store, "k").delay == 7  # noqa: PLR2004  # as it was replaced
        assert not _replace(store, seen, changed(seen, delay=8))
        assert runs(store) == []

    def test_if_the_row_has_changed_nothing_is_written(self, store: Store, other: Store) -> None:
        add(store, "changed", "deleted")
        seen = store.look(["changed", "deleted"])
        theirs = changed(seen["changed"], type="theirs")
        assert other.replace(seen["changed"], theirs)
        other.delete("deleted")
        for key, row in seen.items():
            assert not _replace(store, row, changed(row, type="mine"), _span(key))
        assert found(store, "changed").type == "theirs"
        assert store.get("deleted") is None
        assert runs(store) == []

    def test_a_replacement_that_is_repeated_is_recorded_once(
        self, store: Store, other: Store
    ) -> None:
        add(store, "k")
        seen = found(store, "k")
        new = changed(seen, type="new")
        answers = [_replace(sender, seen, new, _span("k")) for sender in (store, other)]
        assert answers == [True, False]
        assert runs(store) == [_span("k")]

    def test_a_record_that_is_known_already_stays(self, store: Store) -> None:
        add(store, "k")
        for count in range(2):
            seen = found(store, "k")
            record = _span("k", reason=str(count))
            assert _replace(store, seen, changed(seen, delay=count + 1), record)
        assert [record.reason for record in runs(store)] == ["0"]

    def test_the_lease_of_a_row_stays(self, store: Store) -> None:
        held = leased(store, "k")
        seen = found(store, "k")
        assert _replace(store, seen, changed(seen, type="new", next_run_time=1), _span("k"))
        after = found(store, "k")
        assert (after.token, after.next_run_time) == (held.token, seen.next_run_time)
        assert runs(store) == [_span("k")]

    def test_of_two_people_only_one_changes_a_row_and_records_it(
        self, store: Store, backend_factory: BackendFactory
    ) -> None:
        keys = [f"k{number}" for number in range(20)]
        add(backend_factory(), *keys)
        seen = backend_factory().look(keys)

        def work(store: Store, number: int) -> list[str]:
            return [
                key
                for key in keys
                if _replace(
                    store,
                    seen[key],
                    changed(seen[key], type=f"t{number}"),
                    _span(key, owner=f"nonce{number}"),
                )
            ]

        done = at_once(backend_factory, work)
        expected = {(key, f"t{number}") for number, won in enumerate(done) for key in won}
        assert sorted(key for won in done for key in won) == sorted(keys)
        assert {(row.key, row.type) for row in store.rows()} == expected
        assert {(r.key, r.owner.replace("nonce", "t")) for r in runs(store)} == expected


class HistoryContract(Recording, Reading, WorkersAndChanges):
    """Tests of a store that keeps the run history. Needs the fixture ``backend_factory``."""
