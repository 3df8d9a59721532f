"""SQLAlchemy's definitions of the two tables, and the code that creates and upgrades them.

Only `psched init`, migrations and checks of their result need this module. Workers do not load it,
because it imports SQLAlchemy's modules for every kind of database, which take memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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

from psched.core.hosts import LONGEST_LANE
from psched.stores.sql.selecting import AT_REST

KEY_LENGTH = 255
TYPE_LENGTH = 255
CRON_LENGTH = 256
TIMEZONE_LENGTH = 64
OWNER_LENGTH = 64
TOKEN_LENGTH = 96
STATUS_LENGTH = 16
LABEL_LENGTH = 255

OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mariadb_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mariadb_charset": "utf8mb4",
    "sqlite_strict": True,
}
"""The options of the table of schedules, and of every table beside it."""


_LEASED = text("leased_by IS NOT NULL")
_HELD = text("held_by IS NOT NULL")
_ENDED = text("retain_until IS NOT NULL")

# The index of statuses has no waiting rows, so that claims and settlements do not change it. It has
# those that do not run, so that they can be found.
_AT_REST = text(AT_REST)

_LABELLED = text("label IS NOT NULL")


class _Any(UserDefinedType[bytes | str]):
    """SQLite's type ANY, because clients write payloads either as text or as blobs."""

    cache_ok = True

    def get_col_spec(self, **_kw: object) -> str:
        return "ANY"


def plain_text(length: int, *, binary: bool = False) -> TypeEngine[str]:
    """A text of at most ``length`` characters, whatever the database."""
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
        # The type is not BYTEA, which would interpret a backslash in a user's JSON as an escape.
        .with_variant(Text(), "postgresql")
    )


def key_text(length: int) -> TypeEngine[str]:
    """A text that is compared byte by byte, so that 'A' differs from 'a'."""
    return plain_text(length, binary=True)


def seconds() -> TypeEngine[int]:
    """A whole number of up to eight bytes, such as a time."""
    return BigInteger().with_variant(Integer(), "sqlite")


def _long_text() -> TypeEngine[str]:
    return Text().with_variant(mysql.TEXT(charset="utf8mb4"), "mysql", "mariadb")


def schedules_table(name: str) -> Table:
    """Define the table of the schedules; its name is the setting ``table``."""
    return Table(
        name,
        MetaData(),
        Column("id", key_text(KEY_LENGTH), primary_key=True, nullable=False),
        Column("type", plain_text(TYPE_LENGTH), nullable=False, server_default=text("'default'")),
        Column("data", _payload()),
        Column("cron", plain_text(CRON_LENGTH)),
        Column("timezone", plain_text(TIMEZONE_LENGTH)),
        Column("delay", seconds(), nullable=False, server_default=text("0")),
        Column("next_time", seconds()),
        # The default makes a row that is inserted by plain SQL due at once. NULL means that the row
        # has no next run.
        Column("next_run_time", seconds(), server_default=text("0")),
        Column("leased_by", key_text(OWNER_LENGTH)),
        Column("fence", seconds(), nullable=False, server_default=text("0")),
        Column("settled_by", key_text(TOKEN_LENGTH)),
        Column("attempt", seconds(), nullable=False, server_default=text("0")),
        Column(
            "status", plain_text(STATUS_LENGTH), nullable=False, server_default=text("'waiting'")
        ),
        Column("reason", _long_text()),
        Column("version", seconds(), nullable=False, server_default=text("1")),
        Column("created_at", seconds()),
        Column("alive_time", seconds()),
        Column("options", _payload()),
        # The time from which psched deletes a finished row; NULL means never.
        Column("retain_until", seconds()),
        # When the current lease was claimed; NULL if there is none.
        Column("claimed_at", seconds()),
        # While an extra run of the schedule is going on: whose, and until when nobody claims the
        # row, like the end of a lease.
        Column("held_by", key_text(OWNER_LENGTH)),
        Column("held_until", seconds()),
        # If ``next_time`` is NULL: the schedule goes on after this time.
        Column("decided_until", seconds()),
        # When a client set ``next_time`` during a lease that has not been settled since.
        Column("moved_at", seconds()),
        # See `psched.core.local_times`.
        Column("local_time", plain_text(48)),
        Column("reason_code", plain_text(32)),
        # While the status is ``paused``, or ``stopping`` and then ``paused``.
        Column("paused_at", seconds()),
        Column("paused_until", seconds()),
        Column("pause_note", _long_text()),
        # The owner of the schedule.
        Column("label", key_text(LABEL_LENGTH)),
        # Which hosts run it, see `psched.core.hosts`; NULL means every host.
        Column("lane", key_text(LONGEST_LANE)),
        # The Unix user as whom its program runs; NULL means that of the service.
        Column("run_as", plain_text(LONGEST_LANE)),
        # Reserved for features to come, so that they need no upgrade; nothing reads them yet.
        Column("tenant", key_text(LONGEST_LANE)),
        Column("priority", seconds()),
        Column("concurrency_key", key_text(LONGEST_LANE)),
        Column("checkpoint", _long_text()),
        # The index contains the key, because a million rows can have the same time, and the next
        # page of a listing must be able to begin after any of these rows.
        Index(f"{name}_due", "next_run_time", "id"),
        # Claims read the rows of their own lanes only, because a host that is gone can leave very
        # many due rows behind.
        Index(f"{name}_lane", "lane", "next_run_time", "id"),
        # This index finds the rows that an owner holds. If the database supports partial indexes,
        # the index contains only leased rows.
        Index(f"{name}_owner", "leased_by", sqlite_where=_LEASED, postgresql_where=_LEASED),
        Index(f"{name}_held", "held_by", sqlite_where=_HELD, postgresql_where=_HELD),
        Index(f"{name}_retain", "retain_until", sqlite_where=_ENDED, postgresql_where=_ENDED),
        # The indexes for listings contain no column that changes with every claim or settlement.
        Index(f"{name}_type", "type", "id"),
        Index(f"{name}_label", "label", "id", sqlite_where=_LABELLED, postgresql_where=_LABELLED),
        Index(f"{name}_status", "status", "id", sqlite_where=_AT_REST, postgresql_where=_AT_REST),
        **OPTIONS,
    )


