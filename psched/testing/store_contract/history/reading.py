"""Tests of reading the records, and of deleting the old ones."""

from dataclasses import replace as changed
from functools import partial
from typing import Any

from psched.core.history.protocol import RunSelection
from psched.core.history.records import FOREVER, Fate, Outcome, RunRecord
from psched.testing.store_contract.bench import LATER, BackendFactory
from psched.testing.store_contract.history.bench import (
    ENDED,
    MANY,
    history_of,
    made,
    numbered,
    plain,
    runs,
    trim,
    until_nothing_is_left,
)


class Reading:
    """Tests that the records are read as they are asked for, and that old ones are deleted."""

    def test_records_are_read_newest_first_whatever_their_number(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        records = numbered(MANY)
        history_of(store).record(records)
        newest_first = records[::-1]
        assert runs(store) == newest_first
        assert runs(store, key="k1") == [each for each in newest_first if each.key == "k1"]
        for limit in 0, 1, 199, 200, 201, MANY, MANY + 1:
            assert runs(store, limit=limit) == newest_first[:limit]
        assert runs(store, key="k2", limit=3) == [e for e in newest_first if e.key == "k2"][:3]

    def test_who_reads_while_records_are_written_and_deleted_reads_none_twice(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        records = numbered(MANY)
        history_of(store).record(records)
        reading = history_of(store).runs()
        first = next(reading)
        history_of(store).record([made("new", ended=ENDED + MANY)])
        trim(store, before=records[10].ended)
        read = [plain(each) for each in [first, *reading]]
        assert [each for each in records[::-1] if each in read] == read
        assert not [each for each in records[10:] if each not in read]

    def test_each_condition_selects_the_records_that_fulfil_it(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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

    def test_the_records_of_an_instant_are_found_in_spans_too(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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

    def test_the_end_of_an_extra_run_replaces_its_loss(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        lost = made("k!20261125T023000Z", outcome=Outcome.LOST, fate=None)
        end = changed(lost, outcome=Outcome.FINISHED, fate=Fate.FINISHED)
        for record in lost, lost, end, end, lost:
            history_of(store).record([record])
        assert runs(store, key="k", with_extra_runs=True) == [end]

    # --- trimming ----------------------------------------------------------------------

    def test_trimmed_records_of_extra_runs_are_not_read_with_those_of_their_schedule(
        self, backend_factory: BackendFactory
    ) -> None:
        store, extra = backend_factory(), "k!20261125T023000Z"
        records = [made(extra, owner=f"w.{number}", ended=ENDED + number) for number in range(5)]
        history_of(store).record(records)
        assert history_of(store).trim(before=records[2].ended, limit=100) == 2  # noqa: PLR2004
        assert runs(store, key="k", with_extra_runs=True) == records[:1:-1]
        until_nothing_is_left(partial(history_of(store).trim_key, extra, 1))
        assert runs(store, key="k", with_extra_runs=True) == records[4:]
        until_nothing_is_left(partial(history_of(store).trim_key, extra, 0))
        assert runs(store, key="k", with_extra_runs=True) == []

    def test_old_records_are_trimmed_a_part_at_a_time(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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

    def test_old_records_of_a_key_are_trimmed_to_a_number(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
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
