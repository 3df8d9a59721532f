"""A claim on MySQL and MariaDB reads each row as one JSON array; it is the row that `get` reads."""

import pytest

from psched.core.model import Row
from psched.stores.sql.claims import EVERYWHERE
from psched.stores.sql.statements import unpacked

on_mariadb = pytest.mark.parametrize(
    "database", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
)

LEASE = {"alive_time": 600, "shortest": 1, "horizon": 1}
CHARACTERS = [
    chr(number)
    for number in (*range(1, 0x3000), 0xFEFF, 0xFFFD, *range(0x1F300, 0x1F700), 0x10FFFF)
]
TEXTS = ["".join(CHARACTERS[start : start + 50]) for start in range(0, len(CHARACTERS), 50)]


def claimed(store):
    found = {}
    while rows := store.claim(f"w.{len(found)}", limit=100, **LEASE).rows:
        found |= {row.key: row for row in rows}
    return found


@on_mariadb
def test_every_character_of_a_text_and_every_number_is_read(store):
    due = int(store.now()) - 1
    rows = [
        Row(
            key=f"{number} {text}",
            type=text,
            data='{"a": "é"}',
            label=text,
            next_time=-(2**62),
            next_run_time=due,
            options='{"note": "ü"}',
        )
        for number, text in enumerate(TEXTS)
    ]
    store.add(rows, nonce="n")
    before = {row.key: row for row in store.rows()}
    found = claimed(store)
    assert found.keys() == before.keys()
    for key, row in found.items():
        seen = before[key]
        assert (row.type, row.label, row.data, row.options) == (
            seen.type, seen.label, seen.data, seen.options,
        )  # fmt: skip
        assert (row.next_time, row.created_at, row.reason) == (
            seen.next_time, seen.created_at, None,
        )  # fmt: skip


@on_mariadb
def test_a_column_that_is_binary_is_read_all_the_same(store, sql):
    """The server then mixes bytes of one encoding with text of another."""
    due = int(store.now()) - 1
    # The server garbles all but one; some of them become other valid texts.
    keys = ["日本", "Ã©", "plain", "😀x", "ünïcode"]
    store.add(
        [Row(key=key, label=key, next_time=due, next_run_time=due) for key in keys], nonce="n"
    )
    sql("ALTER TABLE {table} MODIFY pause_note VARBINARY(200)")
    packed = store._query(store._sql.due_packed, {"limit": 9, "horizon": 1, **EVERYWHERE.values})
    assert len(packed) == len(keys)
    assert [unpacked([row]) for row in packed] == [None] * len(keys)
    found = claimed(store)
    assert {*found} == {*keys}
    assert all(row.label == key for key, row in found.items())


def test_a_binary_value_in_an_array_of_mysql_is_known():
    array = '["k", "base64:type15:YQ=="]'
    assert unpacked([(None, None, array)]) is None


@on_mariadb
def test_a_row_whose_texts_are_too_long_for_one_value_is_read_all_the_same(store, sql):
    due = int(store.now()) - 1
    store.add([Row(key="long", next_time=due, next_run_time=due)], nonce="n")
    sql("ALTER TABLE {table} MODIFY reason LONGTEXT")
    # In JSON, each of them takes six bytes.
    sql("UPDATE {table} SET reason = REPEAT(CHAR(1), @@global.max_allowed_packet DIV 5)")
    [row] = claimed(store).values()
    assert {*row.reason} == {"\x01"}
