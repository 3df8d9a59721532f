"""The table: its columns, how it is made, and how an older one is brought up to date.

The table is a documented interface: `id` is its only column without a default, so that a row
inserted by plain SQL is run, and so that an upgrade is always the same act: add the columns
and indexes that are missing. A companion table ``<table>_info`` keeps the schema's version.
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
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable
from sqlalchemy.types import TypeEngine, UserDefinedType

from psched.backends import sending
from psched.backends.dialects import Dialect, Fault
from psched.errors import MissingTableError, SchemaError, StoreError

VERSION = 2
"""Raised with every change of the table; a newer table than this is refused."""

_UNFINISHED = -1
"""In the version's place while `Schema.init` has not come to its end."""

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
    """SQLite's ANY: a payload arrives as text from one client and as a blob from another."""

    cache_ok = True

    def get_col_spec(self, **_kw: object) -> str:
        return "ANY"


def _text(length: int, *, binary: bool = False) -> TypeEngine[str]:
    # A key is compared byte by byte: 'A' is not 'a'.
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
        # BYTEA would take a backslash in somebody's JSON for an escape.
        .with_variant(Text(), "postgresql")
    )


def _seconds() -> TypeEngine[int]:
    return BigInteger().with_variant(Integer(), "sqlite")


def _long_text() -> TypeEngine[str]:
    return Text().with_variant(mysql.TEXT(charset="utf8mb4"), "mysql", "mariadb")


def schedules_table(name: str) -> Table:
    """The schedules' table under the name that the setting ``table`` gives it."""
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
        # A row inserted without it is due at once; NULL is a row at rest.
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
        # When a row that has ended may be removed.
        Column("retain_until", _seconds()),
        # With the key, for the pages of a listing: a million rows may have the same time.
        Index(f"{name}_due", "next_run_time", "id"),
        # What an owner holds; where an index can leave rows out, it has only the leased ones.
        Index(f"{name}_owner", "owner", sqlite_where=_LEASED, postgresql_where=_LEASED),
        Index(f"{name}_retain", "retain_until", sqlite_where=_ENDED, postgresql_where=_ENDED),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_charset="utf8mb4",
        sqlite_strict=True,
    )


def _info_table(name: str) -> Table:
    return Table(
        f"{name}_info",
        MetaData(),
        Column("name", _text(KEY_LENGTH, binary=True), primary_key=True, nullable=False),
        Column("value", _text(KEY_LENGTH), nullable=False),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
        sqlite_strict=True,
    )


class Schema:
    """The table under one name, in one database.

    Args:
        name: the setting ``table``.
        dialect: the database's ways.
    """

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.table = schedules_table(name)
        self._info = _info_table(name)
        self._written = select(self._info.c.value).where(self._info.c.name == "schema_version")
        self._dialect = dialect

    def check(self, connection: Connection) -> None:
        """Make sure that the table is one we can work on: one short read.

        Raises:
            SchemaError: it is missing, older or newer; the text names the mend.
        """
        name = self.table.name
        found = self._version(connection)
        if found is None:
            raise MissingTableError(f"the table {name!r} does not exist; run `psched init`")
        if found == _UNFINISHED:
            raise SchemaError(
                f"the table {name!r} is not complete: `psched init` did not come to its end;"
                " run it again, and mend what it names"
            )
        if found < VERSION:
            raise SchemaError(
                f"the table {name!r} has schema version {found}, this psched works on {VERSION};"
                " run `psched init`, which upgrades it in place"
            )
        self._refuse_newer(found)

    def init(self, connection: Connection) -> Sequence[str]:
        """Create what is missing, upgrade what is older, leave the rest; may be repeated.

        Returns:
            What was done, one line each, for people; nothing if all was there.

        Raises:
            SchemaError: the table is from a newer psched.
        """
        for statement in self._dialect.init_session:
            connection.execute(text(statement))
        if (query := self._dialect.unsuitable) is not None:
            for problem in connection.execute(text(query)).scalars():
                raise StoreError(f"the database cannot be used: {problem}")
        found = self._version(connection)
        self._refuse_newer(found or 0)
        done = [line for table in (self.table, self._info) for line in _complete(connection, table)]
        if found != VERSION:
            # Deleted and written anew, so that two at once end in the same state.
            connection.execute(self._info.delete().where(self._info.c.name == "schema_version"))
            try:
                connection.execute(
                    self._info.insert().values(name="schema_version", value=str(VERSION))
                )
            except DBAPIError as error:
                if self._dialect.classify(error.orig or error) is not Fault.DUPLICATE:
                    raise
        return done

    def _version(self, connection: Connection) -> int | None:
        try:
            found = sending.rows(connection, self._written, {})
        except DBAPIError as error:
            if self._dialect.classify(error.orig or error) is Fault.SCHEMA:
                return None
            raise
        if not found:
            return _UNFINISHED
        [(value,)] = found
        try:
            return int(value)
        except ValueError:
            raise SchemaError(
                f"the table {self.table.name!r} has the schema version {value!r}, which is none;"
                f" correct it in {self._info.name}"
            ) from None

    def _refuse_newer(self, found: int) -> None:
        if found > VERSION:
            raise SchemaError(
                f"the table {self.table.name!r} has schema version {found}, this psched knows"
                f" {VERSION}; upgrade psched on this host"
            )


def _complete(connection: Connection, table: Table) -> list[str]:
    """Create the table, or add to it the columns and indexes that it lacks."""
    if not inspect(connection).has_table(table.name):
        try:
            connection.execute(CreateTable(table, if_not_exists=True))
        except DBAPIError:
            # PostgreSQL lets two look at once whether it exists.
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
    # Not IF NOT EXISTS: MySQL does not have it. Of two `init` at once, one finds it made.
    try:
        connection.execute(statement)
    except DBAPIError:
        if part not in _parts(connection, table):
            raise
