"""Databases that have psched's tables from the beginning.

Most tests begin with ``init()``, which costs more than many of them. So the tables are made once
for each server, and copied.
"""

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.servers import MariaDB, PostgreSQL, Redis, SqlServer
from support.stores import store_factory

INITIALISED_BY = frozenset({"backend_factory", "each_service", "open_store", "schedules"})
"""Fixtures that create the tables: a test that has one finds them there."""


def init(url: str) -> None:
    """Create the tables."""
    with store_factory(url) as open_store:
        open_store().init()


def fill_sqlite(path: Path) -> str:
    """Make a file of SQLite that has the tables; return its url."""
    path.write_bytes(_sqlite_file())
    return f"sqlite:///{path}"


def create_database(server: SqlServer | Redis) -> str:
    """Create a database that has the tables; return its name."""
    if isinstance(server, Redis):  # there is little to copy
        name = server.create_database()
        init(server.url(name))
        return name
    if isinstance(server, PostgreSQL):
        return server.create_database(template=_postgresql_template(server))
    assert isinstance(server, MariaDB)
    name = server.create_database()
    server.execute(_mariadb_statements(server), database=name)
    return name


@functools.cache
def _sqlite_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "psched.db")
        init(f"sqlite:///{path}")
        return path.read_bytes()


@functools.cache
def _postgresql_template(server: PostgreSQL) -> str:
    name = server.create_database()
    init(server.url(name))
    return name


@functools.cache
def _mariadb_statements(server: MariaDB) -> Sequence[str]:
    name = server.create_database()
    init(server.url(name))
    tables = [str(table) for (table,) in server.query("SHOW TABLES", database=name)]
    created = [server.query(f"SHOW CREATE TABLE {table}", database=name) for table in tables]
    # The versions of the tables are rows.
    copies = [f"INSERT INTO {table} SELECT * FROM {name}.{table}" for table in tables]  # noqa: S608
    return [*(str(statement) for [(_, statement)] in created), *copies]
