"""Tests of invalid rows that an SQL client has written, together with valid rows."""

import itertools

import pytest
from sqlalchemy import text

from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.core.columns import parse_payload
from psched.core.model import FINISHED, QUARANTINED, WAITING, Finish
from psched.core.policy import Run, after_claim, after_run
from psched.core.store_protocol import ClaimUnknownError
from support.stores import decision_of

pytestmark = pytest.mark.twins

LEASE = {"alive_time": 60, "shortest": 6}
LARGEST = 2**63 - 1
SMALLEST = -(2**63)


@pytest.fixture
def work_off(store, settings):
    """A function that runs all due rows as a worker does, and returns their data by key."""

    def work_off(limit=10):
        ran = {}
        for count in range(1000):
            claimed = store.claim(f"w.{count}", limit=limit, alive_time=60, shortest=6, horizon=0)
            for row in claimed.rows:
                verdict = after_claim(row, settings, claimed.now)
                if isinstance(verdict, Run):
                    decision = decision_of(row, settings)
                    if decision == Finish():
                        ran[row.key] = parse_payload(row.data, settings.data_limit)
                    verdict = after_run(row, row, decision, settings)
                store.settle([verdict])
            if not (claimed.rows or claimed.more):
                return ran
        raise AssertionError("the rows that are due come to no end")

    return work_off


@pytest.fixture
def insert(sql, store):  # noqa: ARG001  # the table is there
    """A function that inserts a row by plain SQL."""
    with sql.session() as execute:

        def insert(key, **columns):
            columns = {"id": key, "next_time": 1, **columns}
            names, values = ", ".join(columns), ", ".join(f":{name}" for name in columns)
            execute(f"INSERT INTO {{table}} ({names}) VALUES ({values})", **columns)  # noqa: S608

        yield insert


def nested(depth):
    return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


# The column that the reason names, and the column's value.
NONSENSE = {
    "cron": [
        "", "nonsense", "61 * * * *", "* * * *", "0 0 30 2 *", "@reboot", "@every 0", "* * * * * *",
        "0\t0 31 4 *", "é * * * *", "*" * 256,
    ],
    "timezone": ["Mars/Olympus", "../../etc/passwd", "/etc/localtime", "utc+1", "\u00e9"],
    "type": ["", " padded ", "two\nlines", "\x1b[31m", "t" * 254 + " "],
    "data": [
        "{", "null", "[]", "5", '"text"', "true", " ", "{} {}", "{'a': 1}", b"\xff", b"\x00",
        b'{"a": "\xff"}', b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16"),
        '{"a": NaN}', '{"a": Infinity}', '{"a": -Infinity}', '{"a": 1e999}',
        f'{{"a": {"1" * 5000}}}', r'{"a": "\ud800"}', r'{"\udfff": 1}',
        nested(200), nested(950), "[" * 100_000, '{"a":' * 100_000,
    ],
    "options": [
        "{", "[]", "7", b"\xff", '{"catchup": "sometimes"}', '{"catchup": ["all"]}',
        '{"catchup_limit": 0}', '{"catchup_limit": 1e30}', '{"retry_wait": -1}',
        f'{{"retry_wait": {10**30}}}', '{"kill_timeout": NaN}', '{"kill_timeout": 1e999}',
        '{"dst_policy": null}', '{"retry_wait": {"a": {}}}', '{"payload": "hex"}',
        '{"payload": ["text"]}',
    ],
    "status": ["", "whatever", "running", "Waiting", " waiting", "\x1b[31m", "\u00e9" * 16],
    "delay": [-1, LARGEST, SMALLEST, 10**9],
    "next_time": [-1, 2**62, LARGEST, SMALLEST, 253_402_300_800],
}  # fmt: skip


