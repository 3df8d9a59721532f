"""What it costs to find the last runs of many schedules in a large history."""

import pytest

from support.big_tables import Cost, fill, joined, number
from support.run_records import run_record
from support.stores import make_store

pytestmark = pytest.mark.twins

KEYS = 300

RECORDS = 60_000

ASKED = 100


@pytest.fixture
def store(database):
    made = make_store(database.url, timeout=60)
    made.init()
    made._connector.run(lambda c: gather(c, database.kind))
    yield made
    made.disconnect()


def gather(connection, kind):
    """Fill the history; of every key, the newest two records are not those of attempts.

    The newest one was skipped. The other one is about one occurrence of an even key that was given
    up, or about many occurrences of an odd key.
    """
    quoted = {"key": "`key`"} if kind == "mariadb" else {"key": "key"}
    digits = number(kind, "i")
    rest = f"i >= {RECORDS - 2 * KEYS}"
    fill(
        connection,
        kind,
        RECORDS,
        table="psched_runs",
        **{quoted["key"]: joined(kind, "'k'", number(kind, f"i % {KEYS}"))},
        type="'t'",
        scheduled_time="i",
        attempt="1",
        owner=joined(kind, "'w.'", digits),
        fence="1",
        ended="i",
        until=f"CASE WHEN {rest} AND i % 2 = 1 THEN i + 9 ELSE NULL END",
        outcome=f"CASE WHEN {rest} THEN NULL ELSE 'finished' END",
        fate=f"CASE WHEN i >= {RECORDS - KEYS} THEN 'skipped_catchup' WHEN {rest} THEN 'gave_up'"
        " ELSE 'finished' END",
        error="'a long error'",
    )
    if kind == "mariadb":
        connection.exec_driver_sql("ANALYZE TABLE psched_runs").close()
    elif kind == "postgresql":
        connection.exec_driver_sql("ANALYZE psched_runs")


def test_the_last_runs_are_found_by_an_index(store, database):
    keys = [f"k{i}" for i in range(ASKED)]
    request = store.history._sql.select_last_runs(keys)
    cost = store._connector.run(lambda c: Cost(c, database.kind, *request))
    assert cost.examined <= 10 * ASKED, cost.plan
    assert not cost.scans, cost.plan

    found = store.history.last_runs([*keys, "never"])

    last = {0: RECORDS - 2 * KEYS, 1: RECORDS - 3 * KEYS}
    assert {key: record.scheduled_time for key, record in found.items()} == {
        f"k{i}": last[i % 2] + i for i in range(ASKED)
    }
    assert {record.error for record in found.values()} == {None}
    late = run_record("k7", outcome="failed", fate=None)
    store.history.record([late])
    assert store.history.last_runs(["k7"])["k7"].owner == late.owner


@pytest.mark.postgresql
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_plan_that_postgresql_makes_for_any_key_uses_the_index_too(database):
    """PostgreSQL reuses such a plan; it would read all records if it took each key for frequent."""
    store = make_store(database.url, timeout=60)
    store.init()
    statement, _ = store.history._sql.select_last_runs(["rare"])

    def plan(connection):
        columns = {"type": "'t'", "scheduled_time": "i", "attempt": "1", "fence": "1"}
        ends = {"owner": "'w.' || CAST(i AS VARCHAR)", "ended": "i", "outcome": "'finished'"}
        for key, rows in ("rare", 1), ("frequent", RECORDS):
            values = {"key": f"'{key}'", **columns, **ends}
            fill(connection, "postgresql", rows, table="psched_runs", **values)
        connection.exec_driver_sql("ANALYZE psched_runs")
        connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
        prepared = str(statement).replace(":key0", "$1")
        connection.exec_driver_sql(f"PREPARE last (text) AS {prepared}")
        rows = connection.exec_driver_sql("EXPLAIN (ANALYZE) EXECUTE last ('rare')")
        return "\n".join(row[0] for row in rows)

    found = store._connector.run(plan)
    store.disconnect()
    assert "using psched_runs_key" in found, found
    assert "Rows Removed" not in found, found
