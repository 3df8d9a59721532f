"""Tests of what runs, what is next, how runs can be summed up, and which rows are judged."""

from collections.abc import Sequence
from dataclasses import replace as changed
from itertools import product
from typing import Any

from psched.core.alerts.watching import active_rows, light_rows, row_page
from psched.core.history.records import (
    FAILED_FATES,
    FAILURES,
    WHOLE,
    Fate,
    Outcome,
    RunRecord,
)
from psched.core.model import FAILED, PAUSED, QUARANTINED, RUNNING, Row
from psched.core.operations.overview import DUE, Overview, overview_of
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import (
    LATER,
    LONG_AGO,
    WithStore,
    add,
    claim,
    due,
    found,
    leased_for_a_moment,
    payload,
)
from psched.testing.store_contract.history import ENDED, MANY, history_of, made, plain


class OverviewContract(WithStore):
    """Tests of `overview_of`. A subclass needs the fixture ``backend_factory``."""

    def test_an_empty_store(self, store: Store) -> None:
        seen = overview_of(store, 10)
        assert _keys(seen) == ([], [], [], [])
        assert {*seen.counts.values()} == {0}
        assert abs(seen.now - store.now()) < 60  # noqa: PLR2004  # the same clock

    def test_each_row_is_where_it_belongs(self, store: Store) -> None:
        add(store, "runs", "runs too")
        claim(store, "worker.1", limit=2)
        add(store, "late")
        store.add([due("later", LONG_AGO + 1)], nonce="n")
        store.add([due("next", LATER), due("following", LATER + 1)], nonce="n")
        for key, status in ("p", PAUSED), ("q", QUARANTINED), ("f", FAILED):
            store.add([due(key)], nonce="n")
            _rest(store, key, status)
        seen = overview_of(store, 10)
        running, late, following, paused = _keys(seen)
        assert sorted(running) == ["runs", "runs too"]
        assert (late, following, paused) == (["late", "later"], ["next", "following"], ["p"])
        assert seen.counts == {RUNNING: 2, DUE: 2, PAUSED: 1, QUARANTINED: 1}
        assert [row.token.owner for row in seen.running] == ["worker.1"] * 2
        assert seen.late[0].next_run_time == LONG_AGO

    def test_payloads_are_left_out(self, store: Store) -> None:
        secret: dict[str, Any] = {"data": '{"a": "secret"}', "options": '{"note": "secret"}'}
        store.add([due("runs", **secret)], nonce="n")
        claim(store, "worker.1")
        store.add([due("late", **secret), due("next", LATER, **secret)], nonce="n")
        store.add([due("paused", **secret)], nonce="n")
        _rest(store, "paused", PAUSED)
        seen = overview_of(store, 10)
        rows = [*seen.running, *seen.late, *seen.following, *seen.paused]
        assert [row.key for row in rows] == ["runs", "late", "next", "paused"]
        assert "secret" not in repr(rows)

    def test_a_row_whose_lease_has_ended_is_late(self, store: Store) -> None:
        leased_for_a_moment(store, "lost")
        assert _keys(overview_of(store, 10))[:2] == ([], ["lost"])

    def test_no_more_rows_than_wanted_are_returned_and_all_are_counted(self, store: Store) -> None:
        add(store, *(f"runs{i}" for i in range(4)))
        claim(store, "worker.1", limit=4)
        store.add([due(f"late{i}", LONG_AGO + i) for i in range(5)], nonce="n")
        store.add([due(f"next{i}", LATER + i) for i in range(6)], nonce="n")
        seen = overview_of(store, 3)
        running, late, following, _ = _keys(seen)
        assert len(running) == 3  # noqa: PLR2004  # the limit
        assert late == ["late0", "late1", "late2"]
        assert following == ["next0", "next1", "next2"]
        assert (seen.counts[RUNNING], seen.counts[DUE]) == (4, 5)

    def test_a_row_that_an_extra_run_holds_neither_runs_nor_is_late(self, store: Store) -> None:
        store.add([due("k"), due("k!extra", LONG_AGO - 1)], nonce="n")
        claim(store, "worker.1", limit=1)
        if store.holds is not None:
            store.holds.hold({"k": "worker.2"}, alive_time=60, shortest=1)
            seen = overview_of(store, 10)
            assert _keys(seen)[:2] == (["k!extra"], [])
            assert seen.counts[RUNNING] == 1