def info_table(name: str) -> Table:
    """Define the table that stores the version of the schema of the schedules' table."""
    return Table(
        f"{name}_info",
        MetaData(),
        Column("name", key_text(KEY_LENGTH), primary_key=True, nullable=False),
        Column("value", plain_text(KEY_LENGTH), nullable=False),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
        sqlite_strict=True,
    )


@dataclass(frozen=True, slots=True)
class Change:
    """One statement of `psched init`.

    Attributes:
        kind: a key of `psched.stores.sql.dialects.dialect.Dialect.locks`.
        table: the table that it creates or changes.
        part: the name of the column or index that it adds; None if it adds none.
        statement: the statement.
        line: what it does, for people; empty if another change says it.
    """

    kind: str
    table: Table
    part: str | None
    statement: Executable
    line: str

    def sql(self, connection: Connection) -> str:
        """The statement as text."""
        compiled: Any = self.statement
        literal = compiled.compile(dialect=connection.dialect, compile_kwargs=_LITERAL)
        # Some drivers want each % twice, but people who execute the statement do not.
        return " ".join(str(literal).replace("%%", "%").split())

    def apply(self, connection: Connection) -> None:
        """Execute the statement; do nothing if another process has done so in the meantime."""
        # If two processes run `init` at once, the second gets an error, because MySQL has no IF NOT
        # EXISTS for columns and indexes, and PostgreSQL's does not protect from another session.
        try:
            connection.execute(self.statement)
        except DBAPIError:
            if self.kind in {"row", "rows"}:
                raise
            if self.part is None:
                exists = inspect(connection).has_table(self.table.name)
            else:
                exists = self.part in parts_of(connection, self.table)
            if exists == (self.kind == "drop"):
                raise


_LITERAL = {"literal_binds": True}


def missing(
    connection: Connection, table: Table, before: Sequence[Change] = ()
) -> Iterator[Change]:
    """Yield what creates the table, or adds its missing columns and indexes.

    The changes ``before`` come first, but need not have been made yet.
    """
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    if not inspect(connection).has_table(table.name):
        line = f"created table {table.name}"
        yield Change("table", table, None, CreateTable(table, if_not_exists=True), line)
        for index in indexes:
            yield Change("new index", table, str(index.name), CreateIndex(index), "")
        return
    name = connection.dialect.identifier_preparer.format_table(table)
    there = parts_of(connection, table) - {each.part for each in before if each.kind == "drop"}
    there |= {each.part for each in before if each.kind != "drop"}
    for column in table.columns:
        if column.name not in there:
            spec = CreateColumn(column).compile(dialect=connection.dialect)
            statement = text(f"ALTER TABLE {name} ADD COLUMN {spec}")
            line = f"added column {table.name}.{column.name}"
            yield Change("column", table, column.name, statement, line)
    for index in indexes:
        if index.name not in there:
            line = f"added index {index.name}"
            yield Change("index", table, str(index.name), CreateIndex(index), line)


def parts_of(connection: Connection, table: Table) -> set[str | None]:
    """The names of the columns and indexes that the table has."""
    inspector = inspect(connection)
    columns, indexes = inspector.get_columns(table.name), inspector.get_indexes(table.name)
    return {column["name"] for column in columns} | {index["name"] for index in indexes}
