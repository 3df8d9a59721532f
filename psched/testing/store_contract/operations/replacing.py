"""Tests of ``replace_and_record``, which changes a row and records why."""

from dataclasses import replace as changed
from typing import Any, cast

from psched.core.history.records import FOREVER, Fate, RunRecord
from psched.core.model import Row
from psched.core.store_protocol import ReplacesAndRecords, Store
from psched.testing.store_contract.bench import (
    LONG_AGO,
    BackendFactory,
    add,
    found,
    leased,
)
from psched.testing.store_contract.contention import at_once
from psched.testing.store_contract.history.bench import (
    ENDED,
    are_same,
    history_of,
    made,
    runs,
)


def _replace(store: Store, seen: Row, new: Row, *records: RunRecord) -> bool:
    assert isinstance(store, ReplacesAndRecords)
    return store.replace_and_record(seen, new, records)


def _span(key: str, **fields: Any) -> RunRecord:  # noqa: ANN401  # a record's
    """A record of occurrences that a person has skipped."""
    given: dict[str, Any] = {"owner": "nonce", "attempt": 0, "outcome": None, "fate": Fate.SKIPPED}
    span = {"until": LONG_AGO + 540, "count": 10, "reason": "by ann@web1: é 日本"}
    return made(key, **{**given, **span, **fields})


class ReplaceAndRecordContract:
    """Tests that a row is replaced with its records, or that neither is written.

    A subclass needs the fixture ``backend_factory``.
    """

    def test_a_row_is_replaced_and_the_records_are_written(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "k")
        seen = found(store, "k")
        records = [
            _span("k"),
            _span("k", scheduled_time=LONG_AGO + 600, until=FOREVER, count=None, ended=ENDED + 1),
        ]
        assert _replace(store, seen, changed(seen, type="new"), *records)
        after = found(backend_factory(), "k")
        assert (after.type, after.next_time) == ("new", seen.next_time)
        assert after.version > seen.version
        assert are_same(runs(backend_factory()), records)
        assert are_same(runs(store, key="k"), records)
        assert history_of(store).lost_records == 0

    def test_without_records_it_is_a_replacement(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "k")
        seen = found(store, "k")
        assert _replace(store, seen, changed(seen, delay=7))
        assert found(store, "k").delay == 7  # noqa: PLR2004  # as it was replaced
        assert not _replace(store, seen, changed(seen, delay=8))
        assert runs(store) == []

    def test_if_the_row_has_changed_nothing_is_written(
        self, backend_factory: BackendFactory
    ) -> None:
        store, other = backend_factory(), backend_factory()
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
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "k")
        seen = found(store, "k")
        new = changed(seen, type="new")
        answers = [_replace(sender, seen, new, _span("k")) for sender in (store, backend_factory())]
        assert answers == [True, False]
        assert runs(store) == [_span("k")]

    def test_a_record_that_is_known_already_stays(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "k")
        for count in range(2):
            seen = found(store, "k")
            record = _span("k", reason=str(count))
            assert _replace(store, seen, changed(seen, delay=count + 1), record)
        assert [record.reason for record in runs(store)] == ["0"]

    def test_the_lease_of_a_row_stays(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        held = leased(store, "k")
        seen = found(store, "k")
        assert _replace(store, seen, changed(seen, type="new", next_run_time=1), _span("k"))
        after = found(store, "k")
        assert (after.token, after.next_run_time) == (held.token, seen.next_run_time)
        assert runs(store) == [_span("k")]

    def test_of_two_people_only_one_changes_a_row_and_records_it(
        self, backend_factory: BackendFactory
    ) -> None:
        keys = [f"k{number}" for number in range(20)]
        add(backend_factory(), *keys)
        seen = backend_factory().look(keys)

        def work(store: Store, number: int) -> list[str]:
            # It passes on every method, so it has the capability, but not by a check of its class.
            recording = cast("ReplacesAndRecords", store)
            return [
                key
                for key in keys
                if recording.replace_and_record(
                    seen[key],
                    changed(seen[key], type=f"t{number}"),
                    [_span(key, owner=f"nonce{number}")],
                )
            ]

        done = at_once(backend_factory, work)
        store = backend_factory()
        expected = {(key, f"t{number}") for number, won in enumerate(done) for key in won}
        assert sorted(key for won in done for key in won) == sorted(keys)
        assert {(row.key, row.type) for row in store.rows()} == expected
        assert {(r.key, r.owner.replace("nonce", "t")) for r in runs(store)} == expected