@pytest.mark.parametrize("column", NONSENSE)
def test_a_row_that_makes_no_sense_is_quarantined_and_its_neighbours_run(
    column, store, work_off, insert
):
    bad = {f"bad{number:02}": value for number, value in enumerate(NONSENSE[column])}
    insert("first")
    for key, value in bad.items():
        # A cron line, so that a zone matters.
        insert(key, **{"cron": "* * * * *", column: value})
    insert("last", next_run_time=1)
    assert work_off() == {"first": {}, "last": {}}
    rows = store.look([*bad])
    for key, value in bad.items():
        row = rows[key]
        assert (row.status, row.next_run_time) == (QUARANTINED, None), (value, row)
        assert row.reason.startswith(f"{column}: "), (value, row.reason)
        assert len(row.reason) < 600
        assert row.owner is None


HARMLESS = {
    "data": ["", "{}", '  {"a": 1.5e3}\n', '{"é": "🗝"}'.encode(), nested(90), '{"a": "\\u0000"}'],
    "options": ["", "{}", '{"of a newer psched": [1]}', '{"catchup": "skip", "retry_wait": 5}'],
    "alive_time": [0, -1, 1, 2**62, LARGEST, SMALLEST],
    "attempt": [-1, SMALLEST, 10**9, LARGEST - 1],
    "fence": [-1, SMALLEST, LARGEST - 1],
    "version": [0, -1, LARGEST, SMALLEST],
    "next_run_time": [0, -1, SMALLEST],
    "next_time": [0, 1],
    "leased_by": ["", "somebody's", "é"],
    "settled_by": ["", "x", "#0"],
    "reason": ["", "r" * 10_000, "two\nlines"],
    "created_at": [None, SMALLEST, LARGEST],
    "timezone": [None, "", "Asia/Tokyo"],
}


@pytest.mark.parametrize("column", HARMLESS)
def test_a_row_that_is_merely_odd_is_run(column, store, work_off, insert, database):
    odd = {f"odd{number}": value for number, value in enumerate(HARMLESS[column])}
    if database.kind == "postgresql":  # whose column takes text only
        odd = {k: v.decode() if isinstance(v, bytes) else v for k, v in odd.items()}
    for key, value in odd.items():
        insert(key, **{column: value})
    assert work_off().keys() == odd.keys()
    for key, row in store.look([*odd]).items():
        assert row.status == FINISHED, (odd[key], row)


def test_odd_lengths_of_leases_are_brought_within_bounds(store, insert):
    lengths = {-1: 6, 0: 6, SMALLEST: 6, 2**62: LONGEST_ALIVE_TIME, LARGEST: LONGEST_ALIVE_TIME}
    for number, own in enumerate(lengths):
        insert(f"k{number}", alive_time=own)
    before = int(store.now()) + 1
    store.claim("w.1", limit=10, alive_time=60, shortest=6, horizon=0)
    after = int(store.now()) + 1
    for number, length in enumerate(lengths.values()):
        assert before + length <= store.get(f"k{number}").next_run_time <= after + length


@pytest.mark.parametrize("column", ["fence", "attempt"])
@pytest.mark.parametrize("limit", [1, 100])
def test_a_row_whose_claim_overflows_is_set_aside_and_its_neighbours_are_claimed(
    column, limit, store, work_off, insert
):
    insert("first")
    insert("bad1", **{column: LARGEST})
    insert("bad2", **{column: LARGEST}, leased_by="dead.1", version=LARGEST)
    insert("last", next_run_time=1)
    assert work_off(limit).keys() == {"first", "last"}
    for key in ("bad1", "bad2"):
        row = store.get(key)
        assert (row.status, row.next_run_time, row.owner) == (QUARANTINED, None, None)
        assert "refused" in row.reason
        assert store.delete(key)


def test_a_row_whose_fence_cannot_grow_is_held_like_its_neighbours(store, work_off, insert):
    """A hold does not change the columns that a claim counts up."""
    insert("full", fence=LARGEST, attempt=LARGEST, version=LARGEST, next_run_time=SMALLEST)
    insert("late", next_run_time=LARGEST)
    insert("early", next_run_time=1)
    before = store.look(["full", "late", "early"])
    assert store.hold(dict.fromkeys(before, "w.1"), **LEASE) == {*before}
    assert work_off() == {}
    store.release(dict.fromkeys(before, "w.1"))
    assert store.look([*before]) == before
    assert work_off() == {"early": {}}
    assert store.get("full").status == QUARANTINED


