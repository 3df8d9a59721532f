"""Listings return the rows of a selection, all of them and no others, in its order."""

from typing import Any

from psched.core.model import FINISHED, QUARANTINED, RUNNING, WAITING
from psched.core.selection import Selection
from psched.core.store_protocol import Store
from psched.testing.store_contract.bench import (
    LATER,
    LONG_AGO,
    WithStore,
    add,
    claim_all,
    due,
    ending,
    leased,
)


class Selections(WithStore):
    """Every store finds rows by type, by the beginning of the key, and whether they are due."""

    def test_types_prefixes_and_time_narrow_a_listing_together(self, store: Store) -> None:
        rows = [("mail-b", "mail", LONG_AGO), ("mail-a", "mail", LONG_AGO + 1)]
        rows += [("mail-c", "other", LONG_AGO), ("nail-d", "mail", LONG_AGO)]
        rows += [("mail-e", "mail", LATER)]
        store.add([due(key, since, type=kind) for key, kind, since in rows], nonce="n")
        mail = {"types": frozenset({"mail"}), "prefix": "mail-"}
        assert _keys(store, **mail) == ["mail-b", "mail-a", "mail-e"]
        assert _keys(store, **mail, due=True) == ["mail-b", "mail-a"]
        assert _keys(store, **mail, by_key=True) == ["mail-a", "mail-b", "mail-e"]
        assert _keys(store, **mail, limit=2) == ["mail-b", "mail-a"]
        assert _keys(store, due=True) == ["mail-b", "mail-c", "nail-d", "mail-a"]
        assert _keys(store, types=frozenset({"Mail"})) == []

    def test_a_prefix_is_compared_character_by_character(self, store: Store) -> None:
        keys = ["a", "a%b", "aZ", "a_b", "ab", "aé", "a\U0010ffff", "b", "é"]
        add(store, *keys)
        prefixes = ("a", "a%", "a_", "ab", "aé", "a\U0010ffff", "é", "\U0010ffff")
        for prefix in prefixes:
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert sorted(_keys(store, prefix=prefix)) == expected

    def test_without_conditions_there_is_a_limit_and_an_order_by_key(self, store: Store) -> None:
        rows = [due("b", LONG_AGO), due("c", LONG_AGO + 1), due("a", LONG_AGO + 2)]
        store.add(rows, nonce="n")
        assert _keys(store) == ["b", "c", "a"]
        assert _keys(store, limit=2) == ["b", "c"]
        assert _keys(store, limit=0) == []
        assert _keys(store, by_key=True, limit=2) == ["a", "b"]


class SelectionsByRecord(WithStore):
    """Stores whose rows record status and options find rows by status and label, too."""

    def test_rows_are_found_by_status_and_running_is_one(self, store: Store) -> None:
        leased(store, "running")
        for status in (QUARANTINED, FINISHED):
            store.settle([ending(leased(store, status), rest=True, status=status)])
        store.add([due("due"), due("later", LATER)], nonce="n")
        assert _keys(store, statuses=frozenset({RUNNING})) == ["running"]
        assert _keys(store, statuses=frozenset({WAITING})) == ["due", "later"]
        assert _keys(store, statuses=frozenset({FINISHED})) == ["finished"]
        both = frozenset({FINISHED, QUARANTINED, RUNNING})
        assert _keys(store, statuses=both) == ["running", "finished", "quarantined"]
        some = frozenset({WAITING, RUNNING, FINISHED})
        assert _keys(store, statuses=some) == ["due", "running", "later", "finished"]
        assert _keys(store, due=True) == ["due"]
        assert _keys(store, due=True, statuses=some) == ["due"]

    def test_rows_are_found_by_label(self, store: Store) -> None:
        labels = {"a": "reports", "b": 'Réports "2"', "c": "Reports", "d": "reports2", "e": None}
        store.add([due(key, label=label) for key, label in labels.items()], nonce="n")
        assert _keys(store, labels=frozenset({"reports"})) == ["a"]
        assert _keys(store, labels=frozenset({'Réports "2"'})) == ["b"]
        assert _keys(store, labels=frozenset({"reports", "reports2", "x"})) == ["a", "d"]
        assert {row.key: row.label for row in store.rows()} == labels

    def test_a_row_keeps_as_whom_it_runs(self, store: Store) -> None:
        store.add([due("k", run_as="backup"), due("other")], nonce="n")
        seen = store.get("k")
        assert seen is not None
        assert {row.key: row.run_as for row in store.rows()} == {"k": "backup", "other": None}
        assert store.replace(seen, due("k", run_as="www-data"))
        claimed = claim_all(store, "w")
        assert {row.key: row.run_as for row in claimed} == {"k": "www-data", "other": None}

    def test_a_label_in_the_options_is_none(self, store: Store) -> None:
        store.add([due("k", options='{"label":"reports"}')], nonce="n")
        assert _keys(store, labels=frozenset({"reports"})) == []

    def test_rows_are_found_by_a_label_of_any_length(self, store: Store) -> None:
        for label in ("\\" * 255, "é" * 255, "😀" * 255):
            store.add([due(label, label=label)], nonce="n")
            assert _keys(store, labels=frozenset({label})) == [label]

    def test_a_row_that_is_changed_is_found_by_its_new_label_only(self, store: Store) -> None:
        store.add([due("k", label="old")], nonce="n")
        seen = store.get("k")
        assert seen is not None
        assert store.replace(seen, due("k", label="new"))
        assert _keys(store, labels=frozenset({"old"})) == []
        assert _keys(store, labels=frozenset({"new"})) == ["k"]


def _keys(store: Store, **conditions: Any) -> list[str]:  # noqa: ANN401  # a Selection's fields
    return [row.key for row in store.rows(Selection(**conditions))]