class RunSummaryContract(WithStore):
    """Tests of a store that sums up runs. Needs the fixture ``backend_factory``."""

    def test_the_durations_are_those_of_the_newest_whole_runs(
        self, store: Store, other: Store
    ) -> None:
        records, expected = list[RunRecord](), dict[str, list[int]]()
        for number, outcome in enumerate((None, *Outcome)):
            key, whole = f"k{number}", outcome in WHOLE
            records.append(_took(key, 1000, owner="worker.1"))
            records.append(_took(key, 2000, owner="worker.2", outcome=outcome))
            records.append(made(key, owner="worker.3"))  # its start is not known
            expected[key] = [2000, 1000] if whole else [1000]
        history_of(store).record(records)
        assert _durations(other, *expected) == expected

    def test_only_the_newest_are_read(self, store: Store) -> None:
        history_of(store).record([_took("k", n, owner=f"worker.{n}") for n in range(MANY)])
        assert _durations(store, "k", most=3) == {"k": [MANY - 1, MANY - 2, MANY - 3]}
        assert _durations(store, "K", "none") == {}
        assert _durations(store) == {}

    def test_those_of_many_keys_are_found(self, store: Store) -> None:
        history_of(store).record([_took(f"k{n}", n) for n in range(MANY)])
        keys = [f"k{n}" for n in range(MANY)]
        assert _durations(store, *keys) == {f"k{n}": [n] for n in range(MANY)}

    def test_the_failures_are_those_that_the_history_shows_as_failed(self, store: Store) -> None:
        kinds = [*product((None, *Outcome), (None, *Fate))]
        records = [
            made(f"k{n}", outcome=outcome, fate=fate, error="Traceback", reason='"fate":"gave_up"')
            for n, (outcome, fate) in enumerate(kinds)
        ]
        for record in records:
            history_of(store).record([record])
        failed = [r for r in records if r.outcome in FAILURES or r.fate in FAILED_FATES]
        assert _failures(store) == [changed(each, error=None) for each in reversed(failed)]

    def test_they_are_searched_among_the_newest_records(self, store: Store) -> None:
        outcomes = [Outcome.FAILED if n % 10 == 0 else Outcome.FINISHED for n in range(MANY)]
        history_of(store).record(
            [made(f"k{n}", outcome=outcome, ended=ENDED + n) for n, outcome in enumerate(outcomes)]
        )
        expected = [f"k{n}" for n in reversed(range(0, MANY, 10))]
        assert [each.key for each in _failures(store)] == expected
        assert [each.key for each in _failures(store, limit=2)] == expected[:2]
        assert [each.key for each in _failures(store, among=MANY - 400)] == expected[:5]
        assert [each.key for each in _failures(store, since=ENDED + 430)] == expected[:2]
        assert _failures(store, since=ENDED + MANY) == []

    def test_new_failures_are_those_that_were_written_later(self, store: Store) -> None:
        history = history_of(store)
        nothing = history.new_failures(None, 1000)
        assert nothing.records == []
        first, second, third = (
            made(f"k{n}", outcome=Outcome.FAILED, error="Traceback") for n in range(3)
        )
        history_of(store).record([first, made("fine", outcome=Outcome.FINISHED)])
        seen = history.new_failures(nothing.place, 1000)
        for news in seen, history.new_failures(None, 1000):
            assert [plain(each) for each in news.records] == [changed(first, error=None)]
        history_of(store).record([second, third])
        news = history.new_failures(seen.place, 1000)
        # The first one can be among them, because a transaction could have been slow.
        assert [plain(each).key for each in news.records][:2] == ["k2", "k1"]
        assert history.new_failures(news.place, 1000).place == news.place
        assert [plain(each).key for each in history.new_failures(seen.place, 1).records] == ["k2"]

    def test_new_failures_are_not_searched_in_old_records(self, store: Store) -> None:
        history = history_of(store)
        history.record(
            [
                made(f"k{n}", outcome=Outcome.FAILED if n < MANY else Outcome.FINISHED)
                for n in range(MANY + 1100)
            ]
        )
        before = history.new_failures(None, MANY)
        assert before.records == []
        history_of(store).record([made("new", outcome=Outcome.LOST)])
        [new] = history.new_failures(before.place, MANY).records
        assert new.key == "new"

    def test_a_store_without_records_has_no_failures(self, store: Store) -> None:
        assert _failures(store) == []


def _keys(seen: Overview) -> tuple[list[str], list[str], list[str], list[str]]:
    def keys(rows: object) -> list[str]:
        assert isinstance(rows, list | tuple)
        return [row.key for row in rows]

    return keys(seen.running), keys(seen.late), keys(seen.following), keys(seen.paused)


def _rest(store: Store, key: str, status: str) -> None:
    row = found(store, key)
    new: Row = changed(row, status=status, next_run_time=None)
    assert store.replace(row, new)


def _took(key: str, milliseconds: int, **fields: Any) -> RunRecord:  # noqa: ANN401  # a record's
    return made(key, started=ENDED - milliseconds, **fields)


def _durations(store: Store, *keys: str, most: int = 20) -> dict[str, list[int]]:
    return {key: [*each] for key, each in history_of(store).durations(keys, most).items()}


def _failures(
    store: Store, *, since: int = 0, among: int = 1000, limit: int = 1000
) -> list[RunRecord]:
    found = history_of(store).failures(since=since, among=among, limit=limit)
    return [plain(each) for each in found]


