"""Tests of listing tables that are larger than a page."""

import base64
import random

import pytest

from psched.base.errors import StoreUnavailableError
from psched.core.model import Row
from psched.stores.sql.selecting import FIRST_PAGE, PAGE, SIZE

pytestmark = pytest.mark.twins

SMALLEST = -(2**63)
LARGEST = 2**63 - 1


@pytest.fixture
def page(monkeypatch):
    """Pages so small that a listing reads many."""
    monkeypatch.setattr("psched.stores.sql.selecting.PAGE", 3)


def add(store, times):
    store.add([Row(key=key, next_run_time=time) for key, time in times.items()], nonce="n")


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("timed", range(8))
@pytest.mark.parametrize("resting", [0, 1, 3, 4, 7])
def test_every_row_comes_once_and_in_order(store, sql, timed, resting):
    times = [SMALLEST, SMALLEST, 5, 5, 5, 5, LARGEST][:timed]
    keys = [f"k{number:02}" for number in range(timed + resting)]
    add(store, dict(zip(keys, times + [None] * resting, strict=True)))
    if timed:
        sql("UPDATE {table} SET id = '' WHERE id = 'k00'")
        keys[0] = ""
    assert [row.key for row in store.rows()] == keys


def test_a_table_of_several_pages_that_are_all_due_at_the_same_time_is_listed(store):
    keys = [f"k{number:05}" for number in range(2 * PAGE + 1)]
    for start in range(0, len(keys), 200):
        add(store, dict.fromkeys(keys[start : start + 200], 7))
    assert [row.key for row in store.rows()] == keys


@pytest.fixture
def pages(store):
    """What the store's queries return, each a list of rows."""
    found, read = [], store._connector.read

    def noting(*work):
        answer = read(*work)
        found.append(answer)
        return answer

    store._connector.read = noting
    return found


def test_no_query_returns_more_than_a_page(store, pages):
    add(store, dict.fromkeys((f"k{number}" for number in range(2 * PAGE)), 7))
    assert len([*store.rows()]) == 2 * PAGE
    assert max(map(len, pages)) == PAGE


def test_large_rows_are_not_all_read_at_once(store, pages):
    data = base64.b64encode(random.Random(7).randbytes(600_000)).decode()  # noqa: S311
    for number in range(60):
        row = Row(key=f"k{number:02}", data=f'{{"a":"{data}"}}', next_run_time=None)
        store.add([row], nonce="n")
    pages.clear()
    assert len([*store.rows()]) == 60
    sizes = [len(page) for page in pages]
    # One query found nothing due; the next was the first page, of unknown size.
    assert sizes[:2] == [0, FIRST_PAGE]
    assert max(sizes[2:]) <= SIZE // 600_000


@pytest.mark.usefixtures("page")
def test_a_listing_goes_on_where_it_was_when_the_store_has_been_away(store):
    keys = [f"k{number}" for number in range(10)]
    add(store, dict.fromkeys(keys, 7))
    rows, read, found = store.rows(), store._connector.read, []

    def away(*_work):
        store._connector.read = read
        raise StoreUnavailableError("away")

    found += [next(rows).key for _ in range(3)]
    store._connector.read = away
    with pytest.raises(StoreUnavailableError):
        next(rows)
    assert [*found, *(row.key for row in rows)] == keys


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("time", ["7", "NULL"])
def test_keys_that_are_no_text_do_not_lead_astray(store, sql, time):
    codes = ["41", "e9", "e941", "ef", "efbfbd", "f0", "fe", "ff", "ff41", "ffff"]
    for code in codes:
        sql(f"INSERT INTO {{table}} (id, next_run_time) VALUES (CAST(x'{code}' AS TEXT), {time})")  # noqa: S608
    expected = [bytes.fromhex(code).decode(errors="replace") for code in codes]
    assert [row.key for row in store.rows()] == expected
