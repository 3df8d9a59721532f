"""Creates PerfectSched's table as PerfectSched itself creates it, and psched's tables beside it."""

from collections.abc import Sequence

from sqlalchemy import (
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    inspect,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable

from psched.stores.sql.dialects import Dialect
from psched.stores.sql.tables import missing
from psched.stores.sql.tables_beside import history_tables, output_table


def create_table(connection: Connection, name: str, dialect: Dialect) -> Sequence[str]:
    """Create the table and its index if they are missing; return a line for each."""
    for statement in dialect.init_session:
        connection.execute(text(statement))
    table = _table(name)
    if not inspect(connection).has_table(name):
        connection.execute(CreateTable(table, if_not_exists=True))
        done = [f"created table {name}"]
    else:
        done = []
    (index,) = table.indexes
    if not _has_index_on_timeout(connection, name):
        try:
            connection.execute(CreateIndex(index))
        except DBAPIError:
            # The error is ignored if another process has created the index meanwhile.
            if not _has_index_on_timeout(connection, name):
                raise
        else:
            done.append(f"created index {index.name}")
    return done


def create_others(connection: Connection, name: str) -> list[str]:
    """Create or complete the tables beside that of the schedules; return a line for each change."""
    done = []
    for table in (*history_tables(name), output_table(name)):
        for change in missing(connection, table):
            change.apply(connection)
            if change.line:
                done.append(change.line)
    return done


def _table(name: str) -> Table:
    blob = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    return Table(
        name,
        MetaData(),
        Column("id", String(255), primary_key=True, nullable=False),
        Column("timeout", Integer, nullable=False),
        Column("next_time", Integer, nullable=False),
        Column("cron", String(128), nullable=False),
        Column("delay", Integer, nullable=False),
        Column("data", blob, nullable=False),
        Column("timezone", String(255)),
        Index(f"index_{name}_on_timeout", "timeout"),
    )


def _has_index_on_timeout(connection: Connection, name: str) -> bool:
    indexes = inspect(connection).get_indexes(name)
    return any(index["column_names"][:1] == ["timeout"] for index in indexes)
