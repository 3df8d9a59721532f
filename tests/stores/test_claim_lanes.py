"""Claims of a host, while very many due rows are paused, and others are another host's."""

import pytest

from psched.core.hosts import MOST_LANES
from psched.core.model import Row
from psched.core.operations.pauses import PauseRule
from support.stores import store_factory

LEASE = {"alive_time": 600, "shortest": 1, "horizon": 0}
PAUSED = 2500
"""So many paused rows are passed over, see `psched.stores.sql.claim_range`."""

pytestmark = pytest.mark.parametrize(
    "database",
    [
        "sqlite",
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        pytest.param("postgresql", marks=pytest.mark.postgresql),
    ],
    indirect=True,
)


@pytest.fixture
def host(database):
    with store_factory(database.url, host_name="db1") as open_store:
        store = open_store()
        store.init()
        yield store


def fill(store, **groups):
    """Add rows of each name: how many, since how many seconds they are due, type and lane."""
    now = int(store.now())
    for name, (count, ago, type_, lane) in groups.items():
        rows = [
            Row(key=f"{name}{i}", next_time=9, next_run_time=now - ago, type=type_, lane=lane)
            for i in range(count)
        ]
        for start in range(0, count, 500):
            store.add(rows[start : start + 500], nonce="n")
    rule = PauseRule(id="a", type="mail", since=1, by="ann@web1")
    store.pauses.change_pause_rules(drop=[], store=[rule])


def claims(store, count):
    found = (store.claim(f"w.{i}", limit=1, **LEASE).rows for i in range(count))
    return [row.key for rows in found for row in rows]


@pytest.mark.parametrize("lane", [None, "db1"])
def test_the_search_among_paused_rows_passes_over_those_of_other_hosts(host, lane):
    fill(
        host,
        paused=(PAUSED, 900, "mail", None),
        other=(200, 800, "web", "db2"),
        mine=(1, 700, "web", lane),
    )
    assert claims(host, 30) == ["mine0"]


def test_paused_rows_are_passed_over_although_another_host_leaves_older_ones(host):
    fill(host, other=(PAUSED, 900, "web", "db2"), paused=(PAUSED, 800, "mail", "db1"))
    assert claims(host, 3) == []
    assert not host._claim_strategy().is_quick


@pytest.mark.parametrize("others", [20, 600])
def test_claims_read_the_index_of_lanes_if_other_hosts_leave_many_rows(host, others):
    fill(host, other=(others, 900, "web", "db2"), mine=(3, 800, "web", "db1"))
    fill(host, every=(1, 700, "web", None))
    assert claims(host, 9) == ["mine0", "mine1", "mine2", "every0"]
    assert host._sql.served == (["db1", "@db1"], others == 600)


def test_lanes_whose_rows_have_all_ended_take_no_place_of_others(host):
    ended = [Row(key=f"{i}", status="finished", lane=f"*{'*' * i}db*") for i in range(MOST_LANES)]
    host.add(ended, nonce="n")
    fill(host, mine=(1, 700, "web", "*db1 x"))
    assert claims(host, 1) == ["mine0"]
    assert host.lanes(100) == ["*db1 x"]