def test_odd_lengths_of_holds_are_brought_within_bounds(store, insert):
    lengths = {-1: 6, 0: 6, SMALLEST: 6, 2**62: LONGEST_ALIVE_TIME, LARGEST: LONGEST_ALIVE_TIME}
    keys = {f"k{number}": own for number, own in enumerate(lengths)}
    for key, own in keys.items():
        insert(key, alive_time=own)
    before = int(store.now()) + 1
    assert store.hold(dict.fromkeys(keys, "w.1"), **LEASE) == {*keys}
    after = int(store.now()) + 1
    for key, own in keys.items():
        assert before + lengths[own] <= store.get(key).held_until <= after + lengths[own]


ODD_HOLDS = [
    {"held_by": "", "held_until": 1},
    {"held_by": "é", "held_until": 0},
    {"held_by": "w.1", "held_until": -1},
    {"held_by": "w.1", "held_until": SMALLEST},
    {"held_by": "w.1", "held_until": None},
    {"held_by": None, "held_until": SMALLEST},
    {"held_by": None, "held_until": LARGEST},
]


def test_a_row_whose_hold_is_merely_odd_is_run_and_held_no_more(store, work_off, insert):
    odd = {f"odd{number}": columns for number, columns in enumerate(ODD_HOLDS)}
    for key, columns in odd.items():
        insert(key, **columns)
    assert work_off().keys() == odd.keys()
    for key, row in store.look([*odd]).items():
        assert (row.held_by, row.held_until, row.status) == (None, None, FINISHED), odd[key]


def test_a_row_whose_hold_is_merely_odd_is_held_by_another_or_deleted(store, insert):
    odd = {f"odd{number}": columns for number, columns in enumerate(ODD_HOLDS)}
    for key, columns in odd.items():
        insert(key, next_run_time=LARGEST, **columns)
    assert store.hold(dict.fromkeys(odd, "w.2"), **LEASE) == {*odd}
    store.release(dict.fromkeys(odd, "w.2"))
    for key, columns in odd.items():
        insert(f"{key} again", **columns)
        assert store.delete(f"{key} again"), columns


@pytest.mark.parametrize("held_by", ["", "é"])
def test_a_row_that_plain_sql_holds_for_ever_is_released_or_deleted_by_it(
    held_by, store, sql, work_off, insert
):
    for key in "kept", "deleted", "freed":
        insert(key, held_by=held_by, held_until=LARGEST)
    insert("free")
    assert work_off().keys() == {"free"}
    assert not store.delete("deleted")
    sql("UPDATE {table} SET held_by = NULL, held_until = NULL WHERE id <> 'kept'")
    assert work_off().keys() == {"freed"}
    assert store.get("deleted") is None


def test_a_row_that_was_set_aside_can_be_mended(sql, work_off, insert):
    insert("k", attempt=LARGEST, data='{"n": 1}')
    assert not work_off()
    sql("UPDATE {table} SET attempt = 0, status = 'waiting', next_run_time = 0")
    assert work_off() == {"k": {"n": 1}}


@pytest.mark.parametrize("columns", [{}, {"cron": "@daily"}, {"delay": 600}])
def test_a_row_that_was_given_its_time_by_plain_sql_does_not_run_before_it(
    columns, store, work_off, insert
):
    later = int(store.now()) + 3600 - columns.get("delay", 0)
    insert("k", next_time=later, **columns)
    insert("due", next_time=int(store.now()) - 1)

    assert [*work_off()] == ["due"]
    row = store.get("k")
    assert (row.next_time, row.next_run_time) == (later, later + columns.get("delay", 0))
    assert (row.attempt, row.status) == (0, "waiting")