_OPTIONS = '{"expect":{"late":300}}'


class WatchingContract(WithStore):
    """Tests of `active_rows`, `row_page` and `light_rows`. It needs ``backend_factory``."""

    def test_nothing_is_active_in_an_empty_store(self, store: Store) -> None:
        seen = active_rows(store, None, 10)
        assert ([*seen.leased], [*seen.due]) == ([], [])
        assert abs(seen.now - store.now()) < 60  # noqa: PLR2004  # the same clock
        assert _swept(store, 10) == []
        assert light_rows(store, []) == light_rows(store, ["k"]) == {}

    def test_what_runs_and_what_is_due_is_active(self, store: Store) -> None:
        add(store, "runs")
        claim(store, "worker.1")
        leased_for_a_moment(store, "lost", owner="worker.2")
        store.add([due("later", LONG_AGO + 2), due("b"), due("a"), due("next", LATER)], nonce="n")
        seen = active_rows(store, None, 10)
        assert sorted(_keys_of(seen.leased)) == ["lost", "runs"]
        assert _keys_of(seen.due) == ["a", "b", "later", "lost"]
        assert all(row.owner is not None for row in seen.leased)

    def test_due_rows_are_read_after_a_place(self, store: Store) -> None:
        keys = ["c", "a", "é", "b", "ﬀ"]
        store.add([due(key) for key in keys] + [due("d", LONG_AGO + 1)], nonce="n")
        after, seen = None, list[str]()
        for _ in range(7):
            rows = active_rows(store, after, 2).due
            seen += _keys_of(rows)
            if not rows:
                break
            after = rows[-1].next_run_time or 0, rows[-1].key
        assert seen == ["a", "b", "c", "é", "ﬀ", "d"]
        store.delete("b")
        assert _keys_of(active_rows(store, (LONG_AGO, "b"), 2).due) == ["c", "é"]

    def test_a_paused_row_is_due_at_the_end_of_its_pause(self, store: Store) -> None:
        add(store, "k", "rests")
        for key, until in ("k", LONG_AGO + 5), ("rests", None):
            row = found(store, key)
            assert store.replace(row, changed(row, status=PAUSED, next_run_time=until))
        (row,) = active_rows(store, None, 10).due
        assert (row.key, row.status, row.next_run_time) == ("k", PAUSED, LONG_AGO + 5)

    def test_options_are_read_and_data_are_not(self, store: Store) -> None:
        row = due("runs", data='{"a":"secret"}', options=_OPTIONS, type="mail", timezone="UTC")
        store.add([row], nonce="n")
        claim(store, "worker.1")
        store.add([changed(row, key="due")], nonce="n")
        seen = active_rows(store, None, 10)
        read = [*seen.leased, *seen.due, *light_rows(store, ["runs"]).values()]
        read += row_page(store, None, 10, None).rows
        assert len(read) == 5  # noqa: PLR2004  # each row as active, one by its key, both by page
        for each in read:
            assert (each.data, payload(each.options)) == (None, _OPTIONS)
            assert (each.type, each.cron, each.next_time) == ("mail", "* * * * *", LONG_AGO)
            assert each.created_at is not None
        (leased,) = seen.leased
        full = found(store, "runs")
        assert changed(leased, data=full.data, options=full.options) == full

    def test_the_pages_have_each_row_once_or_more(self, store: Store) -> None:
        store.add([due(f"k{i}", LATER - i) for i in range(40)], nonce="n")
        store.add([due("é"), due("z")], nonce="n")
        row = found(store, "z")
        assert store.replace(row, changed(row, status=PAUSED, next_run_time=None))
        assert {*_swept(store, 7)} == {*(f"k{i}" for i in range(40)), "é", "z"}
        assert {*_swept(store, 1000)} == {*_swept(store, 1)}

    def test_a_page_can_be_of_the_rows_that_mention_a_word(self, store: Store) -> None:
        store.add([due(f"k{i}") for i in range(20)], nonce="n")
        store.add([due(f"e{i}", options=_OPTIONS) for i in range(3)], nonce="n")
        store.add([due("other", label="x")], nonce="n")
        row = found(store, "e1")
        assert store.replace(row, changed(row, reason="changed"))
        assert {*_swept(store, 5, "expect")} == {"e0", "e1", "e2"}

    def test_many_rows_are_read_by_their_keys(self, store: Store) -> None:
        keys = [f"k{i}" for i in range(450)]
        store.add([due(key) for key in keys], nonce="n")
        assert {*light_rows(store, [*keys, "absent"])} == {*keys}


def _swept(store: Store, limit: int, mentioning: str | None = None) -> list[str]:
    begin, keys = None, list[str]()
    while True:
        page = row_page(store, begin, limit, mentioning)
        keys += [row.key for row in page.rows]
        begin = page.following
        if begin is None:
            return keys


def _keys_of(rows: Sequence[Row]) -> list[str]:
    return [row.key for row in rows]
