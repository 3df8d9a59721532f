"""Tests of how the judge of expectations reads rows; see `psched.core.alerts.watching`."""

from collections.abc import Sequence
from dataclasses import replace as changed

from psched.core.alerts.watching import active_rows, light_rows, row_page
from psched.core.model import PAUSED, Row
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import (
    LATER,
    LONG_AGO,
    BackendFactory,
    add,
    claim,
    due,
    found,
    leased_for_a_moment,
    payload,
)

_OPTIONS = '{"expect":{"late":300}}'


class WatchingContract:
    """Tests of `active_rows`, `row_page` and `light_rows`. It needs ``backend_factory``."""

    def test_nothing_is_active_in_an_empty_store(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        seen = active_rows(store, None, 10)
        assert ([*seen.leased], [*seen.due]) == ([], [])
        assert abs(seen.now - store.now()) < 60  # noqa: PLR2004  # the same clock
        assert _swept(store, 10) == []
        assert light_rows(store, []) == light_rows(store, ["k"]) == {}

    def test_what_runs_and_what_is_due_is_active(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        add(store, "runs")
        claim(store, "worker.1")
        leased_for_a_moment(store, "lost", owner="worker.2")
        store.add([due("later", LONG_AGO + 2), due("b"), due("a"), due("next", LATER)], nonce="n")
        seen = active_rows(store, None, 10)
        assert sorted(_keys(seen.leased)) == ["lost", "runs"]
        assert _keys(seen.due) == ["a", "b", "later", "lost"]
        assert all(row.owner is not None for row in seen.leased)

    def test_due_rows_are_read_after_a_place(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        keys = ["c", "a", "é", "b", "ﬀ"]
        store.add([due(key) for key in keys] + [due("d", LONG_AGO + 1)], nonce="n")
        after, seen = None, list[str]()
        for _ in range(7):
            rows = active_rows(store, after, 2).due
            seen += _keys(rows)
            if not rows:
                break
            after = rows[-1].next_run_time or 0, rows[-1].key
        assert seen == ["a", "b", "c", "é", "ﬀ", "d"]
        store.delete("b")
        assert _keys(active_rows(store, (LONG_AGO, "b"), 2).due) == ["c", "é"]

    def test_a_paused_row_is_due_at_the_end_of_its_pause(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        add(store, "k", "rests")
        for key, until in ("k", LONG_AGO + 5), ("rests", None):
            row = found(store, key)
            assert store.replace(row, changed(row, status=PAUSED, next_run_time=until))
        (row,) = active_rows(store, None, 10).due
        assert (row.key, row.status, row.next_run_time) == ("k", PAUSED, LONG_AGO + 5)

    def test_options_are_read_and_data_are_not(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
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

    def test_the_pages_have_each_row_once_or_more(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
        store.add([due(f"k{i}", LATER - i) for i in range(40)], nonce="n")
        store.add([due("é"), due("z")], nonce="n")
        row = found(store, "z")
        assert store.replace(row, changed(row, status=PAUSED, next_run_time=None))
        assert {*_swept(store, 7)} == {*(f"k{i}" for i in range(40)), "é", "z"}
        assert {*_swept(store, 1000)} == {*_swept(store, 1)}

    def test_a_page_can_be_of_the_rows_that_mention_a_word(
        self, backend_factory: BackendFactory
    ) -> None:
        store = backend_factory()
        store.add([due(f"k{i}") for i in range(20)], nonce="n")
        store.add([due(f"e{i}", options=_OPTIONS) for i in range(3)], nonce="n")
        store.add([due("other", label="x")], nonce="n")
        row = found(store, "e1")
        assert store.replace(row, changed(row, reason="changed"))
        assert {*_swept(store, 5, "expect")} == {"e0", "e1", "e2"}

    def test_many_rows_are_read_by_their_keys(self, backend_factory: BackendFactory) -> None:
        store = backend_factory()
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


def _keys(rows: Sequence[Row]) -> list[str]:
    return [row.key for row in rows]
