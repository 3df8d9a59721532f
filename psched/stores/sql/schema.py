"""The schema of the table: its version, checked on every connection, and how it is made.

The table is a documented interface: `id` is its only column without a default, so that a row
inserted by plain SQL is run, and so that an upgrade is always the same act: add the columns
and indexes that are missing. A companion table ``<table>_info`` keeps the schema's version.
"""

from collections.abc import Sequence
from functools import lru_cache

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError

from psched.base.errors import MissingTableError, SchemaError, StoreError
from psched.stores.sql import raw_execute
from psched.stores.sql.dialects import Dialect, Fault

VERSION = 2
"""Raised with every change of the table; a newer table than this is refused."""

_UNFINISHED = -1
"""In the version's place while `Schema.init` has not come to its end."""


@lru_cache
def _written_in(table: str) -> TextClause:
    return text(f"SELECT value FROM {table} WHERE name = 'schema_version'")  # noqa: S608  # quoted


class Schema:
    """The table under one name, in one database.

    Args:
        name: the setting ``table``.
        dialect: the database's ways.
    """

    def __init__(self, name: str, dialect: Dialect) -> None:
        self._name = name
        self._dialect = dialect

    def check(self, connection: Connection) -> None:
        """Make sure that the table is one we can work on: one short read.

        Raises:
            SchemaError: it is missing, older or newer; the text names the mend.
        """
        name = self._name
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
        # What only works on the table need not know how it is made.
        from psched.stores.sql.tables import complete, info_table, schedules_table  # noqa: PLC0415

        info = info_table(self._name)
        both = (schedules_table(self._name), info)
        done = [line for table in both for line in complete(connection, table)]
        if found != VERSION:
            # Deleted and written anew, so that two at once end in the same state.
            connection.execute(info.delete().where(info.c.name == "schema_version"))
            try:
                connection.execute(info.insert().values(name="schema_version", value=str(VERSION)))
            except DBAPIError as error:
                if self._dialect.classify(error.orig or error) is not Fault.DUPLICATE:
                    raise
        return done

    def _version(self, connection: Connection) -> int | None:
        table = connection.dialect.identifier_preparer.quote(f"{self._name}_info")
        try:
            found = raw_execute.rows(connection, _written_in(table), {})
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
                f"the table {self._name!r} has the schema version {value!r}, which is none;"
                f" correct it in {self._name}_info"
            ) from None

    def _refuse_newer(self, found: int) -> None:
        if found > VERSION:
            raise SchemaError(
                f"the table {self._name!r} has schema version {found}, this psched knows"
                f" {VERSION}; upgrade psched on this host"
            )
