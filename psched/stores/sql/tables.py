"""SQLAlchemy's definitions of the two tables, and the code that creates and upgrades them.

Only `psched init`, migrations and checks of their result need this module. Workers do not load it,
because it imports SQLAlchemy's modules for every kind of database, which take memory.
"""

from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Executable,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable
from sqlalchemy.types import TypeEngine, UserDefinedType

KEY_LENGTH = 255
TYPE_LENGTH = 255
CRON_LENGTH = 256
TIMEZONE_LENGTH = 64
OWNER_LENGTH = 64
TOKEN_LENGTH = 96
STATUS_LENGTH = 16


_LEASED = text("owner IS NOT NULL")
_ENDED = text("retain_until IS NOT NULL")


class _Any(UserDefinedType[bytes | str]):
    """SQLite's type ANY, because some clients write payloads as text and others as blobs."""

    cache_ok = True

    def get_col_spec(self, **_kw: object) -> str:
        return "ANY"


def _text(length: int, *, binary: bool = False) -> TypeEngine[str]:
    # A binary column is compared byte by byte, so that 'A' differs from 'a'.
    on_mysql = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin" if binary else None)
    on_postgresql = String(length, collation="C" if binary else None)
    return (
        String(length)
        .with_variant(Text(), "sqlite")
        .with_variant(on_mysql, "mysql", "mariadb")
        .with_variant(on_postgresql, "postgresql")
    )


def _payload() -> TypeEngine[bytes]:
    blob: TypeEngine[bytes] = LargeBinary()
    return (
        blob.with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
        .with_variant(_Any(), "sqlite")
        # Not BYTEA, which would interpret a backslash in a user's JSON as an escape.
        .with_variant(Text(), "postgresql")
    )


def _seconds() -> TypeEngine[int]:
    return BigInteger().with_variant(Integer(), "sqlite")


def _long_text() -> TypeEngine[str]:
    return Text().with_variant(mysql.TEXT(charset="utf8mb4"), "mysql", "mariadb")


def schedules_table(name: str) -> Table:
    """The table of the schedules, whose name is the setting ``table``."""
    return Table(
        name,
        MetaData(),
        Column("id", _text(KEY_LENGTH, binary=True), primary_key=True, nullable=False),
        Column("type", _text(TYPE_LENGTH), nullable=False, server_default=text("'default'")),
        Column("data", _payload()),
        Column("cron", _text(CRON_LENGTH)),
        Column("timezone", _text(TIMEZONE_LENGTH)),
        Column("delay", _seconds(), nullable=False, server_default=text("0")),
        Column("next_time", _seconds()),
        # The default makes a row inserted by plain SQL due at once. NULL: the row has no next run.
        Column("next_run_time", _seconds(), server_default=text("0")),
        Column("owner", _text(OWNER_LENGTH, binary=True)),
        Column("fence", _seconds(), nullable=False, server_default=text("0")),
        Column("settled_by", _text(TOKEN_LENGTH, binary=True)),
        Column("attempt", _seconds(), nullable=False, server_default=text("0")),
        Column("status", _text(STATUS_LENGTH), nullable=False, server_default=text("'waiting'")),
        Column("reason", _long_text()),
        Column("version", _seconds(), nullable=False, server_default=text("1")),
        Column("created_at", _seconds()),
        Column("alive_time", _seconds()),
        Column("options", _payload()),
        # The time from which a finished row may be deleted; NULL: the row is kept.
        Column("retain_until", _seconds()),
        # The index includes the key, because a million rows may share one time, and a listing must
        # continue after any of them.
        Index(f"{name}_due", "next_run_time", "id"),
        # This index finds the rows that an owner holds. Where the database supports partial
        # indexes, it contains leased rows only.
        Index(f"{name}_owner", "owner", sqlite_where=_LEASED, postgresql_where=_LEASED),
        Index(f"{name}_retain", "retain_until", sqlite_where=_ENDED, postgresql_where=_ENDED),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_charset="utf8mb4",
        sqlite_strict=True,
    )


def info_table(name: str) -> Table:
    """The companion of the schedules' table; it stores the schema's version."""
    return Table(
        f"{name}_info",
        MetaData(),
        Column("name", _text(KEY_LENGTH, binary=True), primary_key=True, nullable=False),
        Column("value", _text(KEY_LENGTH), nullable=False),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
        sqlite_strict=True,
    )


def complete(connection: Connection, table: Table) -> Sequence[str]:
    """Create the table or add its missing columns and indexes; return a line for each change."""
    if not inspect(connection).has_table(table.name):
        try:
            connection.execute(CreateTable(table, if_not_exists=True))
        except DBAPIError:
            # If two processes create the table at once, PostgreSQL refuses the second. That error
            # is ignored, because the table exists.
            if not inspect(connection).has_table(table.name):
                raise
        for index in table.indexes:
            _add(connection, table, index.name, CreateIndex(index))
        return [f"created table {table.name}"]
    done = []
    name = connection.dialect.identifier_preparer.format_table(table)
    there = _parts(connection, table)
    for column in table.columns:
        if column.name not in there:
            spec = CreateColumn(column).compile(dialect=connection.dialect)
            statement = text(f"ALTER TABLE {name} ADD COLUMN {spec}")
            _add(connection, table, column.name, statement)
            done.append(f"added column {table.name}.{column.name}")
    for index in table.indexes:
        if index.name not in there:
            _add(connection, table, index.name, CreateIndex(index))
            done.append(f"added index {index.name}")
    return done


def _parts(connection: Connection, table: Table) -> set[str | None]:
    """The names of the columns and indexes that the table has."""
    inspector = inspect(connection)
    columns, indexes = inspector.get_columns(table.name), inspector.get_indexes(table.name)
    return {column["name"] for column in columns} | {index["name"] for index in indexes}


def _add(connection: Connection, table: Table, part: str | None, statement: Executable) -> None:
    """Add a column or an index."""
    # If two processes run `init` at once, the second gets an error, because MySQL has no IF NOT
    # EXISTS for columns and indexes. That error is ignored if the part exists.
    try:
        connection.execute(statement)
    except DBAPIError:
        if part not in _parts(connection, table):
            raise