def test_a_schedule_without_a_time_gets_one_that_stays(store, settings, insert):
    insert("k", cron="@hourly", next_time=None)
    insert("once", next_time=None)
    before = int(store.now())
    claimed = store.claim("w.1", limit=10, alive_time=60, shortest=6, horizon=0)
    verdicts = [after_claim(row, settings, claimed.now) for row in claimed.rows]
    store.settle(verdicts)
    hourly, once = store.get("k"), store.get("once")
    assert hourly.next_time % 3600 == 0
    assert 0 <= hourly.next_time - before <= 3600
    assert hourly.next_run_time == hourly.next_time
    assert before <= once.next_time <= before + 30
    assert (hourly.status, hourly.attempt) == (WAITING, 0)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
class TestSQLite:
    """Tests with bytes that are not text, which SQLite accepts in any column."""

    def test_text_that_is_no_text_is_quarantined(self, store, sql, work_off, insert):
        insert("good")
        broken = ("type", "cron", "timezone", "data", "options")
        for column in broken:
            insert(column, cron="* * * * *")
            stored = b'{"a": "\xe9"}'.hex()
            sql(f"UPDATE {{table}} SET {column} = CAST(x'{stored}' AS TEXT) WHERE id = '{column}'")  # noqa: S608
        assert work_off().keys() == {"good"}
        for column in broken:
            row = store.get(column)
            assert row.status == QUARANTINED
            assert row.reason.startswith(f"{column}: ")

    def test_a_payload_that_is_a_number_is_quarantined(self, store, sql, work_off):
        for key, value in {"zero": "0", "int": "5", "real": "1.5"}.items():
            sql(f"INSERT INTO {{table}} (id, data, next_time) VALUES ('{key}', {value}, 1)")  # noqa: S608
        assert not work_off()
        assert {row.status for row in store.rows()} == {QUARANTINED}

    def test_a_key_that_is_no_text_is_set_aside(self, store, sql, work_off, insert):
        """A statement cannot name the row, which otherwise would be found due for ever."""
        insert("good", next_run_time=1)
        for code in ("e9", "636c66e9", "ff"):
            sql(f"INSERT INTO {{table}} (id, next_time) VALUES (CAST(x'{code}' AS TEXT), 1)")  # noqa: S608
        insert("\ufffd")
        assert work_off(limit=1).keys() == {"good", "\ufffd"}
        rest = [row for row in store.rows() if row.status == QUARANTINED]
        assert len(rest) == 3
        assert {row.reason for row in rest} == {"id: is not UTF-8"}

    def test_a_claim_beside_such_a_key_is_not_forgotten(self, store, sql, insert):
        """A claim returns the rows that it has leased even if it cannot quarantine another row."""
        insert("good", next_run_time=1)
        sql("INSERT INTO {table} (id, next_time) VALUES (CAST(x'ff' AS TEXT), 1)")
        store._sql.due_keys = text("SELECT nonsense")
        with pytest.raises(ClaimUnknownError) as lost:
            store.claim("w.1", limit=10, alive_time=60, shortest=6, horizon=0)
        assert [row.key for row in store.held("w.1", lost.value.keys)] == ["good"]

    def test_broken_text_anywhere_can_still_be_listed(self, store, sql):
        columns = ("id", "type", "data", "cron", "timezone", "leased_by", "settled_by", "reason")
        values = ", ".join(["CAST(x'ff41' AS TEXT)"] * len(columns))
        sql(f"INSERT INTO {{table}} ({', '.join(columns)}) VALUES ({values})")  # noqa: S608
        (row,) = store.rows()
        assert row.type == "\ufffdA"
        assert row.data == b"\xffA"


def test_many_poisoned_rows_do_not_starve_a_healthy_one(work_off, insert):
    """The invalid rows have been due for the longest time, so every claim reads them first."""
    columns = [{"cron": "nonsense"}, {"fence": LARGEST}, {"data": "{"}, {"next_time": -1}]
    for number, bad in zip(range(20), itertools.cycle(columns), strict=False):
        insert(f"bad{number}", next_run_time=-number, **bad)
    insert("good", next_run_time=1)
    assert work_off(limit=1).keys() == {"good"}
