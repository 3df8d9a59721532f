"""Tables with very many rows, filled by the database itself, and what a statement costs there."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, TextClause, text

from support.stores import store_factory

OPERATIONS = 100
"""Operations of SQLite's virtual machine per row, roughly; a row that is skipped costs ten."""

_SCANNED = {
    "sqlite": re.compile(r"\bSCAN psched\b"),
    "mariadb": re.compile(r"'psched\w*', '(ALL|index)'"),
    "postgresql": re.compile(r"Seq Scan|Bitmap"),
}
_SORTED = {
    "sqlite": re.compile(r"TEMP B-TREE"),
    "mariadb": re.compile(r"filesort|temporary"),
    "postgresql": re.compile(r"Sort"),
}


KINDS = {"sqlite": (), "mariadb": pytest.mark.mariadb, "postgresql": pytest.mark.postgresql}
"""The kinds of database, each with the marks of its tests."""


@contextmanager
def big_store(
    kind: str,
    request: pytest.FixtureRequest,
    folders: pytest.TempPathFactory,
    gather: Callable[[Connection, Any], object],
) -> Iterator[Any]:
    """Yield a store whose tables were filled by a test; its database goes afterwards.

    Args:
        kind: which database it is, one of `KINDS`.
        request: the fixture's request, which finds the server.
        folders: makes the folder for SQLite's file.
        gather: fills the tables; called with a connection and the store.
    """
    server = None if kind == "sqlite" else request.getfixturevalue(f"{kind}_server")
    if server is None:
        url = f"sqlite:///{folders.mktemp('big')}/psched.db"
    else:
        name = server.create_database()
        url = server.url(name)
    # On a busy machine, one statement that fills a table takes longer than a minute.
    with store_factory(url, timeout=600) as open_store:
        store: Any = open_store()
        store.init()
        store._connector.run(lambda connection: gather(connection, store))
        yield store
    if server is not None:
        server.drop_database(name)


def fill(
    connection: Connection, kind: str, rows: int, *, table: str = "psched", **columns: str
) -> None:
    """Insert many rows in one statement.

    Args:
        connection: to the database.
        kind: which database it is.
        rows: how many rows.
        table: the table's name.
        columns: SQL for each column, in which ``i`` is the row's number, from 0 on.
    """
    if kind == "mariadb":
        connection.exec_driver_sql(f"SET SESSION max_recursive_iterations = {rows}")
    counted = f"SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {rows}"  # noqa: S608
    numbers = f"WITH RECURSIVE n (i) AS ({counted})"
    insert = f"INSERT INTO {table} ({', '.join(columns)})"
    select = f"SELECT {', '.join(columns.values())} FROM n"  # noqa: S608
    parts = (insert, numbers, select) if kind == "mariadb" else (numbers, insert, select)
    connection.execute(text(" ".join(parts).replace(":", r"\:")))


def number(kind: str, expression: str) -> str:
    """SQL for the digits of a number."""
    return f"CAST({expression} AS {'CHAR' if kind == 'mariadb' else 'VARCHAR'})"


def joined(kind: str, *texts: str) -> str:
    """SQL for texts one after the other."""
    return f"CONCAT({', '.join(texts)})" if kind == "mariadb" else " || ".join(texts)


def take_statistics(connection: Connection, kind: str) -> None:
    """Have the database compute the planner's statistics, and never update them."""
    if kind == "mariadb":
        connection.exec_driver_sql("ALTER TABLE psched STATS_AUTO_RECALC = 0")
        connection.exec_driver_sql("ANALYZE TABLE psched").close()
    elif kind == "postgresql":
        connection.exec_driver_sql("ALTER TABLE psched SET (autovacuum_enabled = off)")
        connection.exec_driver_sql("ANALYZE psched")


class Cost:
    """What a statement costs: its plan, and the rows that it reads when run. The run is undone.

    Args:
        connection: a connection with the session's settings that psched makes.
        kind: which database.
        statement: one statement.
        values: its bound values.

    Attributes:
        plan: the planner's answer, as text.
        scans: whether it reads the whole table.
        sorts: whether it sorts rows.
        examined: how many rows it has read, roughly.
    """

    def __init__(
        self, connection: Connection, kind: str, statement: TextClause, values: Mapping[str, Any]
    ) -> None:
        self._connection = connection
        self._statement = statement
        self._values = values
        connection.exec_driver_sql("BEGIN")
        try:
            measures = {
                "sqlite": self._on_sqlite,
                "mariadb": self._on_mariadb,
                "postgresql": self._on_postgresql,
            }
            self.plan, self.examined = measures[kind]()
        finally:
            connection.exec_driver_sql("ROLLBACK")
        self.scans = bool(_SCANNED[kind].search(self.plan))
        self.sorts = bool(_SORTED[kind].search(self.plan))

    def _on_sqlite(self) -> tuple[str, int]:
        plan = "\n".join(row[-1] for row in self._run("EXPLAIN QUERY PLAN "))
        driver, count = self._connection.connection.driver_connection, 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        driver.set_progress_handler(step, OPERATIONS)
        self._run()
        driver.set_progress_handler(None, 0)
        return plan, count

    def _on_mariadb(self) -> tuple[str, int]:
        plan = "\n".join(str(tuple(row)) for row in self._run("EXPLAIN ") if row[1] != "INSERT")
        self._connection.exec_driver_sql("FLUSH STATUS")
        self._connection.exec_driver_sql("BEGIN")  # FLUSH has ended the transaction
        self._run()
        found = self._connection.execute(text("SHOW SESSION STATUS LIKE 'Handler%'"))
        counts = {name: int(number) for name, number in found}
        read = sum(number for name, number in counts.items() if name.startswith("Handler_read"))
        return plan, read + counts["Handler_icp_attempts"] - counts["Handler_icp_match"]

    def _on_postgresql(self) -> tuple[str, int]:
        [[plan]] = self._run("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) ")
        return json.dumps(plan, indent=1), _examined(plan[0]["Plan"])

    def _run(self, prefix: str = "") -> list[Any]:
        expanding = [p for p in self._statement._bindparams.values() if p.expanding]
        clause = text(prefix + self._statement.text).bindparams(*expanding)
        result = self._connection.execute(clause, self._values)
        return list(result) if result.returns_rows else []


def _examined(node: Mapping[str, Any]) -> int:
    """The rows that PostgreSQL has read from tables and indexes."""
    rows = sum(_examined(child) for child in node.get("Plans", ()))
    if node["Node Type"].endswith("Scan") and ("Relation Name" in node or "Index Name" in node):
        removed = sum(count for name, count in node.items() if name.startswith("Rows Removed"))
        rows += (node["Actual Rows"] + removed) * node["Actual Loops"]
    return int(rows)
