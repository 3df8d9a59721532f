"""Claims from a million due rows, against the same statements sent by the driver alone."""

import gc
import time
from typing import Any

import harness
from fleet import once
from harness import LEASE, Sample, make_store
from psched.stores.sql import raw_execute

BATCH = 100
"""Rows that each claim takes."""

Statements = list[tuple[Any, Any]]


def main() -> None:
    """Measure, and print JSON."""
    parser = harness.options(__doc__, runs=31)
    parser.add_argument("--rows", type=int, help="that are due; default: 1000000; short, 1000")
    parser.add_argument("--claims", type=int, help="of a round; default: 100; with --short, 5")
    given = harness.parsed(parser)
    given.rows = harness.choose(given, 1_000_000, 1000, given.rows)
    given.claims = harness.choose(given, 100, 5, given.claims)
    if given.rows < (wanted := given.rounds * given.claims * BATCH):
        parser.error(f"--rows: so many rounds and claims want {wanted} at least")
    harness.report("due", given, lambda kind, url, _folder: measured(given, kind, url))


def measured(given: Any, kind: str, url: str) -> dict[str, Any]:  # noqa: ANN401
    """The figures on one database: its two tables have the same rows, and so the same claims."""
    stores = {}
    for table in "due_ours", "due_bare":
        harness.load(kind, url, given.rows, table, due=True)
        stores[table] = make_store(url, table=table, timeout=600)
        stores[table].now()
    sent: Statements = []
    gc.freeze()  # as a master does before it forks its workers
    samples = harness.rounds(
        given.rounds,
        {
            "claims": lambda: claimed(stores["due_ours"], given.claims, sent),
            "driver": lambda: replayed(stores["due_bare"], sent, given.claims * BATCH),
        },
    )
    counts = {held(store) for store in stores.values()}
    assert counts == {given.rounds * given.claims * BATCH}, counts
    found: dict[str, Any] = {name: harness.medians(these) for name, these in samples.items()}
    found["claims"]["of_driver"] = harness.ratio(
        samples["claims"], "rows_per_second", samples["driver"], "rows_per_second"
    )
    for store in stores.values():
        store.disconnect()
    return found


def claimed(store: Any, claims: int, sent: Statements) -> Sample:  # noqa: ANN401
    """Claims by psched; what it sends for them is kept."""
    sent.clear()

    unwatched = raw_execute.rows, raw_execute.count

    def keep(send: Any) -> Any:  # noqa: ANN401
        def kept(connection: Any, statement: Any, values: Any) -> Any:  # noqa: ANN401
            sent.append((statement, values))
            return send(connection, statement, values)

        return kept

    nonce = f"due{time.monotonic_ns()}"
    keys = []
    raw_execute.rows, raw_execute.count = map(keep, unwatched)
    try:
        begun = time.perf_counter()
        for count in range(claims):
            rows = store.claim(f"{nonce}.{count}", limit=BATCH, horizon=1, **LEASE).rows
            keys += [row.key for row in rows]
        took = time.perf_counter() - begun
    finally:
        raw_execute.rows, raw_execute.count = unwatched
    assert len(keys) == claims * BATCH
    once(keys, {*keys})
    return {"rows_per_second": len(keys) / took, "rows": len(keys)}


def replayed(store: Any, sent: Statements, rows: int) -> Sample:  # noqa: ANN401
    """The same statements, with the same values, on the other table."""
    connection = store._connector._connected()
    statements = []
    for statement, values in sent:
        compiled = raw_execute._compile(statement, connection.dialect)
        bare = compiled.text.replace("due_ours", "due_bare")
        statements.append((bare, compiled.bind(values)))
    cursor = connection.connection.cursor()
    begun = time.perf_counter()
    for text, values in statements:
        cursor.execute(text, values)
        if cursor.description is not None:
            cursor.fetchall()
    took = time.perf_counter() - begun
    cursor.close()
    return {"rows_per_second": rows / took, "rows": rows}


def held(store: Any) -> int:  # noqa: ANN401
    """How many rows are leased."""
    query = f"SELECT count(*) FROM {store._table} WHERE leased_by IS NOT NULL"  # noqa: S608
    return int(store._connector.read(lambda c: c.exec_driver_sql(query).scalar_one()))


if __name__ == "__main__":
    main()
