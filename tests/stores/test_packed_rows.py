"""A claim on MySQL and MariaDB reads each row as one JSON array; it is the row that `get` reads."""

import pytest

from psched.core.model import Row
from psched.stores.sql.claims import EVERYWHERE
from psched.stores.sql.statements import unpacked

pytestmark = pytest.mark.parametrize(
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


def test_a_column_that_is_binary_is_read_all_the_same(store, sql):
    """The server then mixes bytes of one encoding with text of another."""
    due = int(store.now()) - 1
    store.add([Row(key="ünïcode", label="é", next_time=due, next_run_time=due)], nonce="n")
    sql("ALTER TABLE {table} MODIFY pause_note VARBINARY(200)")
    packed = store._query(store._sql.due_packed, {"limit": 1, "horizon": 1, **EVERYWHERE.values})
    assert unpacked(packed) is None
    [row] = claimed(store).values()
    assert (row.key, row.label) == ("ünïcode", "é")


def test_a_row_whose_texts_are_too_long_for_one_value_is_read_all_the_same(store, sql):
    due = int(store.now()) - 1
    store.add([Row(key="long", next_time=due, next_run_time=due)], nonce="n")
    sql("ALTER TABLE {table} MODIFY reason LONGTEXT")
    # In JSON, each of them takes six bytes.
    sql("UPDATE {table} SET reason = REPEAT(CHAR(1), @@global.max_allowed_packet DIV 5)")
    [row] = claimed(store).values()
    assert {*row.reason} == {"\x01"}
